"""Loops that data ends: the body is recorded once, over stand-ins for the tensors that it changes, and cut out as the
body of one node (`graph.control`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from framesmith.fake.tensor import FakeTensor
from framesmith.graph.control import Loop, layout_of
from framesmith.symbolic.node import expr_of
from framesmith.util.errors import Unsupported

from . import data
from . import trackers as t
from .arms import Arm, cut_out, drop, emitted, like, recorded, result_of, same, share
from .break_points import Stop
from .bytecode.control_flow import loop_around
from .bytecode.liveness import liveness
from .frame import STOPPED, Frame

Step = Callable[[Sequence[t.Tensor]], tuple[t.Tracker, Sequence[t.Tracker]]]
"""From the state to the next condition and the next state."""


def stand_in() -> None:
    """A tensor of a loop's state, while its body is captured."""


stand_in.is_pure = True  # type: ignore[attr-defined]


def entered(tracer: Any, val: FakeTensor, grad: bool) -> t.Tensor:
    """A stand-in like `val`."""
    recorder = tracer.recorder
    made: t.Tensor = tracer.made(recorder.own(val, recorder.emit(stand_in, (), val)))
    recorder.nodes(val).meta.update(grad=grad, turn=tracer.turn)
    return made


def looped(tracer: Any, condition: t.Tensor, state: Sequence[t.Tensor], step: Step,
           stop: Stop | None) -> list[t.Tensor]:
    """Record a loop that goes on while `condition` is true: its last state."""
    if tracer.transformed or tracer.modes.functions:
        raise Unsupported("a loop that data ends in a function transform or mode")
    recorder = tracer.recorder
    if any(x.pyclass not in (torch.Tensor, torch.nn.Parameter) or x.attrs for x in state):
        raise Unsupported("a tensor of a class of the program's, or with attributes, that a loop changes")
    initial = [recorder.nodes(x.fake) for x in state]
    vals = [like(x.fake) for x in state]
    entries = [entered(tracer, val, False) for val in vals]
    places: list[Node] = [recorder.nodes(x.fake) for x in entries]
    found: list[tuple[t.Tracker, Sequence[t.Tracker]]] = []

    def way() -> list[t.Tracker | None]:
        found.append(step(entries))
        go = data.condition(tracer, found[0][0])
        if go is None:
            raise Unsupported(f"a loop that {found[0][0].describe()} ends")
        return [go, *found[0][1]]

    arm = recorded(tracer, way)
    for before, after in zip(state, arm.values[1:], strict=True):
        if not isinstance(after, t.Tensor) or layout_of(before.fake, expr_of) != layout_of(after.fake, expr_of):
            raise Unsupported(f"a loop changes the layout of {before.describe()}")
    results = [result_of(tracer, arm, x) for x in arm.values]  # type: ignore[arg-type]
    graphs, operands = cut_out(tracer, [arm], [[node for node, _, _ in results]], places)
    if torch.is_grad_enabled() and any(map(tracer.requires, [n for n in (*initial, *operands, *arm.region)
                                                             if isinstance(n, Node)])):
        raise Unsupported("a loop that data ends over tensors that require grad", hint="call it under torch.no_grad()")
    args = (recorder.nodes(condition.fake), *initial, *operands)
    made = emitted(tracer, Loop(graphs[0], len(state)), args, vals, [False] * len(state))
    others = {id(x): (x, passed) for _, x, passed in results if x is not None}
    for x in state:  # values may change places
        others[id(x.fake._alias.storage)] = x.fake._alias.storage, not x.fake._alias.storage.version
    own = {id(x.fake._alias.storage) for x in entries}
    share(tracer, [(x, other, passed) for x in made for k, (other, passed) in others.items() if k not in own], stop)
    return made


