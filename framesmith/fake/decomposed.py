"""Metadata rows of operators whose decomposition gives shape and dtype; results are contiguous, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from framesmith.fake.infer import DOUBTED, RULES, Rule
from framesmith.fake.tensor import FakeTensor, contiguous_strides, new_fake
from framesmith.prims.core import Spec
from framesmith.prims.metadata import results_of
from framesmith.prims.registry import overload
from framesmith.symbolic.node import env_of, symint


def by_decomposition(names: str, fits: Callable[..., bool] | None = None) -> None:
    """Register rows for operators whose results are contiguous, optionally only for arguments that satisfy a
    condition."""
    for name in names.split():
        func = overload(name)
        RULES[func] = _row(func, fits)


def _row(func: Any, fits: Callable[..., bool] | None) -> Rule:
    names = [argument.name for argument in func._schema.arguments]
    at = names.index("dim") if names[0] == "self" and "dim" in names else len(names)

    def row(*args: Any, **kwargs: Any) -> Any:
        if not _has_dims(args[0], args[at] if at < len(args) else None):
            return DOUBTED
        if fits is not None and not fits(*args):
            return NotImplemented
        out = results_of(func, args, kwargs)
        return tuple([_fake(one, args) for one in out]) if isinstance(out, tuple) else _fake(out, args)

    return row


_MOST_DIMS = 64
"""The highest rank for which eager's reductions accept a list of dimensions."""


def _has_dims(x: Any, dims: Any) -> bool:
    """Return whether each of the dimensions is one of the tensor's, and none is named twice."""
    rank = x.dim() if type(x) is FakeTensor else 0
    dims = () if dims is None else (dims,) if isinstance(dims, int) else dims
    count = max(rank, 1)
    return rank <= _MOST_DIMS and len({d % count for d in dims if -count <= d < count}) == len(dims)


def _fake(spec: Any, args: tuple) -> Any:
    if not isinstance(spec, Spec):
        return spec
    shape = spec.shape
    if any(type(n) is not int for n in shape):
        sizes = [n for arg in args for n in getattr(arg, "shape", arg if isinstance(arg, (list, tuple)) else (arg,))]
        env = env_of(*sizes)
        assert env is not None, "symbolic sizes come from an argument's"
        shape = tuple([symint(n, env) for n in shape])
    return new_fake(shape, contiguous_strides(shape), spec.dtype, spec.device)
