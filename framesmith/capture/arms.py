"""Both paths of a branch on data in one graph: they are recorded one after the other, each is cut out as an arm
(`graph.control`), and their results are joined. An arm may compute tensors and mutate objects that it has created;
otherwise the branch is refused."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from framesmith.fake import FakeTensor
from framesmith.fake.layout import preserved_strides
from framesmith.fake.outputs import memory_of
from framesmith.fake.recorder import has_effect
from framesmith.fake.tensor import Alias, Storage, is_differentiable, new_fake
from framesmith.graph.control import Branch, Control, close
from framesmith.graph.symbols import argument_symbols, size_sources, symbols_of
from framesmith.graph.traversal import ancestors, copy_node, last_node, nodes_after
from framesmith.symbolic.node import symint
from framesmith.util.errors import Unsupported

from . import data
from . import trackers as t
from .break_points import Stop, StopAt
from .frame import Frame
from .size_widening import bind_sizes, widened
from .stacked_lists import common_start, grown, own_lists, refill, row_of, stack_of, storages_of
from .trackers.iterators import Walk
from .trackers.symbolic_number import is_symbolic

aten = torch.ops.aten
Values = Sequence[t.Tracker | None]


@dataclass(slots=True)
class Arm:
    """One path: its result, the nodes recorded, and the storages that it has written. `outer`: earlier tensors that it
    has written, with their values before, which they have again, and after. `before`: what was known of sizes."""

    values: Values
    region: list[Node]
    written: set[int]
    outer: list[tuple[Alias, Node, Node]]
    before: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Shared:
    """A result that may be, or share memory with, an earlier tensor. `passed`: it is that tensor then. `writes`: how
    many writes there were; `stop`: where capture can stop before what gave it; `at`: the user's place; `reason`: why it
    has to."""

    result: Storage
    other: Storage
    passed: bool
    writes: int
    stop: Stop | None
    at: tuple[str, int] | None
    reason: str


def changes(tracer: Any) -> tuple[Any, ...]:
    """Count the program's changes so far, by kind: any further change makes the counts differ."""
    return (len(tracer.mutated), len(tracer.deferred), len(tracer.draws), len(tracer.settings),
            len(tracer.global_writes), len(tracer.device_changes), tracer.due)


def effects(tracer: Any) -> tuple[Any, ...]:
    """Count the program's changes and assertions on data so far, by kind."""
    return *changes(tracer), len(tracer.checks)


@contextmanager
def mutations_collected(tracer: Any) -> Iterator[list[Any]]:
    """Collect the objects that captured code mutates, for what surrounds it, too."""
    around, tracer.touched = tracer.touched, []
    touched = tracer.touched
    try:
        yield touched
    finally:
        tracer.touched = around
        if around is not None:
            around += touched


def mutates_existing(touched: Collection[Any], roots: Iterable[Any], apart: Iterable[t.Tracker] = ()) -> bool:
    """Return whether a mutated object, `apart` from some, exists outside of captured code or is what `roots` reach."""
    if any(not isinstance(x, t.Tracker) for x in touched):
        return True
    return bool(touched) and not (reachable(roots).keys() - set(map(id, apart))).isdisjoint(map(id, touched))


def reachable(roots: Iterable[Any]) -> dict[int, Any]:
    """Return the trackers among `roots`, and those that they are made of, by identity."""
    found: dict[int, Any] = {}
    todo = list(roots)
    while todo:
        x = todo.pop()
        if isinstance(x, (t.Tracker, Frame, list, tuple, dict)) and id(x) not in found:
            found[id(x)] = x
            if isinstance(x, Frame):
                todo += (x.fn, *x.locals, *x.stack)
            else:  # the program's own containers hold no trackers
                value = None if isinstance(x, t.SymbolicNumber) else t.held(x)  # which a number would specialise
                todo += [y for y in gc.get_referents(x) if y is not value or isinstance(y, t.Tracker)]
    return found


def roots_of(tracer: Any) -> list[Any]:
    """Return what the frames hold, and the objects that were changed."""
    return [x for f in tracer.frames for x in (f.fn, *f.locals, *f.stack)] + list(tracer.mutated.values())


