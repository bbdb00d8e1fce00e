"""Accumulators: the initial value, update, merge and lane folding of each kind of reduction.

The accumulators of a chain of reduction loops are declared before its outermost loop, several to hide latency, and
folded after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from framesmith.codegen.cpp.operations import STATEMENTS
from framesmith.codegen.cpp.state import State
from framesmith.codegen.cpp.types import TypeRow, type_row
from framesmith.loops.ir import Const, Index, Loop, Node, Part, Reduce, Scalar
from framesmith.prims.scalars import SCALAR_OPS


@dataclass(frozen=True, slots=True)
class Fold:
    """A reduction with a neutral element: `step` combines two values."""

    neutral: Callable[[TypeRow], str]
    step: str


FOLDS: dict[str, Fold] = {
    "sum": Fold(lambda t: f"{t.scalar}(0)", "{} + {}"),
    "prod": Fold(lambda t: f"{t.scalar}(1)", "{} * {}"),
    "max": Fold(lambda t: f"{t.scalar}({t.low})", "max({}, {})"),
    "min": Fold(lambda t: f"{t.scalar}({t.high})", "min({}, {})"),
    "any": Fold(lambda t: "false", "any({}, {})"),
    "all": Fold(lambda t: "true", "all({}, {})"),
}


@dataclass(slots=True)
class Accumulator:
    """The variables of one `Reduce`: `names`, one for each vector in flight; `lanes`: they are vectors; `across`: lanes
    are folded.

    `tail`: a separate variable for incomplete vectors, if any.
    """

    op: Reduce
    names: tuple[str, ...]
    lanes: bool
    across: bool
    tail: str = ""

    @property
    def every(self) -> tuple[str, ...]:
        return (*self.names, self.tail) if self.tail else self.names


def chain(loop: Loop) -> tuple[list[tuple[Reduce, bool]], Loop | None]:
    """Return every `Reduce` that accumulates over `loop` (with whether the vector loop is in its chain), and that
    vector loop."""
    found: list[tuple[Reduce, bool]] = []
    vector: list[Loop] = []

    def visit(at: Loop, inside: bool) -> None:
        inside = inside or at.vector
        if at.vector:
            vector.append(at)
        for node in at.body:
            if type(node) is Reduce:
                found.append((node, inside))
            elif type(node) is Loop and node.reduce:
                visit(node, inside)

    visit(loop, False)
    return found, vector[0] if vector else None


def body_cost(body: tuple[Node, ...]) -> int:
    """Return the work of one iteration in vector operations, inner loops counted once."""
    total = 0
    for node in body:
        if isinstance(node, Loop):
            total += body_cost(node.body)
        elif isinstance(node, Scalar):
            total += SCALAR_OPS[node.name].cost
        elif isinstance(node, Reduce):
            total += {"welford": 5, "argmax": 12, "argmin": 12}.get(node.kind, 1)
        elif not isinstance(node, (Const, Index)):
            total += 1
    return total


def _acc_type(acc: Accumulator) -> str:
    op = acc.op
    row = type_row(op.args[0].dtype if op.kind.startswith("arg") else op.dtype)
    kind = row.vector if acc.lanes else row.scalar
    if op.kind == "welford":
        return f"Steady<{kind}, {row.scalar}>"
    if op.kind.startswith("arg"):
        return f"Extreme<{'true' if op.kind == 'argmin' else 'false'}, {kind}, {'vl' if acc.lanes else 'i64'}>"
    return kind


def _start(acc: Accumulator) -> str:
    op, kind = acc.op, _acc_type(acc)
    if op.kind == "welford":
        return "{}"
    if op.kind.startswith("arg"):
        row = type_row(op.args[0].dtype)
        worst = f"{row.scalar}({row.high if op.kind == 'argmin' else row.low})"
        return f"{kind}::start({f'splat({worst})' if acc.lanes else worst})"
    neutral = FOLDS[op.kind].neutral(type_row(op.dtype))
    return f"splat({neutral})" if acc.lanes else neutral


def declare(s: State, reduces: list[tuple[Reduce, bool]], copies: int, ragged: bool, suffix: str) -> list[Accumulator]:
    """Print the accumulators of a chain, note them in the state, and return them.

    `copies`: vectors in flight in the chain's vector loop; `ragged`: it can end in an incomplete vector; `suffix` of
    their names.
    """
    made = []
    for op, across in reduces:
        lanes = across or s.axis is not None
        count = copies if across else s.copies if lanes else 1
        base = f"r{s.number(op)}{suffix}"
        acc = Accumulator(op, (base,) if count == 1 else tuple(f"{base}_{k}" for k in range(count)), lanes, across)
        s.accumulators[op] = acc
        start = _start(acc)
        if op.kind == "welford" and across and ragged:
            acc.tail = f"{base}_tail"
            s.out.line(f"Ragged<{s.ctype(op, True)}, {s.ctype(op, False)}> {acc.tail} = {{}};")
        s.out.line(f"{_acc_type(acc)} " + ", ".join(f"{name} = {start}" for name in acc.names) + ";")
        made.append(acc)
    return made


def restore(s: State, accumulators: list[Accumulator]) -> None:
    """Restore these as the accumulators of their reductions."""
    for acc in accumulators:
        s.accumulators[acc.op] = acc


def gathered(s: State, acc: Accumulator) -> Accumulator:
    """Merge the vectors in flight into the first, pairwise; accumulators whose lanes are not folded stay one for each
    vector."""
    names = acc.names
    while acc.across and len(names) > 1:
        half = len(names) // 2
        s.out.line(" ".join(merge(acc, names[k], names[k + half]) for k in range(half)))
        names = names[:half]
    return Accumulator(acc.op, names, acc.lanes, acc.across, acc.tail)


def _reduce(s: State, op: Reduce) -> None:
    acc = s.accumulators[op]
    for k in range(s.copies if acc.lanes else 1):
        name = acc.names[k]
        value = s.operand(op.args[0], k, acc.lanes)
        if op.kind == "welford":
            ragged = acc.tail and s.live != "full"
            s.out.line(f"{acc.tail}.add({value}, {s.live});" if ragged else f"{name}.add({value}, full);")
        elif op.kind.startswith("arg"):
            live = f", {s.live}" if acc.lanes else ""
            s.out.line(f"{name}.add({value}, {s.operand(op.args[1], k, acc.lanes)}{live});")
        else:
            fold, row = FOLDS[op.kind], type_row(op.dtype)
            if s.live != "full" and acc.across:
                value = f"keep({value}, {fold.neutral(row)}, {s.live})"
            s.out.line(f"{name} = {fold.step.format(name, value)};")


def carry_type(acc: Accumulator) -> str:
    """Return the type of the compensation of a floating-point sum; "" for other reductions."""
    return _acc_type(acc) if acc.op.kind == "sum" and acc.op.dtype.is_floating_point else ""


def merge(acc: Accumulator, into: str, name: str) -> str:
    """Return the statement that merges accumulator `name` into `into`."""
    fold = FOLDS.get(acc.op.kind)
    return f"{into} = {fold.step.format(into, name)};" if fold else f"merge({into}, {name});"


def finish(s: State, reduces: list[tuple[Reduce, bool]]) -> None:
    """Print, after the chain, merging and folding, and define each result as a value."""
    for op, _ in reduces:
        acc = s.accumulators.pop(op)
        row = type_row(op.dtype)
        if not acc.across:
            _define_per_copy(s, acc)
            continue
        acc = gathered(s, acc)
        first = acc.names[0]
        name = f"v{s.number(op)}"
        if op.kind in FOLDS:
            s.out.line(f"const {row.scalar} {name} = fold_{op.kind}({first});")
            s.define(op, (name,), False)
            continue
        value = type_row(op.args[0].dtype)
        s.out.line(f"const auto {first}_all = fold<{value.scalar}>({', '.join(filter(None, (first, acc.tail)))});")
        s.parts[op] = ((f"{first}_all",), False)
        _define_fields(s, op)


def _define_per_copy(s: State, acc: Accumulator) -> None:
    if acc.op.kind in FOLDS:
        s.define(acc.op, acc.names, acc.lanes)
        return
    s.parts[acc.op] = (acc.names, acc.lanes)
    _define_fields(s, acc.op)


_FIELDS = {"welford": ("mean", "m2", "n"), "argmax": ("at", "best"), "argmin": ("at", "best")}


def _define_fields(s: State, op: Reduce) -> None:
    names, lanes = s.parts[op]
    s.define(op, tuple(f"{n}.{_FIELDS[op.kind][0]}" for n in names), lanes)


def _part(s: State, op: Part) -> None:
    names, lanes = s.parts[op.args[0]]
    field = _FIELDS[op.args[0].kind][op.part]
    s.define(op, tuple(f"{n}.{field}" for n in names), lanes)


STATEMENTS[Reduce] = _reduce  # type: ignore[assignment]
STATEMENTS[Part] = _part  # type: ignore[assignment]
