"""Expressions over tensors' data that residual code computes: text, numbers and assertions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch.fx import Node

from framesmith.fake.layout import is_of_data
from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.expr import Rel, ne, prod
from framesmith.symbolic.node import expr_of, symint
from framesmith.util.errors import DataDependent, Unsupported

from . import trackers as t
from .bytecode import Decoded
from .operators import COMPARED, SIGNS, symbols
from .origins import is_continuation
from .trackers.symbolic_number import is_symbolic

_SUMS = symbols("add", "sub", "mul")
_PARTIAL = symbols("truediv", "pow")
_WHOLE = symbols("floordiv", "mod")
_FOLLOWED = frozenset({*COMPARED, *_SUMS, *_PARTIAL, *_WHOLE, *SIGNS, operator.abs})
PURE: dict[Any, Callable[..., Any]] = {
    operator.iadd: operator.add, operator.isub: operator.sub, operator.imul: operator.mul,
    operator.itruediv: operator.truediv, operator.ipow: operator.pow, operator.ifloordiv: operator.floordiv,
    operator.imod: operator.mod}
"""Operators that are in place on tensors, and those that are not."""
_NUMBERS = (int, float, bool)
_INTEGRAL = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
_WITH_ZERO = {"le": torch.le, "eq": torch.eq, "ne": torch.ne}
_CONNECTED = {"and": torch.logical_and, "or": torch.logical_or}
_MOST = 64
_LONGEST = 40
"""The maximal number of instructions followed to find that they end in a raise."""


@dataclass(frozen=True, slots=True)
class Holds:
    """A tensor has, bit for bit, these elements."""

    elements: Any

    def __call__(self, x: torch.Tensor) -> bool:
        with torch._C.DisableTorchFunctionSubclass():
            return bits_of(x) == self.elements


def bits_of(x: torch.Tensor) -> Any:
    """Return the elements, of floats as the integers of the same bits: nan is itself then, and 0.0 is not -0.0."""
    return (x.view(_BITS[x.dtype.itemsize]) if x.dtype.is_floating_point else x).tolist()


_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def content(tracer: Any, node: Node) -> tuple[torch.Tensor, Callable[[], None]] | None:
    """Return an input's elements and the function that guards them: few integers on the CPU, such as sizes and grids,
    that do not change often; of a module's buffers floats, too, such as probabilities."""
    x = next((i for i in tracer.inputs if i.fake._alias.storage.input is node), None)
    if x is None or x.value.device.type != "cpu" or not _few(x.value):
        return None
    own = "param" in node.meta
    buffer = own and not isinstance(x.value, torch.nn.Parameter) and not x.value.requires_grad
    if x.value.dtype not in (*_INTEGRAL, torch.bool) and not (buffer and x.value.dtype.is_floating_point):
        return None
    if str(x.source) in (tracer.varying or ()) or is_continuation(tracer.frames[0].code) and not own:
        return None
    if tracer.symbolic_contents and not own:
        tracer.left_symbolic = True
        return None
    return x.value.clone(), lambda: tracer.guard(x.source, "callable", Holds(bits_of(x.value)))


def _few(x: torch.Tensor) -> bool:
    """Return whether a shape is one row, or rows of at most four numbers."""
    return x.numel() <= _MOST and (x.dim() < 2 or x.shape[-1] <= 4)


def settled(tracer: Any, x: t.Tensor) -> t.Tensor:
    """Return the tensor's present value, unaffected by later writes."""
    return tracer.torch_call(torch.clone, [x], {})


def shown(tracer: Any, x: t.Tensor | t.Data, name: str) -> t.Tracker:
    """str(x) or repr(x), by the method's name. (A tensor's printer would take the recorder off the stack of modes.)"""
    if isinstance(x, t.Data):
        return x if x.kind is str and name == "__str__" else t.Data(str, (x,), lambda a: f"{a}.{name}()")
    if x.pyclass is not torch.Tensor or tracer.wants_grad(x.fake) or type(x) is t.Inner:
        raise DataDependent("text of a tensor's data")
    return t.Data(str, (settled(tracer, x),), lambda a: f"{a}.{name}()")


def of_size(x: t.Sym, write: Callable[[str], str]) -> t.Tracker:
    """Return the text of a size, or of a number computed from sizes; using its value specialises the size."""
    return t.Data(str, (x,), write)