def positions(roots: Iterable[Any]) -> dict[tuple[Any, str], Any]:
    """Return the positions of the iterators and generators that `roots` reach, by owner and name of the attribute."""
    found: dict[tuple[Any, str], Any] = {}
    for x in reachable(roots).values():
        if isinstance(x, t.Generator):
            found[x.frame, "ip"] = x.frame.ip
        elif isinstance(x, Walk):
            names = [name for cls in type(x).__mro__ for name in vars(cls).get("__slots__", ())]
            values = {(x, name): getattr(x, name, None) for name in names}
            found |= {key: n for key, n in values.items() if n is None or isinstance(n, (int, t.Tracker))}
    return found


def joined(tracer: Any, condition: t.Tensor, ways: Sequence[Callable[[], Values]], stop: Stop | None,
           declared: bool, place: t.Place | None = None) -> list[t.Tracker | None]:
    """Record a branch on `condition` and return its result, that of one of `ways` (the first where it is false).
    `declared`: a call of torch.cond, whose results all require grad if an operand does; else the caller handles
    iterators that the paths advance. `place`: of a branch whose paths may change lists that the program has made."""
    if tracer.transformed or tracer.modes.functions:
        raise Unsupported("a branch on data in a function transform or mode")
    grows = place is not None and place not in tracer.unrolled
    lists = own_lists(reachable(roots_of(tracer)).values()) if grows else []
    had = [list(x.items) for x in lists]
    arms, ends = [], []
    for way in ways:
        arms.append(recorded(tracer, way, lists, is_internal, may_advance=not declared))
        ends.append([list(x.items) for x in lists])
        for own, items in zip(lists, had):
            refill(own, items)
    changed = [k for k, before in enumerate(had) if any(grown(before, after[k]) for after in ends)]
    for arm, after in zip(arms, ends):
        arm.values = [*arm.values, *[_list_of(after[k]) for k in changed]]
    written = {id(base): base for arm in arms for base, _, _ in arm.outer}
    for base in written.values():
        for arm in arms:
            arm.values = [*arm.values, _value_in(tracer, arm, base)]
    no, yes = arms
    found = _Join(tracer, no, yes, stop, declared, len(written), place if grows else None,
                  {id(lists[k]) for k in changed}).values(condition)
    count = len(found) - len(written)
    for base, x in zip(written.values(), found[count:]):
        tracer.torch_call(torch.Tensor.copy_, [tracer.made(base.val), x], {})
    for k, filled in zip(changed, found[count - len(changed):count]):
        refill(lists[k], filled.items)  # type: ignore[union-attr]
    return found[:count - len(changed)]


def _list_of(items: Sequence[t.Tracker]) -> t.List:
    made = t.List([])
    refill(made, items)
    return made


def is_internal(storage: Storage) -> bool:
    """Return whether a tensor was made by the program, and is no input."""
    return storage.input is None


def _value_in(tracer: Any, arm: Arm, base: Alias) -> t.Tensor:
    """Return a copy of what an earlier tensor is at the end of a path, for that path's result."""
    after = next((after for own, _, after in arm.outer if own is base), base.node)
    node: Node = tracer.recorder.emit(aten.clone.default, (after,), like(base.val))
    node.meta.update(grad=bool(after.meta.get("grad")), turn=tracer.turn)
    arm.region.append(node)
    return tracer.made(tracer.recorder.own(like(base.val), node))  # type: ignore[no-any-return]


def set_value(base: Alias, node: Node) -> None:
    """Let `node` be the value of a storage, of which all views are recomputed."""
    base.node = node
    base.storage.version += 1
    base.version = base.storage.version


