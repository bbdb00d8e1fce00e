"""Choice of loops: merging axes that are contiguous with each other, the axis to vectorise, and the order of the
rest."""

from __future__ import annotations

from collections.abc import Iterable

from framesmith.loops.ir import Axis, Index, Pred
from framesmith.schedule.fused_nests import FusedNests, Member, Substitutes, trips
from framesmith.symbolic.expr import Expr, Int, Substitution, Symbol, coefficient, typical

Steps = dict[Symbol, int | None]


def expressions(m: Member) -> Iterable[Expr]:
    """Return every index expression of a member, over cluster axes."""
    for _, index, _ in m.loads:
        yield index
    for _, index in m.stores:
        yield index
    for op in (*m.compute.inner, *m.compute.ops):
        if type(op) is Index:
            yield op.expr.subs(m.sub)
        elif type(op) is Pred:
            yield op.lhs.subs(m.sub)
            yield op.rhs.subs(m.sub)


def steps(e: Expr, axes: Iterable[Symbol]) -> Steps:
    """Return the coefficient of each axis in `e`; None where it is not linear."""
    free = e.free
    return {s: (e.coeff(s) if s in free else 0) for s in axes}


def collapse(cluster: FusedNests) -> FusedNests:
    """Merge pairs of axes that always run together as one: coefficient of the outer = coefficient of the inner * its
    extent."""
    while cluster.contract is None:
        pair = _collapsible(cluster)
        if pair is None:
            break
        cluster = _merge(cluster, *pair)
    return cluster


def _collapsible(cluster: FusedNests) -> tuple[Symbol, Symbol] | None:
    axes = list(cluster.axes)
    if len(axes) < 2:
        return None
    table = [{s: coefficient(e, s) for s in axes} for m in cluster.members for e in expressions(m)]
    roles = {s: _role(s, cluster) for s in axes}
    for inner in axes:
        n = cluster.axes[inner]
        for outer in axes:
            if outer is inner or roles[outer] != roles[inner]:
                continue
            if all(_runs_on(row[outer], row[inner], n) for row in table):
                return outer, inner
    return None


def _runs_on(outer: Expr | None, inner: Expr | None, extent: Expr) -> bool:
    return outer is not None and inner is not None and outer is inner * extent


def _role(s: Symbol, cluster: FusedNests) -> tuple[object, ...]:
    """Return the places where an axis occurs, as flags: only axes in the same places may merge."""
    return (s in cluster.shared, *((s in m.par, s in m.red) for m in cluster.members))


def _merge(cluster: FusedNests, outer: Symbol, inner: Symbol) -> FusedNests:
    extent = cluster.axes[outer] * cluster.axes[inner]
    new = Axis.of(f"x{cluster.count}", extent).symbol
    # the expressions depend on outer * extent(inner) + inner alone
    sub: Substitutes = {outer: Int(0), inner: new}
    axes = {}
    for s, n in cluster.axes.items():
        if s is inner:
            axes[new] = extent
        elif s is not outer:
            axes[s] = n
    members = []
    for m in cluster.members:
        full = Substitution(sub).composed(m.sub)
        members.append(Member(m.compute, full, _renamed(m.par, outer, inner, new), _renamed(m.red, outer, inner, new)))
    shared = cluster.shared
    if inner in shared:
        shared = (shared - {outer, inner}) | {new}
    return FusedNests(axes, members, shared, cluster.count + 1)


def _renamed(axes: tuple[Symbol, ...], outer: Symbol, inner: Symbol, new: Symbol) -> tuple[Symbol, ...]:
    return tuple(new if s is inner else s for s in axes if s is not outer)


def scores(cluster: FusedNests, m: Member) -> dict[Symbol, float]:
    """Weigh the member's traffic that is contiguous along each of its axes; stores count twice, short axes less."""
    out: dict[Symbol, float] = {}
    loops = (*m.par, *m.red)
    size = float(trips(loops, cluster.axes) or 1 << 20)
    # 1 element of a row of many loads is worth less than a full-rank access
    for weight, index in [(1.0, i) for _, i, _ in m.loads] + [(2.0, i) for _, i in m.stores]:
        row = steps(index, loops)
        covered = 1.0
        for s in loops:
            if row[s] != 0:
                covered *= float(trips([s], cluster.axes) or 1 << 10)
        for s in loops:
            if row[s] in (1, -1):
                n = float(trips([s], cluster.axes) or 1 << 10)
                out[s] = out.get(s, 0.0) + weight * covered * min(n, 16.0) / 16.0
    if not out and loops:
        out[loops[-1]] = size * 1e-3
    return out


def magnitude(cluster: FusedNests, members: Iterable[Member], s: Symbol) -> float:
    """Return the largest stride in memory along the axis, over the accesses of the members; strides of stores count
    twice."""
    total = 0.0
    for m in members:
        for weight, index in [(1.0, i) for _, i, _ in m.loads] + [(2.0, i) for _, i in m.stores]:
            k = coefficient(index, s) if s in index.free else None
            if k is not None:
                total = max(total, weight * abs(typical(k)))
    return total


def ordered(cluster: FusedNests, members: list[Member], axes: Iterable[Symbol], last: Symbol | None) -> list[Symbol]:
    """Return the axes from the largest stride to the smallest, `last` at the end."""
    rank = {s: k for k, s in enumerate(cluster.axes)}
    rest = [s for s in axes if s is not last]
    rest.sort(key=lambda s: (-magnitude(cluster, members, s), rank[s]))
    if last is not None and last in axes:
        rest.append(last)
    return rest
