"""Dynamic Python numbers as arguments of operators: zero-dimensional inputs where they are operands, else specialised.

A number enters as the SymFloat or SymInt that `Recorder.number_input` gives, and reaches an operator as in eager: as a
Python number among the arguments. A row of `ROWS` replaces it by a tensor, cast as eager casts the number; an operator
without a row, or arguments that a row does not support, specialise the number to its present value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from framesmith.fake.recording import Recording
from framesmith.fake.tensor import FakeTensor
from framesmith.prims.promotion import result_dtype
from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.floats import FloatExpr
from framesmith.symbolic.node import SymNode, specialised, symint
from framesmith.util.errors import Unsupported

aten = torch.ops.aten
SYMBOLS = (torch.SymFloat, torch.SymInt)


class Number:
    """The number inside a SymFloat or SymInt, of the type of `example`. `fix()` specialises it and returns the value,
    or refuses. `small`: float32 can represent it, or the graph is not run; in some operators, eager raises for others.
    `known`: its value is known before the graph runs, and then `divides` says that the graph must not run with zero.
    `size`: returns it as a symbol (or an expression of symbols), where it may be the size of a tensor or an index.
    `formula`: the same number as an expression of sizes, of which guards may be taken."""

    __slots__ = ("_fake", "_make", "divides", "example", "fix", "formula", "known", "size", "small")

    def __init__(self, example: Any, make: Callable[[], FakeTensor], fix: Callable[[], Any], small: bool = True,
                 known: bool = False, size: Callable[[], Any] | None = None, formula: Any = None) -> None:
        self.example = example
        self.fix = fix
        self.formula = formula
        self.small = small
        self.known = known
        self.size = size
        self.divides = False
        self._make = make
        self._fake: FakeTensor | None = None

    @property
    def entered(self) -> bool:
        """Return whether an operator has taken it."""
        return self._fake is not None

    def fake(self) -> FakeTensor:
        """Return the tensor in its place: float64 or int64."""
        if self._fake is None:
            self._fake = self._make()
        return self._fake

    def symbol(self) -> Any:
        return torch.SymFloat(self) if type(self.example) is float else torch.SymInt(self)  # type: ignore[arg-type]

    def is_int(self) -> bool:
        return type(self.example) is int

    def is_float(self) -> bool:
        return type(self.example) is float

    def is_bool(self) -> bool:
        return False

    def is_symbolic(self) -> bool:
        return True

    is_constant = is_nested_int = is_bool

    def maybe_as_int(self) -> None:
        return None

    maybe_as_float = maybe_as_bool = constant_int = constant_bool = nested_int = maybe_as_int

    def guard_int(self, file: str, line: int) -> Any:
        return self.fix()

    guard_float = guard_int

    def int_(self) -> Any:  # an index; what this raises would be taken for "no index"
        return self.fix()

    def _graph_repr(self) -> str:
        return f"number {self.example}"

    __str__ = __repr__ = _graph_repr

    def __getattr__(self, name: str) -> Any:
        if self.size is not None:
            size = self.size()
            return getattr(size.node if isinstance(size, torch.SymInt) else torch.SymInt(size), name)
        raise Unsupported(f"{name.strip('_')} of a number that varies from call to call, within torch")


_ROUNDED_ONCE: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "truediv": torch.div, "neg": torch.neg, "abs": torch.abs,
    "sqrt": torch.sqrt,
}
"""Operations on floats of which a kernel gives the same bits as Python and C++."""


def number_of_sizes(rec: Recording, x: Any) -> Number | None:
    """Return a float of sizes as a number that the graph computes from them; None for every other value."""
    if type(x) is not torch.SymFloat or type(x.node) is not SymNode or not isinstance(x.node.value, FloatExpr):
        return None
    if not all(part.op in _ROUNDED_ONCE or _is_square_root(part) for part in _operations(x.node.value)):
        return None
    return rec.number_of(Number(x.node.hint, lambda: rec.inside(_computed, x.node.value, x.node.env),
                                lambda: specialised(x), formula=x))


def _operations(x: FloatExpr) -> Iterator[FloatExpr]:
    """Yield the operations of a float, itself first."""
    if x.op not in ("const", "int"):
        yield x
        for arg in x.args:
            yield from _operations(arg)


def _is_square_root(x: FloatExpr) -> bool:
    """Return whether a float is a square root as torch's C++ writes it."""
    return x.op == "pow" and x.args[1].op == "const" and x.args[1].args[0] == 0.5


def _computed(x: FloatExpr, env: ShapeEnv) -> torch.Tensor:
    if x.op in ("const", "int"):
        value: Any = x.args[0] if x.op == "const" else symint(x.args[0], env)
        return torch.full((), value, dtype=torch.float64)
    if _is_square_root(x):
        return torch.sqrt(_computed(x.args[0], env))
    return _ROUNDED_ONCE[x.op](*[_computed(arg, env) for arg in x.args])