def recorded(tracer: Any, way: Callable[[], Values], filled: Iterable[t.Tracker] = (),
             may_write: Callable[[Storage], bool] = lambda storage: False, keeps: bool = False,
             may_advance: bool = False) -> Arm:
    """Record one path. Raises Unsupported if it has effects other than computing, filling these lists, writing tensors
    that it may write and, if it `may_advance` them, taking values of iterators; the tensors have their values from
    before then, unless it `keeps` the new ones."""
    last, writes = tracer.end()
    roots = roots_of(tracer)
    places = {} if may_advance else positions(roots)
    before = effects(tracer)
    known = tracer.shapes.knowledge()
    with mutations_collected(tracer) as touched, tracer.recorder.scoped():
        try:
            values = way()
        except t.CapturedError as e:
            raise Unsupported(f"one way raises {e.tracker.pytype().__name__}") from None
    if any(getattr(owner, name) != place for (owner, name), place in places.items()):
        raise Unsupported("one path takes values of an iterator that was there before")
    region = [n for n in nodes_after(tracer.recorder.graph, last) if n.op != "placeholder"]
    own = set(region)
    outer: dict[int, tuple[Alias, Node, Node]] = {}
    for base, _, n in tracer.recorder.written[writes:]:
        if n not in own:
            outer.setdefault(id(base), (base, n, base.node))
    if not all(may_write(base.storage) for base, _, _ in outer.values()):
        raise Unsupported("one way writes a tensor that was there before")
    if effects(tracer) != before:
        raise Unsupported("one way has side effects")
    if mutates_existing(touched, roots, filled):
        raise Unsupported("one path changes an existing object")
    if not keeps:
        for base, n, _ in outer.values():
            set_value(base, n)
    return Arm(values, region, {id(base.storage) for base, _, _ in tracer.recorder.written[writes:]},
               list(outer.values()), known)


