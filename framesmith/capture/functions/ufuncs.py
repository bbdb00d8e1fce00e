"""NumPy's universal functions on tracked arrays: the loop that NumPy would choose, computed by torch's operator."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..registry import METHODS
from ..trackers import Args, Kwargs
from ..trackers.arrays import DTYPES

_FLOATS = frozenset(("float16", "float32", "float64", "complex64", "complex128"))

UFUNCS: dict[str, Callable[..., Any]] = {
    "add": torch.add, "subtract": torch.sub, "multiply": torch.mul, "divide": torch.true_divide,
    "maximum": torch.maximum,
    "minimum": torch.minimum, "fmax": torch.fmax, "fmin": torch.fmin, "arctan2": torch.atan2, "power": torch.pow,
    "remainder": torch.remainder, "fmod": torch.fmod, "floor_divide": torch.floor_divide, "hypot": torch.hypot,
    "copysign": torch.copysign,
    "logaddexp": torch.logaddexp, "greater": torch.gt, "greater_equal": torch.ge, "less": torch.lt,
    "less_equal": torch.le,
    "equal": torch.eq, "not_equal": torch.ne, "logical_and": torch.logical_and, "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor, "logical_not": torch.logical_not, "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor, "invert": torch.bitwise_not, "negative": torch.neg, "positive": torch.clone,
    "absolute": torch.abs,
    "fabs": torch.abs, "sqrt": torch.sqrt, "square": torch.square, "exp": torch.exp, "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log, "log2": torch.log2, "log10": torch.log10, "log1p": torch.log1p, "sin": torch.sin,
    "cos": torch.cos, "tan": torch.tan,
    "arcsin": torch.asin, "arccos": torch.acos, "arctan": torch.atan, "sinh": torch.sinh, "cosh": torch.cosh,
    "tanh": torch.tanh,
    "arcsinh": torch.asinh, "arccosh": torch.acosh, "arctanh": torch.atanh, "floor": torch.floor, "ceil": torch.ceil,
    "trunc": torch.trunc,
    "rint": torch.round, "isnan": torch.isnan, "isinf": torch.isinf, "isfinite": torch.isfinite,
    "signbit": torch.signbit, "reciprocal": torch.reciprocal, "deg2rad": torch.deg2rad, "rad2deg": torch.rad2deg,
    "matmul": torch.matmul,
}
_OF_FLOATS = frozenset(("power", "remainder", "fmod", "floor_divide", "reciprocal", "floor", "ceil", "trunc", "rint"))
"""Functions whose integer loops torch does not have: division by zero and negative powers are no errors in NumPy, or
torch has no operator."""
_OF_NUMBERS = frozenset(("copysign", "signbit", "arctan2", "hypot"))
"""Functions that differ for complex numbers or bools."""


def run(tracer: Any, fn: Callable[..., Any], *args: t.Tracker, **kwargs: t.Tracker) -> t.Tensor:
    """Call torch. Where it raises, NumPy would raise too, with another message."""
    try:
        return tracer.torch_call(fn, list(args), kwargs)  # type: ignore[no-any-return]
    except t.CapturedError as e:
        raise Unsupported(f"an operation on a NumPy array that raises {e.tracker.pytype().__name__}") from None


def of_tensor(tracer: Any, x: t.Tensor) -> t.Array:
    """Return a computed result: a scalar if it has no dimensions."""
    return t.Array(x, scalar=not x.fake.dim())


def cast(tracer: Any, x: t.Tensor, dtype: Any) -> t.Tensor:
    """Return the tensor in NumPy's `dtype`."""
    if str(dtype) not in DTYPES:
        raise Unsupported(f"NumPy arrays of {dtype}")
    wanted = getattr(torch, str(dtype))
    return x if x.fake.dtype is wanted else run(tracer, torch.Tensor.to, x, tracer.made(wanted))


def dtype_of(x: t.Tracker) -> Any:
    """Return the operand of NumPy's promotion: a dtype, or the class of a Python number."""
    if isinstance(x, t.Array):
        return x.dtype
    kind = x.pytype() if isinstance(x, t.Const) else None
    if kind in (int, float, complex):
        return kind
    if kind is bool or hasattr(kind, "dtype") and kind.__module__ == "numpy":
        return sys.modules["numpy"].dtype(kind)
    raise Unsupported(f"{x.describe()} with a NumPy array", hint="convert it with numpy.asarray before the call")


