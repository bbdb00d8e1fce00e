"""The joint graph: a captured graph and the gradients of its results, in one graph of functional operators.

The captured graph is functional already (writes and views were resolved as it was recorded), so it can be run again on
fresh fakes, with autograd on; the autograd engine then runs over them with symbolic tangents, and what its formulas
call is recorded behind the forward part. This second pass costs some 10 us an operator, and keeps autograd's own rules
for views and writes out of capture.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from framesmith.autograd.formulas import DIFFERENTIABLE, WRITTEN, Copied
from framesmith.autograd.gradient_order import gradient_order
from framesmith.autograd.index_dtype import narrow_places
from framesmith.fake import FakeTensor, Recorder, dispatch_restored
from framesmith.fake.dynamic_scalars import number_of_sizes
from framesmith.fake.handlers import view
from framesmith.fake.launching import again
from framesmith.fake.layout import meets_itself, preserved_strides
from framesmith.fake.outputs import memory_of
from framesmith.fake.tensor import metadata_of, new_fake
from framesmith.graph.derivative import Derivative, passed, refuse, without_derivatives
from framesmith.graph.launch import OfOneGraph
from framesmith.graph.symbols import symbols_held, symbols_of
from framesmith.graph.traversal import descendants, last_node, nodes_after, placeholders_of
from framesmith.symbolic.node import env_of, specialised
from framesmith.util.errors import Unsupported

aten = torch.ops.aten
UNREAD: dict[Any, tuple[int, ...]] = {aten._native_batch_norm_legit_functional.default: (3, 4)}
"""Arguments, by place, on which in training neither the operator's results (except new statistics) nor a gradient
depends."""
_KEEPS_A_NUMBER = (aten.mul.Tensor, aten.div.Tensor)
_REFUSALS = ("not implemented", "is not supported", "not support automatic differentiation",
             "isFloatingType(grad.scalar_type())", "can't be cast to the desired output type",
             "Found dtype", "must have a last dimension with stride 1")  # fmt: skip
TANGENT = "tangent_"
SAVES = 1 << 16
"""A saved value has the number of the captured node that saves it, times this, plus those that it saves before."""
EVERY = -1
"""All results, as bits."""
DERIVED: dict[type, Callable[..., Any]] = {}
"""kind of an operator made of graphs -> (replay, target, arguments) -> its results on fakes, with history"""


@dataclass(frozen=True, slots=True)
class Joint:
    """`graph` takes the captured graph's inputs and then a tangent for each of `differentiable`; it gives the captured
    graph's results (its outputs, then the new values of `written`), and then a gradient (or None) for each of `wanted`.

    `differentiable`: places among the results that require grad. `wanted`: inputs that do. `written`: inputs whose new
    values are results; a write of which no gradient is asked stays a `copy_` in the graph. `saved_inputs`,
    `saved_results`: places of what autograd would keep for its backward, and so forbids to be written before. `order`:
    places in `wanted`, in the order in which autograd computes their gradients. `later`: for each of `differentiable`,
    which of them depend on it. `read`: the saved values that autograd's backward would read, by numbers common to all
    joint graphs of the captured one. The last three of these have, for each, the places in `differentiable` of the
    results whose gradients read it, as bits. `uneven`: see `GradientOrder`.
    """

    graph: fx.Graph
    inputs: int
    results: int
    outputs: int
    written: tuple[int, ...]
    differentiable: tuple[int, ...]
    wanted: tuple[int, ...]
    order: tuple[int, ...] = ()
    later: tuple[tuple[int, ...], ...] = ()
    uneven: frozenset[frozenset[int]] = frozenset()
    saved_inputs: Mapping[int, int] = field(default_factory=dict)
    saved_results: Mapping[int, int] = field(default_factory=dict)
    read: Mapping[int, int] = field(default_factory=dict)


def requires_grad(graph: fx.Graph) -> bool:
    """Return whether a result or a written value of a captured graph requires grad in the program."""
    leaving = list(output_node(graph).all_input_nodes)
    leaving += [n.args[1] for n in graph.nodes if n.target is aten.copy_.default
                and history(n.args[1]) is not n.args[0]]
    return any(map(_requires, leaving))


def _requires(node: fx.Node) -> bool:
    if node.op == "placeholder":
        return bool(node.meta.get("requires_grad"))
    known = node.meta.get("grad")
    if known is None:  # a copy or a view that the recorder made at the end
        known = node.meta["grad"] = node.target is not aten.detach.default and any(map(_requires, node.all_input_nodes))
    return bool(known)


def history(node: Any) -> Any:
    """Return the node from which autograd continues a value that was written with grad mode off: its earlier value."""
    while node.meta.get("straight"):
        node = node.args[0]
    return node


def without_history(graph: fx.Graph) -> fx.Graph:
    """Return a graph that is not differentiated, without the nodes that only direct gradients."""
    without_derivatives(graph)
    for node in [n for n in graph.nodes if n.meta.get("straight")]:
        node.replace_all_uses_with(node.args[1])
        graph.erase_node(node)
    return graph


def output_node(graph: fx.Graph) -> fx.Node:
    """Return the output node of a closed graph."""
    node = last_node(graph)
    assert node is not None
    return node


def trace_joint(graph: fx.Graph, defined: Sequence[bool] | None = None, wanted: Sequence[int] | None = None) -> Joint:
    """Return the joint graph of a captured one. `defined`: which of the results that require grad have a tangent; all
    by default. `wanted`: the inputs whose gradients are needed; by default those that require grad and that one of the
    results depends on.

    A composite operator may fix a size when it has asked for layouts already. Then the graph is traced again, as it
    will be for other tangents: both must have the same forward.

    Raises `Unsupported` where a derivative cannot be recorded; what autograd itself refuses is its own error.
    """
    while True:
        free = symbols_of(placeholders_of(graph))
        replay = _Replay(_Recorder(below_autograd=False), graph)
        with dispatch_restored():
            try:
                joint = _traced(replay, defined, wanted)
            finally:
                replay.let_go()
        if symbols_of(placeholders_of(graph)) == free:
            return joint


def _traced(replay: _Replay, defined: Sequence[bool] | None, wanted: Sequence[int] | None) -> Joint:
    recorder = replay.recorder
    recorder.sparse_gradients = True
    with torch.inference_mode(
        False), torch.enable_grad(), torch._C._DisableAutocast(), _no_anomalies(), _without_formula(), \
            recorder, replay:
        with _asked_by(replay.graph, "composites"):
            results, written = replay.run()
        asked = [i for i, value in enumerate(results) if isinstance(value, FakeTensor) and _has_history(value)]
        tangents = [recorder.input_like(without_overlap(results[i]), f"{TANGENT}{k}") for k, i in enumerate(asked)]
        used = [k for k in range(len(asked)) if defined is None or defined[k]]
        asked_for = ([i for i, x in enumerate(replay.inputs) if isinstance(x, FakeTensor) and x.requires_grad]
                     if wanted is None else list(wanted))
        leaves = {i: replay.inputs[i] for i in asked_for}
        reached: list[int] = []
        grads: Sequence[Any] = [None] * len(leaves)
        if used and leaves:  # a node that a hook watches may run for no gradient
            last = last_node(recorder.graph)
            with _asked_by(replay.graph, "formulas"):
                grads = _run_engine([results[asked[k]] for k in used], [tangents[k] for k in used], leaves, reached)
            # values that formulas compute only from a region's values are recomputed with them
            for node in nodes_after(recorder.graph, last):
                regions = [n.meta["checkpoint"] for n in node.all_input_nodes if "checkpoint" in n.meta]
                node.meta.update({"checkpoint": regions[0]} if regions else {}, formula=True)
        if wanted is None and any(g is not None for g in grads):
            asked_for, grads = zip(*[(i, g) for i,  # type: ignore[assignment]
                                     g in zip(asked_for, grads) if g is not None])
        nodes = [recorder.nodes(v) for v in (*results, *grads)]
        order = gradient_order([results[i] for i in asked])
        by_place = {k: order.passed.get(node, EVERY) for k, node in replay.read.items()}
    if recorder.constants:
        raise Unsupported("a derivative that reads a tensor of its own")
    for node, value, meta in replay.copies:
        recorder.emit(aten.copy_.default, (node, recorder.nodes(value)), value).meta.update(meta)
    closed = recorder.graph
    _refuse_sparse_operands(closed)
    _drop_statistics(closed)
    narrow_places(closed)
    output = closed.output(tuple(nodes))
    output.meta["val"] = tuple(n.meta["val"] if isinstance(n, fx.Node) else n for n in nodes)
    saved = replay.saved_nodes(by_place)
    read = {replay.numbers[k]: by for k, by in by_place.items()}
    in_inputs = dict(saved)
    for n, by in saved.items():
        if (given := n.meta.get("in")) is not None:  # also as the graph leaves it
            in_inputs[given] = in_inputs.get(given, 0) | by
    return Joint(closed, len(replay.inputs), len(results), len(results) - len(written), tuple(written), tuple(asked),
                 tuple(asked_for), tuple([asked_for.index(i) for i in reached if i in asked_for]),
                 order.later, order.uneven,
                 _places(in_inputs, placeholders_of(replay.graph)), _places(saved, replay.given), read)


def without_overlap(x: FakeTensor) -> FakeTensor:
    """Return a tensor like `x`, with memory for each element."""
    return new_fake(tuple(x.shape), preserved_strides(x), x.dtype, x.device) if meets_itself(x) else x


def _has_history(value: FakeTensor) -> bool:
    """Return whether gradients go through a result. (A view made with grad mode off requires grad, but has none.)"""
    return value.requires_grad and value.grad_fn is not None


def _drop_statistics(graph: fx.Graph) -> None:
    """Drop the running statistics from the gradient of a batch norm in training, which does not depend on them."""
    for node in graph.nodes:
        if node.target is aten.native_batch_norm_backward.default and node.args[7]:
            node.args = (*node.args[:3], None, None, *node.args[5:])


def _refuse_sparse_operands(graph: fx.Graph) -> None:
    """Raise `Unsupported` if a sparse gradient is not only a result of the backward: it is an operand, or does not
    depend on a tangent, so that the forward would save it."""
    found = [n for n in graph.nodes if n.kwargs.get("layout", torch.strided) not in (None, torch.strided)]
    if any(n.users for n in found):
        raise Unsupported("a sparse gradient that more is computed of")
    if found and not descendants([n for n in graph.nodes if n.name.startswith(TANGENT)]).issuperset(found):
        raise Unsupported("a sparse gradient that depends on no tangent")


def _places(saved: Mapping[fx.Node, int], nodes: Any) -> dict[int, int]:
    return {i: saved[memory_of(n)[0]] for i, n in enumerate(nodes)
            if isinstance(n, fx.Node) and memory_of(n)[0] in saved}


@contextmanager
def _no_anomalies() -> Iterator[None]:
    """Turn anomaly mode off within the block: it checks values, which fakes do not have."""
    before, check = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    torch.set_anomaly_enabled(False)
    try:
        yield
    finally:
        torch.set_anomaly_enabled(before, check)


@contextmanager
def _without_formula() -> Iterator[None]:
    """Convert errors of autograd for missing or refused formulas to `Unsupported`: eager runs instead and raises them
    in the backward."""
    try:
        yield
    except RuntimeError as error:
        if any(words in str(error) for words in _REFUSALS):
            raise Unsupported(str(error)) from error
        raise


@contextmanager
def _asked_by(graph: fx.Graph, who: str) -> Iterator[None]:
    """Name, within the block, who asks about the graph's symbols: see `ShapeEnv.asked_by`."""
    holders = [v for n in graph.nodes if n.op == "placeholder" or "binds" in n.meta for v in symbols_held(n)]
    env = env_of(*holders)
    if env is not None:
        env.asked_by = who
    try:
        yield
    finally:
        if env is not None:
            env.asked_by = ""