class _Join:
    """Joins the results of two arms."""

    def __init__(self, tracer: Any, no: Arm, yes: Arm, stop: Stop | None, declared: bool, written: int,
                 place: t.Place | None, changed: Collection[int]) -> None:
        self.tracer = tracer
        self.place = place
        """The branch, if lists of different lengths may be joined."""
        self.changed = changed
        """Lists from before that a path has changed; their elements at its end are values of their own."""
        self.written = written
        """The number of values, the last ones, that are those of earlier tensors."""
        self.recorder = tracer.recorder
        self.arms = no, yes
        self.stop = stop
        self.declared = declared
        self.pairs: dict[tuple[int, int], tuple[t.Tensor, t.Tensor]] = {}
        self.vals: list[FakeTensor] = []
        """The metadata of what each pair is joined to."""
        self.opened: set[int] = set()
        """The numbers of pairs of different sizes."""
        self.partners: dict[int, int] = {}
        """The mutable value of the other arm with which one is joined."""
        self.numbers: dict[tuple[int, int], tuple[int, int]] = {}
        """The pairs of tensors that pairs of numbers are."""
        self.stacks: dict[tuple[int, int], tuple[int, type | None, tuple[int, int]]] = {}
        """Of pairs of lists: how many first elements are the same, the class of numbers, the pair that the others are.
        """
        self.made: dict[tuple[int, int], t.Tracker] = {}
        self.shared: list[tuple[int, Storage, bool]] = []

    def values(self, condition: t.Tensor) -> list[t.Tracker | None]:
        """Record the branch and return its results."""
        no, yes = self.arms
        if len(no.values) != len(yes.values):
            raise Unsupported("the ways end in different places")
        both = list(zip(no.values, yes.values))
        for a, b in both:
            self._collect(a, b)
        if not self.pairs and not any(map(has_effect, (*no.region, *yes.region))):
            for arm in self.arms:
                drop(arm)
            return [self._build(a, b) for a, b in both]
        results = [[self._node(arm, k, pair[which]) for k, pair in enumerate(self.pairs.values())]
                   for which, arm in enumerate(self.arms)]
        either = {id(x) for x in no.values[len(no.values) - self.written:]}
        wants = [self._wants_grad(a, b, id(a) in either) for a, b in self.pairs.values()]
        if not self.declared:
            self._check_gradients(results, condition)
        (graph, other), operands = cut_out(self.tracer, self.arms, results, opened=self.opened)
        args = self.recorder.nodes(condition.fake), *operands
        made = emitted(self.tracer, Branch(other, graph, self.declared), args, self.vals, wants)
        self.made.update(zip(self.pairs, made))
        share(self.tracer, [(made[k], other, passed) for k, other, passed in self.shared], self.stop)
        return [self._build(a, b) for a, b in both]

    # --- values of Python
    def _collect(self, a: t.Tracker | None, b: t.Tracker | None) -> None:
        """Pair the tensors of two values; refuse any other difference."""
        if a is b or a is None and b is None:
            return
        if a is None or b is None:
            raise Unsupported("a variable is set one way only")
        if id(a) in self.changed or id(b) in self.changed:
            raise Unsupported("a list that one path changes, and another one in its place")
        if isinstance(a, t.Tensor) and isinstance(b, t.Tensor):
            if a.fake is not b.fake:
                self._pair(a, b)
        elif self.place is not None and _differ_in_length(a, b):
            self._stack(a, b)  # type: ignore[arg-type]
        elif (parts := _parts(self.tracer, a, b)) is not None:
            if not isinstance(a, (t.Tuple, t.RangeIterator)) and (self.partners.setdefault(id(a), id(b)) != id(b)
                                               or self.partners.setdefault(id(b), id(a)) != id(a)):
                raise Unsupported(f"two variables are one {a.pytype().__name__} one way only")
            for x, y in zip(*parts):
                self._collect(x, y)
        elif (not same(a, b) and data.is_number(a)
                and data.is_number(b) and a.pytype() is b.pytype()):
            one, other = [self._tensor(arm, x) for arm, x in zip(self.arms, (a, b))]
            self._pair(one, other)
            self.numbers[id(a), id(b)] = id(one.fake), id(other.fake)
        elif not same(a, b):
            raise Unsupported(f"the ways give different values: {a.describe()} and {b.describe()}")

    def _stack(self, a: t.List, b: t.List) -> None:
        """Pair the elements behind the first ones that are the same, as tensors."""
        start = common_start(a.items, b.items)
        rests = a.items[start:], b.items[start:]
        for arm, rest in zip(self.arms, rests):
            lost = {id(base.storage) for base, _, _ in arm.outer}
            if any(id(storage) in lost for storage in storages_of(rest)):
                raise Unsupported("a path that writes a tensor and puts it into a list")
        row = row_of(self.tracer, [*rests[0], *rests[1]])
        assert row is not None
        one, other = [self._within(arm, lambda rest=rest: stack_of(self.tracer, rest, row))  # type: ignore[misc]
                      for arm, rest in zip(self.arms, rests)]
        self._pair(one, other)
        self.stacks[id(a), id(b)] = start, row.kind, (id(one.fake), id(other.fake))

    def _tensor(self, arm: Arm, x: t.Tracker) -> t.Tensor:
        """Return a number of an arm's result as a tensor."""
        return self._within(arm, lambda: data.tensor_of(self.tracer, x))

    def _within(self, arm: Arm, make: Callable[[], t.Tensor]) -> t.Tensor:
        """Return what is computed at the end of an arm."""
        last = last_node(self.recorder.graph)
        made = make()
        arm.region += [n for n in nodes_after(self.recorder.graph, last) if n.op != "placeholder"]
        return made

    def _pair(self, a: t.Tensor, b: t.Tensor) -> None:
        if (id(a.fake), id(b.fake)) in self.pairs:
            return
        kinds = [(x.fake.is_conj(), x.fake.is_neg(), x.fake.is_inference()) for x in (a, b)]
        opened: set[Any] = set()
        val = widened(self.recorder.shape_env, a.fake, b.fake, opened, True)
        if kinds[0] != kinds[1] or val is None or opened and self.declared:
            raise Unsupported(f"the ways give tensors of different layouts: {_told(a)} and {_told(b)}")
        if opened:
            self.opened.add(len(self.vals))
        self.vals.append(val)
        if any(x.pyclass not in (torch.Tensor, torch.nn.Parameter) or x.attrs for x in (a, b)):
            raise Unsupported("a tensor of a class of the program's, or with attributes, of a branch")
        self.pairs[id(a.fake), id(b.fake)] = a, b

    def _build(self, a: t.Tracker | None, b: t.Tracker | None) -> t.Tracker | None:
        """Return the value that joins two values."""
        if a is b or a is None or b is None:
            return a
        key = (id(a.fake), id(b.fake)) if isinstance(a, t.Tensor) and isinstance(b, t.Tensor) else (id(a), id(b))
        if key in self.numbers:
            return data.number(self.tracer, self.made[self.numbers[key]])  # type: ignore[arg-type]
        if key in self.made:
            return self.made[key]
        if key in self.stacks:
            start, kind, pair = self.stacks[key]
            stack, first, second = self.made[pair], a.items, b.items  # type: ignore[union-attr, attr-defined]
            watched = [*storages_of([*first[start:], *second[start:]]), stack.fake._alias.storage]  # type: ignore[attr-defined]
            rest = t.StackedItems(stack, None, watched, self.place, kind)  # type: ignore[arg-type]
            return self.made.setdefault(key, _list_of([*first[:start], rest]))
        parts = _parts(self.tracer, a, b)
        if parts is None:
            return a
        items = [self._build(x, y) for x, y in zip(*parts)]
        if isinstance(a, t.RangeIterator):
            found: t.Tracker = a.at(items[0])  # type: ignore[arg-type]
        elif isinstance(a, t.Tuple):
            found = t.Tuple(items, cls=a.cls)  # type: ignore[arg-type]
        elif isinstance(a, t.Dict):
            found = t.Dict(dict(zip(a.entries, items)))  # type: ignore[arg-type]
        else:
            found = t.List(items)  # type: ignore[arg-type]
        self.made[key] = found
        return found

    # --- tensors
    def _node(self, arm: Arm, k: int, x: t.Tensor) -> Node:
        node, other, passed = result_of(self.tracer, arm, x)
        if other is not None:
            self.shared.append((k, other, passed))
        return node

    # --- gradients
    def _wants_grad(self, a: t.Tensor, b: t.Tensor, either: bool) -> bool:
        """Return whether a result requires grad; one that is written in place does if it may."""
        flags = [self.tracer.wants_grad(x.fake) for x in (a, b)]
        if self.declared:
            every = (n for arm in self.arms for m in arm.region for n in m.all_input_nodes)
            return (torch.is_grad_enabled() and is_differentiable(a.fake.dtype)
                    and (any(flags) or any(map(self.tracer.requires, every))))
        if flags[0] is not flags[1] and not either:
            raise Unsupported("a tensor requires grad one way only")
        return any(flags)

    def _check_gradients(self, results: Sequence[Sequence[Node]], condition: t.Tensor) -> None:
        """Refuse a branch for which eager would give no gradient for an input where the graph gives zeros: an input
        that only one path reaches, through values computed before the branch, or in a round of a loop; of the latter
        it is expected that some round takes that path."""
        inside = {n for arm in self.arms for n in arm.region}
        read = {a for n in inside for a in n.all_input_nodes} - inside
        loop: Any = self.tracer.counting[-1] if self.tracer.counting else None
        around = inputs_of(self.tracer, [n for n in read if n.op != "placeholder" or loop is not None])
        taken = set()
        for pair in zip(*results):
            one, other = [inputs_of(self.tracer, [n]) & around for n in pair]
            if one != other and (loop is None or not loop.may_expect(one ^ other)):
                raise Unsupported("only one path gives an input a gradient")
            taken |= {way for way, more in ((False, one - other), (True, other - one)) if more}
        for way in sorted(taken):
            loop.expect(condition if way else self.tracer.torch_call(torch.logical_not, [condition], {}))