def formatted(tracer: Any, x: t.Tensor | t.Data, spec: str) -> t.Tracker:
    """format(x, spec)"""
    if isinstance(x, t.Tensor):
        value = number(tracer, x) if x.fake.dim() == 0 and x.pyclass is torch.Tensor else None
        if value is None and not spec:
            return shown(tracer, x, "__str__")
        x = value  # type: ignore[assignment]
    if not isinstance(x, t.Data) or spec and (x.kind is str or not _fits(x.kind, spec)):
        raise DataDependent("text of a tensor's data")
    return x if x.kind is str else t.Data(str, (x,), lambda a: f"{a}.__format__({spec!r})")


def _fits(kind: type, spec: str) -> bool:
    """Return whether every number of the kind can be formatted so."""
    try:
        format(kind(1), spec)
    except ValueError:
        return False
    return "c" not in spec


def number(tracer: Any, x: t.Tensor, kind: type | None = None) -> t.Tracker | None:
    """`x.item()`, or `kind(x)`; None if that may fail, or is not a supported number."""
    if x.fake.numel() != 1 or tracer.wants_grad(x.fake) or type(x) is t.Inner:
        return None
    dtype = x.fake.dtype
    own = bool if dtype is torch.bool else int if dtype in _INTEGRAL else float if dtype.is_floating_point else None
    if own is None or kind is int and own is float:
        return None
    cast = "" if kind is None or kind is own else f".__{kind.__name__}__()"
    return t.Data(kind or own, (settled(tracer, x),), lambda a: f"{a}.item(){cast}")


def listed(tracer: Any, x: t.Tensor) -> t.Tracker | None:
    """`x.tolist()` for few numbers; None where a graph break is better."""
    shape = x.fake.shape
    if not tracer.lists_data or not 0 < len(shape) < 3 or any(map(is_of_data, shape)) or (
            tracer.shapes.hint(prod(map(expr_of, shape))) > _MOST):
        return None
    found: list[t.Tracker] = []
    for i in range(int(shape[0])):
        part = tracer.torch_call(torch.select, [x, t.Const(0), t.Const(i)], {})
        one = number(tracer, part) if len(shape) == 1 else listed(tracer, part)
        if one is None:
            return None
        if type(one) is t.Data:
            one.listed = True
        found.append(one)
    return t.List(found)


def is_size(tracer: Any, x: t.Tracker) -> bool:
    """Return whether data may be an expression of symbols: arithmetic of integers that the graph computes."""
    if type(x) is t.Const:
        return type(x.value) is int
    if type(x) is t.Sym:
        return isinstance(x.value, torch.SymInt)
    if type(x) is not t.Data or x.kind is not int or tracer.recorder.shape_env is None:
        return False
    if x.fn is None:
        leaf = x.parts[0]
        return len(x.parts) == 1 and isinstance(leaf, t.Tensor) and leaf.fake.dtype in _INTEGRAL
    return all(is_size(tracer, p) for p in x.parts)


def integer_in(tracer: Any, x: t.Tracker) -> t.Tracker:
    """Return an integer that only a tensor's data can tell as a number, other values unchanged."""
    plain = isinstance(x, t.Tensor) and x.pyclass is torch.Tensor and x.fake.dim() == 0
    if not plain or not tracer.branches or tracer.transformed or x.fake.dtype is torch.bool or (  # type: ignore[attr-defined]
            x.known(tracer) is not None):  # type: ignore[attr-defined]
        return x
    return number(tracer, x) or x  # type: ignore[arg-type]


def size(tracer: Any, x: t.Data) -> Any:
    """Return an integer of data as a `torch.SymInt` over symbols whose values the graph computes; a plain integer if it
    is known."""
    found = x.assumed(tracer)
    if found is not None:
        return found[0]
    if x.fn is not None:
        return x.fn(*[size(tracer, p) if type(p) is t.Data else p.value for p in x.parts])  # type: ignore[attr-defined]
    leaf = x.parts[0]
    assert isinstance(leaf, t.Tensor)
    return tracer.recorder.integer(leaf.fake)


def relation(tracer: Any, x: t.Data) -> Any:
    """Return a comparison of integers that may be sizes, as a `torch.SymBool` or bool; None for other data."""
    if x.kind is not bool or x.fn not in COMPARED or not all(
            is_size(tracer, p) or type(p) is t.Sym for p in x.parts):
        return None
    return x.fn(*[size(tracer, p) if type(p) is t.Data else p.value for p in x.parts])  # type: ignore[attr-defined]


