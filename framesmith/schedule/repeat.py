"""The steps of a graph of many equal parts, from those of a graph with a few of them.

    embed · A B · A' B' · A'' B'' · pool          the steps of three parts
    embed · A B · A' B' · ... · A'' B'' · pool    a block is repeated with the buffers of each part

A block of steps is repeated if the blocks before and after it are equal up to their buffers, which correspond one part
apart, as do inputs, results and views. All parts are equal, so the stages would give the same steps for each inner
part. If the blocks do not correspond, each part is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from framesmith.graph.repetition import Chain
from framesmith.loops.ir import Extern, Launch, Origin, Ref, Step
from framesmith.loops.nest import LoopGraph
from framesmith.loops.repeats import Repeats
from framesmith.loops.uses import named, renamed
from framesmith.util.errors import CompileError

_COMMON = ("dtype", "size", "stride", "kind", "offset", "device", "given_up")

Work = Launch | Extern
"""The steps before batches are made and memory is planned."""


class NotPeriodic(CompileError):
    """The steps of a graph of equal parts are not those of each part in turn."""


def repeated(graph: LoopGraph, steps: Sequence[Step]) -> tuple[LoopGraph, list[Step]]:
    """Return the whole graph and its steps, before memory is planned, from those of its short graph. Raises
    `NotPeriodic`."""
    assert graph.repeats is not None
    return _Repeated(graph, steps, graph.repeats).run()


class _Repeated:
    """`after`: a buffer of a part -> that of the next. `block`: the steps from `first` up to `end`, after which the
    omitted ones are inserted. `touched`: buffer -> the first step that uses it. `shared`: nodes of the first part whose
    values steps of all parts compute."""

    def __init__(self, graph: LoopGraph, steps: Sequence[Step], repeats: Repeats) -> None:
        self.graph = graph
        self.steps = [step for step in steps if isinstance(step, Work)]
        self.repeats = repeats
        self.of = repeats.of
        self.after: dict[str, str] = {}
        self.before: dict[str, str] = {}
        self.fixed: set[str] = set()
        self.shared: set[int] = set()
        self.touched: dict[str, int] = {}
        for k, step in enumerate(steps):
            for name in named(step):
                self.touched.setdefault(name, k)
                self.touched.setdefault(graph.storages[name].base or name, k)
        self.storages = dict(graph.storages)
        self.constants = dict(graph.constants)
        self.inputs: list[str | None] = [None] * len(self.of.inputs)
        self.links: dict[str, tuple[Chain, int]] = {}
        self.made: dict[tuple[str, int], str] = {}

    def run(self) -> tuple[LoopGraph, list[Step]]:
        self.first, self.end = self._block()
        self._check_order()
        self._given()
        count, block = self.of.left_out, self.steps[self.first : self.end]
        steps: list[Step] = self._moved(self.steps[: self.end], 0)
        for later in range(1, count + 1):
            steps += self._moved(block, later)
        steps += self._moved(self.steps[self.end :], count)
        for buffer, first in self.touched.items():
            if first >= self.end:
                self._rebase(buffer)
        outputs = self._outputs()
        return replace(self.graph, inputs=tuple(self.inputs), storages=self.storages, constants=self.constants,
                       outputs=outputs, repeats=None), steps

    def _moved(self, steps: Sequence[Work], later: int) -> list[Step]:
        """Return steps of a part moved to a later part."""
        def name(buffer: str) -> str:
            return self._ahead(buffer, later) if later else buffer

        return [renamed(replace(step, origins=tuple([self._origin(o, later) for o in step.origins])), name)
                for step in steps]

    # -------------------------------------------------------------------------------------------- what corresponds

    def _block(self) -> tuple[int, int]:
        """Return the last block of steps to which the blocks of equal length before and after it correspond."""
        middle = self.of.start + self.of.length * 3 // 2
        at = next((k for k, step in enumerate(self.steps) if _last_node(step) >= middle), len(self.steps))
        length = next((k - at for k in range(at + 1, len(self.steps)) if self._same_work(at, k)), 0)
        if not length:
            raise NotPeriodic("no step has another that corresponds to it")
        end = at
        while end + length < len(self.steps) and self._match(end, end + length):
            end += 1
        first = at
        while first > 0 and self._match(first - 1, first - 1 + length):
            first -= 1
        if end - first < 2 * length:
            raise NotPeriodic("too few steps correspond")
        if self.fixed & (self.after.keys() | self.before.keys()):
            raise NotPeriodic("a buffer of one part and of all")
        return end - length, end

    def _same_work(self, one: int, two: int) -> bool:
        """Return whether a step does for one part the same work as another step for the next part."""
        a, b = self.steps[one], self.steps[two]
        same = a.kernel is b.kernel if type(a) is Launch and type(b) is Launch else (
            type(a) is type(b) is Extern and a.target is b.target)
        ahead = {b.node - a.node for a, b in zip(a.origins, b.origins, strict=False)}
        return same and len(a.origins) == len(b.origins) and self.of.length in ahead <= {0, self.of.length}

    def _match(self, one: int, two: int) -> bool:
        """Return whether two steps correspond, and bind their buffers."""
        if not self._same_work(one, two):
            return False
        a, b = self.steps[one], self.steps[two]
        after, before, fixed = dict(self.after), dict(self.before), set(self.fixed)
        if self._match_arguments(_arguments(a), _arguments(b)):
            self.shared |= {x.node for x, y in zip(a.origins, b.origins, strict=True) if x.node == y.node}
            return True
        self.after, self.before, self.fixed = after, before, fixed
        return False

    def _match_arguments(self, a: Any, b: Any) -> bool:
        if type(a) is not type(b):
            return False
        if type(a) is Ref:
            return self._bind(a.name, b.name)
        if isinstance(a, dict):
            return a.keys() == b.keys() and all(self._match_arguments(x, b[name]) for name, x in a.items())
        if isinstance(a, (tuple, list)):
            return len(a) == len(b) and all(map(self._match_arguments, a, b))
        return a is b or repr(a) == repr(b)

    def _bind(self, x: str, y: str) -> bool:
        """Bind corresponding buffers: they are the same, outside all parts, or `y` is that of the next part; return
        False if they cannot be."""
        if x == y:
            self.fixed.add(x)
            return True
        if x in self.after or y in self.before:
            return self.after.get(x) == y
        one, two = self.graph.storages[x], self.graph.storages[y]
        if any(getattr(one, field) != getattr(two, field) for field in _COMMON):
            return False
        self.after[x], self.before[y] = y, x
        if one.base is None or two.base is None:
            return one.base is two.base
        return self._bind(one.base, two.base)

    def _check_order(self) -> None:
        """Check that no step before the end of the block belongs to a later part than it, and none after it to an
        earlier one: so no step depends on the number of parts, and each step's nodes have a fixed distance from the
        first or the last part."""
        early, own, late = (
            [o.node for step in self.steps[place] for o in step.origins
             if o.node >= self.of.start and o.node not in self.shared]
            for place in (slice(0, self.end), slice(self.first, self.end), slice(self.end, None)))
        if max(early) > max(own) or min(late, default=max(own)) < min(own):
            raise NotPeriodic("steps of different parts are not in order")
        known = {name for step in self.steps[self.first : self.end] for name in named(step)}
        if any(name in self.after and not self._is_late(name) and name not in known
               for step in self.steps[self.end :] for name in named(step)):
            raise NotPeriodic("a step behind the parts reads of several")

    # ------------------------------------------------------------------------------------------------ what is later

    def _is_late(self, name: str) -> bool:
        """Return whether a buffer is first used after the block; a result may be a view that no step uses."""
        base = self.graph.storages[name].base
        return self.touched.get(name, self.touched.get(base or name, -1)) >= self.end

    def _ahead(self, name: str, later: int) -> str:
        """Return the buffer that corresponds to one, `later` parts later, for steps of copies of the block or after
        it."""
        if name not in self.after and name not in self.before or self._is_late(name):
            return name
        while later:
            following = self.after.get(name)
            if following is None and name in self.touched:
                raise NotPeriodic("a buffer that has none in the next part")
            if following is None or self._is_late(following):
                return self._made(name, later)
            name, later = following, later - 1
        return name

    def _rebase(self, name: str) -> None:
        """Rebase a view that is taken after the block onto a buffer of the last part."""
        base = self.storages[name].base
        if base is not None:
            self.storages[name] = replace(self.storages[name], base=self._ahead(base, self.of.left_out))

    def _made(self, name: str, later: int) -> str:
        """Return a buffer of a part that was omitted."""
        known = self.made.get((name, later))
        if known is None:
            s = self.graph.storages[name]
            known = self.made[name, later] = f"{name}_{later}"
            base = None if s.base is None else self._ahead(s.base, later)
            self.storages[known] = replace(s, name=known, base=base)
            if s.kind in ("input", "constant"):
                if name not in self.links:
                    raise NotPeriodic("a constant of each part")
                chain, part = self.links[name]
                self._place(known, chain.places[part + later])
        return known

    # ----------------------------------------------------------------------------------------- inputs and results

    def _given(self) -> None:
        """Map inputs and constants to their places among those of the whole graph."""
        names = {s.index: s.name for s in self.graph.storages.values() if s.kind in ("input", "constant")
                 and s.index >= 0}
        for chain in self.of.input_chains:
            for part, short in enumerate(chain.short):
                if (name := names.get(short)) is not None:
                    self.links[name] = chain, part
            late = [self._is_late(names[short]) for short in chain.short if short in names]
            if late != sorted(late):
                raise NotPeriodic("inputs of parts that are not in order")
        for place, at in enumerate(self.of.inputs):
            name = None if at is None else names.get(at)
            if name is not None and name not in self.links:
                self._place(name, place)
        for name, (chain, part) in self.links.items():
            self._place(name, chain.places[part + (self.of.left_out if self._is_late(name) else 0)])
            following = self.after.get(name)
            if name in self.fixed or following is not None and self.links.get(following) != (chain, part + 1):
                raise NotPeriodic("an input of another part")

    def _place(self, name: str, place: int) -> None:
        s = self.storages[name] = replace(self.storages[name], index=place)
        if s.kind == "input":
            self.inputs[place] = name
            return
        tensor = self.constants[name] = self.repeats.constants[place]
        if (tuple(tensor.shape), tensor.stride(), tensor.dtype) != (tuple(s.size), tuple(s.stride), s.dtype):
            raise NotPeriodic("a constant of another layout")

    def _outputs(self) -> tuple[Any, ...]:
        found: list[Any] = [None if short is None else self.graph.outputs[short] for short in self.of.outputs]
        chained = {place for chain in self.of.output_chains for place in chain.places}
        for place, value in enumerate(found):
            if type(value) is Ref and place not in chained and place in self.of.late_outputs:
                found[place] = Ref(self._ahead(value.name, self.of.left_out))
                if value.name not in self.touched:
                    self._rebase(value.name)
        for chain in self.of.output_chains:
            results = [self.graph.outputs[short] for short in chain.short]
            if not all(type(r) is Ref for r in results):
                if any(type(r) is Ref or r != results[0] for r in results):
                    raise NotPeriodic("results of different kinds")
                found = [results[0] if place in chain.places else value for place, value in enumerate(found)]
                continue
            late = [self._is_late(r.name) for r in results]
            last = late.count(False) - 1
            pairs_there = zip(results[max(last - 1, 0) : last + 1], results[max(last, 1) : last + 2], strict=False)
            if last < 1 or late != sorted(late) or not all(self._bind(a.name, b.name) for a, b in pairs_there):
                raise NotPeriodic("results that do not correspond")
            count = self.of.left_out
            for part, place in enumerate(chain.places):
                later = part - last
                if 0 < later <= count:
                    found[place] = Ref(self._ahead(results[last].name, later))
                else:
                    found[place] = results[part if later <= 0 else part - count]
        return tuple(found)

    def _origin(self, origin: Origin, later: int) -> Origin:
        return replace(origin, node=self.of.number(origin.node, 0 if origin.node in self.shared else later))


def _last_node(step: Work) -> int:
    """Return the last node of a step; others may belong to a value that all parts share."""
    return max([o.node for o in step.origins], default=-1)


def _arguments(step: Work) -> tuple[Any, ...]:
    """Return all arguments of a step, buffers as `Ref`s."""
    if isinstance(step, Launch):
        return tuple(map(Ref, step.args))
    outputs = tuple([n if n is None else Ref(n) for n in step.outputs])
    return step.args, step.kwargs, outputs, tuple(map(Ref, step.mutates))