def _run_engine(results: list[FakeTensor], tangents: list[FakeTensor], leaves: dict[int, FakeTensor],
                reached: list[int]) -> Sequence[Any]:
    """`torch.autograd.grad` with `allow_unused`, without its checks of shapes (which load the peer's symbolic sizes).
    `reached`: a list to which leaves' numbers are appended as they are reached."""
    engine: Any = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]
    hooks = [x.register_hook(lambda _, i=i: reached.append(i)) for i, x in leaves.items()]
    try:
        return engine.run_backward(  # type: ignore[no-any-return]
            tuple(results), tuple(tangents), False, False, tuple(leaves.values()), allow_unreachable=True,
                                     accumulate_grad=False)
    finally:
        for hook in hooks:
            hook.remove()


def _apart(outputs: Sequence[Any], late: list[FakeTensor]) -> Iterator[torch.Tensor]:
    """Return `late`, each in memory that it shares with no input and no other result."""
    taken = {memory_of(x._alias.node)[0] for x in outputs if isinstance(x, FakeTensor)}
    for value in late:
        root = memory_of(value._alias.node)[0]
        yield value.clone() if root in taken or root.op == "placeholder" else value
        taken.add(root)


_STAYS_NOTHING: dict[Any, Any] = {
    aten.mul.Tensor: any, aten.mul.Scalar: any, aten.div.Tensor: operator.itemgetter(0),
    aten.div.Scalar: operator.itemgetter(0), aten.add.Tensor: all, aten.sub.Tensor: all,
}
"""Operators whose results have no memory in autograd if arguments have none."""