def entered(rec: Recording, func: Any, args: tuple, kwargs: dict) -> tuple[Any, tuple, dict]:
    """Return the call with each dynamic number replaced: by a tensor if the operator has a row, else by its value."""
    if not any(type(a) in SYMBOLS and type(a.node) is Number for a in _flat([*args, *kwargs.values()])):
        return func, args, kwargs
    row = None if rec.autocast else ROWS.get(func)
    found = row(rec, func, args, kwargs) if row is not None else None
    if found is None:
        return func, tuple([_fixed(a) for a in args]), {k: _fixed(v) for k, v in kwargs.items()}
    return found


def _flat(values: Any) -> Any:
    for v in values:
        if type(v) is list or type(v) is tuple:
            yield from _flat(v)
        else:
            yield v


def _fixed(value: Any) -> Any:
    if type(value) in SYMBOLS and type(value.node) is Number:
        return value.node.fix() if value.node.size is None else value.node.size()
    return type(value)([_fixed(v) for v in value]) if type(value) in (list, tuple) else value


def _number(value: Any) -> Number | None:
    return value.node if type(value) in SYMBOLS and type(value.node) is Number else None


def _small(value: Any) -> Number | None:
    number = _number(value)
    return number if number is not None and number.small else None


def _computed_in(dtype: torch.dtype, others: list[FakeTensor]) -> torch.dtype | None:
    """Return the dtype of a number as an operand together with `others` of common type `dtype`; None: it must stay a
    Python number."""
    if dtype in (torch.float16, torch.bfloat16):  # computed in float32, with the number as it is
        return torch.float32 if any(x.dim() and x.dtype is dtype for x in others) else None
    return dtype if dtype in (torch.float32, torch.float64, torch.int64) else None


def _cast(rec: Recording, number: Number, dtype: torch.dtype) -> FakeTensor:
    fake = number.fake()
    return fake if fake.dtype is dtype else rec.dispatch(aten._to_copy.default, (fake,), {"dtype": dtype})


