"""The nodes of the integer algebra: immutable, hash-consed (equal means identical), each with its range of values.

Grammar of the normal form (an `Atom` is what a linear combination is taken over):

    Expr    = Int | Sum | Atom
    Sum     = offset + Σ coefficient · Atom        at least one term, no zero coefficient; not `1·Atom + 0`
    Atom    = Symbol | Product | FloorDiv | Mod | Min | Max
    Product = Atom · Atom · …                      two or more factors, none of them a Product

Nodes are made only by the functions of `ring`, `divide` and `extrema`, which simplify; the operators here look
the function up in `RULES`, where those modules register it. Division is Python's (towards minus infinity), and a
divisor is taken to be nonzero. Ranges are inclusive; None is no bound.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from framesmith.symbolic import ranges
from framesmith.util.serialize import serializable
from framesmith.util.tables import entry

Bound = int | None
_uids = itertools.count()

RULES: dict[str, Callable[[Expr, Expr], Expr]] = {}
_MEMO: dict[str, dict[tuple[Any, Any], Expr]] = {name: {} for name in ("add", "mul", "floordiv", "mod")}
_ADD, _MUL, _FLOORDIV, _MOD = (_MEMO[name] for name in ("add", "mul", "floordiv", "mod"))

F = TypeVar("F", bound=Callable[..., Any])


def rule(name: str) -> Callable[[F], F]:
    """Register the decorated function as the meaning of the binary operator `name`."""
    return entry(RULES, name)


class Expr:
    """An integer expression. `==` is identity; use `.is_const` and `.const` to read a known value."""

    __slots__ = ("uid", "lo", "hi", "_free", "_text", "__weakref__")
    uid: int
    lo: Bound
    hi: Bound
    is_const: ClassVar[bool] = False

    def _init(self, lo: Bound, hi: Bound) -> None:
        self.uid = next(_uids)
        self.lo = lo
        self.hi = hi

    # --- what it is
    @property
    def const(self) -> int:
        """The value of a constant expression; TypeError for any other."""
        raise TypeError(f"{self} is not a constant")

    @property
    def args(self) -> tuple[Expr, ...]:
        """The direct subexpressions."""
        return ()

    @property
    def free(self) -> frozenset[Symbol]:
        """The symbols that occur in it."""
        try:
            return self._free  # type: ignore[has-type]
        except AttributeError:
            self._free: frozenset[Symbol] = frozenset().union(*(a.free for a in self.args))
            return self._free

    def equals(self, other: Expr | int) -> bool:
        """Return whether the two are the same expression; an int is compared with a constant's value."""
        return self is as_expr(other)

    # --- arithmetic
    def __add__(self, other: Expr | int) -> Expr:
        try:
            return _ADD[self, other]
        except KeyError:
            result = _ADD[self, other] = RULES["add"](self, as_expr(other))
            return result

    __radd__ = __add__

    def __mul__(self, other: Expr | int) -> Expr:
        try:
            return _MUL[self, other]
        except KeyError:
            result = _MUL[self, other] = RULES["mul"](self, as_expr(other))
            return result

    __rmul__ = __mul__

    def __floordiv__(self, other: Expr | int) -> Expr:
        try:
            return _FLOORDIV[self, other]
        except KeyError:
            result = _FLOORDIV[self, other] = RULES["floordiv"](self, as_expr(other))
            return result

    def __mod__(self, other: Expr | int) -> Expr:
        try:
            return _MOD[self, other]
        except KeyError:
            result = _MOD[self, other] = RULES["mod"](self, as_expr(other))
            return result

    def __neg__(self) -> Expr:
        return self * -1

    def __pos__(self) -> Expr:
        return self

    def __sub__(self, other: Expr | int) -> Expr:
        return self + (-other)

    def __rsub__(self, other: Expr | int) -> Expr:
        return self * -1 + other

    def __rfloordiv__(self, other: int) -> Expr:
        return as_expr(other) // self

    def __rmod__(self, other: int) -> Expr:
        return as_expr(other) % self

    def __pow__(self, power: int) -> Expr:
        result: Expr = Int(1)
        for _ in range(power):
            result = result * self
        return result

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of the symbolic integer {self} is not known; compare through symbolic.lt, eq, …")

    # --- meaning
    def evaluate(self, env: Mapping[Any, int]) -> int:
        """Return its value when each symbol (or symbol's name) has the value that `env` gives."""
        raise NotImplementedError

    def rebuild(self, args: tuple[Expr, ...]) -> Expr:
        """Return the same operation over other subexpressions, simplified again."""
        raise NotImplementedError

    def subs(self, mapping: Mapping[Expr, Expr | int]) -> Expr:
        """Replace each key (a symbol, or any atom) by its value, all at once."""
        if not mapping:
            return self
        return Substitution(mapping)(self)

    def coeff(self, atom: Expr) -> int | None:
        """Return the coefficient of `atom` where the expression is linear in it; None where it is not."""
        found = 0
        for term, k in linear(self)[0]:
            if term is atom:
                found = k
            elif atom in term.free:
                return None
        return found

    # --- text
    @property
    def text(self) -> str:
        """Python text with the symbols' names; the order of terms does not depend on the process's history."""
        try:
            return self._text  # type: ignore[has-type]
        except AttributeError:
            self._text: str = self._print()
            return self._text

    def _print(self) -> str:
        raise NotImplementedError

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def __copy__(self) -> Expr:
        return self

    def __deepcopy__(self, memo: object) -> Expr:
        return self


