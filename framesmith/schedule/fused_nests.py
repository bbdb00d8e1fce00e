"""A cluster: nests that will be one kernel, written over common axes.

`shared` axes are those that every member iterates over in parallel: one iteration of them is one iteration of the
kernel's outer nest. A member's other axes are its private loops. The invariant: whatever a member reads that another
member writes, it reads in the same shared iteration.
"""

from __future__ import annotations

from typing import Any

from framesmith.loops.ir import Axis, Load
from framesmith.loops.nest import Compute
from framesmith.schedule.match_axes import Extents, Split, match
from framesmith.symbolic.expr import Expr, Substitution, Symbol, as_expr, coefficient

SPLIT_LIMIT = 8
Substitutes = dict[Expr, Expr | int]


class Member:
    """A nest in a cluster: `sub` gives the nest's axes over the cluster's."""

    __slots__ = ("compute", "loads", "par", "red", "stores", "sub")

    def __init__(
        self, compute: Compute, sub: Substitutes, par: tuple[Symbol, ...], red: tuple[Symbol, ...]
    ) -> None:
        self.compute, self.sub, self.par, self.red = compute, sub, par, red
        placed = Substitution(sub)
        self.loads: list[tuple[str, Expr, Load]] = [(op.buffer, placed(op.index), op) for op in compute.loads]
        self.stores: list[tuple[str, Expr]] = [(op.buffer, placed(op.index)) for op in compute.stores]

    def refined(self, split: Substitutes, parts: tuple[Symbol, ...]) -> Member:
        """Return the same member after axis `split` became `parts`."""
        (symbol,) = split
        assert isinstance(symbol, Symbol)
        if symbol not in self.par and symbol not in self.red:
            return self
        sub = Substitution(split).composed(self.sub)
        return Member(self.compute, sub, _replace(self.par, symbol, parts), _replace(self.red, symbol, parts))


def _replace(axes: tuple[Symbol, ...], symbol: Symbol, parts: tuple[Symbol, ...]) -> tuple[Symbol, ...]:
    return tuple(q for s in axes for q in (parts if s is symbol else (s,)))


class FusedNests:
    """Members in order, over `axes` (symbol -> extent)."""

    __slots__ = ("axes", "count", "members", "raises", "reads", "shared", "writes")

    def __init__(self, axes: Extents, members: list[Member], shared: frozenset[Symbol], count: int) -> None:
        self.axes, self.members, self.shared, self.count = axes, members, shared, count
        self.reads: set[str] = set()
        self.writes: set[str] = set()
        self.raises = any(m.compute.raises for m in members)
        for m in members:
            self.reads |= m.compute.reads
            self.writes |= m.compute.writes

    @property
    def contract(self) -> Any:
        """The plan of the contraction that it computes, or None."""
        return self.members[0].compute.contract if self.members else None

    @staticmethod
    def of(compute: Compute) -> FusedNests:
        """Return the cluster of one nest."""
        empty = FusedNests({}, [], frozenset(), 0)
        joined = _join(empty, compute, {}, {a.symbol: a.extent for a in (*compute.axes, *compute.raxes)}, {})
        joined.shared = frozenset(joined.members[0].par)
        return joined


def trips(axes: Any, extents: Extents) -> Any:
    """Return the product of extents: an int, or None if it is symbolic."""
    total = 1
    for s in axes:
        n = extents[s]
        if not n.is_const:
            return None
        total *= n.const
    return total


def joined(cluster: FusedNests, compute: Compute, base: FusedNests, apart: bool = False) -> FusedNests | None:
    """Return the cluster with `compute` as its last member, or None when its reads would cross shared iterations.
    `apart`: neither accesses a buffer that the other writes, and their axes are the same where both read buffers alike.

    `base` is the cluster of `compute` alone, its axes merged as far as possible (they are split again where the
    cluster's are finer). A contraction fuses only nests over exactly its own axes that do not write its operands.
    """
    fixed = cluster.contract is not None
    if compute.contract is not None or (fixed and (compute.raxes
                                                   or not compute.writes.isdisjoint(cluster.contract.reads))):
        return None
    own: Extents = dict(base.axes)
    sub: Substitutes = dict(base.members[0].sub)
    mapping: dict[Symbol, Symbol] = {}
    for _ in range(SPLIT_LIMIT):
        result = _match_all(cluster, compute, own, sub, mapping, apart)
        if result is None:
            break
        if result.left and fixed:
            return None
        if result.left:
            cluster = _split_cluster(cluster, result)
        else:
            outer, inner, value = _halves(result, own[result.symbol], f"{result.symbol.name}'")
            del own[result.symbol]
            own[outer[0]], own[inner[0]] = outer[1], inner[1]
            sub = Substitution({result.symbol: value}).composed(sub)
    else:
        return None
    if fixed and (len(mapping) != len(own)
                  or len(own) != sum(not (n.is_const and n.const == 1) for n in cluster.axes.values())):
        return None
    new = _join(cluster, compute, sub, own, mapping)
    return new if _is_legal(new) else None


def _pairs(cluster: FusedNests, compute: Compute, apart: bool) -> list[tuple[Expr, Expr]]:
    """Return pairs of index expressions over the same buffer, in order of likelihood: written there and read here, then
    read by both, then written by both."""
    if apart:
        return [(index, op.index) for m in cluster.members for _, index, _ in m.loads for op in compute.loads][:24]
    raw, both, out = [], [], []
    loads = compute.loads
    for m in reversed(cluster.members):
        stores = dict(m.stores)
        for op in loads:
            if op.buffer in stores:
                raw.append((stores[op.buffer], op.index))
        for name, index, _ in m.loads:
            for op in loads:
                if op.buffer == name:
                    both.append((index, op.index))
        for store in compute.stores:
            if store.buffer in stores:
                out.append((stores[store.buffer], store.index))
            out += [(index, store.index) for name, index, _ in m.loads if name == store.buffer]
    return raw + both[:24] + out


