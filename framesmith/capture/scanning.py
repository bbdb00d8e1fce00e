"""Scans: the body is recorded once, over stand-ins for the carried state and for a slice of each operand, and cut out
as the body of one node (`graph.control`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from framesmith.fake.layout import meets_itself
from framesmith.fake.tensor import FakeTensor, Storage, dense, new_fake
from framesmith.graph.control import Scan, layout_of
from framesmith.graph.traversal import last_node, nodes_after
from framesmith.symbolic.node import expr_of, symint
from framesmith.util.errors import Unsupported

from . import trackers as t
from .arms import Arm, cut_out, discard, emitted, like, recorded, result_of
from .looping import entered

aten = torch.ops.aten
Step = Callable[[list[t.Tensor]], tuple[Sequence[t.Tracker], Sequence[t.Tracker], t.Tracker]]
"""A function from the state and a slice of each operand to the next state, the collected results, and a Python
value."""


@dataclass(frozen=True, slots=True)
class Joined:
    """Results of the rounds that differ in the size of dimension `dim`, joined along it. `lengths`: these sizes."""

    whole: t.Tensor
    dim: int
    lengths: t.Tensor


def scanned(tracer: Any, step: Step, state: Sequence[t.Tracker], xs: Sequence[t.Tracker],
            backwards: bool, filled: Sequence[t.Tracker] = (), written: Collection[Storage] = (),
            check: Callable[[Arm], None] | None = None,
            ragged: bool = False) -> tuple[list[t.Tensor], list[t.Tensor | Joined], t.Tracker]:
    """Record a scan, and return the last state, the stacked results, and the Python value. `filled`, `written`: lists
    that a step may fill, and tensors that it may write; `check` may refuse the body. `ragged`: the results of rounds
    may differ in the size of one dimension."""
    if tracer.transformed or tracer.modes.functions:
        raise Unsupported("a scan in a function transform or mode")
    recorder = tracer.recorder
    initial, over = _tensors(tracer, state), [_sliceable(tracer, x) for x in _tensors(tracer, xs)]
    length = over[0].fake.shape[0]
    if any(expr_of(x.fake.shape[0]) is not expr_of(length) for x in over) or length == 0:
        raise Unsupported("a scan over operands of different lengths, or of none")
    initial = [tracer.torch_call(torch.clone, [x], {}) for x in initial]
    slices = [new_fake(tuple(x.fake.shape[1:]), x.fake.stride()[1:], x.fake.dtype, x.fake.device) for x in over]
    vals, wants = [like(x.fake) for x in initial], [tracer.wants_grad(x.fake) for x in initial]
    for _ in range(2 + len(initial)):
        entries = [*map(entered, [tracer] * len(vals), vals, wants),
                   *[entered(tracer, val, tracer.wants_grad(x.fake)) for x, val in zip(over, slices)]]
        found: list[t.Tracker] = []
        arm = recorded(tracer, lambda: _given(step, entries, found), filled,  # noqa: B023
                       lambda storage: any(storage is own for own in written), True)
        after = arm.values[:len(initial)]
        if len(after) != len(initial) or not all(isinstance(x, t.Tensor) for x in arm.values):
            raise Unsupported("a body of a scan that gives other things than tensors, or another number of them")
        now = [x.fake for x in after]  # type: ignore[union-attr]
        grads = [tracer.wants_grad(x) for x in now]
        if all(layout_of(x, expr_of) == layout_of(val, expr_of) for x, val in zip(now, vals)) and grads == wants:
            break
        discard(tracer, arm)
        vals, wants = [like(x) for x in now], [a or b for a, b in zip(wants, grads)]
    else:
        raise Unsupported("a scan changes the layout of its state")
    if check is not None:
        check(arm)
    count = len(initial)
    uneven = _uneven(tracer, arm, count) if ragged else {}
    results = [_result(tracer, arm, x, k < count) for k, x in enumerate(arm.values)]  # type: ignore[arg-type]
    places: list[Node] = [recorder.nodes(x.fake) for x in entries]
    graphs, operands = cut_out(tracer, [arm], [results], places, uneven)
    begun = [recorder.nodes(_laid_out(tracer, x, val).fake) for x, val in zip(initial, vals)]
    args = (length, *begun, *[recorder.nodes(x.fake) for x in over], *operands)
    totals = {k: _total(tracer, arm.values[k].fake.shape[0], entries[count:], over) for k in uneven}  # type: ignore[union-attr]
    stacks = [dense(x.fake, (totals[k], *x.fake.shape[1:]) if k in uneven else (length, *x.fake.shape))  # type: ignore[union-attr]
              for k, x in enumerate(arm.values[count:], count)]
    outs = [tracer.wants_grad(x.fake) for x in arm.values[count:]]  # type: ignore[union-attr]
    if uneven and any([*grads, *outs]):
        raise Unsupported("the gradient of a loop that collects tensors of different sizes")
    target = Scan(graphs[0], count, len(over), backwards, joined=tuple([k - count for k in uneven]))
    made = emitted(tracer, target, args, [*vals, *stacks], [*grads, *outs])
    collected: list[t.Tensor | Joined] = list(made[count:len(made) - len(uneven)])
    for (k, dim), lengths in zip(uneven.items(), made[len(made) - len(uneven):]):
        whole = tracer.torch_call(torch.movedim, [made[k], t.Const(0), t.Const(dim)], {})
        collected[k - count] = Joined(whole, dim, lengths)
    return made[:count], collected, found[0]


def _uneven(tracer: Any, arm: Arm, count: int) -> dict[int, int]:
    """Return the results of a body whose size in one dimension is its own, and that dimension, which becomes the first
    one; these sizes become results."""
    recorder = tracer.recorder
    bound = {n.meta["binds"] for n in arm.region if "binds" in n.meta}
    found, last = {}, last_node(recorder.graph)
    values = list(arm.values)
    for k, x in enumerate(arm.values[count:], count):
        dims = [d for d, n in enumerate(x.fake.shape) if expr_of(n).free & bound]  # type: ignore[union-attr]
        if len(dims) > 1:
            raise Unsupported("tensors that differ in more than one dimension")
        if dims:
            how = {"dtype": tracer.made(torch.int64)}
            values.append(tracer.torch_call(torch.full, [tracer.made(()), t.Sym(x.fake.shape[dims[0]])], how))  # type: ignore[union-attr]
            moved = tracer.torch_call(torch.movedim, [x, t.Const(dims[0]), t.Const(0)], {})
            values[k] = tracer.torch_call(torch.Tensor.contiguous, [moved], {})
            found[k] = dims[0]
    arm.region += [n for n in nodes_after(recorder.graph, last) if n.op != "placeholder"]
    arm.values = values
    return found


def _total(tracer: Any, size: Any, slices: Sequence[t.Tensor], over: Sequence[t.Tensor]) -> Any:
    """Return the sum of a size over all rounds: known if the sizes are lengths of all parts of a tensor, else a new
    symbol."""
    env, nodes = tracer.recorder.shape_env, tracer.recorder.nodes
    source = env.sources.get(expr_of(size))
    if source is not None and source[1] == -1:
        node = nodes(source[0])
        read = node.args[0] if node.target is aten.clone.default else node
        for x, whole in zip(slices, over):
            if nodes(x.fake) is read and id(whole.fake) in tracer.totals:
                return tracer.totals[id(whole.fake)][1]
    return symint(env.data_symbol(0, None, None), env)


def _given(step: Step, entries: list[t.Tensor], found: list[t.Tracker]) -> list[t.Tracker | None]:
    after, out, kind = step(entries)
    found.append(kind)
    return [*after, *out]


def _tensors(tracer: Any, values: Sequence[t.Tracker]) -> list[t.Tensor]:
    for x in values:
        if not isinstance(x, t.Tensor) or x.pyclass not in (torch.Tensor, torch.nn.Parameter) or x.attrs:
            raise Unsupported(f"a scan over {x.describe()}")
    return list(values)  # type: ignore[arg-type]


def _sliceable(tracer: Any, x: t.Tensor) -> t.Tensor:
    """Return an operand such that the strides of its slices follow from their sizes, if they depend on other ones."""
    sizes = {s for n in x.fake.shape[1:] for s in expr_of(n).free}
    if {s for n in x.fake.stride()[1:] for s in expr_of(n).free} <= sizes:
        return x
    how = {"memory_format": tracer.made(torch.contiguous_format)}
    return tracer.torch_call(torch.clone, [x], how)  # type: ignore[no-any-return]


def _result(tracer: Any, arm: Arm, x: t.Tensor, carried: bool) -> Node:
    """Return a result of the body: the carried state has memory of its own, stacked results may share it."""
    node, other, _ = result_of(tracer, arm, x) if carried or meets_itself(x.fake) else (
        tracer.recorder.nodes(x.fake), None, False)
    if other is not None or node not in arm.region and node.op == "call_function" and carried:
        copy: Node = tracer.recorder.emit(aten.clone.default, (node,), like(x.fake))
        copy.meta.update(grad=tracer.wants_grad(x.fake), turn=tracer.turn)
        arm.region.append(copy)
        return copy
    return node


def _laid_out(tracer: Any, x: t.Tensor, val: FakeTensor) -> t.Tensor:
    """Return a first state in the layout of the body's next state."""
    if (x.fake.shape, x.fake.dtype, x.fake.device) != (val.shape, val.dtype, val.device):
        raise Unsupported(f"a scan changes the layout of {x.describe()}")
    if x.fake.stride() == val.stride():
        return x
    how = {"dtype": tracer.made(val.dtype), "device": tracer.made(val.device)}
    blank = tracer.torch_call(torch.empty_strided, [tracer.made(tuple(val.shape)), tracer.made(val.stride())], how)
    return tracer.torch_call(torch.Tensor.copy_, [blank, x], {})  # type: ignore[no-any-return]
