"""Arithmetic on dynamic numbers: operations that cannot fail become expressions of residual code."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType
from typing import Any

import torch

from framesmith.fake.dynamic_scalars import Number, number_of_sizes
from framesmith.fake.scaled_attention import ATTENTION, attention
from framesmith.symbolic.node import SymNode, is_of_inputs, specialised
from framesmith.util.errors import DataDependent

from . import data
from . import trackers as t
from .code_cache import kept_with_code
from .induction import affine
from .operators import COMPARED, MIRRORED, SIGNS, symbols
from .origins import is_continuation, origin
from .run_time_indices import indexed, selected, viewed
from .trackers.symbolic_number import is_symbolic
from .trackers.tensors import get_item, set_item

_SYMBOLS = {**symbols("add", "sub", "mul"), **COMPARED}
_DIVISIONS = symbols("truediv", "floordiv", "mod")
_OPERATORS = frozenset({*_SYMBOLS, *_DIVISIONS, operator.pow, operator.ipow})
_ARITHMETIC = frozenset(f for f in vars(operator).values() if callable(f))
"""Operators that Python applies to numbers alone."""
_OF_TENSORS = frozenset({operator.pow, operator.ipow, operator.truediv, operator.itruediv})
"""Operators that are computed differently for a tensor and a float: by a reciprocal, by a square root."""
_SCALARS = frozenset({"alpha", "value"})
"""Arguments of operators that are numbers: a tensor there is read."""
_NUMBERS = (int, float, bool)
_OF_NUMPY = frozenset({"float16", "float32", "float64", "int32", "int64"})
_LARGEST = torch.finfo(torch.float32).max


def varies(x: t.Tracker) -> bool:
    """Return whether the number may differ in the next call."""
    return is_symbolic(x) or type(x) is t.Data and x.kind in (int, float)


def are_open(values: Iterable[t.Tracker]) -> bool:
    """Return whether all are integers, one of which may differ in the next call."""
    return all(type(t.present_value(v)) is int for v in values) and any(type(v) is t.SymbolicNumber and not v.settled
                                                               for v in values)


def computed(tracer: Any, fn: Callable[..., Any], args: tuple[t.Tracker, ...]) -> t.Tracker | None:
    """`fn(*args)` as an expression; None if it may fail, or is not of numbers: then the values must be specialised."""
    if not all(type(t.present_value(a)) in _NUMBERS for a in args) and not all(map(_as_numpy, args)):
        return None
    if len(args) == 1:
        symbol = SIGNS.get(fn)
        return None if symbol is None else t.symbolic(tracer, fn(t.present_value(args[0])), args,
                                                      lambda a: f"({symbol}{a})", fn)
    symbol = _SYMBOLS.get(fn)
    if symbol is None and _divides(tracer, *args):
        symbol = _DIVISIONS.get(fn)
    return None if symbol is None else t.symbolic(tracer, fn(*map(t.present_value, args)), args, lambda a,
                                                  b: f"({a} {symbol} {b})", fn)


def _divides(tracer: Any, a: t.Tracker, b: t.Tracker) -> bool:
    """Return whether the division cannot fail, assuming that the divisor is neither zero nor a float."""
    if type(b) is not t.SymbolicNumber or not b.varies:
        return bool(b.value)  # type: ignore[attr-defined]
    return type(b.example) is int and b.example != 0 and not is_symbolic(a) and tracer.outcome(b) is True


def _as_numpy(x: t.Tracker) -> bool:
    """Return an operand with which NumPy's scalars compute without errors: one of them, or a small constant."""
    value = t.present_value(x)
    return (type(value).__name__ in _OF_NUMPY or not is_symbolic(x)
            and type(value) in _NUMBERS
            and abs(x.value) < 1 << 31)  # type: ignore[attr-defined]


def written(tracer: Any, v: t.Tracker, spec: str) -> t.Tracker | None:
    """`format(v, spec)` of a number; None if it may fail for another value of the type."""
    if type(v) is not t.SymbolicNumber or type(v.example) not in _NUMBERS or "c" in spec:
        return None
    return t.symbolic(tracer, format(v.example, spec), (v,), lambda a: f"{a}.__format__({spec!r})")


def joined(tracer: Any, parts: list[t.Tracker]) -> t.Tracker:
    """Return the parts of an f-string."""
    return t.symbolic(tracer, "".join([t.present_value(p) for p in parts]), tuple(parts),
                      lambda *texts: f"''.join([{', '.join(texts)}])")