def inputs_of(tracer: Any, nodes: Sequence[Node]) -> set[Node]:
    """Return the inputs that gradients of `nodes` flow to."""
    found, todo = set(), list(filter(tracer.requires, nodes))
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += filter(tracer.requires, node.all_input_nodes)
    return {n for n in found if n in tracer.differentiable or not n.all_input_nodes}


def result_of(tracer: Any, arm: Arm, x: t.Tensor) -> tuple[Node, Storage | None, bool]:
    """Return a result of an arm, in memory of its own or an earlier tensor itself; the earlier storage that it may
    share memory with; and whether it is that tensor."""
    recorder = tracer.recorder
    last = last_node(recorder.graph)
    node, storage = recorder.nodes(x.fake), x.fake._alias.storage
    arm.region += [n for n in nodes_after(recorder.graph, last) if n not in arm.region]
    if memory_of(node)[0] in arm.region:
        return node, None, False
    other, passed = None if id(storage) in arm.written else storage, node not in arm.region
    if other is not None and passed:
        return node, other, not other.version
    if preserved_strides(x.fake) != x.fake.stride():
        raise Unsupported("a part of a tensor from before is a result of a branch on data")
    copy = recorder.emit(aten.clone.default, (node,), like(x.fake))
    copy.meta.update(grad=tracer.wants_grad(x.fake), turn=tracer.turn)
    arm.region.append(copy)
    return copy, other, False


