"""Metadata on symbolic sizes of operators without a row: by their decomposition, by a formula for the sizes alone, or
by the shape function that a library has registered with its operator. Each is held against what the operator's kernel
answers at the present sizes, which also says how the results lie in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._library.simple_registry import singleton

from framesmith.fake.layout import elementwise_strides, is_dense, strides_like
from framesmith.fake.size_rules import SIZES
from framesmith.fake.tensor import FakeTensor, metadata_of, new_fake
from framesmith.prims.metadata import results_of
from framesmith.prims.registry import rules
from framesmith.symbolic.node import expr_of, symint

Infer = Callable[[Any, tuple, dict], Any]


class _Shapes:
    """A dispatch mode under which operators give the metadata of their results, and nothing is recorded."""

    def __init__(self, infer: Infer) -> None:
        self._infer = infer

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return self._infer(func, args, kwargs or {})


def infer_sizes(infer: Infer, func: Any, args: tuple, kwargs: dict, present: Any, sizes: dict[str, int],
                env: Any) -> Any:
    """The results as fakes of symbolic sizes, `present` being those at `sizes` of the symbols; NotImplemented where
    nothing says their sizes."""
    several = isinstance(present, tuple)
    if (shape := SIZES.get(func)) is not None:
        found = shape(*args, **kwargs)
    elif func.namespace != "aten":
        found = _by_shape_function(infer, func, args, kwargs)
    else:
        found = results_of(func, args, kwargs) if func in rules else NotImplemented
    rows = tuple(found) if several and isinstance(found, (tuple, list)) else (found,)
    now = present if several else (present,)
    if found is NotImplemented or len(rows) != len(now):
        return NotImplemented
    operands = [a for a in args if isinstance(a, FakeTensor)] if torch.Tag.pointwise in func.tags else []
    made = [_like(one, said, operands, sizes, env) for one, said in zip(now, rows, strict=True)]
    if any(one is NotImplemented for one in made):
        return NotImplemented
    return tuple(made) if several else made[0]


def _by_shape_function(infer: Infer, func: Any, args: tuple, kwargs: dict) -> Any:
    entry = singleton.find(func.name())
    kernel = entry.fake_impl.kernel
    if kernel is None:
        return NotImplemented
    depth = torch._C._len_torch_dispatch_stack()
    try:
        torch._C._push_on_torch_dispatch_stack(_Shapes(infer))  # type: ignore[arg-type]
        return kernel(*map(_copy, args), **{name: _copy(arg) for name, arg in kwargs.items()})
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError):  # it asks for data, or for a context
        return NotImplemented
    finally:
        while torch._C._len_torch_dispatch_stack() > depth:
            torch._C._pop_torch_dispatch_stack(None)


def _copy(value: Any) -> Any:
    return metadata_of(value, False) if isinstance(value, FakeTensor) else value


def _like(now: Any, said: Any, operands: list[FakeTensor], sizes: dict[str, int], env: Any) -> Any:
    """The fake of the sizes that are said, which lies as its element-wise `operands` have it or, where it has none, as
    the one of the present sizes; NotImplemented if these are no case of them."""
    if not isinstance(now, FakeTensor):
        return now if said == now else NotImplemented
    shape = said if isinstance(said, tuple) else tuple(said.shape)
    at_hand = _evaluated(shape, sizes)
    like = getattr(said, "dtype", now.dtype) is now.dtype and not now.storage_offset()
    if not like or at_hand != tuple(now.shape) or not is_dense(at_hand, now.stride()):
        return NotImplemented
    shape = tuple([n if isinstance(n, torch.SymInt) else symint(n, env) for n in shape])
    strides = elementwise_strides(shape, operands) if operands else ()
    if _evaluated(strides, sizes) != now.stride():
        strides = strides_like(now, shape)
    return new_fake(shape, strides, now.dtype, now.device)


def _evaluated(numbers: tuple, sizes: dict[str, int]) -> tuple[int, ...]:
    return tuple([n if type(n) is int else expr_of(n).evaluate(sizes) for n in numbers])
