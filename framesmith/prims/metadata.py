"""Evaluation of an operator's decomposition on metadata: each prim returns its spec, and no graph is built."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.prims.builder import Builder, Value
from framesmith.prims.core import DTYPES, Prim, Spec, size_of
from framesmith.prims.registry import rules
from framesmith.prims.rules import FAMILIES
from framesmith.util.errors import VerifyError

assert FAMILIES  # importing the package fills the table


class _Metadata(Builder):
    """A builder without a graph. Of the replaced call, only its arguments are known."""

    rounding = False
    source = None

    def __init__(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise VerifyError(f"{name} is known in a graph only")

    def emit(self, prim: Prim, args: tuple[Any, ...]) -> Any:
        spec = prim.meta(*args)
        if prim.outputs > 1:
            return tuple([Value(self, None, one) for one in spec])  # type: ignore[arg-type]
        return Value(self, None, spec, prim.name, args)  # type: ignore[arg-type]

    emit_new = emit


_BUILDER = _Metadata()


def results_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the spec of an operator's result on tensors, real or fake: a tuple of them (None: not computed) for
    several; NotImplemented if its rule does not support these arguments. Arguments that eager refuses may be
    accepted."""
    try:
        out = rules[func](_BUILDER, *map(_value, args), **{name: _value(arg) for name, arg in kwargs.items()})
    except (VerifyError, ArithmeticError, LookupError):
        return NotImplemented
    return tuple([one and one.spec for one in out]) if isinstance(out, tuple) else getattr(out, "spec", out)


def _value(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        if arg.dtype not in DTYPES:
            raise VerifyError(f"no prim takes {arg.dtype}")
        spec = Spec(tuple(map(size_of, arg.shape)), arg.dtype, arg.device)
        return Value(_BUILDER, None, spec)  # type: ignore[arg-type]
    if isinstance(arg, (tuple, list)):
        return tuple(map(_value, arg))
    return size_of(arg) if isinstance(arg, torch.SymInt) else arg
