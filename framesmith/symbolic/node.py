"""SymNode: the object inside `torch.SymInt`, `torch.SymFloat` and `torch.SymBool`. Torch's C++ and its Python operators
call its methods; each builds an expression of ours, and whoever needs a Python value takes a guard in the shape
environment."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from framesmith.symbolic import floats
from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.expr import (
    Expr,
    Int,
    Rel,
    Symbol,
    and_,
    as_expr,
    eq,
    ge,
    gt,
    le,
    lt,
    max_,
    min_,
    ne,
    not_,
    or_,
    truth,
)
from framesmith.symbolic.floats import FloatExpr, as_float
from framesmith.util.errors import Unsupported

Value = Expr | FloatExpr | Rel


class SymNode:
    """A value of one kind (int, float or bool) in one shape environment. Immutable. `general`: for a comparison of an
    expression of sizes with a constant, its truth for all values from 2 on, if they have one."""

    __slots__ = ("env", "general", "value", "pytype")

    def __init__(self, env: ShapeEnv, value: Value, pytype: type, general: bool | None = None) -> None:
        self.env = env
        self.value = value
        self.pytype = pytype
        self.general = general

    # --- what it is
    @property
    def expr(self) -> Value:
        """The expression; an integer's symbols are the canonical ones of the environment."""
        value = self.value
        return self.env.canonical(value) if isinstance(value, Expr) else value

    @property
    def shape_env(self) -> ShapeEnv:
        return self.env

    @property
    def hint(self) -> Any:
        """The value for the inputs of this capture."""
        return self.value.evaluate(self.env.hints)

    @property
    def constant(self) -> int | bool | None:
        value = self.value
        if isinstance(value, Expr):
            return value.const if value.is_const else None
        return value.known if isinstance(value, Rel) else None

    def maybe_as_int(self) -> int | None:
        value = self.value
        return value.const if isinstance(value, Expr) and value.is_const else None

    def maybe_as_float(self) -> float | None:
        value = self.value
        return value.args[0] if isinstance(value, FloatExpr) and value.op == "const" else None

    def maybe_as_bool(self) -> bool | None:
        return self.value.known if isinstance(self.value, Rel) else None

    constant_int = maybe_as_int
    constant_bool = maybe_as_bool

    def is_int(self) -> bool:
        return self.pytype is int

    def is_float(self) -> bool:
        return self.pytype is float

    def is_bool(self) -> bool:
        return self.pytype is bool

    def is_constant(self) -> bool:
        return self.constant is not None

    def is_symbolic(self) -> bool:
        return self.constant is None

    def is_nested_int(self) -> bool:
        return False

    def nested_int(self) -> None:
        return None

    def has_hint(self) -> bool:
        return True

    def require_hint(self, fallback: Any = None) -> Any:
        return self.hint

    def __str__(self) -> str:
        return str(self.expr)

    __repr__ = _graph_repr = __str__

    def clone(self) -> SymNode:
        return self

    def __deepcopy__(self, memo: object) -> SymNode:
        return self

    # --- wrapping
    def wrap_int(self, num: int) -> SymNode:
        return SymNode(self.env, Int(num), int)

    def wrap_float(self, num: float) -> SymNode:
        return SymNode(self.env, FloatExpr("const", num), float)

    def wrap_bool(self, num: bool) -> SymNode:
        return SymNode(self.env, truth(num), bool)

    # --- Python values, under guard
    def guard_int(self, file: str, line: int) -> int:
        value = self.value
        return self.env.specialise(value) if isinstance(value, Expr) else int(_fix_float(self))

    def guard_float(self, file: str, line: int) -> float:
        return _fix_float(self)

    def guard_bool(self, file: str, line: int) -> bool:
        value = self.value
        if isinstance(value, Rel):
            return self.env.asked(value, self.general)
        return bool(_fix_float(self)) if isinstance(value, FloatExpr) else self.env.guard(ne(value, 0))

    def expect_true(self, file: str, line: int) -> bool:
        value = self.value
        return self.env.expect(value) if isinstance(value, Rel) else self.guard_bool(file, line)

    def guard_size_oblivious(self, file: str, line: int) -> bool:
        value = self.value
        return self.env.decide_layout(value, self.general) if isinstance(value, Rel) else self.guard_bool(file, line)

    def guard_or_false(self, file: str, line: int) -> bool:
        return self._guard_or(False)

    def guard_or_true(self, file: str, line: int) -> bool:
        return self._guard_or(True)

    def _guard_or(self, otherwise: bool) -> bool:
        """Return the truth, or `otherwise` if it is data-dependent."""
        value = self.value
        if isinstance(value, Rel) and not self.env.data.isdisjoint(value.free):
            known = self.env.known(value)
            return otherwise if known is None else known
        return self.guard_size_oblivious("", 0)

    def expect_size(self, file: str, line: int) -> bool:
        return self.env.expect(ge(_int(self), 0))

    def statically_known_true(self, file: str, line: int) -> bool:
        return isinstance(self.value, Rel) and self.env.known(self.value) is True

    def int_(self) -> int:
        return self.guard_int("", 0)

    def bool_(self) -> bool:
        value = self.value
        return self.env.guard(value) if isinstance(value, Rel) else self.guard_bool("", 0)

    # --- changes of kind
    def sym_float(self) -> SymNode:
        return self if self.pytype is float else SymNode(self.env, as_float(_int(self)), float)

    def sym_int(self) -> SymNode:
        return _round(floats.trunc, int, self)

    def floor(self) -> SymNode:
        return _round(floats.floor, float.__floor__, self)

    def ceil(self) -> SymNode:
        return _round(floats.ceil, float.__ceil__, self)

    def trunc(self) -> SymNode:
        return _round(floats.trunc, float.__trunc__, self)

    def round(self, ndigits: int | None = None) -> SymNode:
        if self.pytype is int:
            return self
        value = round(_fix_float(self), ndigits)
        return self.wrap_int(value) if isinstance(value, int) else self.wrap_float(value)

    def is_integer(self) -> SymNode:
        whole = self.pytype is int or _rooted(self).op == "int"
        return self.wrap_bool(True if whole else _fix_float(self).is_integer())

    # --- truth
    def sym_not(self) -> SymNode:
        return SymNode(self.env, not_(_rel(self)), bool)

    def sym_ite(self, then: SymNode, other: SymNode) -> SymNode:
        return then if self.guard_bool("", 0) else other

    def and_(self, other: SymNode) -> SymNode:
        return SymNode(self.env, and_(_rel(self), _rel(other)), bool)

    def or_(self, other: SymNode) -> SymNode:
        return SymNode(self.env, or_(_rel(self), _rel(other)), bool)

    sym_and = and_
    sym_or = or_