@serializable
class Int(Expr):
    """A known integer."""

    __slots__ = ("value",)
    value: int
    is_const = True
    _table: ClassVar[dict[int, Int]] = {}

    def __new__(cls, value: int) -> Int:
        node = cls._table.get(value)
        if node is None:
            node = object.__new__(cls)
            node.value = value = int(value)
            node._init(value, value)
            node._free = frozenset()
            cls._table[value] = node
        return node

    @property
    def const(self) -> int:
        return self.value

    def __index__(self) -> int:
        return self.value

    __int__ = __index__

    def __bool__(self) -> bool:
        return self.value != 0

    def evaluate(self, env: Mapping[Any, int]) -> int:
        return self.value

    def rebuild(self, args: tuple[Expr, ...]) -> Expr:
        return self

    def _print(self) -> str:
        return str(self.value)

    def __reduce__(self) -> Any:
        return Int, (self.value,)


@serializable
class Symbol(Expr):
    """An integer variable, `lo <= symbol <= hi`. `hi` may be an expression; `sup` is then that expression.

    Two symbols are the same when name and both bounds are. A range that may be empty is taken to be longer by one: in a
    loop of at most one iteration, an index that is always 0 there would look invariant, and be read without any.
    """

    __slots__ = ("name", "sup")
    name: str
    sup: Expr | None
    _table: ClassVar[dict[tuple[str, Bound, int | Expr | None], Symbol]] = {}

    def __new__(cls, name: str, lo: Bound = 0, hi: int | Expr | None = None) -> Symbol:
        if isinstance(hi, Int):
            hi = hi.value
        key = (name, lo, hi)
        node = cls._table.get(key)
        if node is None:
            node = object.__new__(cls)
            node.name = name
            node.sup = hi if isinstance(hi, Expr) else None
            node._init(lo, _greatest(hi, lo) if isinstance(hi, Expr) else hi)
            node._free = frozenset((node,))
            cls._table[key] = node
        return node

    def evaluate(self, env: Mapping[Any, int]) -> int:
        value = env.get(self)
        return env[self.name] if value is None else value

    def rebuild(self, args: tuple[Expr, ...]) -> Expr:
        return self

    def _print(self) -> str:
        return self.name

    def __reduce__(self) -> Any:
        return Symbol, (self.name, self.lo, self.sup if self.sup is not None else self.hi)


def _greatest(sup: Expr, lo: Bound) -> Bound:
    """Return a bound of a variable in [lo, sup]."""
    may_be_empty = lo is not None and (sup.lo is None or sup.lo < lo)
    return sup.hi + 1 if may_be_empty and sup.hi is not None else sup.hi