class FrameLoop:
    """A loop of a frame that goes on by a conditional jump on data: from the way `again`, out on the way `out`."""

    def __init__(self, f: Frame, at: int, inside: frozenset[int], again: int, out: int) -> None:
        self.frame, self.at, self.inside, self.again, self.out = f, at, inside, again, out
        live = liveness(f.code, again) | liveness(f.code, out)
        self.live = [i for i, name in enumerate(f.code.co_varnames) if name in live]
        if f is f.tracer.frames[0]:
            for i in [i for i in f.tracer.pending if i in self.live]:
                f.tracer.local(f, i)
        self.locals, self.stack = list(f.locals), f.stack[:-1]
        self.goes_on = True
        """The truth of the condition with which it goes on."""

    @staticmethod
    def around(f: Frame, at: int, target: int) -> FrameLoop | None:
        """The loop that the jump at `at` goes on with or leaves; None if it does neither, or an iterator ends the loop,
        too."""
        head, inside = loop_around(f.code, at)
        if (target in inside) is (at + 1 in inside) or f.dec.instrs[head].op.startswith("FOR_ITER"):
            return None
        return FrameLoop(f, at, inside, *((target, at + 1) if target in inside else (at + 1, target)))

    def exit_of(self, f: Frame, at: int, target: int) -> int:
        """The way by which a jump leaves the loop, which is another one than that which it goes on with; -1: none."""
        ways = [way for way in (target, at + 1) if way not in self.inside]
        return ways[0] if f is self.frame and at in self.inside and at != self.at and len(ways) == 1 else -1

    def goes(self, v: t.Tracker | None) -> t.Tensor:
        """The truth of the condition at the end of the body; of the one that leaves the loop for None."""
        tracer = self.frame.tracer
        if v is None:
            return tracer.torch_call(torch.tensor, [t.boolean(not self.goes_on)], {})  # type: ignore[no-any-return]
        found = data.condition(tracer, v)
        if found is None:
            raise Unsupported(f"a loop that {v.describe()} ends")
        flat = tracer.torch_call(torch.reshape, [found, tracer.made(())], {})
        return tracer.torch_call(torch.Tensor.to, [flat, tracer.made(torch.bool)], {})  # type: ignore[no-any-return]

    def run(self, condition: t.Tensor, goes_on: bool, stop: Stop | None) -> None:
        """Record the loop, which goes on while the truth of `condition` is `goes_on`; the frame is behind it then."""
        f, tracer = self.frame, self.frame.tracer
        self.goes_on = goes_on

        def following(v: t.Tracker) -> t.Tracker:
            return v if goes_on else data.negated(tracer, v)

        trial = recorded(tracer, lambda: [self._once({}), *f.locals])
        drop(trial)
        slots = self._changed(trial)

        def step(state: Sequence[t.Tensor]) -> tuple[t.Tracker, list[t.Tracker]]:
            found = self._once({i: outside(i, x) for i, x in zip(slots, state, strict=True)})
            if {i for i in self.live if i not in slots and not same(f.locals[i], self.locals[i])}:
                raise Unsupported("a loop changes a variable that it did not change the first time")
            return following(found), [data.tensor_of(tracer, f.locals[i]) for i in slots]  # type: ignore[arg-type]

        def outside(i: int, x: t.Tensor) -> t.Tracker:
            """What the program has for a tensor of the state: itself, or a number."""
            found = x if isinstance(self.locals[i], t.Tensor) else data.number(tracer, x)
            assert found is not None
            return found

        initial = [data.tensor_of(tracer, self.locals[i]) for i in slots]  # type: ignore[arg-type]
        go = data.condition(tracer, following(condition))
        assert go is not None
        made = looped(tracer, go, initial, step, stop)
        values = [x if i in self.live or same(x, y) else None
                  for i, (x, y) in enumerate(zip(self.locals, trial.values[1:], strict=True))]
        for i, x in zip(slots, made, strict=True):
            values[i] = outside(i, x)
        f.locals[:], f.stack[:], f.ip = values, self.stack, self.out

    def _once(self, changed: dict[int, t.Tracker]) -> t.Tracker:
        """Run the body; the condition that it comes to."""
        f = self.frame
        f.locals[:] = [changed.get(i, x) for i, x in enumerate(self.locals)]
        f.stack[:], f.ip = self.stack, self.again
        if f.run(self.at) is not STOPPED or f.yielded:
            raise Unsupported("a loop that data ends in more than one place")
        condition = f.stack.pop()
        if len(f.stack) != len(self.stack) or any(a is not b for a, b in zip(f.stack, self.stack)):
            raise Unsupported("a loop that data ends changes what an expression around it holds")
        return condition

    def _changed(self, trial: Arm) -> list[int]:
        """The variables that the loop changes, all tensors and numbers."""
        slots = []
        for i in self.live:
            before, after = self.locals[i], trial.values[1 + i]
            if not same(before, after):
                numbers = data.is_number(before) and data.is_number(after)
                if not (isinstance(before, t.Tensor) and isinstance(after, t.Tensor)
                        or numbers and before.pytype() is after.pytype()):  # type: ignore[union-attr]
                    raise Unsupported(f"a loop that data ends changes {self.frame.code.co_varnames[i]}, which is no "
                                      "tensor or number")
                slots.append(i)
        return slots