def _int(node: SymNode) -> Expr:
    value = node.value
    if isinstance(value, Expr):
        return value
    if isinstance(value, Rel):
        return Int(node.env.guard(value))
    raise Unsupported(f"a symbolic float {value} where an integer is needed")


def _rel(node: SymNode) -> Rel:
    value = node.value
    return value if isinstance(value, Rel) else truth(node.guard_bool("", 0))


def _fix_float(node: SymNode) -> float:
    """Return the float's value, with each symbol that it reads guarded to its hint."""
    value = node.value
    if not isinstance(value, FloatExpr):
        return float(node.env.specialise(_int(node)))
    for symbol in sorted(value.free, key=lambda s: s.name):
        node.env.specialise(symbol)
    return value.evaluate(node.env.hints)


def _rooted(node: SymNode) -> FloatExpr:
    """Return the float with integers for the roots of products of sizes that are equal in pairs, which is guarded."""
    return _float_value(node).rooted(node.env.square_root)


def _round(exact: Callable[[FloatExpr], Expr | None], fixed: Callable[[float], int], node: SymNode) -> SymNode:
    if not isinstance(node.value, FloatExpr):
        return node
    e = exact(_rooted(node))
    return SymNode(node.env, Int(fixed(_fix_float(node))) if e is None else e, int)


# --- binary operators: one row each, for integers and for floats

def _pow(a: Expr, b: Expr) -> Expr:
    if not b.is_const:
        raise Unsupported(f"a power with the symbolic exponent {b}")
    return a ** b.const