class Sum(Expr):
    """`offset + Σ k·atom`; `terms` are (atom, k) ordered by uid."""

    __slots__ = ("terms", "offset")
    terms: tuple[tuple[Expr, int], ...]
    offset: int

    @property
    def args(self) -> tuple[Expr, ...]:
        return tuple(t for t, _ in self.terms)

    def evaluate(self, env: Mapping[Any, int]) -> int:
        total = self.offset
        for t, k in self.terms:
            total += k * t.evaluate(env)
        return total

    def rebuild(self, args: tuple[Expr, ...]) -> Expr:
        total: Expr = Int(self.offset)
        for (_, k), arg in zip(self.terms, args, strict=True):
            total = total + arg * k
        return total

    def _print(self) -> str:
        parts = []
        for text, k in sorted((t.text, k) for t, k in self.terms):
            body = text if abs(k) == 1 else f"{abs(k)}*{text}"
            parts.append((" - " if k < 0 else " + ") + body)
        if self.offset:
            parts.append(f" {'-' if self.offset < 0 else '+'} {abs(self.offset)}")
        positive = [p for p in parts if p[1] == "+"]
        text = "".join(positive + [p for p in parts if p[1] == "-"])
        inner = text[3:] if positive else "-" + text[3:]
        return inner if len(parts) == 1 and positive else f"({inner})"

    def __reduce__(self) -> Any:
        return _sum_of, (self.terms, self.offset)


# --- interning: one node for one meaning, for the life of the process
_SUMS: dict[tuple[tuple[tuple[Expr, int], ...], int], Sum] = {}


def as_expr(x: Expr | int) -> Expr:
    """`x` itself, or the constant for a Python int (or bool); TypeError for anything else."""
    if isinstance(x, Expr):
        return x
    if isinstance(x, int):
        return Int(x)
    raise TypeError(f"not a symbolic integer: {x!r} of type {type(x).__name__}")


_NO_TERMS: tuple[tuple[Expr, int], ...] = ()


def linear(e: Expr) -> tuple[tuple[tuple[Expr, int], ...], int]:
    """`(terms, offset)` of any expression."""
    if isinstance(e, Sum):
        return e.terms, e.offset
    if isinstance(e, Int):
        return _NO_TERMS, e.value
    return ((e, 1),), 0


def make_sum(terms: Mapping[Expr, int], offset: int) -> Expr:
    """Return the normal form of a linear combination; zero coefficients are dropped. No other rule is applied."""
    items = [item for item in terms.items() if item[1]]
    if not items:
        return Int(offset)
    if len(items) == 1:
        if items[0][1] == 1 and not offset:
            return items[0][0]
    else:
        items.sort(key=_uid_of)
    key = (tuple(items), offset)
    node = _SUMS.get(key)
    if node is None:
        node = object.__new__(Sum)
        node.terms, node.offset = key
        node._init(*ranges.of_sum(items, offset))
        _SUMS[key] = node
    return node


def _uid_of(item: tuple[Expr, int]) -> int:
    return item[0].uid


@serializable
def _sum_of(terms: tuple[tuple[Expr, int], ...], offset: int) -> Expr:
    return make_sum(dict(terms), offset)


class Substitution:
    """A reusable, memoised simultaneous replacement of atoms: `Substitution({i: j + 1})(expr)`."""

    __slots__ = ("_memo", "_free")

    def __init__(self, mapping: Mapping[Expr, Expr | int]) -> None:
        self._memo: dict[Expr, Expr] = {k: as_expr(v) for k, v in mapping.items()}
        self._free = frozenset().union(*(k.free for k in mapping)) if mapping else frozenset()

    def __call__(self, e: Expr) -> Expr:
        found = self._memo.get(e)
        if found is not None:
            return found
        if self._free.isdisjoint(e.free):
            result = e
        else:
            args = e.args
            new = tuple([self(a) for a in args])
            result = e if new == args else e.rebuild(new)
        self._memo[e] = result
        return result

    def composed(self, mapping: Mapping[Expr, Expr | int]) -> dict[Expr, Expr | int]:
        """Return `mapping` with this replacement made in its values."""
        return {k: self(as_expr(v)) for k, v in mapping.items()}


def interned() -> dict[str, int]:
    """Count the nodes and memo entries that are alive, for leak tests."""
    return {"sums": len(_SUMS), **{k: len(v) for k, v in _MEMO.items()}}
