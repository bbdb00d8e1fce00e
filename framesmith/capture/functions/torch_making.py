"""Functions that create or copy tensors and need handlers: legacy constructors, copy and deepcopy, generators."""

from __future__ import annotations

import functools
from typing import Any

import torch

from framesmith.fake.layout import is_of_data
from framesmith.symbolic.layout import expected, is_dense
from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..polyfills.functions import evenly_spaced, pad_sequence
from ..registry import calls, refuses
from ..symbolic_arithmetic import is_symbolic
from ..trackers import Args, Kwargs
from .arrays import made_of_array

_LEGACY = {
    torch.FloatTensor: torch.float32, torch.DoubleTensor: torch.float64, torch.HalfTensor: torch.float16,
    torch.BFloat16Tensor: torch.bfloat16,
    torch.LongTensor: torch.int64, torch.IntTensor: torch.int32, torch.ShortTensor: torch.int16,
    torch.CharTensor: torch.int8,
    torch.ByteTensor: torch.uint8, torch.BoolTensor: torch.bool,
}


def _legacy(cls: Any, dtype: torch.dtype | None) -> None:
    @calls(cls)
    def row(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        """Make an uninitialised tensor of the given sizes, or a tensor of the numbers of a sequence."""
        options = {"dtype": tracer.made(dtype or torch.get_default_dtype())}
        if kwargs or any(isinstance(a, t.Tensor) for a in args):
            raise Unsupported("a legacy constructor of tensors from a tensor", hint="use torch.tensor, or x.to()")
        if len(args) == 1 and isinstance(args[0], t.Sequence) and args[0].pytype() is not torch.Size:
            return tracer.torch_call(torch.tensor, args, options)
        if not args:
            args = [t.Const(0)]
        return tracer.torch_call(torch.empty, args, options)


_legacy(torch.Tensor, None)
for _cls, _dtype in _LEGACY.items():
    _legacy(_cls, _dtype)


@calls(torch.linspace)
def _evenly_spaced(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Make evenly spaced numbers, as many as a size; torch accepts only a constant."""
    if len(args) == 3 and type(args[2]) is t.Sym and kwargs.keys() <= {"dtype", "device"} and not any(
            isinstance(a, t.Tensor) for a in args):
        return tracer.made(evenly_spaced).call(tracer, args, kwargs)  # type: ignore[no-any-return]
    return tracer.torch_function(torch.linspace, args, kwargs)  # type: ignore[no-any-return]


@calls(torch._C._nn.pad_sequence)
def _pad_sequence(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Pad tensors to the longest; torch accepts only lengths that no data tell."""
    given = args[0].items_list(tracer) if args else []
    fakes = [x.fake for x in given if isinstance(x, t.Tensor) and not tracer.asks(x)]
    alike = len(fakes) == len(given) and len({(x.dtype, x.dim()) for x in fakes}) == 1
    if alike and any(x.dim() and is_of_data(x.shape[0]) for x in fakes):
        return tracer.made(pad_sequence).call(tracer, args, kwargs)  # type: ignore[no-any-return]
    return tracer.torch_function(torch._C._nn.pad_sequence, args, kwargs)  # type: ignore[no-any-return]


def _made_of_numbers(fn: Any) -> None:
    @calls(fn)
    def row(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        """Make a tensor of an array, or of nested sequences of numbers and zero-dimensional tensors, which are stacked
        in their promoted dtype."""
        if args and isinstance(args[0], t.Array):
            return made_of_array(tracer, fn, args, kwargs)
        if len(args) != 1 or kwargs.keys() - {"dtype", "device"}:
            return tracer.torch_call(fn, args, kwargs)  # type: ignore[no-any-return]
        if _varies(args[0]) and args[0].pytype() in _NATURAL:
            natural = tracer.made(_NATURAL[args[0].pytype()]())
            return tracer.torch_call(torch.scalar_tensor, args, {"dtype": natural, **kwargs})  # type: ignore[no-any-return]
        if type(args[0]) is t.FilledList:
            return _of_filled(tracer, args[0], kwargs)
        if not isinstance(args[0], t.Sequence):
            return tracer.torch_call(fn, args, kwargs)  # type: ignore[no-any-return]
        leaves: list[t.Tracker] = []
        shape = _shape(tracer, args[0], leaves)
        tensors = [x for x in leaves if isinstance(x, t.Tensor)]
        if not tensors and not any(map(_varies, leaves)):
            return tracer.torch_call(fn, args, kwargs)  # type: ignore[no-any-return]
        if shape is None or any(x.fake.dim() for x in tensors):
            raise Unsupported(f"torch.{fn.__name__} of nested tensors with dimensions", hint="use torch.stack")
        return _stacked(tracer, leaves, shape, kwargs)


for _fn in (torch.tensor, torch.as_tensor, torch.asarray):
    _made_of_numbers(_fn)
_NATURAL = {int: lambda: torch.int64, bool: lambda: torch.bool, float: torch.get_default_dtype}


def _of_filled(tracer: Any, x: t.FilledList, kwargs: Kwargs) -> t.Tracker:
    """Make a tensor of the numbers that loops on data have put into a list; of none it is one of the default dtype."""
    numbers = x.numbers(tracer, *_NATURAL)
    kind = x.items[0].kind  # type: ignore[attr-defined]
    if "dtype" not in kwargs:
        expected(x.size(tracer) >= 1)
    how = {"dtype": tracer.made(_NATURAL[kind]()), **kwargs}
    return tracer.torch_call(torch.Tensor.to, [tracer.torch_call(torch.clone, [numbers], {})], how)  # type: ignore[no-any-return]


def _varies(x: t.Tracker) -> bool:
    """Return whether a number is one of the graph's: of sizes, of a tensor's data, or an input."""
    return is_symbolic(x) or type(x) in (t.Data, t.Sym)


def _stacked(tracer: Any, leaves: list[t.Tracker], shape: tuple[int, ...], kwargs: Kwargs) -> t.Tracker:
    dtype = kwargs["dtype"].real(tracer) if "dtype" in kwargs else _promoted(tracer, leaves)
    parts = [x if isinstance(x, t.Tensor) else tracer.torch_call(torch.scalar_tensor, [x],
                                                                 {"dtype": tracer.made(dtype)}) for x in leaves]
    cast = [tracer.torch_call(torch.Tensor.to, [x, tracer.made(dtype)], {}) for x in parts]
    stacked = tracer.torch_call(torch.Tensor.reshape,
                                [tracer.torch_call(torch.stack, [t.List(cast)], {}), tracer.made(shape)], {})
    return tracer.torch_call(torch.Tensor.to, [stacked],  # type: ignore[no-any-return]
                             {"device": kwargs["device"]}) if "device" in kwargs else stacked


def _shape(tracer: Any, x: t.Tracker, leaves: list[t.Tracker]) -> tuple[int, ...] | None:
    """Return the shape of nested sequences, whose leaves are collected; None if it is ragged."""
    if not isinstance(x, t.Sequence):
        leaves.append(x)
        return ()
    shapes = {_shape(tracer, y, leaves) for y in x.open(tracer)}
    inner = shapes.pop() if len(shapes) == 1 else None
    return None if inner is None else (x.size(tracer), *inner)


def _promoted(tracer: Any, leaves: list[t.Tracker]) -> torch.dtype:
    dtypes = [x.fake.dtype if isinstance(x, t.Tensor)
              else _NATURAL[x.pytype()]() if x.pytype() in _NATURAL else torch.tensor(x.real(tracer)).dtype
              for x in leaves]
    return functools.reduce(torch.promote_types, dtypes)


def same_memory(tracer: Any, x: t.Tensor) -> t.Tracker:
    """copy.copy: another tensor over the same memory, with the same attributes."""
    return _with_attributes(tracer, x, tracer.torch_call(torch.Tensor.detach, [_plain(tracer, x)], {}))


def other_memory(tracer: Any, x: t.Tensor) -> t.Tracker:
    """copy.deepcopy: the whole storage is copied, including elements that the tensor does not show."""
    base = x.fake._alias
    if base.parent is not None or not is_dense(x.fake.shape, x.fake.stride()):
        raise Unsupported("deepcopy of a view, which copies all that it views")
    return _with_attributes(tracer, x, tracer.torch_call(torch.clone, [_plain(tracer, x)], {}))


def _plain(tracer: Any, x: t.Tensor) -> t.Tensor:
    if x.pyclass is not torch.Tensor or tracer.wants_grad(x.fake):
        raise Unsupported(f"a copy of {x.describe()}")
    return x


def _with_attributes(tracer: Any, x: t.Tensor, made: t.Tracker) -> t.Tracker:
    if x.attrs or x.value is not None and x.value.__dict__:
        raise Unsupported("a copy of a tensor with attributes of its own")
    return made


refuses(Unsupported, "a torch.Generator made in the frame", torch.Generator, hint="make it outside and hand it over")
