"""Parallelisation of kernels that add to memory, so that no two threads add to the same element.

Either iterations of the outer loops are disjoint (`depth` of them are shared), or each thread runs all iterations and
keeps those whose index it owns, a range of one index (`owned`); otherwise adds are atomic. The first two add in the
order of the loops, for any number of threads, so sums are deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass

from framesmith.codegen.cpp.index import expr_text
from framesmith.loops.ir import Axis, Indirect, Kernel, Loop, Node, Reduce, Store, walk
from framesmith.symbolic.expr import Expr, Symbol, linear


@dataclass(frozen=True, slots=True)
class Sharing:
    """`depth`: outer loops that threads may share; `owned`: the index whose range they share instead."""

    depth: int
    owned: Indirect | None = None


def sharing(kernel: Kernel) -> Sharing | None:
    """Return how threads share a kernel with adds; None if it has no adds, if threads share a loop over columns, or if
    adds must be atomic."""
    nodes = list(walk(kernel.body))
    local = {buffer.name for buffer in kernel.locals}
    adds = [n for n in nodes if type(n) is Store and n.mode is not None and n.buffer not in local]
    if not adds:
        return None
    depth = next((d for d in range(len(kernel.outer), 0, -1) if all(_apart(n.index, kernel.outer[:d]) for n in adds)),
                 0)
    if depth:
        return Sharing(depth)
    if not kernel.outer and any(type(n) is Loop and all(_apart(a.index, (n.axis,)) for a in adds) for n in kernel.body):
        return None  # a loop over columns, which threads share
    owned = _owned(nodes, adds)
    return None if owned is None else Sharing(0, owned)


def _apart(index: Expr, axes: tuple[Axis, ...]) -> bool:
    """Return whether iterations of `axes` access different elements: the index is a positional number with each axis as
    a digit.

    The weight of a digit exceeds the range of all smaller terms; larger terms are other digits, or multiples of the
    digit's range.
    """
    extents = {axis.symbol: axis.extent.const for axis in axes if axis.extent.is_const}
    terms = sorted(linear(index)[0], key=lambda term: abs(term[1]))
    if len(extents) < len(axes) or not all(map(index.coeff, extents)):
        return False
    reach = 0
    for place, (term, step) in enumerate(terms):
        if term.lo is None or term.hi is None:
            return False
        if term in extents:
            larger = [k for other, k in terms[place + 1 :] if other not in extents]
            if abs(step) <= reach or any(k % (step * extents[term]) for k in larger):
                return False
        reach += abs(step) * (term.hi - term.lo)
    return True


def _owned(nodes: list[Node], adds: list[Store]) -> Indirect | None:
    """Return an index common to all writes of a kernel that does nothing else, and that it loads once for each
    position."""
    if any(type(n) is Reduce or type(n) is Store and n.mode is None
           for n in nodes) or len({n.buffer for n in adds}) > 1:
        return None
    candidates = [n for n in nodes if type(n) is Indirect and all(_steps_over(store.index, n.symbol) for store in adds)]
    return candidates[0] if candidates else None


def _steps_over(index: Expr, symbol: Symbol) -> bool:
    """Return whether different values of `symbol` are different elements."""
    c = index.coeff(symbol)
    if not c:
        return False
    rest = index - symbol * c
    return rest.lo is not None and rest.hi is not None and rest.hi - rest.lo < abs(c)


def owners(owned: Indirect) -> tuple[str, str]:
    """Return the lines that begin a thread's share: a loop of one iteration, which `continue` leaves."""
    size = expr_text(owned.size, {})
    return (
        "for (i64 once = 0, owner = omp_get_thread_num(), owners = omp_get_num_threads(); once < 1; once++) {",
        f"const i64 owned_from = i64({size}) * owner / owners, owned_to = i64({size}) * (owner + 1) / owners;",
    )