def cut_out(tracer: Any, arms: Sequence[Arm], results: Sequence[Sequence[Node]], state: Sequence[Node] = (),
            opened: Collection[int] = ()) -> tuple[list[Graph], list[Any]]:
    """Return the arms as graphs over `state` and the other values that they read from the enclosing graph, and these
    values. `opened`: the results whose sizes are their own in each arm."""
    needed = []
    for arm, given in zip(arms, results):
        own = set(arm.region)
        roots = [*given, *filter(has_effect, arm.region)]
        found = ancestors([n for n in roots if n in own], stop=set(tracer.recorder.graph.nodes) - own)
        needed.append([n for n in arm.region if n in found])
    operands: dict[Any, None] = dict.fromkeys(state)
    for inner, given in zip(needed, results):
        own = set(inner)
        operands.update(dict.fromkeys(a for n in inner for a in n.all_input_nodes if a not in own))
        operands.update(dict.fromkeys(n for n in given if n not in own))
    bound = {n.meta["binds"] for inner in needed for n in inner if "binds" in n.meta}
    read = {s for inner in needed for s in symbols_of(inner).union(*map(argument_symbols, inner))} - bound
    if bound and tracer.shapes.assumed:
        outside = {n.meta["binds"] for n in tracer.recorder.graph.nodes
                   if "binds" in n.meta and not n.meta.get("spare")} - bound
        read |= {s for rel in tracer.shapes.assumed if rel.free & bound for s in rel.free - bound
                 if s in outside or s not in tracer.shapes.data}
    if symbols_of([n for given in results for k, n in enumerate(given) if k not in opened]) & bound:
        raise Unsupported("a data-dependent size that only one path computes")
    sizes = size_sources(_of_places(list(operands))).keys()
    numbers = [symint(s, tracer.shapes) for s in sorted(read - sizes, key=lambda s: s.name)]
    graphs = [_graph([*operands, *numbers], inner, given) for inner, given in zip(needed, results)]
    for arm in arms:
        drop(arm)
    return graphs, [n for n in (*operands, *numbers) if n not in state]


def discard(tracer: Any, arm: Arm) -> None:
    """Drop an arm of which no graph is made."""
    drop(arm)
    tracer.shapes.know(arm.before)


def drop(arm: Arm) -> None:
    """Mark the recorded nodes as dead in the enclosing graph, unless another node reads them."""
    for node in arm.region:
        node.meta["spare"] = True


def emitted(tracer: Any, target: Control, args: Sequence[Any], results: Sequence[FakeTensor],
            wants: Sequence[bool]) -> list[t.Tensor]:
    """Record a branch or loop with results like `results`, which require grad as `wants` says. Their sizes that are new
    symbols are read off them."""
    recorder = tracer.recorder
    vals = tuple(map(like, results))
    node = recorder.emit(target, tuple(args), vals)
    made = recorder.results(node, vals)
    for one, grad in [(node, any(wants)), *zip([x._alias.node for x in made], wants)]:
        one.meta.update(grad=grad, turn=tracer.turn)
        if not torch.is_grad_enabled() or not any(wants):
            one.meta["no_grad"] = True
    bind_sizes(recorder, made)
    tracer.branched = True
    return list(map(tracer.made, made))


_GIVEN = "a branch on data gives a tensor from before it, which is written later or leaves, too"