def given(tracer: Any, fn: Any, args: list[t.Tracker], kwargs: dict[str, t.Tracker]) -> tuple[Any, list[Any],
                                                                                              dict[str, Any]]:
    """Return the function and arguments of a call on fakes: torch's C++ receives dynamic numbers as numbers that
    operators may take as inputs."""
    if fn in MIRRORED and type(args[0]) in (t.SymbolicNumber, t.Data):
        fn, args = MIRRORED[fn], args[::-1]
    # what stands between here and the recorder takes a symbol for a number without value
    whole = tracer.transformed or tracer.recorder.autocast
    if fn is torch.select and len(args) == 3 and not kwargs and (key := selected(tracer, *args)) is not None:
        return given(tracer, get_item, [args[0], key], {})
    if fn is get_item and not whole and not tracer.modes.functions and (copied := indexed(tracer, args[0], args[1],
                                                                                          _number)) is not None:
        return *copied, {}
    if fn is get_item and not whole and (view := viewed(tracer, *args)) is not None:
        return *view, {}
    if fn is set_item and not whole and (view := viewed(tracer, *args[:2])) is not None:
        return _set_view, [*view, taken(tracer, args[2])], {}
    if fn not in _OPERATORS:
        for x in (*args, *kwargs.values()):
            if type(x) is t.SymbolicNumber and hasattr(x.example, "item"):
                x.settle()  # elsewhere a scalar of NumPy's may be refused, or decide the dtype
    if fn is set_item and not whole:
        return fn, [args[0].real(tracer), args[1].real(tracer), taken(tracer, args[2])], {}
    take = _real if whole or isinstance(fn, FunctionType) else taken
    if take is taken and (fn not in _ARITHMETIC or any(isinstance(a, t.Tensor) for a in args)):
        take = _taken_by_operators
    if not kwargs.keys().isdisjoint(_SCALARS):
        kwargs = {k: data.number(tracer, v) or v if k in _SCALARS and isinstance(v, t.Tensor) else v for k,
                  v in kwargs.items()}
    real, named = [take(tracer, a) for a in args], {k: take(tracer, v) for k, v in kwargs.items()}
    if any(isinstance(a, t.Tensor) for a in args):
        real, named = [_concrete(v) for v in real], {k: _concrete(v) for k, v in named.items()}
    if fn is ATTENTION and type(scale := named.get("scale")) is torch.SymFloat and type(scale.node) is Number:
        fn = functools.partial(attention, tracer.recorder)
    return fn, real, named


def _set_view(view: Any, args: list[Any], value: Any) -> None:
    """Set the elements of a view."""
    set_item(view(*args), ..., value)


def _concrete(value: Any) -> Any:
    """Specialise a float that is computed of sizes: operators take symbolic integers alone."""
    return specialised(value) if type(value) is torch.SymFloat and type(value.node) is SymNode else value


@kept_with_code
def _varying(code: CodeType) -> set[str]:
    """Return the locals of the user's `code` that held a dynamic number when it was left for a break."""
    return set()


def note_local(code: CodeType, name: str) -> None:
    """Note that a local of the user's `code` held a dynamic number."""
    _varying(code).add(name)


def varying_local(code: CodeType, name: str) -> bool:
    """Return whether a continuation is to treat a local that it is called with as dynamic."""
    return is_continuation(code) and name in _varying(origin(code, 0)[0])


def _real(tracer: Any, x: t.Tracker) -> Any:
    return tracer.size_or_real(x) if type(x) is t.SymbolicNumber else x.real(tracer)


def taken(tracer: Any, x: t.Tracker) -> Any:
    if type(x) is t.Data and x.kind in (int, float):
        return _of_data(tracer, x).symbol()
    return (_number(tracer, x).symbol() if type(x) is t.SymbolicNumber and x.varies
            and type(_plain(x.example)) in (int, float) else x.real(tracer))


def _taken_by_operators(tracer: Any, x: t.Tracker) -> Any:
    found = _of_sizes(tracer, x) if type(x) is t.Sym else None
    return taken(tracer, x) if found is None else found.symbol()


def _plain(number: Any) -> Any:
    """Return NumPy's number as the Python number that operators take it for."""
    return number.item() if hasattr(number, "item") else number


def _number(tracer: Any, x: t.SymbolicNumber) -> Number:
    found = tracer.numbers.get(id(x))
    if found is None:
        plain: Any = t.symbolic(tracer, x.example.item(), (x,),
                                lambda a: f"{a}.item()") if hasattr(x.example, "item") else x
        size = functools.partial(tracer.integer, x) if plain is x and tracer.may_be_size(x) else None
        found = tracer.numbers[id(x)] = plain, tracer.recorder.number_input(plain.example, lambda: plain.value, size)
    return found[1]


def _of_sizes(tracer: Any, x: t.Sym) -> Number | None:
    """Return a float of sizes: the graph computes it if its kernels round as Python does, otherwise it is an input of
    the graph; None for other numbers of sizes."""
    found = tracer.numbers.get(id(x))
    if found is None:
        late: t.Tracker = x
        made = number_of_sizes(tracer.recorder, x.value)
        if made is None and tracer.takes_numbers and is_of_inputs(x.value):
            late = t.SymbolicNumber(tracer, x.value.node.hint, None, (x,), "{}".format)
            made = tracer.recorder.number_input(x.value.node.hint, lambda: specialised(x.value))
        if made is None:
            return None
        found = tracer.numbers[id(x)] = late, made
    return found[1]  # type: ignore[no-any-return]