def _match_all(
    cluster: FusedNests, compute: Compute, own: Extents, sub: Substitutes, mapping: dict[Symbol, Symbol], apart: bool
) -> Split | None:
    """Fill `mapping` (own axis -> cluster axis); a split that must be made first is returned and `mapping` left
    empty."""
    mapping.clear()
    placed = Substitution(sub)
    for left, right in _pairs(cluster, compute, apart):
        free_left = {s: n for s, n in cluster.axes.items() if s not in mapping.values()}
        free_right = {s: n for s, n in own.items() if s not in mapping}
        found = match(left, placed(right), free_left, free_right)
        if isinstance(found, Split):
            mapping.clear()
            return found
        for mine, theirs in found.items():
            mapping.setdefault(mine, theirs)
        if len(mapping) == len(own):
            break
    return None


def _halves(split: Split, extent: Expr, name: str) -> tuple[tuple[Symbol, Expr], tuple[Symbol, Expr], Expr]:
    many, few = extent // split.inner, split.inner
    outer, inner = Axis.of(f"{name}o", many).symbol, Axis.of(f"{name}i", few).symbol
    return (outer, many), (inner, few), outer * split.inner + inner


def _split_cluster(cluster: FusedNests, split: Split) -> FusedNests:
    many, few = cluster.axes[split.symbol] // split.inner, split.inner
    outer, inner = Axis.of(f"x{cluster.count}", many).symbol, Axis.of(f"x{cluster.count + 1}", few).symbol
    value: Substitutes = {split.symbol: outer * split.inner + inner}
    axes: Extents = {}
    for s, n in cluster.axes.items():
        if s is split.symbol:
            axes[outer], axes[inner] = many, few
        else:
            axes[s] = n
    members = [m.refined(value, (outer, inner)) for m in cluster.members]
    shared = cluster.shared
    if split.symbol in shared:
        shared = (shared - {split.symbol}) | {outer, inner}
    return FusedNests(axes, members, shared, cluster.count + 2)


def _join(cluster: FusedNests, compute: Compute, sub: Substitutes, own: Extents,
          mapping: dict[Symbol, Symbol]) -> FusedNests:
    """Append the member; own axes that nothing is mapped to become new cluster axes."""
    axes, count = dict(cluster.axes), cluster.count
    to: Substitutes = {}
    for s, n in own.items():
        target = mapping.get(s)
        if target is None:
            target = Axis.of(f"x{count}", n).symbol
            axes[target] = n
            count += 1
        to[s] = target
    full = Substitution(to).composed(sub) if sub else dict(to)
    red_roots = {a.symbol for a in compute.raxes}
    par: list[Symbol] = []
    red: list[Symbol] = []
    for a in (*compute.axes, *compute.raxes):
        parts = [t for t in axes if t in as_expr(full[a.symbol]).free]
        (red if a.symbol in red_roots else par).extend(parts)
    member = Member(compute, full, tuple(par), tuple(red))
    shared = cluster.shared & frozenset(par)
    return FusedNests(axes, [*cluster.members, member], shared, count)


def _is_legal(cluster: FusedNests) -> bool:
    """Return whether the last member keeps the invariant with every other, and none lost it because `shared` shrank."""
    if not cluster.shared:
        return True
    last = cluster.members[-1]
    return all(_within(other, last, cluster) for other in cluster.members[:-1])


def _within(first: Member, second: Member, cluster: FusedNests) -> bool:
    """Return whether every conflict of two members is within one shared iteration."""
    for buffer, store in first.stores:
        for name, index, _ in second.loads:
            if name == buffer and index is not store and not reads_within(first, store, index, cluster):
                return False
        for name, index in second.stores:
            if name == buffer and index is not store and not _disjoint_rows(store, index, cluster):
                return False
    for buffer, store in second.stores:
        for name, index, _ in first.loads:
            if name == buffer and index is not store and not reads_within(second, store, index, cluster):
                return False
    return True


def shared_part(index: Expr, cluster: FusedNests) -> Expr | None:
    """Return the terms over shared axes, if the rest is free of them."""
    total = as_expr(0)
    for s in cluster.shared:
        k = coefficient(index, s)
        if k is None:
            return None
        total = total + s * k
    return total


def reads_within(writer: Member, store: Expr, load: Expr, cluster: FusedNests) -> bool:
    """Return whether `load` touches only what `writer` stores in the same shared iteration."""
    base = shared_part(store, cluster)
    if base is None:
        return False
    stored, loaded = store - base, load - base
    if not cluster.shared.isdisjoint(loaded.free):
        return False
    if stored.lo is None or stored.hi is None or loaded.lo is None or loaded.hi is None:
        return False
    private = trips([s for s in writer.par if s not in cluster.shared], cluster.axes)
    dense = private is not None and private == stored.hi - stored.lo + 1
    return dense and stored.lo <= loaded.lo and loaded.hi <= stored.hi


def _disjoint_rows(store: Expr, index: Expr, cluster: FusedNests) -> bool:
    """Return whether two stores into one buffer are legal: equal shared parts (pieces of a join), with disjoint private
    ranges or ordered stages."""
    first, second = shared_part(store, cluster), shared_part(index, cluster)
    return first is not None and first is second