_ARITHMETIC: dict[str, tuple[Callable[[Expr, Expr], Expr], str]] = {
    "add": (operator.add, "add"),
    "sub": (operator.sub, "sub"),
    "mul": (operator.mul, "mul"),
    "mod": (operator.mod, "mod"),
    "floordiv": (operator.floordiv, "floordiv"),
    "int_floordiv": (operator.floordiv, "floordiv"),
    "pow": (_pow, "pow"),
    "pow_by_natural": (_pow, "pow"),
    "sym_min": (min_, "min"),
    "sym_max": (max_, "max"),
    "lshift": (lambda a, b: a * _pow(Int(2), b), "mul"),
    "rshift": (lambda a, b: a // _pow(Int(2), b), "floordiv"),
}
_FLOAT_ONLY = {"truediv": "truediv", "int_truediv": "truediv", "float_truediv": "truediv", "float_pow": "pow"}
_COMPARE: dict[str, Callable[[Expr, Expr], Rel]] = {"eq": eq, "ne": ne, "lt": lt, "le": le, "gt": gt, "ge": ge}
_BITWISE: dict[str, Callable[[int, int], int]] = {
    "bitwise_and": operator.and_, "bitwise_or": operator.or_, "bitwise_xor": operator.xor,
}
_LARGE = Symbol("a size of two or more", 2, None)
_FLOAT_UNARY = ("sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan", "exp", "log", "log2")


def _float_value(node: SymNode) -> FloatExpr:
    return node.value if isinstance(node.value, FloatExpr) else as_float(_int(node))


def _arithmetic(name: str) -> Callable[[SymNode, SymNode], SymNode]:
    on_ints, float_op = _ARITHMETIC[name]

    def method(self: SymNode, other: SymNode) -> SymNode:
        if self.pytype is not float and other.pytype is not float:
            return SymNode(self.env, on_ints(_int(self), _int(other)), int)
        return SymNode(self.env, FloatExpr(float_op, _float_value(self), _float_value(other)), float)

    return method


def _float_only(op: str) -> Callable[[SymNode, SymNode], SymNode]:
    def method(self: SymNode, other: SymNode) -> SymNode:
        return SymNode(self.env, FloatExpr(op, _float_value(self), _float_value(other)), float)

    return method


def _comparison(name: str) -> Callable[[SymNode, SymNode], SymNode]:
    on_ints, plain = _COMPARE[name], getattr(operator, name)

    def method(self: SymNode, other: SymNode) -> SymNode:
        if self.pytype is not float and other.pytype is not float:
            a, b = _int(self), _int(other)
            general = on_ints(_LARGE, b).known if b.is_const and not isinstance(a, Symbol) else None
            return SymNode(self.env, on_ints(a, b), bool, general)
        rel = floats.compare(name, _rooted(self), _rooted(other))
        return self.wrap_bool(plain(_fix_float(self), _fix_float(other))) if rel is None else SymNode(self.env, rel,
                                                                                                      bool)

    return method


def _bitwise(name: str) -> Callable[[SymNode, SymNode], SymNode]:
    plain = _BITWISE[name]

    def method(self: SymNode, other: SymNode) -> SymNode:
        return self.wrap_int(plain(self.guard_int("", 0), other.guard_int("", 0)))

    return method


def _float_unary(name: str) -> Callable[[SymNode], SymNode]:
    def method(self: SymNode) -> SymNode:
        return SymNode(self.env, FloatExpr(name, _float_value(self)), float)

    return method


def _neg(self: SymNode) -> SymNode:
    if isinstance(self.value, FloatExpr):
        return SymNode(self.env, FloatExpr("neg", self.value), float)
    return SymNode(self.env, -_int(self), int)


def _abs(self: SymNode) -> SymNode:
    if isinstance(self.value, FloatExpr):
        return SymNode(self.env, FloatExpr("abs", self.value), float)
    e = _int(self)
    return SymNode(self.env, max_(e, -e), int)


for _name in _ARITHMETIC:
    setattr(SymNode, _name, _arithmetic(_name))
for _name, _op in _FLOAT_ONLY.items():
    setattr(SymNode, _name, _float_only(_op))
for _name in _COMPARE:
    setattr(SymNode, _name, _comparison(_name))
for _name in _BITWISE:
    setattr(SymNode, _name, _bitwise(_name))
for _name in _FLOAT_UNARY:
    setattr(SymNode, _name, _float_unary(_name))
    setattr(SymNode, "sym_" + _name, _float_unary(_name))
SymNode.str = SymNode.__str__  # type: ignore[attr-defined]
SymNode.neg = _neg  # type: ignore[attr-defined]
SymNode.abs = _abs  # type: ignore[attr-defined]
SymNode.pos = SymNode.clone  # type: ignore[attr-defined]


# --- the border with torch

def symint(e: Expr | int, env: ShapeEnv) -> int | torch.SymInt:
    """Return a plain int for a constant, else a `torch.SymInt` that carries `e`."""
    e = as_expr(e)
    return e.const if e.is_const else torch.SymInt(SymNode(env, e, int))


def symbool(rel: Rel, env: ShapeEnv) -> bool | torch.SymBool:
    """Return a plain bool for a known relation, else a `torch.SymBool` that carries it."""
    return torch.SymBool(SymNode(env, rel, bool)) if rel.known is None else rel.known


def symfloat(value: FloatExpr | Expr | float, env: ShapeEnv) -> float | torch.SymFloat:
    """Return a plain float for a constant, else a `torch.SymFloat` that carries `value`."""
    node = as_float(value)
    return node.args[0] if node.op == "const" else torch.SymFloat(SymNode(env, node, float))


SYMBOLIC: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
"""The type of the number that a symbolic scalar stands for."""


def specialised(value: Any) -> Any:
    """`value` with the present number for each `torch.SymInt`, `SymFloat` and `SymBool`, which is assumed from then on,
    also within tuples, lists, dicts and slices. A container without any is `value` itself: who was given it may be
    about to write to it."""
    kind = type(value)
    if kind in SYMBOLIC:
        return SYMBOLIC[kind](value)
    if kind in (tuple, list, torch.Size):
        items = [specialised(v) for v in value]
        return value if all(map(operator.is_, items, value)) else kind(items)
    if kind is dict:
        numbers = {k: specialised(v) for k, v in value.items()}
        return value if all(numbers[k] is v for k, v in value.items()) else numbers
    return slice(specialised(value.start), specialised(value.stop), specialised(value.step)) if kind is slice else value


def expr_of(x: int | torch.SymInt | Expr) -> Expr:
    """Return the expression of an int, of a `torch.SymInt` of ours, or of an expression itself."""
    if isinstance(x, torch.SymInt):
        node = x.node
        if isinstance(node, SymNode):
            return node.env.canonical(_int(node))
        value = node.maybe_as_int()
        if value is None:
            raise TypeError(f"a SymInt of another tracer: {x}")
        return Int(value)
    return as_expr(x)


def implied(x: int | torch.SymInt) -> int | torch.SymInt:
    """Return a plain int for a size that has one value by the guards, others unchanged."""
    if type(x) is torch.SymInt and isinstance(x.node, SymNode):
        e = x.node.env.simplify(_int(x.node))
        return e.const if e.is_const else x
    return x


FUNCTIONS: dict[Any, str] = {int: "sym_int", math.floor: "floor", math.ceil: "ceil", math.trunc: "trunc",
                             math.sqrt: "sqrt", math.log: "log", math.log2: "log2", math.exp: "exp"}
"""The method of a node that does what a function of Python does to a number."""
_DEFINED: dict[str, Callable[[Expr], Rel]] = {
    "sqrt": lambda x: ge(x, 0), "log": lambda x: ge(x, 1), "log2": lambda x: ge(x, 1), "exp": lambda x: le(x, 0),
}
"""By method: where a function of integers has a value."""


def computed(x: torch.SymFloat | torch.SymInt, method: str) -> Any:
    """Return what a method of the node gives: an integer, which a guard fixes where it is no expression of integers, or
    a function of a size; None for one that may not be defined."""
    value, defined = x.node.value, _DEFINED.get(method)
    if defined is not None and not (isinstance(value, Expr) and x.node.env.known(defined(value))):
        return None
    node = getattr(x.node, method)()
    return (symint if node.pytype is int else symfloat)(node.value, node.env)


def is_of_inputs(x: Any) -> bool:
    """Return whether a value is a symbolic float of ours whose symbols are all known when the graph is called."""
    node = x.node if type(x) is torch.SymFloat else None
    return isinstance(node, SymNode) and isinstance(node.value, FloatExpr) and node.env.data.isdisjoint(node.value.free)


def env_of(*values: Any) -> ShapeEnv | None:
    """Return the shape environment of the first symbolic value among `values`."""
    for x in values:
        if type(x) in SYMBOLIC and isinstance(x.node, SymNode):
            return x.node.env
    return None


def hint_of(x: Any) -> Any:
    """Return the plain value, for the inputs of this capture, of an int, float, bool or symbolic scalar; takes no
    guard."""
    return x.node.hint if type(x) in SYMBOLIC else x
