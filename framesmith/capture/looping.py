"""Loops with a data-dependent number of rounds: the body is recorded once, over stand-ins for the tensors that it
changes, and cut out as the body of one node (`graph.control`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from framesmith.fake.tensor import FakeTensor
from framesmith.graph.control import Branch, Loop, layout_of
from framesmith.symbolic.node import expr_of, symint
from framesmith.util.errors import Unsupported

from . import data
from . import trackers as t
from .arms import Arm, cut_out, drop, emitted, inputs_of, like, recorded, result_of, same, share
from .break_points import Stop
from .bytecode.control_flow import loop_around
from .bytecode.liveness import liveness
from .frame import STOPPED, Frame

Step = Callable[[Sequence[t.Tensor]], tuple[t.Tracker, Sequence[t.Tracker]]]
"""A function from the state to the next condition and the next state."""


def stand_in() -> None:
    """Return a stand-in for a tensor of a loop's state, while its body is captured."""


stand_in.is_pure = True  # type: ignore[attr-defined]


def entered(tracer: Any, val: FakeTensor, grad: bool) -> t.Tensor:
    """Return a stand-in like `val`."""
    recorder = tracer.recorder
    made: t.Tensor = tracer.made(recorder.own(val, recorder.emit(stand_in, (), val)))
    recorder.nodes(val).meta.update(grad=grad, turn=tracer.turn)
    return made


def looped(tracer: Any, condition: t.Tensor, state: Sequence[t.Tensor], step: Step, stop: Stop | None,
           declared: bool = False) -> list[t.Tensor]:
    """Record a loop that runs while `condition` is true, and return its last state. `declared`: a call of
    torch.while_loop, whose results require grad if a round's results do."""
    if tracer.transformed or tracer.modes.functions:
        raise Unsupported("a loop that data ends in a function transform or mode")
    recorder = tracer.recorder
    if any(x.pyclass not in (torch.Tensor, torch.nn.Parameter) or x.attrs for x in state):
        raise Unsupported("a tensor of a class of the program's, or with attributes, that a loop changes")
    initial = [recorder.nodes(x.fake) for x in state]
    vals = [like(x.fake) for x in state]
    wants = [tracer.wants_grad(x.fake) for x in state]
    entries = [entered(tracer, val, grad) for val, grad in zip(vals, wants)]
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
    grads = [tracer.wants_grad(x.fake) for x in arm.values[1:]]  # type: ignore[union-attr]
    graphs, operands = cut_out(tracer, [arm], [[node for node, _, _ in results]], places)
    read = [n for n in operands if isinstance(n, Node) and tracer.requires(n)]
    if grads != wants and not declared:
        raise Unsupported("a tensor requires grad behind some rounds of a loop only")
    wants = [a or b for a, b in zip(wants, grads)]
    if torch.is_grad_enabled() and (any(wants) or read) and not declared:
        _check_gradients(tracer, [n for n, grad in zip(initial, wants) if grad], read)
        if any(isinstance(n.target, Branch) and n.meta.get("grad") for n in arm.region):
            raise Unsupported("a branch in a loop, of which a gradient depends")  # that may be one of no round
    args = (recorder.nodes(condition.fake), *initial, *operands)
    made = emitted(tracer, Loop(graphs[0], len(state), declared, _rounds(tracer, wants)), args, vals, wants)
    others = {id(x): (x, passed) for _, x, passed in results if x is not None}
    for x in state:  # values may change places
        others[id(x.fake._alias.storage)] = x.fake._alias.storage, not x.fake._alias.storage.version
    own = {id(x.fake._alias.storage) for x in entries}
    share(tracer, [(x, other, passed) for x in made for k, (other, passed) in others.items() if k not in own], stop)
    return made


def _rounds(tracer: Any, wants: Sequence[bool]) -> Any:
    """Return the number of rounds as a size, which the derivative of a loop needs."""
    if not any(wants) or not torch.is_grad_enabled():
        return None
    env = tracer.recorder.shape_env
    if tracer.touched is not None or env is None:
        raise Unsupported("gradients of a loop within a way of a branch or a body of a loop")
    return symint(env.data_symbol(0, None, "rounds of a loop"), env)


def _check_gradients(tracer: Any, initial: Sequence[Node], read: Sequence[Node]) -> None:
    """Refuse a loop for which eager would give no gradient for an input where the graph gives zeros: without a round, a
    result has gradients for its own first value alone."""
    around = inputs_of(tracer, [n for n in (*initial, *read) if n.op != "placeholder"])
    if any(around - inputs_of(tracer, [n]) for n in initial):
        raise Unsupported("a loop gives an input a gradient if there is a round only")


def _is_test(op: str) -> bool:
    return op in ("POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE")


def _jumps(op: str) -> bool:
    """Return the truth value on which a test jumps."""
    return op == "POP_JUMP_IF_TRUE"


