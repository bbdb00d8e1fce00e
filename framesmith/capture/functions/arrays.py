"""NumPy arrays under capture: conversions from and to tensors, elements, and functions of arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from framesmith.util.errors import Unsupported
from framesmith.util.tables import entry

from .. import trackers as t
from ..registry import BUILTIN_KINDS, METHODS, OUTSIDE, calls, method, named
from ..sources import Applied, Source
from ..trackers import Args, Kwargs
from ..trackers.arrays import DTYPES
from .ufuncs import cast, dtype_of, of_tensor, run, ufunc


# --- in and out -------------------------------------------------------------------------------------------------------
def as_input(x: Any) -> torch.Tensor | None:
    """Return the tensor over an array's memory; None if there can be none."""
    numpy = sys.modules["numpy"]
    if (type(x) is not numpy.ndarray or str(x.dtype) not in DTYPES or not x.dtype.isnative or not x.flags.writeable
        or not x.flags.aligned):
        return None
    if any(n < 0 or n % x.itemsize for n in x.strides):
        return None
    return torch.from_numpy(x)


def _outside(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    """Return the tracker of an array of the caller's: its memory is an input of the graph."""
    with tracer.recorder.off():
        tensor = as_input(value) if source is not None else None
    if tensor is None or source is None:
        raise Unsupported(f"NumPy array {source}", hint="convert it to a tensor before the call")
    tracer.guard(source, "type", type(value))
    return t.Array(tracer.input(tensor, Applied(source, as_input, "{}")), value=value, source=source)


def array_of(tracer: Any, x: t.Tensor) -> t.Array:
    """`x.numpy()`: an array over the tensor's memory."""
    fake = x.fake
    if type(x) is not t.Tensor or tracer.wants_grad(
        fake) or fake.is_conj() or fake.is_neg() or fake.device.type != "cpu" \
            or x.pyclass is not torch.Tensor or str(fake.dtype)[6:] not in DTYPES:
        raise Unsupported(f"NumPy array of {x.describe()}")
    return t.Array(x)


@method(t.Tensor, "numpy")
def _numpy(tracer: Any, x: t.Tensor, force: t.Tracker = t.FALSE) -> t.Tracker:
    return array_of(tracer, x)


@calls(torch.from_numpy)
def _from_numpy(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if not isinstance(args[0], t.Array) or args[0].scalar:
        raise Unsupported("torch.from_numpy of an object that is not an array")
    return tracer.torch_call(torch.Tensor.detach, [args[0].tensor], {})


def made_of_array(tracer: Any, fn: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """`torch.tensor` copies an array; `torch.as_tensor` and `torch.asarray` share its memory if they can."""
    array = args[0]
    assert isinstance(array, t.Array)
    if array.scalar or len(args) > 1 or kwargs.keys() - {"dtype"}:
        raise Unsupported(f"{fn.__name__} of a {array.describe()} with these arguments")
    dtype = kwargs["dtype"].real(tracer) if "dtype" in kwargs else None
    if dtype not in (None, array.tensor.fake.dtype):
        return tracer.torch_call(torch.Tensor.to, [array.tensor, tracer.made(dtype)], {})
    return tracer.torch_call(torch.clone if fn is torch.tensor else torch.Tensor.detach, [array.tensor], {})


def as_array(tracer: Any, x: t.Tracker, dtype: t.Tracker | None = None, copy: bool = False) -> t.Array:
    """`numpy.asarray(x, dtype)`, or `numpy.array`."""
    if isinstance(x, t.Tensor):
        x = array_of(tracer, x)
    if not isinstance(x, t.Array):
        raise Unsupported("a NumPy array of Python data")
    wanted = x.dtype if dtype is None or dtype is t.NONE else numpy_dtype(tracer, dtype)
    if wanted != x.dtype:
        return t.Array(cast(tracer, x.tensor, wanted))
    return t.Array(run(tracer, torch.clone, x.tensor)) if copy or x.scalar else x


def numpy_dtype(tracer: Any, x: t.Tracker) -> Any:
    return tracer.folded(sys.modules["numpy"].dtype, (x.real(tracer),))


# --- elements ---------------------------------------------------------------------------------------------------------
def _key(tracer: Any, x: t.Array, key: t.Tracker) -> tuple[t.Tracker, bool]:
    """Return the subscript for torch, and whether it is advanced indexing."""
    parts = key.open(tracer) if isinstance(key, t.Tuple) else [key]
    arrays = [p for p in parts if isinstance(p, t.Array)]
    plain = [p.real(tracer) for p in parts if isinstance(p, (t.Const, t.Slice))]
    if len(plain) + len(arrays) != len(parts) or any(isinstance(p, bool) for p in plain) or any(str(a.dtype) == "bool"
                                                                                                for a in arrays):
        raise Unsupported(f"this key of a {x.describe()}")
    ints = [p for p in plain if type(p) is int or isinstance(p, sys.modules["numpy"].integer)]
    if arrays and ints or any(type(p) is slice and (p.step or 1) < 0 for p in plain):
        raise Unsupported("numbers mixed with arrays, or a negative step, in a subscript of a NumPy array")
    new = [cast(tracer, p.tensor,
                "int64") if isinstance(p, t.Array) else t.Const(int(p.real(tracer))) if p.real(tracer) in ints
           and p.constant else p
           for p in parts]
    return (t.Tuple(list(new)) if isinstance(key, t.Tuple) else new[0]), bool(arrays)


@method(t.Array, "__getitem__")
def _item(tracer: Any, x: t.Array, key: t.Tracker) -> t.Tracker:
    at, picks = _key(tracer, x, key)
    out = run(tracer, torch.Tensor.__getitem__, x.tensor, at)
    if out.fake.dim() or picks or Ellipsis in [p.real(tracer)
                                               for p in (at.items if isinstance(at, t.Tuple) else [at]) if p.constant]:
        return t.Array(out)
    return of_tensor(tracer, run(tracer, torch.clone, out))


@method(t.Array, "__setitem__")
def _set_item(tracer: Any, x: t.Array, key: t.Tracker, value: t.Tracker) -> t.Tracker:
    if x.scalar:
        raise Unsupported("a NumPy scalar does not change")
    at, _ = _key(tracer, x, key)
    if isinstance(value, t.Const) and dtype_of(value) is not complex:
        cell = sys.modules["numpy"].zeros((), x.dtype)
        tracer.folded(cell.__setitem__, ((), value.value))
        new: t.Tracker = t.Const(cell.item())
    elif isinstance(value, t.Array):
        new = cast(tracer, value.tensor, x.dtype)
    else:
        raise Unsupported("an assignment to elements of a NumPy array")
    run(tracer, torch.Tensor.__setitem__, x.tensor, at, new)
    return t.NONE


# --- reductions -------------------------------------------------------------------------------------------------------
def _reduction(name: str, fn: Callable[..., Any], inner: Callable[[Any, Any], Any], several: bool = True) -> None:
    """Make the row of a reduction. `inner(dtype, result dtype)`: the dtype to compute in; `several`: torch's function
    takes many dimensions, or none for all."""

    def row(tracer: Any, x: t.Array, axis: t.Tracker = t.NONE, keepdims: t.Tracker = t.FALSE,
            **more: t.Tracker) -> t.Tracker:
        numpy = sys.modules["numpy"]
        kept, ddof = keepdims.truth(tracer), more.pop("ddof", None)
        if (more or ddof is not None and name not in ("std", "var") or not x.tensor.fake.numel()
            or str(x.dtype).startswith("complex")):
            raise Unsupported(f"NumPy's {name} with these arguments")
        dtype = getattr(numpy, name)(numpy.ones(1, x.dtype)).dtype
        source = cast(tracer, x.tensor, inner(x.dtype, dtype))
        dims = axis.real(tracer)
        if dims is None:
            if kept:
                raise Unsupported(f"NumPy's {name} of all with keepdims")
            source, dims = run(tracer, torch.Tensor.reshape, source, t.Const(-1)), 0
        if isinstance(dims, tuple) and not several:
            raise Unsupported(f"NumPy's {name} over several axes")
        options = {} if ddof is None and name not in ("std", "var") else {"correction": ddof or t.Const(0)}
        return of_tensor(tracer, cast(tracer, run(tracer, fn, source, tracer.made(dims), keepdim=t.boolean(kept),
                                                  **options), dtype))

    METHODS[t.Array][name] = row
    FUNCTIONS[name] = row


FUNCTIONS: dict[str, Callable[..., t.Tracker]] = {}
"""Functions of the module `numpy` that take an array first -> handler(tracer, array, *args, **kwargs)"""

_fn: Any
for _name, _fn in (("sum", torch.sum), ("mean", torch.mean), ("std", torch.std), ("var", torch.var)):
    _reduction(_name, _fn, lambda own, result: result)
_reduction("prod", torch.prod, lambda own, result: result, False)
for _name, _fn in (("max", torch.amax), ("min", torch.amin), ("any", torch.any), ("all", torch.all)):
    _reduction(_name, _fn, lambda own, result: own)
for _name, _fn in (("argmax", torch.argmax), ("argmin", torch.argmin)):
    _reduction(_name, _fn, lambda own, result: "uint8" if str(own) == "bool" else own, False)
FUNCTIONS["amax"], FUNCTIONS["amin"] = FUNCTIONS["max"], FUNCTIONS["min"]


# --- shape and copies -------------------------------------------------------------------------------------------------
def both(*names: str) -> Callable[[Callable[..., t.Tracker]], Callable[..., t.Tracker]]:
    """Register a method that is a function of the module, too."""

    def register(fn: Callable[..., t.Tracker]) -> Callable[..., t.Tracker]:
        for name in names:
            METHODS[t.Array][name] = FUNCTIONS[name] = fn
        return fn

    return register


@both("reshape")
def _reshape(tracer: Any, x: t.Array, *shape: t.Tracker) -> t.Tracker:
    """Reshape: a view where NumPy returns one, of elements that are in order in memory."""
    if not x.tensor.fake.is_contiguous():
        raise Unsupported("reshape of a NumPy array that does not lie in order")
    sizes = shape[0] if len(shape) == 1 else t.Tuple(list(shape))
    return t.Array(run(tracer, torch.Tensor.reshape, x.tensor, sizes))


@both("transpose")
def _transpose(tracer: Any, x: t.Array, *axes: t.Tracker) -> t.Tracker:
    order = [a.real(tracer) for a in axes]
    order = list(order[0]) if len(order) == 1 and isinstance(order[0], (tuple, list)) else order
    order = list(range(len(x.shape)))[::-1] if order in ([], [None]) else order
    return t.Array(run(tracer, torch.Tensor.permute, x.tensor, tracer.made(tuple(order))))


@both("ravel")
def _ravel(tracer: Any, x: t.Array) -> t.Tracker:
    return _reshape(tracer, x, t.Const(-1))


@method(t.Array, "flatten")
def _flatten(tracer: Any, x: t.Array) -> t.Tracker:
    return t.Array(run(tracer, torch.clone, run(tracer, torch.Tensor.reshape, x.tensor, t.Const(-1))))


@both("squeeze")
def _squeeze(tracer: Any, x: t.Array, axis: t.Tracker = t.NONE) -> t.Tracker:
    if axis is t.NONE:
        return t.Array(run(tracer, torch.squeeze, x.tensor))
    if type(axis.real(tracer)) is not int or x.shape[axis.real(tracer)] != 1:
        raise Unsupported("squeeze of a NumPy array along this axis")
    return t.Array(run(tracer, torch.squeeze, x.tensor, axis))


@both("copy")
def _copy(tracer: Any, x: t.Array) -> t.Tracker:
    """Copy in row-major order, the default of both the method and the function."""
    if not x.tensor.fake.is_contiguous():
        raise Unsupported("copy of a NumPy array that does not lie in order")
    return t.Array(run(tracer, torch.clone, x.tensor))


@method(t.Array, "astype")
def _astype(tracer: Any, x: t.Array, dtype: t.Tracker) -> t.Tracker:
    out = cast(tracer, x.tensor, numpy_dtype(tracer, dtype))
    return t.Array(run(tracer, torch.clone, out) if out is x.tensor else out, scalar=x.scalar)


@both("cumsum")
def _cumsum(tracer: Any, x: t.Array, axis: t.Tracker = t.NONE) -> t.Tracker:
    numpy = sys.modules["numpy"]
    source = cast(tracer, x.tensor, numpy.cumsum(numpy.ones(1, x.dtype)).dtype)
    if axis is t.NONE:
        source, axis = run(tracer, torch.Tensor.reshape, source, t.Const(-1)), t.Const(0)
    return t.Array(run(tracer, torch.cumsum, source, axis))


@both("clip")
def _clip(tracer: Any, x: t.Array, low: t.Tracker, high: t.Tracker) -> t.Tracker:
    numpy, out = sys.modules["numpy"], x
    for fn, limit in ((numpy.maximum, low), (numpy.minimum, high)):
        out = out if limit is t.NONE else ufunc(tracer, fn, [out, limit], {})  # type: ignore[assignment]
    return out


@both("dot")
def _dot(tracer: Any, x: t.Array, y: t.Tracker) -> t.Tracker:
    if not isinstance(y, t.Array) or not 0 < len(y.shape) < 3:
        raise Unsupported("numpy.dot of these arrays")
    return ufunc(tracer, sys.modules["numpy"].matmul, [x, y], {})


# --- functions of the module ------------------------------------------------------------------------------------------
_FIRST = t.Const(0)


def _of_several(name: str, fn: Callable[..., Any]) -> None:
    def row(tracer: Any, arrays: t.Tracker, axis: t.Tracker = _FIRST) -> t.Tracker:
        parts = arrays.items_list(tracer)
        if not parts or not all(isinstance(p, t.Array) for p in parts):
            raise Unsupported(f"numpy.{name} of what are no arrays")
        dtype = sys.modules["numpy"].result_type(*[p.dtype for p in parts])  # type: ignore[attr-defined]
        return t.Array(run(tracer, fn, t.List([cast(tracer, p.tensor, dtype)  # type: ignore[attr-defined]
                                               for p in parts]),
                           axis))

    FUNCTIONS[name] = row


_of_several("concatenate", torch.cat)
_of_several("stack", torch.stack)


@entry(FUNCTIONS, "where")
def _where(tracer: Any, condition: t.Tracker, *choices: t.Tracker) -> t.Tracker:
    numpy = sys.modules["numpy"]
    if not isinstance(condition, t.Array) or len(choices) != 2 or not any(isinstance(x, t.Array) for x in choices):
        raise Unsupported("numpy.where of these arguments")
    dtype = numpy.result_type(*[x.dtype if isinstance(x, t.Array) else x.real(tracer) for x in choices])
    parts = [cast(tracer, x.tensor, dtype) if isinstance(x, t.Array)
             else run(tracer, torch.scalar_tensor, t.Const(numpy.asarray(x.real(tracer), dtype).item()),
                      dtype=tracer.made(getattr(torch, str(dtype))))
             for x in choices]
    return t.Array(run(tracer, torch.where, cast(tracer, condition.tensor, "bool"), *parts))


def _same(name: str, fn: Callable[..., Any]) -> None:
    """Make the row of a function that torch has as well, with the same arguments after the array."""

    def row(tracer: Any, x: t.Tracker, *args: t.Tracker) -> t.Tracker:
        if not isinstance(x, t.Array):
            raise Unsupported(f"numpy.{name} of an object that is not an array")
        return t.Array(run(tracer, fn, x.tensor, *args))

    FUNCTIONS[name] = row


_same("expand_dims", torch.unsqueeze)
_same("swapaxes", torch.transpose)
_same("zeros_like", torch.zeros_like)
_same("ones_like", torch.ones_like)
METHODS[t.Array]["swapaxes"] = FUNCTIONS["swapaxes"]


# --- numbers ----------------------------------------------------------------------------------------------------------
_PURE = frozenset((
    "prod", "sum", "mean", "std", "var", "max", "min", "amax", "amin", "clip", "round", "around", "argmax", "argmin",
    "dot",
    "isclose", "allclose", "median", "ptp", "floor_divide", "any", "all", "ceil", "floor", "log2", "cumsum", "cumprod",
    "size",
    "ndim", "iscomplexobj", "isrealobj", "real", "imag",
))
"""Functions of numbers with scalar results, which are folded."""


def _ufunc_of_numbers(tracer: Any, fn: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return _scalar(tracer, fn, tracer.folded(fn, tuple([a.real(tracer) for a in args]),
                                             {k: v.real(tracer) for k, v in kwargs.items()}))


def _dispatched_number(tracer: Any, fn: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if fn.__name__ not in _PURE or any(isinstance(a, t.Tensor) for a in [*args, *kwargs.values()]):
        raise Unsupported(f"NumPy function {fn.__name__}", hint="use torch's function")
    return _ufunc_of_numbers(tracer, fn, args, kwargs)


def _scalar(tracer: Any, fn: Any, value: Any) -> t.Tracker:
    if type(value).__name__ == "ndarray":
        raise Unsupported(f"NumPy function {fn.__name__} gives an array", hint="use torch's function")
    return tracer.made(value)


# --- dispatch ---------------------------------------------------------------------------------------------------------
def _followed(tracer: Any, args: Args) -> bool:
    return any(isinstance(a, t.Array) or isinstance(a, t.Sequence) and _followed(tracer, a.open(tracer)) for a in args)


def _ufunc(tracer: Any, fn: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    given = [array_of(tracer, a) if isinstance(a, t.Tensor) else a for a in args]
    if not _followed(tracer, given):
        return _ufunc_of_numbers(tracer, fn, args, kwargs)
    out = ufunc(tracer, fn, given, kwargs)
    if not any(isinstance(a, t.Tensor) for a in args):
        return out
    assert isinstance(out, t.Array)  # a tensor among the arguments makes the result one, and has no bool
    return cast(tracer, out.tensor, "uint8") if str(out.dtype) == "bool" else out.tensor


def _dispatched(tracer: Any, fn: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    row = FUNCTIONS.get(fn.__name__)
    if not _followed(tracer, [*args, *kwargs.values()]):
        return _dispatched_number(tracer, fn, args, kwargs)
    if row is None or fn.__module__ != "numpy":
        raise Unsupported(f"NumPy function {fn.__name__}", hint="use torch's function")
    try:
        return row(tracer, *args, **kwargs)
    except TypeError as e:
        raise Unsupported(f"NumPy function {fn.__name__} with these arguments") from e


def _made(fn: Any, copy: bool | None) -> None:
    """Make the row of a constructor. `copy`: whether `fn(array)` is another array; None: it takes numbers only."""

    @calls(fn)
    def row(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        if copy is not None and args and isinstance(args[0], (t.Array, t.Tensor)):
            if len(args) > 2 or kwargs.keys() - {"dtype"}:
                raise Unsupported(f"NumPy's {fn.__name__} with these arguments")
            return as_array(tracer, args[0], args[1] if len(args) > 1 else kwargs.get("dtype"), copy)
        array = tracer.folded(fn, tuple([a.real(tracer) for a in args]), {k: v.real(tracer) for k, v in kwargs.items()})
        if str(array.dtype) not in DTYPES or array.nbytes > _LARGEST:
            raise Unsupported(f"NumPy's {fn.__name__}: a large array, or one of Python objects")
        with tracer.recorder.off():
            tensor = torch.from_numpy(array.copy())
        return t.Array(tracer.torch_call(_constant, [t.Const(tracer.recorder), t.Const(tensor)], {}))


def _constant(recorder: Any, value: torch.Tensor) -> torch.Tensor:
    return torch.clone(recorder.constant(value))


_LARGEST = 1 << 20
for _name, _copies in (("asarray", False), ("ascontiguousarray", False), ("array", True), ("zeros", None),
                       ("ones", None), ("full", None),
                       ("arange", None), ("linspace", None), ("eye", None)):
    if (_fn := named(f"numpy.{_name}")) is not None:
        _made(_fn, _copies)
BUILTIN_KINDS["ufunc"] = _ufunc
BUILTIN_KINDS["_ArrayFunctionDispatcher"] = _dispatched
OUTSIDE["numpy.ndarray"] = _outside