def decided(tracer: Any, x: t.Data) -> bool | None:
    """Return the truth of a comparison of integers of which the graph has symbols already, if their ranges decide
    it."""
    if not tracer.shapes.data or not _have_symbols(tracer, x):
        return None
    found = relation(tracer, x)
    return found.node.env.known(found.node.value) if type(found) is torch.SymBool else found


def _have_symbols(tracer: Any, x: t.Tracker) -> bool:
    if type(x) is not t.Data:
        return type(x) in (t.Const, t.Sym) or isinstance(x, t.Tensor) and tracer.recorder.has_integer(x.fake)
    return all(_have_symbols(tracer, p) for p in x.parts)


def expected(tracer: Any, x: t.Data) -> bool:
    """Return whether a comparison of sizes that the program asserts is to be checked by the graph."""
    found = relation(tracer, x)
    return type(found) is torch.SymBool and found.node.expect_true("", 0)


def joined(parts: list[t.Tracker]) -> t.Tracker:
    """Join the parts of an f-string, one of which is text of data."""
    return t.Data(str, tuple(parts), lambda *texts: f"''.join([{', '.join(texts)}])")


def computed(fn: Callable[..., Any], *args: t.Tracker) -> t.Tracker | None:
    """Return arithmetic on numbers that cannot fail: a sum, difference or product, a sign, and a quotient, remainder or
    power where the numbers allow it; else None."""
    if not all(isinstance(x, (t.Data, t.Const)) and x.pytype() in _NUMBERS or _is_integer(x) for x in args):
        return None
    args = tuple(map(_opened, args))
    total = any(type(x) is t.Data and x.total for x in args)
    kind = float if _PARTIAL.get(fn) == "/" or float in [x.pytype() for x in args] else int
    if len(args) == 1:
        sign = SIGNS.get(fn)
        if fn is operator.abs:
            return t.Data(kind, args, lambda x: f"({x}).__abs__()", fn, total)
        return None if sign is None else t.Data(kind, args, lambda x: f"({sign}{x})", fn, total)
    symbol = _SUMS.get(fn)
    if symbol is None and kind is float and (total or _PARTIAL.get(fn) == "/" and _is_known(args[1])):
        symbol = _PARTIAL.get(fn)
    if kind is int and fn in _WHOLE and _is_known(args[1]):
        symbol = _WHOLE[fn]
    return None if symbol is None else t.Data(kind, args, lambda x, y: f"({x} {symbol} {y})", fn, total)


def _is_known(x: t.Tracker) -> bool:
    """Return whether a number is known not to be zero."""
    if type(x) is t.Sym:
        return x.value.node.env.known(ne(x.value.node.value, 0)) is True  # type: ignore[no-any-return]
    return type(x) is t.Const and bool(x.value)


def _is_integer(x: t.Tracker) -> bool:
    """Return whether a value is an integer of sizes."""
    return type(x) is t.Sym and isinstance(x.value, torch.SymInt)


def _opened(x: t.Tracker) -> t.Tracker:
    """Return an argument of the program's that may be a size as one of sizes, others unchanged."""
    sized = type(x) is t.SymbolicNumber and x.tracer.may_be_size(x)
    return t.Sym(x.tracer.integer(x)) if sized else x  # type: ignore[attr-defined]


def known(tracer: Any, x: t.Tracker) -> t.Tracker:
    """Return the constant for data that is known or may be assumed; other values unchanged."""
    return tracer.made(x.real(tracer)) if type(x) is t.Data else x


def compared(fn: Callable[..., Any], a: t.Tracker, b: t.Tracker) -> t.Tracker | None:
    """Return the comparison of two numbers; None for other operands."""
    symbol = COMPARED.get(fn)
    known = all(isinstance(x, (t.Data, t.Const)) and x.pytype() in _NUMBERS or _is_integer(x) for x in (a, b))
    if symbol is None or not known:
        return None
    return t.Data(bool, (a, b), lambda x, y: f"({x} {symbol} {y})", fn)


def truth(tracer: Any, v: t.Tracker) -> t.Tracker:
    """bool(v)"""
    if not decides(tracer, v):
        return t.boolean(v.truth(tracer))
    v = _length_of(v)
    if isinstance(v, t.Sym):
        return v if v.pytype() is bool else t.Sym(v.value != 0)
    made = v if isinstance(v, t.Data) else number(tracer, v, bool)  # type: ignore[arg-type]
    if made is None:
        raise DataDependent("truth of a tensor's data")
    return made if made.pytype() is bool else t.Data(bool, (made,), lambda a: f"(not not {a})", operator.truth)