def _of_data(tracer: Any, x: t.Data) -> Number:
    """Return a number that the graph itself computes."""
    found = tracer.numbers.get(id(x))
    if found is None:
        if x.drawn:
            raise DataDependent("a random number of Python's in a tensor's arithmetic",
                                hint="torch.rand draws within the graph")
        leaf = x.parts[0] if len(x.parts) == 1 and isinstance(x.parts[0], t.Tensor) else None
        small = x.total or leaf is not None and leaf.fake.dtype is not torch.float64
        size = functools.partial(data.size, tracer, x) if data.is_size(tracer, x) else None
        made = Number(x.kind(1), lambda: _in_graph(tracer, x), lambda: x.real(tracer), small, size=size)
        found = tracer.numbers[id(x)] = x, tracer.recorder.number_of(made)
    return found[1]


def _in_graph(tracer: Any, x: t.Data) -> Any:
    """Return the number as a tensor of float64 (Python's own arithmetic) or int64."""
    if len(x.parts) == 1 and isinstance(x.parts[0], t.Tensor):
        return tracer.recorder.inside(_scalar, x.parts[0].fake, torch.float64 if x.kind is float else torch.int64)
    if (counted := affine(tracer, x)) is not None and counted.loop is not None:
        return tracer.recorder.inside(data.PURE.get(x.fn, x.fn), *[_integer(tracer, p) for p in x.parts])
    if x.kind is not float or x.fn is None:
        return tracer.recorder.inside(torch.scalar_tensor, x.real(tracer),
                                      dtype=torch.float64 if x.kind is float else torch.int64)
    operands = [_operand(tracer, p, x.fn in _OF_TENSORS) for p in x.parts]
    return tracer.recorder.inside(data.PURE.get(x.fn, x.fn), *operands)


def _integer(tracer: Any, x: t.Tracker) -> Any:
    """Return an operand of an induction variable."""
    if type(x) is t.Data:
        return _of_data(tracer, x).fake()
    n = tracer.size_or_real(x)
    return tracer.recorder.inside(torch.full, (), n, dtype=torch.int64) if isinstance(n, torch.SymInt) else n


def _operand(tracer: Any, x: t.Tracker, tensor: bool) -> Any:
    """Return an operand of a number in the graph, as a float64 tensor or, unless it must be a `tensor`, as a float."""
    if type(x) is t.Sym:
        return tracer.recorder.inside(torch.full, (), x.value, dtype=torch.float64)
    found = (_of_data(tracer, x) if type(x) is t.Data else _number(tracer, x) if type(x) is t.SymbolicNumber
             and x.varies else None)
    if found is not None:
        fake = found.fake()
        return fake if fake.dtype is torch.float64 else tracer.recorder.inside(torch.Tensor.double, fake)
    return tracer.recorder.number(float(x.value),  # type: ignore[attr-defined]
                                  torch.float64) if tensor else float(x.value)  # type: ignore[attr-defined]


def _scalar(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.reshape(()).to(dtype, copy=True)


def entered(tracer: Any) -> list[tuple[t.SymbolicNumber, Number | None]]:
    """Return the numbers that the graph takes after its other inputs, in order; None in the pair of one that is a
    size."""
    found = {number.fake()._alias.node: (x, number) for x, number in tracer.numbers.values()
             if number.entered and type(x) is t.SymbolicNumber}
    found |= {fake._alias.node: (x, None) for x, fake in tracer.carriers.values()}
    return [found[node] for node in tracer.recorder.graph.nodes if node in found]


def sizes_among(numbers: list[tuple[t.SymbolicNumber, Number | None]]) -> tuple[int, ...]:
    """Return the places of the numbers that are sizes."""
    return tuple([i for i, (_, number) in enumerate(numbers) if number is None])


def number_tensors(inputs: tuple[Any, ...], divisors: tuple[int, ...], sizes: tuple[int, ...],
                   *numbers: Any) -> tuple[Any, ...]:
    """Return the inputs of a graph that takes numbers, too. Raises for one whose casts may be errors, and for zero
    among the `divisors`, which are places among the numbers: the frame is to run in plain Python then. Those at the
    places `sizes` come as sizes of tensors without elements."""
    if any(numbers[i] == 0 for i in divisors):
        raise ZeroDivisionError("an integer division by a number that is zero")
    if any(type(n) is float and _LARGEST < abs(n) < math.inf for n in numbers):
        raise OverflowError("a number that float32 does not hold")
    made = [torch.empty((n, 0), dtype=torch.float32, device="cpu") if i in sizes
            else torch.scalar_tensor(n, dtype=torch.float64 if type(n) is float else torch.int64, device="cpu")
            for i, n in enumerate(numbers)]
    return (*inputs, *made)