def ufunc(tracer: Any, fn: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """`fn(*args)`, where one argument is a tracked array."""
    torch_fn = UFUNCS.get(fn.__name__)
    if torch_fn is None or kwargs or len(args) != fn.nin or fn.nout != 1:
        raise Unsupported(f"NumPy's {fn.__name__} with these arguments", hint="use torch's function")
    loop = loop_of(fn, args)
    operands = [_operand(tracer, a, dtype) for a, dtype in zip(args, loop)]
    if not any(isinstance(a, t.Tensor) for a in operands):
        raise Unsupported("a NumPy function of numbers only")
    return of_tensor(tracer, cast(tracer, run(tracer, torch_fn, *_in_order(torch_fn, operands, tracer)), loop[-1]))


def loop_of(fn: Any, args: Args) -> tuple[Any, ...]:
    """Return the dtypes of the loop that NumPy chooses, the result's last."""
    try:
        loop = tuple(fn.resolve_dtypes((*map(dtype_of, args), None)))
        shapes = [a.shape for a in args if isinstance(a, t.Array)]
        if fn.__name__ != "matmul":
            sys.modules["numpy"].broadcast_shapes(*shapes)
    except (TypeError, ValueError) as e:
        raise Unsupported(f"NumPy's {fn.__name__} of these arrays: {e}") from None
    names = set(map(str, loop))
    if not names <= DTYPES or fn.__name__ in _OF_FLOATS and not names <= _FLOATS \
            or fn.__name__ in _OF_NUMBERS and str(loop[0]) in ("bool", "complex64", "complex128"):
        raise Unsupported(f"NumPy's {fn.__name__} of {', '.join(map(str, loop[:-1]))}", hint="use torch's function")
    return loop


def _operand(tracer: Any, x: t.Tracker, dtype: Any) -> t.Tracker:
    if isinstance(x, t.Array):
        return cast(tracer, x.tensor, dtype)
    try:
        number = sys.modules["numpy"].asarray(x.real(tracer), dtype=dtype).item()
    except (OverflowError, TypeError, ValueError) as e:
        raise Unsupported(f"a number for a NumPy array of {dtype}: {e}") from None
    return t.Const(number)


def _in_order(fn: Callable[..., Any], operands: Args, tracer: Any) -> Args:
    """Convert operands for torch: a number becomes a tensor if it is the first operand, or if the function takes
    tensors only."""
    like = next(x for x in operands if isinstance(x, t.Tensor)).fake
    as_tensor = isinstance(operands[0], t.Const) or fn in _TENSORS
    options = {"dtype": tracer.made(like.dtype)}
    return [run(tracer, torch.scalar_tensor, x, **options) if isinstance(x, t.Const) and as_tensor else x
            for x in operands]


_TENSORS = frozenset((torch.maximum, torch.minimum, torch.fmax, torch.fmin, torch.atan2, torch.hypot, torch.logaddexp,
                      torch.logical_and,
                      torch.logical_or, torch.logical_xor, torch.copysign))


def _operator(tracer: Any, name: str, args: Args) -> t.Tracker:
    """Return a binary operator such as `a + b`, by the name of its function in `operator`."""
    fn = getattr(sys.modules["numpy"], _OPERATORS.get(name, ""), None)
    if fn is None:
        raise Unsupported(f"operator {name} of a NumPy array", hint="use torch's function")
    return ufunc(tracer, fn, args, {})


def _in_place(tracer: Any, name: str, args: Args) -> t.Tracker:
    """`a += b`: into the array's own memory; a scalar is not changed."""
    target, other = args
    plain = name[1:] + ("_" if name in ("iand", "ior") else "")
    result = _operator(tracer, plain, args)
    if not isinstance(target, t.Array) or target.scalar:
        return result
    assert isinstance(result, t.Array)
    if result.shape != target.shape or not sys.modules["numpy"].can_cast(result.dtype, target.dtype, "same_kind"):
        raise Unsupported(f"{name} of NumPy arrays whose result does not fit")
    run(tracer, torch.Tensor.copy_, target.tensor, result.tensor)
    return target


_OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power",
    "matmul": "matmul", "and_": "bitwise_and", "or_": "bitwise_or", "xor": "bitwise_xor", "neg": "negative",
    "pos": "positive",
    "invert": "invert", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal",
    "ne": "not_equal",
    "abs": "absolute",
}
METHODS.setdefault(t.Array, {}).update({"<operator>": _operator, "<inplace>": _in_place,
                                         "__abs__": lambda tracer, x: _operator(tracer, "abs", [x])})