def negated(tracer: Any, v: t.Tracker) -> t.Tracker:
    """`not v`"""
    if isinstance(v, t.Sym) and v.pytype() is bool and isinstance(v.value, torch.SymBool):
        return tracer.made(torch.sym_not(v.value))
    if type(v) is t.Const or not decides(tracer, v):
        return t.boolean(not v.truth(tracer))
    if isinstance(v, t.Sym):
        return t.Sym(torch.sym_not(truth(tracer, v).value))  # type: ignore[attr-defined]
    return t.Data(bool, (truth(tracer, v),), lambda a: f"(not {a})", operator.not_)


def condition(tracer: Any, v: t.Tracker) -> t.Tensor | None:
    """Return a tensor of one element with the truth of `v`; None where the graph does not compute it."""
    if isinstance(v, t.Tensor):
        return None if tracer.asks(v) or v.fake.numel() != 1 else v
    if _is_undecided(v):
        node = truth(tracer, v).value.node  # type: ignore[attr-defined]
        return _of_relation(tracer, node.value, node.env)
    if type(v) is not t.Data or v.drawn:
        return None
    if v.fn is None:
        leaf = v.parts[0] if len(v.parts) == 1 and v.kind is not str else None
        return leaf if isinstance(leaf, t.Tensor) else None
    if v.fn in (operator.truth, operator.not_):
        inner = condition(tracer, v.parts[0])
        return inner if inner is None or v.fn is operator.truth else tracer.torch_call(torch.logical_not, [inner], {})
    return computed_in_graph(tracer, v)  # type: ignore[return-value]


def _of_relation(tracer: Any, rel: Rel, env: ShapeEnv) -> t.Tensor:
    """Return the truth of a relation between sizes, as a tensor."""
    if rel.op in _CONNECTED:
        parts = [_of_relation(tracer, r, env) for r in rel.args]
        return reduce(lambda a, b: tracer.torch_call(_CONNECTED[rel.op], [a, b], {}), parts)
    return tracer.torch_call(_WITH_ZERO[rel.op], [_of_size(tracer, symint(rel.args[0], env)), t.Const(0)],  # type: ignore[no-any-return]
                             {})


def _of_size(tracer: Any, value: Any, dtype: torch.dtype = torch.int64) -> t.Tensor:
    """Return a size as a tensor."""
    how = {"dtype": tracer.made(dtype)}
    return tracer.torch_call(torch.full, [tracer.made(()), t.Sym(value)], how)  # type: ignore[no-any-return]


def computed_in_graph(tracer: Any, x: t.Tracker, wide: bool = False) -> t.Tracker | None:
    """Return a number of data as a tensor: of float64 (if it is to be `wide`, too), as Python computes, or int64."""
    if _is_integer(x):
        return _of_size(tracer, x.value, torch.float64 if wide else torch.int64)  # type: ignore[attr-defined]
    if type(x) is not t.Data:
        return x if type(x) is t.Const else None
    if x.fn is None:
        if len(x.parts) != 1 or not isinstance(leaf := x.parts[0], t.Tensor) or leaf.fake.numel() != 1:
            return None
        dtype = torch.float64 if wide or x.kind is float else torch.int64
        flat = tracer.torch_call(torch.reshape, [leaf, tracer.made(())], {})
        return tracer.torch_call(torch.Tensor.to, [flat, tracer.made(dtype)], {})  # type: ignore[no-any-return]
    wide = wide or any(p.pytype() is float for p in (x, *x.parts))
    parts = [computed_in_graph(tracer, p, wide) for p in x.parts]
    if None in parts or x.fn not in _FOLLOWED:
        return None
    return tracer.torch_call(PURE.get(x.fn, x.fn), parts, {})  # type: ignore[no-any-return]


def is_number(x: t.Tracker | None) -> bool:
    """Return whether a value is a number, of data, of sizes or plain, that the graph may compute."""
    if x is None:
        return False
    x = _opened(x)
    if _is_integer(x):
        return True
    if not isinstance(x, (t.Data, t.Const)) or is_symbolic(x) or x.pytype() not in _NUMBERS:
        return False
    return isinstance(x, t.Data) or x.pytype() is not int or -1 << 63 <= x.value < 1 << 63


def flag(tracer: Any, v: t.Tracker) -> t.Tensor:
    """Return the truth of a condition as a boolean tensor without dimensions."""
    if not isinstance(v, t.Tensor):
        return tensor_of(tracer, v)
    flat = tracer.torch_call(torch.reshape, [v, tracer.made(())], {})
    return tracer.torch_call(torch.Tensor.to, [flat, tracer.made(torch.bool)], {})  # type: ignore[no-any-return]


