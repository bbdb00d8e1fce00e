"""Let tile kernels write a result into the memory of an operand of which they are the last reader: softmax over its
scores, a sum over its addend.

    t0 = ...                                           t0 = ...
    t1 = exp(t0) / sum(exp(t0))     # t0 dies          t0 = exp(t0) / sum(exp(t0))
    ... = t1                                           ... = t0

An element is overwritten by the program that read it, and after that, where three things hold. All loads and the store
have the same index over the kernel's innermost loops, which differs in each iteration: so no other program uses the
element, and of the threads of one program only the storing one does. The stored number is computed from all of these
loads, so the store follows them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from framesmith.loops.ir import Axis, Extern, Kernel, Launch, Load, Node, Op, Step, Store, needed
from framesmith.loops.nest import LoopGraph, Storage
from framesmith.loops.uses import named, names_in, renamed
from framesmith.schedule.memory import element_span, touched
from framesmith.symbolic.expr import Expr, Symbol

Pairs = frozenset[tuple[int, int]]


def in_place(graph: LoopGraph, steps: Sequence[Step]) -> tuple[LoopGraph, list[Step]]:
    """Return `steps`, with results renamed to the dead operands whose memory they reuse, and `graph`, with views on the
    results rebased."""
    storages = graph.storages
    last = {n: k for k, step in enumerate(steps) for n in touched(step, storages)}
    last |= dict.fromkeys([storages[n].base or n for n in names_in(graph.outputs)], len(steps))
    shaped = {n for step in steps if type(step) is Extern for n in named(step)}
    known: dict[Kernel, Pairs] = {}
    seen: set[str] = set()
    heirs: dict[str, str] = {}
    out: list[Step] = []
    for k, step in enumerate(steps):
        names = touched(step, storages)
        if type(step) is Launch:
            dying = [n for n in step.args if last.get(n) == k and names.count(n) == 1]
            for made in [n for n in step.args if n not in seen and names.count(n) == 1]:
                for gone in [n for n in dying if n in seen
                             and _fits(storages[heirs.get(n, n)], storages[made], made in shaped)]:
                    pairs = known[step.kernel] if step.kernel in known else known.setdefault(step.kernel,
                                                                                             _pairs(step.kernel))
                    if (step.args.index(gone), step.args.index(made)) in pairs:
                        heirs[made] = heirs.get(gone, gone)
                        dying.remove(gone)
                        break
        seen.update(names)
        out.append(renamed(step, lambda n: heirs.get(n, n)))
    if not heirs:
        return graph, list(steps)
    moved = {n: replace(s, base=heirs[s.base]) if s.base in heirs else s for n, s in storages.items()}
    return replace(graph, storages=moved), out


def _fits(gone: Storage, made: Storage, shaped: bool) -> bool:
    """Return whether both are scratch memory of one size; of one shape, if that matters (`shaped`)."""
    scratch = gone.kind == made.kind == "arena" and gone.base is made.base is None and gone.dtype is made.dtype
    alike = (gone.size, gone.stride) == (made.size, made.stride)
    return scratch and (alike or not shaped and element_span(gone) == element_span(made))


# ----------------------------------------------------------------------------------------------------------- one kernel


@dataclass(frozen=True, slots=True)
class _Access:
    """A load or a store: `index` over `axes`, which represent the enclosing loops by depth and extent. Loads of an
    operand of a product, by whole rows, have none."""

    op: Load | Store
    axes: tuple[Symbol, ...]
    index: Expr


def _pairs(kernel: Kernel) -> Pairs:
    """Return pairs of places among the parameters of `kernel`: an operand, and a result that may reuse its memory."""
    if kernel.symbols:
        return frozenset()
    found = list(_accesses(kernel.body, kernel.outer))
    deepest = max((len(a.axes) for a in found), default=0)
    pairs: set[tuple[int, int]] = set()
    for made, param in enumerate(kernel.params):
        written = [a for a in found if a.op.buffer == param.name]
        if param.mode != "w" or len(written) != 1 or len(written[0].axes) < deepest or not _is_plain(written[0]):
            continue
        (store,) = written
        read = needed((), [store.op])
        for gone, p in enumerate(kernel.params):
            loads = [a for a in found if a.op.buffer == p.name]
            same = all(a.axes == store.axes and a.index is store.index and a.op in read for a in loads)
            if p.mode == "r" and p.dtype is param.dtype and not p.host and loads and same:
                pairs.add((gone, made))
    return frozenset(pairs)


def _accesses(body: Sequence[Node], axes: tuple[Axis, ...]) -> Iterator[_Access]:
    for node in body:
        if isinstance(node, Load | Store):
            by_depth = tuple(Symbol(f"depth{k}", 0, a.extent.const - 1) for k, a in enumerate(axes))
            yield _Access(node, by_depth, node.index.subs({a.symbol: s for a, s in zip(axes, by_depth, strict=True)}))
        elif not isinstance(node, Op):
            for op in itertools.chain(*node.blocks[:-1]):  # a product's operands
                if isinstance(op, Load):
                    yield _Access(op, (), op.index)
            yield from _accesses(node.body, (*axes, *node.axes))


def _is_plain(a: _Access) -> bool:
    """Return whether a store writes each element of its buffer at most once, in any order."""
    if a.op.mode is not None or len(a.op.args) > 1:  # type: ignore[union-attr]
        return False
    reach = 0
    for step, s in sorted((abs(a.index.coeff(s) or 0), s.hi) for s in a.axes if s.hi):
        if step <= reach:
            return False
        reach += step * s
    return True