class _Recorder(Recorder):
    """Records zeros that autograd gives no memory so that they stay zeros, whatever they are multiplied with, and
    floats of sizes, which formulas have, as zero-dimensional tensors."""

    zeros = False

    def dispatch(self, func: Any, args: tuple, kwargs: dict) -> Any:
        args = tuple([self._of_sizes(a) if type(a) is torch.SymFloat else a for a in args])
        result = super().dispatch(func, args, kwargs)
        if self.zeros and func in _STAYS_NOTHING and _STAYS_NOTHING[func]([self._is_nothing(x) for x in args[:2]]):
            options = {"dtype": result.dtype, "device": result.device}
            result = super().dispatch(aten.full.default, (list(result.shape), 0), options)
        elif func is not aten._efficientzerotensor.default:
            return result
        result._alias.node.meta["nothing"] = self.zeros = True
        return result

    def _of_sizes(self, x: torch.SymFloat) -> Any:
        number = number_of_sizes(self, x)
        return specialised(x) if number is None else number.symbol()

    @staticmethod
    def _is_nothing(x: Any) -> bool:
        return isinstance(x, FakeTensor) and "nothing" in x._alias.root.node.meta


class _Own(torch.autograd.Function):
    """`values` with a custom derivative: see `graph.derivative`. It stays in the joint graph, which may be
    differentiated again."""

    @staticmethod
    def forward(ctx: Any, replay: _Replay, own: Derivative, values: int, inputs: int,  # type: ignore[override]
                *given: Any) -> Any:
        recorder = replay.recorder
        outs, operands = given[:values], given[values + inputs:]
        vals = tuple([new_fake(tuple(x.shape), x.stride(), x.dtype, x.device) for x in outs])
        node = recorder.emit(passed, tuple([recorder.nodes(x)
                                            for x in (outs, given[values:values + inputs], operands)]), vals)
        node.meta["derivative"] = own
        results = recorder.results(node, vals)
        ctx.replay, ctx.own, ctx.vals, ctx.rest = replay, own, tuple([_without_history(x)
                                                                      for x in vals]), (len(operands), inputs)
        ctx.save_for_backward(*operands, *[results[k] for k in own.reads])
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # type: ignore[override]
        operands, inputs = ctx.rest
        there = tuple([g is not None for g in grads])
        if ctx.own.zeros and any(there):
            grads = tuple([torch.zeros(v.shape, dtype=v.dtype, device=v.device) if g is None else g for g,
                           v in zip(grads, ctx.vals)])
            there = (True,) * len(grads)
        given = [laid_out(g, v) for g, v in zip(grads, ctx.vals) if g is not None]
        if given and there not in ctx.own.graphs:
            raise Unsupported("a backward that raises where gradients are missing")
        found = ctx.replay.part(ctx.own.graphs[there], [*given, *ctx.saved_tensors]) if given else (None,) * inputs
        return None, None, None, None, *[None] * len(ctx.vals), *found, *[None] * operands