def tensor_of(tracer: Any, x: t.Tracker) -> t.Tensor:
    """Return a number as a tensor of float64, int64 or bool, or a tensor unchanged; `number` is the inverse."""
    x = _opened(x)
    if isinstance(x, t.Tensor):
        return x
    found = None
    if type(x) is t.Const and not is_symbolic(x) and type(x.value) in _NUMBERS:
        dtype = torch.float64 if type(x.value) is float else torch.int64 if type(x.value) is int else torch.bool
        found = tracer.torch_call(torch.tensor, [x], {"dtype": tracer.made(dtype)})
    elif type(x) is t.Data and x.kind is bool:
        made = condition(tracer, x)
        found = None if made is None else flag(tracer, made)
    elif type(x) is t.Data and x.kind in (int, float) or _is_integer(x):
        found = computed_in_graph(tracer, x)
    if not isinstance(found, t.Tensor):
        raise DataDependent(f"{x.describe()} as a tensor")
    return found


def same(a: t.Tracker, b: t.Tracker) -> bool:
    """`a is b`, where one is of data: a new object, except for numbers of which one object exists."""
    if a is b:
        return True
    if a.pytype() is b.pytype() and a.pytype() in (int, bool, str):
        raise DataDependent("the identity of a tensor's data")
    return False


def asserted(tracer: Any, condition: t.Tracker, holds: bool) -> None:
    """Assert that the truth of a tensor or of data is `holds`: residual code checks it first, see `assertions`; the
    graph checks a size of data."""
    if isinstance(condition, t.Sym):
        found = (truth if holds else negated)(tracer, condition).value  # type: ignore[attr-defined]
        if not (found.node.expect_true("", 0) if isinstance(found, torch.SymBool) else found):
            raise Unsupported("an assertion on sizes that is known not to hold")
        return
    if not tracer.assumes:
        raise DataDependent("an assertion on a tensor's data in code that writes its inputs, or draws random numbers")
    seen = settled(tracer, condition) if isinstance(condition, t.Tensor) else condition
    tracer.checks.append(seen if holds else t.Data(bool, (seen,), lambda a: f"(not {a})"))


def decides(tracer: Any, v: t.Tracker) -> bool:
    """Return whether the truth of `v` depends on data."""
    if isinstance(v, t.Tensor):
        return not tracer.asks(v) and v.fake.numel() == 1 and v.known(tracer) is None
    return type(v) is t.Data or _is_undecided(v)


def relation_of(v: t.Tracker) -> Rel | None:
    """Return the relation that is the truth of a size, or of a comparison of sizes; None for other values."""
    v = _length_of(v)
    if type(v) is not t.Sym or not isinstance(v.value, torch.SymInt | torch.SymBool):
        return None
    return ne(v.value.node.value, 0) if isinstance(v.value, torch.SymInt) else v.value.node.value  # type: ignore[no-any-return]


def _length_of(v: t.Tracker) -> t.Tracker:
    """Return the length of a list that a loop or branch on data has filled, other values unchanged."""
    return t.Sym(v.size(None)) if isinstance(v, t.FilledList) else v


def _is_undecided(v: t.Tracker) -> bool:
    """Return whether the truth of a size, or of a comparison of sizes, depends on data: no known range decides it, and
    the graph computes one of the symbols."""
    rel = relation_of(v)
    if rel is None:
        return False
    node = _length_of(v).value.node  # type: ignore[attr-defined]
    own = node.env.data & rel.free
    return bool(own) and own.isdisjoint(node.env.given) and node.env.known(rel) is None


def raises(dec: Decoded, index: int) -> bool:
    """Return whether every path from `index` ends in a raise that no handler of the frame catches."""
    return _raises(dec, index, [_LONGEST])


def _raises(dec: Decoded, index: int, left: list[int]) -> bool:
    while left[0] > 0 and index < len(dec.instrs):
        left[0] -= 1
        ins = dec.instrs[index]
        if ins.name == "RAISE_VARARGS":
            return dec.handler_at(index) is None
        if ins.op == "JUMP" and ins.target > index:
            index = ins.target
            continue
        if ins.name.startswith(("RETURN", "YIELD", "FOR_", "SEND",
                                "RERAISE")) or ins.target >= 0 and ins.target <= index:
            return False
        if ins.target >= 0 and not _raises(dec, ins.target, left):
            return False
        index += 1
    return False