def share(tracer: Any, pairs: Iterable[tuple[t.Tensor, Storage, bool]], stop: Stop | None,
          reason: str = _GIVEN) -> None:
    """Note results that may share memory with earlier tensors, and whether they are these tensors."""
    at = next((place[:2] for place in tracer.user_place()), None)
    writes = len(tracer.recorder.written)
    tracer.shared += [Shared(x.fake._alias.storage, other, passed, writes, stop, at, reason)
                      for x, other, passed in pairs]


def like(x: FakeTensor) -> FakeTensor:
    """Metadata of its own."""
    return new_fake(tuple(x.shape), x.stride(), x.dtype, x.device)


def _told(x: t.Tensor) -> str:
    return f"{x.fake.dtype} {list(x.fake.shape)}, strides {list(x.fake.stride())}"


def same(a: t.Tracker | None, b: t.Tracker | None) -> bool:
    """Return whether two values are identical, or the same constant."""
    if a is b:
        return True
    if not (isinstance(a, t.Const) and isinstance(b, t.Const)) or is_symbolic(a) or is_symbolic(b):
        return False
    return type(a.value) is type(b.value) and (a.value is b.value or repr(a.value) == repr(b.value)
                                               and a.value == b.value)


def _parts(tracer: Any, a: t.Tracker, b: t.Tracker) -> tuple[list[t.Tracker], list[t.Tracker]] | None:
    """Return the elements of two containers of the same form that the frame has created."""
    if type(a) is not type(b) or a.pytype() is not b.pytype():
        return None
    if isinstance(a, t.RangeIterator) and isinstance(b, t.RangeIterator):
        return ([a.position], [b.position]) if a.plan is b.plan else None
    if not isinstance(a, t.Tuple) and (a.pytype() not in (list, dict) or any(x.identity() is not x for x in (a, b))):
        return None
    if isinstance(a, t.Dict) and isinstance(b, t.Dict):
        if list(a.entries) != list(b.entries) or any(isinstance(k, t.Tracker) for k in a.entries):
            return None
        return list(a.entries.values()), list(b.entries.values())
    if not isinstance(a, t.Sequence) or not isinstance(b, t.Sequence) or t.is_own_sequence(a.pytype()):
        return None
    parts = list(a.open(tracer)), list(b.open(tracer))
    return parts if len(parts[0]) == len(parts[1]) else None


def _differ_in_length(a: t.Tracker, b: t.Tracker) -> bool:
    """Return whether two values are lists that captured code has made, of different lengths or of one not known."""
    if not all(isinstance(x, t.List) and x.value is None and x._items is not None and x.identity() is x
               for x in (a, b)):
        return False
    first, second = a.items, b.items  # type: ignore[attr-defined]
    start = common_start(first, second)
    return len(first) != len(second) or any(isinstance(x, t.StackedItems) for x in (*first[start:], *second[start:]))


def _of_places(nodes: Sequence[Any]) -> Graph:
    """Return a graph that begins with placeholders for nodes, or for numbers."""
    graph = Graph()
    for n in nodes:
        place = graph.placeholder(n.name if isinstance(n, Node) else "number")
        place.meta["val"] = n.meta["val"] if isinstance(n, Node) else n
    return graph


def _graph(operands: Sequence[Any], inner: Sequence[Node], results: Sequence[Node]) -> Graph:
    graph = _of_places(operands)
    made = {n: place for n, place in zip(operands, graph.nodes) if isinstance(n, Node)}
    for node in inner:
        made[node] = copy_node(graph, node, made.__getitem__)
    return close(graph, [made[n] for n in results])


def refuse_shared(tracer: Any, outputs: Iterable[FakeTensor]) -> None:
    """Raise StopAt where the program can tell whether a result is a copy of an earlier tensor or that tensor: one of
    the two is written later, or both leave the graph."""
    shared: list[Shared] = tracer.shared
    if not shared:
        return
    leaving = {id(x._alias.storage) for x in outputs if isinstance(x, FakeTensor)}
    for one in shared:
        late = {id(base.storage) for base, _, _ in tracer.recorder.written[one.writes:]}
        both = {id(one.result), id(one.other)}
        seen = id(one.result) in leaving and (one.other.input is not None or id(one.other) in leaving)
        if late & both or seen and (not one.passed or tracer.differentiable):
            raise StopAt(one.reason, one.stop, one.at)