class FrameLoop:
    """A loop of a frame whose conditional jump on data continues at `again`, and leaves at `out`."""

    def __init__(self, f: Frame, at: int, inside: frozenset[int], again: int, out: int) -> None:
        self.frame, self.at, self.inside, self.again, self.out = f, at, inside, again, out
        live = liveness(f.code, again) | liveness(f.code, out)
        self.live = [i for i, name in enumerate(f.code.co_varnames) if name in live]
        if f is f.tracer.frames[0]:
            for i in [i for i in f.tracer.pending if i in self.live]:
                f.tracer.local(f, i)
        self.locals, self.stack = list(f.locals), f.stack[:-1]
        self.goes_on = True
        """The truth value of the condition for another round."""

    @staticmethod
    def behind(f: Frame, at: int) -> tuple[FrameLoop, FrameLoop] | None:
        """Return the tests that lead into a loop from the jump at `at` on, as a loop that ends with the last of them,
        and the loop, which ends with the same tests; None if `at` is not such a test."""
        instrs = f.dec.instrs
        for k in range(at + 2, len(instrs)):
            start = instrs[k].target
            if not at < start <= k or instrs[k].op.startswith("FOR_ITER"):
                continue
            last, test = start - 1, k if _is_test(instrs[k].op) else k - 1
            again, out = (start, k + 1) if test == k else (k, instrs[test].target)
            if (_is_test(instrs[test].op) and _is_test(instrs[last].op) and instrs[at].target == out
                    and all(ins.target in (-1, out) and (ins.target < 0 or _is_test(ins.op))
                            for ins in instrs[at:start])):
                inside = loop_around(f.code, test)[1]
                head = FrameLoop(f, last, frozenset(range(at, start)), start, out)
                head.goes_on = not _jumps(instrs[last].op)
                loop = FrameLoop(f, test, inside, again, out)
                loop.goes_on = _jumps(instrs[test].op) is (test == k)
                return head, loop
        return None

    @staticmethod
    def around(f: Frame, at: int, target: int) -> FrameLoop | None:
        """Return the loop that the jump at `at` continues or leaves; None if it does neither, or an iterator may also
        end the loop."""
        head, inside = loop_around(f.code, at)
        if (target in inside) is (at + 1 in inside) or f.dec.instrs[head].op.startswith("FOR_ITER"):
            return None
        return FrameLoop(f, at, inside, *((target, at + 1) if target in inside else (at + 1, target)))

    def exit_of(self, f: Frame, at: int, target: int) -> int:
        """Return the target by which a jump leaves the loop, if the other one continues it; -1: none."""
        ways = [way for way in (target, at + 1) if way not in self.inside]
        return ways[0] if f is self.frame and at in self.inside and at != self.at and len(ways) == 1 else -1

    def goes(self, v: t.Tracker | None) -> t.Tensor:
        """Return the truth of the condition at the end of the body; for None, of the one that leaves the loop."""
        tracer = self.frame.tracer
        if v is None or not data.decides(tracer, v):
            truth = v.truth(tracer) if v is not None else not self.goes_on
            return tracer.torch_call(torch.tensor, [t.boolean(truth)], {})  # type: ignore[no-any-return]
        found = data.condition(tracer, v)
        if found is None:
            raise Unsupported(f"a loop that {v.describe()} ends")
        flat = tracer.torch_call(torch.reshape, [found, tracer.made(())], {})
        return tracer.torch_call(torch.Tensor.to, [flat, tracer.made(torch.bool)], {})  # type: ignore[no-any-return]

    def run(self, condition: t.Tensor, begins: bool, stop: Stop | None) -> None:
        """Record the loop, which is entered if the truth of `condition` is `begins`, and move the frame past it."""
        f, tracer = self.frame, self.frame.tracer

        def following(v: t.Tracker) -> t.Tracker:
            return v if self.goes_on else data.negated(tracer, v)

        trial = recorded(tracer, lambda: [self._once({}), *f.locals])
        drop(trial)
        slots = self._changed(trial)

        def step(state: Sequence[t.Tensor]) -> tuple[t.Tracker, list[t.Tracker]]:
            found = self._once({i: outside(i, x) for i, x in zip(slots, state, strict=True)})
            if {i for i in self.live if i not in slots and not same(f.locals[i], self.locals[i])}:
                raise Unsupported("a loop changes a variable that it did not change the first time")
            return following(found), [data.tensor_of(tracer, f.locals[i]) for i in slots]  # type: ignore[arg-type]

        def outside(i: int, x: t.Tensor) -> t.Tracker:
            """Return the program's value for a tensor of the state: the tensor, or a number."""
            found = x if isinstance(self.locals[i], t.Tensor) else data.number(tracer, x)
            assert found is not None
            return found

        initial = [data.tensor_of(tracer, self.locals[i]) for i in slots]  # type: ignore[arg-type]
        go = data.condition(tracer, condition if begins else data.negated(tracer, condition))
        assert go is not None
        made = looped(tracer, go, initial, step, stop)
        values = [x if i in self.live or same(x, y) else None
                  for i, (x, y) in enumerate(zip(self.locals, trial.values[1:], strict=True))]
        for i, x in zip(slots, made, strict=True):
            values[i] = outside(i, x)
        f.locals[:], f.stack[:], f.ip = values, self.stack, self.out

    def _once(self, changed: dict[int, t.Tracker]) -> t.Tracker:
        """Run the body, and return the condition at its end."""
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
        """Return the variables that the loop changes, all tensors and numbers."""
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