def laid_out(x: FakeTensor, val: FakeTensor) -> Any:
    """Return a tangent in the layout that the backward was captured with."""
    if x.stride() == val.stride():
        return x
    if val.is_contiguous():
        return x.clone(memory_format=torch.contiguous_format)
    return aten.copy.default(torch.empty_strided(val.shape, val.stride(), dtype=val.dtype, device=val.device), x)


def _without_history(x: Any) -> Any:
    """Return a fake, or several, as metadata only."""
    if isinstance(x, FakeTensor):
        return metadata_of(x)
    return type(x)([_without_history(v) for v in x]) if isinstance(x, (tuple, list)) else x


class _Replay:
    """Runs a captured graph on fakes of `recorder`; a context manager that observes the values autograd saves."""

    def __init__(self, recorder: Recorder, graph: fx.Graph) -> None:
        self.recorder = recorder
        self.graph = graph
        self.values: dict[fx.Node, Any] = {}
        self.inputs: list[Any] = []
        self.copies: list[tuple[fx.Node, FakeTensor, dict[str, bool]]] = []
        """Writes of inputs without a gradient: the input's node, its new value, and whether the write is uncounted."""
        self.given: list[Any] = []
        """The captured nodes of the results."""
        self.refused: str | None = None
        """The message of the program's `disable_saved_tensors_hooks`, which is for hooks of its own."""
        self.current: fx.Node | None = None
        self.kept: list[tuple[fx.Node | None, Any]] = []
        """Pairs of the node that autograd saves a value for, and that value."""
        self.numbers: list[int] = []
        """For each of `kept`, its number in all joint graphs of the captured one: see `SAVES`."""
        self.next_number = 0
        self.read: dict[int, Any] = {}
        """Places in `kept` that autograd's backward reads, with the node that does."""

    def __enter__(self) -> None:
        self.refused = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message()
        if self.refused is not None:
            torch._C._autograd._saved_tensors_hooks_enable()
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self._keep, self._give)
        self.hooks.__enter__()

    def __exit__(self, *exc: Any) -> None:
        self.hooks.__exit__()
        if self.refused is not None:
            torch._C._autograd._saved_tensors_hooks_disable(self.refused)
        self.kept = [(node, None if value is None else self._memory(value)) for node, value in self.kept]

    def _keep(self, x: torch.Tensor | None) -> int:
        self.kept.append((None if x is None else self.current, x))
        self.numbers.append(self.next_number)
        self.next_number += 1
        return len(self.kept) - 1

    def _give(self, k: int) -> torch.Tensor:
        self._reads(k)
        return self.kept[k][1]  # type: ignore[no-any-return]

    def _reads(self, k: int, grads: Any = None) -> None:
        self.read[k] = torch._C._current_autograd_node()

    @staticmethod
    def _memory(x: torch.Tensor) -> fx.Node | None:
        return x._alias.root.node if isinstance(x, FakeTensor) else None

    def let_go(self) -> None:
        """Detach autograd's nodes from the graph, whose fakes hold them: Python's garbage collector cannot find cycles
        through these."""
        for held in (self.values, self.inputs, self.copies, self.kept, self.given, self.read, self.recorder.inputs):
            held.clear()  # type: ignore[attr-defined]
        for node in self.recorder.graph.nodes:
            node.meta["val"] = _without_history(node.meta.get("val"))

    def saved_nodes(self, read: Mapping[int, int]) -> dict[fx.Node, int]:
        """Return the captured nodes whose memory autograd saves and reads, and for which results, as bits, from those
        of each of `kept` that is read. Raises `Unsupported` if the program overwrites it."""
        captured = {self._memory(value): node for node,
                    value in reversed(self.values.items()) if isinstance(value, FakeTensor)}
        found: dict[fx.Node, int] = {}
        for (saver, node), by in [(self.kept[k], by) for k, by in read.items()]:
            origin = captured.get(node)
            if saver is None or origin is None:
                continue
            unread = [saver.args[i] for i in UNREAD.get(saver.target, ())]  # type: ignore[arg-type]
            if origin in unread:
                continue
            # an in-place operator saves a copy of its first operand only
            others = [memory_of(a)[0] for a in saver.args[1:] if isinstance(a, fx.Node)]
            in_place = origin in others and origin.meta.get("in_place", -1) == saver.meta.get("turn")
            whole = origin.meta.get("within", origin)
            if in_place or saver.meta.get("turn", 0) < whole.meta.get("overwritten", 0):
                raise Unsupported("a tensor is written that a gradient still needs")
            memory = memory_of(origin if whole._erased else whole)[0]  # a part may leave alone
            found[memory] = found.get(memory, 0) | by
        return found

    def run(self) -> tuple[list[Any], list[int]]:
        """Return the results, and the inputs that the last of them are written to."""
        places: dict[fx.Node, int] = {}
        written: list[int] = []
        late: list[Any] = []
        for number, node in enumerate(self.graph.nodes):
            self.recorder.stack = node.meta.get("stack", ())
            self.next_number = number * SAVES
            if node.op == "placeholder":
                places[node] = len(self.inputs)
                self.inputs.append(self._input(node))
                self.values[node] = self.inputs[-1]
            elif node.op == "output":
                self.given = [*node.args[0], *self.given]  # type: ignore[misc]
                outputs = self._read(node.args[0])
                return [*outputs, *_apart(outputs, late)], written
            elif node.target is aten.copy_.default:
                target, value = node.args[0], self._read(node.args[1])
                assert isinstance(target, fx.Node)
                if value.requires_grad and history(node.args[1]) is not target:
                    written.append(places[target])
                    late.append(value)
                    self.given.append(node.args[1])
                else:
                    uncounted = {"uncounted": node.meta.get("uncounted", False)}
                    self.copies.append((self.inputs[places[target]]._alias.node, value, uncounted))
            else:
                self.values[node] = value = self._call(node)
                self._place(value, self.recorder.stack)
        raise AssertionError("a graph without an output")

    def _place(self, value: Any, stack: Any) -> None:
        """Give nodes of formulas of an operator the operator's place in the program."""
        one = value[0] if isinstance(value, tuple) and value else value
        if isinstance(one, FakeTensor) and one.grad_fn is not None:
            one.grad_fn.register_prehook(lambda _, recorder=self.recorder: setattr(recorder, "stack", stack))

    def part(self, graph: fx.Graph, given: Sequence[Any]) -> Any:
        """Return the results of a graph that belongs to a node."""
        places = iter(given)
        for node in graph.nodes:
            if node.op == "output":
                return self._read(node.args[0])
            self.values[node] = next(places) if node.op == "placeholder" else self._call(node)
        raise AssertionError("a graph without an output")

    def _input(self, node: fx.Node) -> Any:
        if not isinstance(node.meta["val"], FakeTensor):
            return self.recorder.size_input(node.meta["val"], node.name)
        fake = self.recorder.input_like(node.meta["val"], node.name, bool(node.meta.get("requires_grad")))
        fake._alias.node.meta.update({k: node.meta[k] for k in ("source", "constant", "passing") if k in node.meta})
        if node.meta.get("param") and not fake.requires_grad:
            fake._alias.node.meta["param"] = True
        return fake

    def _call(self, node: fx.Node) -> Any:
        args, kwargs = self._read(node.args), self._read(node.kwargs)
        target: Any = (WRITTEN if node.meta.get("written") else DIFFERENTIABLE).get(node.target, node.target)
        self.current = node
        if type(target) in DERIVED and "no_grad" not in node.meta and any(
                isinstance(a, FakeTensor) and a.requires_grad for a in args[1:]):
            return DERIVED[type(target)](self, target, args)
        if "binds" in node.meta:
            return self._bound(node, args, kwargs)
        if isinstance(target, OfOneGraph):
            return self._again(node, args)
        # a separate node: the joint graph may be differentiated again
        if target is aten.detach.default and args[0].requires_grad:
            with self.recorder.off():
                return view(self.recorder, target, args, {})
        if target is refuse:
            val = new_fake(tuple(args[0].shape), args[0].stride(), args[0].dtype, args[0].device)
            return self.recorder.own(val, self.recorder.emit(refuse, tuple([self.recorder.nodes(a) for a in args]),
                                                             val))
        if target is passed:
            return _Own.apply(self, node.meta["derivative"], len(args[0]), len(args[1]), *args[0], *args[1], *args[2])
        if node.meta.get("straight"):
            value = Copied.apply(*args, True)
            value._alias.node.meta["straight"] = True
            return value
        said: dict[str, Any] = {k: node.meta[k] for k in ("no_grad", "checkpoint") if k in node.meta}
        if said:
            last = last_node(self.recorder.graph)
            with torch.set_grad_enabled("no_grad" not in said):
                value = target(*args, **kwargs)
            for made in nodes_after(self.recorder.graph, last):  # the joint graph may be differentiated in its turn
                made.meta.update(said)
        else:
            value = target(*args, **kwargs)
        once = "once" in node.meta or target in _KEEPS_A_NUMBER and not isinstance(args[1], torch.Tensor)
        if once and value.grad_fn is not None:
            value.grad_fn.register_prehook(partial(self._reads, self._keep(None)))  # hooks are not told of it
        return value

    def _bound(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """Re-record an operator that defines a symbol, with the same symbol, which other nodes read. It has no
        gradient."""
        recorder, vals = self.recorder, _without_history(node.meta["val"])
        made = recorder.emit(node.target, tuple([recorder.nodes(a) for a in args]), vals,
                             {k: recorder.nodes(v) for k, v in kwargs.items()})
        made.meta["binds"] = node.meta["binds"]
        return recorder.results(made, vals)

    def _again(self, node: fx.Node, args: Any) -> Any:
        """Re-record a node that has no gradient except by a custom derivative."""
        last = last_node(self.recorder.graph)
        made = again(self.recorder, node, args)
        for one in nodes_after(self.recorder.graph, last):
            one.meta.update(no_grad=True, **{k: node.meta[k] for k in ("checkpoint",) if k in node.meta})
        return made

    def _read(self, value: Any) -> Any:
        return map_arg(value, self.values.__getitem__)


__all__ = ["Joint", "Unsupported", "requires_grad", "trace_joint", "without_history"]