def _operands(form: Any, count: int, order: tuple[int, ...] = (), same: bool = False, small: bool = False) -> Row:
    """Make a row whose first `count` arguments are operands, passed in `order` to `form`. `same`: all tensors must have
    the common type; `small`: a number too large for its type is an error."""

    def row(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
        given, rest = list(args[:count]), args[count:]
        if any(_number(a) for a in _flat([*rest, *kwargs.values()])) or order and (rest or kwargs):
            return None
        numbers = [_small(a) if small else _number(a) for a in given]
        tensors = [a for a in given if isinstance(a, FakeTensor)]
        if len(tensors) + sum(n is not None or type(g) in (int, float, type(None)) for n,
                              g in zip(numbers, given)) != len(given):
            return None
        common = result_dtype(*[a if n is None else n.example for a, n in zip(given, numbers)])
        dtype = _computed_in(common, tensors)
        if dtype is None or not tensors or same and any(x.dtype is not dtype for x in tensors):
            return None
        if func in _INTEGER_DIVISIONS and dtype is torch.int64 and (divisor := numbers[1]) is not None:
            if not divisor.known:
                return None
            divisor.divides = True
        new = [a if n is None else _cast(rec, n, dtype) for a, n in zip(given, numbers)]
        if form is not func and any(type(a) in (int, float) for a in new):  # the other form takes tensors alone
            new = [rec.number(a, dtype) if type(a) in (int, float) else a for a in new]
        return form, (*[new[i] for i in order or range(len(new))], *rest), kwargs

    return row


def _scaled(name: str, start: int) -> Row:
    """Make a row for `x + number * term`: the number is the keyword `name`, the term the product or quotient of the
    arguments from `start` on."""

    def row(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
        number = _small(kwargs.get(name))
        if number is None or any(not isinstance(a, FakeTensor) or a.dtype is not args[0].dtype for a in args):
            return None
        dtype = args[0].dtype
        if dtype not in (torch.float32, torch.float64):
            return None
        term = rec.dispatch(aten.mul.Tensor, (args[start], _cast(rec, number, dtype)), {})
        for other in args[start + 1:]:
            term = rec.dispatch(aten.div.Tensor if "div" in func.name() else aten.mul.Tensor, (term, other), {})
        return aten.add.Tensor, (args[0], term), {}

    return row


def _fill(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    number = _small(args[1])
    dtype = args[0].dtype if isinstance(args[0], FakeTensor) else None
    if number is None or dtype not in (torch.float32,
                                       torch.float64) and (dtype is not torch.int64 or number.is_float()):
        return None
    return aten.fill_.Tensor, (args[0], _cast(rec, number, dtype)), {}


def _masked(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    number = _small(args[2])
    if number is None or not isinstance(args[0], FakeTensor) or args[0].dtype not in (torch.float32, torch.float64):
        return None
    return aten.masked_fill.Tensor, (args[0], args[1], _cast(rec, number, args[0].dtype)), {}


def _made(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """`full`, `new_full` and `scalar_tensor`: the number, cast and expanded."""
    *like, size, value = ([], args[0]) if func is aten.scalar_tensor.default else args
    number, device = _small(value), kwargs.get("device") or (like[0].device if like else None)
    if number is None or device not in (None, torch.device("cpu")) or any(_number(n) for n in _flat([size])):
        return None
    natural = like[0].dtype if like else torch.get_default_dtype()
    if number.is_int() and func is aten.full.default:
        natural = torch.int64
    dtype = kwargs.get("dtype") or natural
    if dtype not in (torch.float32, torch.float64) and (dtype is not torch.int64 or number.is_float()):
        return None
    spread = rec.dispatch(aten.expand.default, (_cast(rec, number, dtype), list(size)), {})
    return aten.clone.default, (spread,), {"memory_format": torch.contiguous_format}


def _evenly_spaced(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """`linspace`: each half is counted from its own end, as in eager."""
    *ends, steps = args[:3]
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    if dtype not in (torch.float32, torch.float64) or kwargs.get("device") not in (None, torch.device("cpu")):
        return None
    if _number(steps) is not None or steps < 2:
        return None
    first, last = (_cast(rec, n, torch.float64) if (n := _number(x)) is not None else x for x in ends)

    def spaced() -> Any:
        place, count = torch.arange(steps), torch.full((), steps - 1)
        step = (last - first) / count
        return torch.where(place * 2 < count, place * step + first, last - (count - place) * step)

    return aten._to_copy.default, (rec.inside(spaced),), {"dtype": dtype}


_SHORT_POWERS = (0.0, 1.0, 2.0, 3.0, 0.5, -0.5, -1.0, -2.0)
"""Exponents for which eager computes products, roots and quotients, with other roundings."""


def _power(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """`x ** n`, where `n` is a float of sizes that is guarded to be none of the exponents that eager treats apart."""
    number = _small(args[1])
    if number is None or number.formula is None or any(number.formula == n for n in _SHORT_POWERS):
        return None
    return _raised(rec, func, args, kwargs)


def _counted(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """`arange` from an integer to a float of sizes: to the next integer, since the step is 1."""
    start, end, step = (0, *args, 1) if len(args) == 1 else (*args, 1)[:3]
    number, dtype = _number(end), kwargs.get("dtype") or torch.get_default_dtype()
    if (number is None or number.formula is None or _number(start) or type(step) not in (int, float) or step != 1
        or start % 1 or not dtype.is_floating_point):
        return None
    return aten.arange.start_step, (start, math.ceil(number.formula), step), {**kwargs, "dtype": dtype}


def _where(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    found = _choice(rec, func, args[1:], kwargs)
    return None if found is None else (aten.where.self, (args[0], *found[1]), {})


def _added(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    return (_term if _number(kwargs.get("alpha")) else _sum)(rec, func, args, kwargs)


def _in_place(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Leave the number for the functional form, which is recorded instead."""
    return func, args, kwargs


Row = Callable[[Recording, Any, tuple, dict], Any]
_INTEGER_DIVISIONS = frozenset({aten.div.Tensor_mode, aten.floor_divide.default, aten.remainder.Scalar,
                                aten.fmod.Scalar})
"""Operators on integers that raise if the divisor is zero."""
_choice = _operands(aten.where.self, 2, small=True)
_sum, _term = _operands(aten.add.Tensor, 2), _scaled("alpha", 1)
_raised = _operands(aten.pow.Tensor_Tensor, 2)
ROWS: dict[Any, Row] = {
    aten.add.Tensor: _added,
    **{op: _operands(op, 2)
       for op in (aten.mul.Tensor, aten.sub.Tensor, aten.div.Tensor, aten.div.Tensor_mode, aten.floor_divide.default)},
    **{getattr(aten, name).Scalar: _operands(getattr(aten, name).Tensor, 2)
       for name in ("add", "sub", "mul", "div", "gt", "ge", "lt", "le", "eq", "ne", "remainder", "fmod")},
    aten.rsub.Scalar: _operands(aten.sub.Tensor, 2, (1, 0)),
    aten.remainder.Scalar_Tensor: _operands(aten.remainder.Tensor, 2),
    aten.clamp.default: _operands(aten.clamp.Tensor, 3, small=True),
    aten.clamp_min.default: _operands(aten.clamp_min.Tensor, 2, small=True),
    aten.clamp_max.default: _operands(aten.clamp_max.Tensor, 2, small=True),
    aten.where.ScalarOther: _where, aten.where.ScalarSelf: _where,
    aten.lerp.Scalar: _operands(aten.lerp.Tensor, 3, same=True, small=True),
    aten.addcmul.default: _scaled("value", 1), aten.addcdiv.default: _scaled("value", 1),
    aten.masked_fill.Scalar: _masked, aten.fill_.Scalar: _fill, aten.full.default: _made,
    aten.scalar_tensor.default: _made, aten.new_full.default: _made, aten.pow.Tensor_Scalar: _power,
    **dict.fromkeys((aten.arange.default, aten.arange.start, aten.arange.start_step), _counted),
    aten.linspace.default: _evenly_spaced,
    **dict.fromkeys((aten.add_.Tensor, aten.sub_.Tensor, aten.mul_.Tensor, aten.div_.Tensor, aten.div_.Tensor_mode,
                     aten.lerp_.Scalar,
                     aten.addcmul_.default, aten.addcdiv_.default, aten.masked_fill_.Scalar, aten.clamp_.default,
                     aten.remainder_.Scalar), _in_place),
}
