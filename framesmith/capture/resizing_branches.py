"""Branches on a relation between sizes of which a path pads, cuts, copies or resamples a tensor that the other leaves
as it is, or computes another number (`if width % 8: x = pad(x, (0, 8 - width % 8))`). Both paths are followed, each
under its assumption, and no guard is taken: the tensor is resized always, by amounts that change nothing where the
branch goes the other way. Where the program could tell the copy from the tensor, the branch is guarded
(`ShapeEnv.copies`)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from framesmith.fake.recorder import has_effect
from framesmith.fake.rules_resizing import RESAMPLING
from framesmith.fake.tensor import FakeTensor, copied, guard_layout_assumptions
from framesmith.graph.traversal import nodes_after
from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.expr import FALSE, TRUE, Rel, and_, eq, ge, not_, or_
from framesmith.symbolic.node import expr_of, symbool, symint
from framesmith.symbolic.select import indicator, selected
from framesmith.util.errors import FirstCall, NeedsGrad, TooLong, Unsupported

from . import trackers as t
from .arms import Arm, drop, effects, mutations_collected, positions, recorded, roots_of, same
from .bytecode.control_flow import join_of
from .bytecode.liveness import liveness
from .frame import Frame
from .size_branches import relation_of, truth_of

aten = torch.ops.aten
Pair = tuple[Node | None, Node | None]
LONGEST = 64
"""The maximal number of instructions from a branch to where its paths meet."""
_EFFECTFUL = ("FOR_", "STORE_", "DELETE_", "IMPORT_", "RAISE_", "RERAISE", "YIELD_", "SEND", "RETURN_", "SETUP_",
              "GET_", "BEFORE_", "WITH_", "MAKE_", "BUILD_MAP", "PUSH_EXC")
"""Prefixes of the names of instructions that do more than compute."""


def resized(f: Frame, target: int, jumps: bool) -> bool:
    """Follow both paths of a jump to `target`, if the truth of the value on top of the stack is `jumps`, and move the
    frame to where they meet, the value taken. Returns False if the value is no undecided relation of known sizes, or if
    the paths do or give something else."""
    tracer, place = f.tracer, (f.code, ~f.ip)
    found = relation_of(f.stack[-1])
    if found is None or not found[0].may_copy(found[1]) or place in tracer.unrolled or not _is_short(f, target):
        return False
    env, rel = found
    meet = join_of(f.code, [f.ip, target])
    if f is tracer.frames[0]:
        read = liveness(f.code, f.ip) | liveness(f.code, target)
        for i in [i for i in tracer.pending if f.dec.localsplus[i] in read]:
            tracer.local(f, i)
    before, stack, compared, at = list(f.locals), f.stack[:-1], tracer.compared, f.ip
    starts = (f.ip, target)
    held, did = list(f.stack), effects(tracer)
    (last, writes), known = tracer.end(), env.knowledge()
    places = positions(roots_of(tracer))
    arms: list[Arm] = []
    with mutations_collected(tracer) as touched:
        try:
            for holds in (rel, not_(rel)):
                start = starts[(holds is rel) is jumps]
                arms.append(recorded(tracer, lambda start=start, holds=holds: _followed(  # type: ignore[misc]
                    f, before, stack, start, meet, env, holds), may_advance=True))
            f.locals[:], f.stack[:] = before, stack
            values: list[Any] | None = _Join(f, env, rel, [*before, *stack]).values(arms, liveness(f.code, meet))
            if env.assumed != known[-1]:
                raise Unsupported("a path that assumes something of data")
        except (FirstCall, NeedsGrad, TooLong):
            raise
        except (Unsupported, t.CapturedError):
            values = None
    f.locals[:], f.stack[:], f.ip, tracer.compared = before, held, at, compared
    env.know(known)
    made = nodes_after(tracer.recorder.graph, last)
    advanced = any(getattr(owner, name) != value for (owner, name), value in places.items())
    if advanced or values is None and (touched or effects(tracer) != did or len(tracer.recorder.written) != writes
                                       or any(map(has_effect, made))):
        raise t.BranchApart(place, "a branch on a size whose paths do more than resize")
    for arm in arms:
        drop(arm)
    if values is None:
        return False
    slots = len(before)
    f.locals[:], f.stack[:], f.ip, tracer.compared = values[:slots], values[slots:], meet, ()
    return True


def guard_copies(tracer: Any, outputs: Iterable[Any]) -> None:
    """Guard the branches whose result leaves the graph, if the tensor that it may be leaves, too, or is an input."""
    leaving = {id(x._alias.storage) for x in outputs if isinstance(x, FakeTensor)}
    for x, original, made in tracer.resized:
        copy, source = x._alias.storage, original._alias.storage
        if id(copy) in leaving and (source.input is not None or id(source) in leaving):
            guard_layout_assumptions([symbool(made, tracer.recorder.shape_env)])


def _is_short(f: Frame, target: int) -> bool:
    """Return whether the paths from here and from `target` meet after a few instructions that do nothing but compute
    and jump ahead."""
    meet = join_of(f.code, [f.ip, target])
    inside = f.dec.instrs[f.ip:meet]
    return (meet < len(f.dec.instrs) and f.ip < target <= meet and len(inside) <= LONGEST
            and all(ins.op == "STORE_FAST" or not ins.op.startswith(_EFFECTFUL) for ins in inside)
            and all(f.ip < ins.target <= meet for ins in inside if ins.target >= 0))


def _followed(f: Frame, before: list[t.Tracker | None], stack: list[t.Tracker], start: int, meet: int, env: ShapeEnv,
              holds: Rel) -> list[t.Tracker | None]:
    f.locals[:], f.stack[:], f.ip = before, stack, start
    with env.supposing(holds):
        while f.ip != meet:
            handler, arg = f.ops[f.ip]
            f.ip += 1
            handler(f, arg)
    return [*f.locals, *f.stack]


class _Join:
    """Joins what the paths give, where `rel` holds and where it does not; `before`: the values that were there."""

    def __init__(self, f: Frame, env: ShapeEnv, rel: Rel, before: Sequence[t.Tracker | None]) -> None:
        self.names, self.tracer, self.env, self.rel, self.before = f.code.co_varnames, f.tracer, env, rel, before
        self.made: dict[tuple[int, int], t.Tracker] = {}

    def values(self, arms: Sequence[Arm], live: Iterable[str]) -> list[t.Tracker | None]:
        """Return the values where the paths meet; raises Unsupported for those that no expression gives."""
        found: list[t.Tracker | None] = []
        for k, (a, b) in enumerate(zip(*[arm.values for arm in arms], strict=True)):
            if same(a, b):
                found.append(a)
            elif k < len(self.names) and self.names[k] not in live:
                found.append(None)
            elif a is None or b is None:
                raise Unsupported("a variable is set one way only")
            else:
                if (id(a), id(b)) not in self.made:
                    self.made[id(a), id(b)] = self._value(a, b)
                found.append(self.made[id(a), id(b)])
        return found

    def _value(self, a: t.Tracker, b: t.Tracker) -> t.Tracker:
        if same(a, b):
            return a
        if isinstance(a, t.Tensor) and isinstance(b, t.Tensor):
            return self._tensor(a, b)
        if type(a) is type(b) is t.Tuple and a.cls is b.cls is tuple:
            parts = a.open(self.tracer), b.open(self.tracer)
            if len(parts[0]) == len(parts[1]):
                return t.Tuple([self._value(x, y) for x, y in zip(*parts)])
        one, other = truth_of(a), truth_of(b)
        if one is not None and other is not None:
            return self._made(symbool(or_(and_(self.rel, one), and_(not_(self.rel), other)), self.env))
        if _is_integer(a) and _is_integer(b):
            return self._made(self.number(a.value, b.value))  # type: ignore[attr-defined]
        raise Unsupported("the ways give different values")

    def _made(self, value: Any) -> t.Tracker:
        return self.tracer.made(value)  # type: ignore[no-any-return]

    def number(self, a: Any, b: Any) -> Any:
        """Return the size that is `a` where the relation holds, and `b` elsewhere."""
        e = selected(self.env, self.rel, expr_of(a), expr_of(b))
        if e is None:
            raise Unsupported("a division by what may be zero")
        return symint(e, self.env)

    def call(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> t.Tensor:
        """Call a function of tensors and other values."""
        given = [x if isinstance(x, t.Tensor) else self._made(x) for x in args]
        named = {name: self._made(value) for name, value in kwargs.items()}
        return self.tracer.torch_call(fn, given, named)  # type: ignore[no-any-return]

    def _tensor(self, a: t.Tensor, b: t.Tensor) -> t.Tensor:
        nodes = self.tracer.recorder.nodes
        if self._metadata(a) != self._metadata(b):
            raise Unsupported("the ways give different tensors")
        chains = [_chain(nodes(x.fake)) for x in (a, b)]
        base = next((n for n in chains[0] if n in chains[1]), None)
        x = source = next((v for v in (a, b, *self.before) if isinstance(v, t.Tensor) and type(v.fake) is FakeTensor
                           and nodes(v.fake) is base), None)
        if x is None or source is None:
            raise Unsupported("the ways give different tensors")
        steps = [chain[:chain.index(base)][::-1] for chain in chains]  # type: ignore[arg-type]
        pairs = _aligned(*steps)
        with self.env.supposing(TRUE):
            for pair in pairs:
                x = _RESIZED[_target(pair[0] or pair[1])](self, x, *pair)  # type: ignore[arg-type]
        for k, y, holds in ((0, a, self.rel), (1, b, not_(self.rel))):
            with self.env.supposing(holds):
                alike = [self.env.known(eq(p, q)) for p, q in zip(_layout(x), _layout(y), strict=True)]
                if any(pair[k] is None for pair in pairs) and not all(alike):
                    raise Unsupported("the ways give tensors of different layouts")
            for original, made in self._originals(y, source):
                copied(original, x.fake, [or_(not_(holds), made)], by_layout=False, env=self.env)
                self.tracer.resized.append((x.fake, original, or_(not_(holds), made)))
        return x

    def _originals(self, y: t.Tensor, source: t.Tensor) -> Iterator[tuple[FakeTensor, Rel]]:
        """Yield the tensors that a tensor may be a copy of, with the relation under which eager makes it: `source`
        itself, and what an earlier branch has resized."""
        if y.fake._alias.storage is source.fake._alias.storage:
            yield y.fake, FALSE
        for copy, original, made in list(self.tracer.resized):
            if copy._alias.storage is y.fake._alias.storage:
                yield original, made

    def _metadata(self, x: t.Tensor) -> tuple[Any, ...]:
        fake, grad = x.fake, self.tracer.wants_grad(x.fake)
        if x.pyclass is not torch.Tensor or x.attrs or grad and x.value is not None and x.value.is_leaf:
            raise Unsupported("the ways give different tensors")
        return fake.dtype, fake.device, fake.dim(), fake.is_conj(), fake.is_neg(), fake.is_inference(), grad


def _is_integer(x: t.Tracker) -> bool:
    return type(x) is t.Const and type(x.value) is int or type(x) is t.Sym and isinstance(x.value, torch.SymInt)


def _layout(x: t.Tensor) -> list[Any]:
    return [*map(expr_of, x.fake.shape), *map(expr_of, x.fake.stride()), expr_of(x.fake.storage_offset())]


def _chain(node: Node) -> list[Node]:
    """Return the node and those before it, from the last one, as long as each resizes the one before."""
    found = [node]
    while _target(found[-1]) in _RESIZED:
        resampling = found[-1].meta.get("resampling")
        found.append(found[-1].args[0] if resampling is None else resampling.source)  # type: ignore[arg-type]
    return found


def _target(node: Node) -> Any:
    """Return the operator by which a node resizes a tensor."""
    return node.meta["resampling"].target if "resampling" in node.meta else node.target


def _aligned(a: list[Node], b: list[Node]) -> list[Pair]:
    """Pair the steps that both paths take, and each of the others with None."""
    found: list[Pair] = []
    while a or b:
        one, other = ([_kind(n) for n in steps] for steps in (a, b))
        if one[:1] == other[:1]:
            found.append((a.pop(0), b.pop(0)))
        elif one and one[0] not in other:
            found.append((a.pop(0), None))
        elif other and other[0] not in one:
            found.append((None, b.pop(0)))
        else:
            raise Unsupported("the ways resize a tensor in another order")
    return found


def _kind(step: Node) -> tuple[Any, ...]:
    return _target(step), step.args[1:2] if step.target is aten.slice.Tensor else ()


def _args(node: Node | None, *defaults: Any) -> list[Any]:
    """Return the arguments after the first one, filled up by default values; these alone for None."""
    given = list(node.args[1:]) if node is not None else []
    return [*given, *defaults[len(given):]]


def _padded(j: _Join, x: t.Tensor, one: Node | None, other: Node | None) -> t.Tensor:
    found = [_args(n, [], *_PADS[n.target]) for n in (one, other) if n is not None]  # type: ignore[index]
    if any(rest != found[0][1:] or n.kwargs for n, (_, *rest) in zip([one, other], found) if n is not None):
        raise Unsupported("pads of different kinds")
    widths = [list(_args(n, [])[0]) for n in (one, other)]
    count = max(map(len, widths))
    both = zip(*[given + [0] * (count - len(given)) for given in widths])
    return j.call((one or other).target, x, tuple(j.number(p, q) for p, q in both), *found[0][1:])  # type: ignore[union-attr, arg-type]


_END = sys.maxsize


def _sliced(j: _Join, x: t.Tensor, one: Node | None, other: Node | None) -> t.Tensor:
    dim = _args(one or other, 0)[0]
    found = [_args(n, dim, 0, _END, 1) for n in (one, other)]
    if any(place != dim or step != 1 for place, _, _, step in found):
        raise Unsupported("parts of different dimensions")
    (_, *ends, _), (_, *others, _) = found
    ends, others = ([x.fake.shape[dim] if type(n) is int and n == _END else n for n in own] for own in (ends, others))
    return j.call(aten.slice.Tensor, x, dim, *[j.number(p, q) for p, q in zip(ends, others)])


def _cloned(j: _Join, x: t.Tensor, one: Node | None, other: Node | None) -> t.Tensor:
    how = [n.kwargs for n in (one, other) if n is not None]
    if how != how[:1] * len(how):
        raise Unsupported("copies of different layouts")
    return j.call(torch.clone, x, **how[0])


class _Resampling(NamedTuple):
    """A tensor that is resampled by `target` to a size if `rel` holds, else it has that size already."""

    rel: Rel
    source: Node
    target: Any
    size: Sequence[Any]
    how: tuple[Any, ...] = ()


def _resampling(node: Node | None, x: t.Tensor) -> _Resampling:
    """Return what a step does to `x`; None: nothing."""
    if node is None:
        return _Resampling(FALSE, None, None, x.fake.shape[2:])  # type: ignore[arg-type]
    found: _Resampling | None = node.meta.get("resampling")
    return found or _Resampling(TRUE, node.args[0], node.target, node.args[1], node.args[2:])  # type: ignore[arg-type]


def _resampled(j: _Join, x: t.Tensor, one: Node | None, other: Node | None) -> t.Tensor:
    """Resample always, and choose the tensor itself where it is not to be resampled: interpolation to the tensor's own
    size would spread what is not finite."""
    a, b = _resampling(one, x), _resampling(other, x)
    given = a if one is not None else b
    target, how = given.target, given.how
    if one is not None and other is not None and a.how != b.how or any(type(v) not in (bool, type(None)) for v in how):
        raise Unsupported("resampling of different kinds")
    size = [j.number(m, n) for m, n in zip(a.size, b.size, strict=True)]
    if not all(j.env.known(ge(expr_of(n), 1)) for n in (*x.fake.shape[1:], *size)):
        raise Unsupported("resampling of what may be empty")
    if torch.are_deterministic_algorithms_enabled():  # a derivative of resampling may raise
        raise Unsupported("resampling in deterministic mode")
    rel = or_(and_(j.rel, a.rel), and_(not_(j.rel), b.rel))
    resampled = j.call(target, x, tuple(size), *how)
    if rel is TRUE:
        return resampled
    more = [n - m for m, n in zip(x.fake.shape[2:], size)]
    kept = j.call(aten.constant_pad_nd.default, x, tuple([n for width in more[::-1] for n in (0, width)]))
    holds = j.call(torch.full, (), symint(indicator(rel), j.env), dtype=torch.bool, device=x.fake.device)
    chosen = j.call(torch.where, holds, resampled, kept)
    source, node = map(j.tracer.recorder.nodes, (x.fake, chosen.fake))
    node.meta["resampling"] = _Resampling(rel, source, target, size, how)
    return chosen


_PADS: dict[Any, tuple[Any, ...]] = {aten.pad.default: ("constant", None), aten.constant_pad_nd.default: (0,)}
_RESIZED: dict[Any, Callable[[_Join, t.Tensor, Node | None, Node | None], t.Tensor]] = {
    aten.pad.default: _padded, aten.constant_pad_nd.default: _padded, aten.slice.Tensor: _sliced,
    aten.clone.default: _cloned, **dict.fromkeys(RESAMPLING, _resampled),
}
"""Functions that apply an operator as where the relation holds, and as elsewhere; None: not at all."""

__all__ = ["guard_copies", "resized"]
