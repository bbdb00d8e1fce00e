"""The joint graph: a captured graph and the gradients of its results, in one graph of functional operators.

The captured graph is functional already (writes and views were resolved as it was recorded), so it can be run again on fresh fakes, with
autograd on; the autograd engine then runs over them with symbolic tangents, and what its formulas call is recorded behind the forward part.
This second pass costs some 10 us an operator, and keeps autograd's own rules for views and writes out of capture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith.fake import FakeTensor, Recorder
from framesmith.util.errors import Unsupported

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Joint:
    """`graph` takes the captured graph's inputs and then a tangent for each of `differentiable`; it gives the captured graph's results
    (its outputs, then the new values of `written`), and then a gradient (or None) for each of `wanted`.

    `differentiable`: places among the results that require grad. `wanted`: inputs that do. `written`: inputs whose new values are
    results; a write of which no gradient is asked stays a `copy_` in the graph.
    """

    graph: fx.Graph
    inputs: int
    results: int
    outputs: int
    written: tuple[int, ...]
    differentiable: tuple[int, ...]
    wanted: tuple[int, ...]


def requires_grad(graph: fx.Graph) -> bool:
    """Whether a result or a written value of a captured graph requires grad in the program."""
    leaving = [arg for node in graph.nodes if node.op == "output" or node.target is aten.copy_.default for arg in node.all_input_nodes]
    return any(map(_requires, leaving))


def _requires(node: fx.Node) -> bool:
    if node.op == "placeholder":
        return bool(node.meta.get("requires_grad"))
    known = node.meta.get("grad")
    if known is None:  # a copy or a view that the recorder made at the end
        known = node.meta["grad"] = any(map(_requires, node.all_input_nodes))
    return bool(known)


def trace_joint(graph: fx.Graph, defined: Sequence[bool] | None = None) -> Joint:
    """The joint graph of a captured one. `defined`: which of the results that require grad have a tangent; all by default.

    Raises `Unsupported` where a derivative cannot be recorded; what autograd itself refuses is its own error.
    """
    recorder = Recorder(below_autograd=False)
    with torch.inference_mode(False), torch.enable_grad(), torch._C._DisableAutocast(), recorder:
        replay = _Replay(recorder, graph)
        results, written = replay.run()
        asked = [i for i, value in enumerate(results) if isinstance(value, FakeTensor) and value.requires_grad]
        tangents = [recorder.input_like(results[i], f"tangent_{k}") for k, i in enumerate(asked)]
        used = [k for k in range(len(asked)) if defined is None or defined[k]]
        wanted = [i for i, x in enumerate(replay.inputs) if x.requires_grad]
        leaves = [replay.inputs[i] for i in wanted]
        grads: Sequence[Any] = [None] * len(leaves)
        if used:
            grads = _run_engine([results[asked[k]] for k in used], [tangents[k] for k in used], leaves)
        nodes = [recorder.nodes(v) for v in (*results, *grads)]
    for node, value in replay.copies:
        recorder.emit(aten.copy_.default, (node, recorder.nodes(value)), value)
    closed = recorder.graph
    output = closed.output(tuple(nodes))
    output.meta["val"] = tuple(n.meta["val"] if isinstance(n, fx.Node) else n for n in nodes)
    return Joint(closed, len(replay.inputs), len(results), len(results) - len(written), tuple(written), tuple(asked), tuple(wanted))


def _run_engine(results: list[FakeTensor], tangents: list[FakeTensor], leaves: list[FakeTensor]) -> Sequence[Any]:
    """`torch.autograd.grad` with `allow_unused`, without its checks of shapes (which load the peer's symbolic sizes)."""
    engine: Any = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]
    return engine.run_backward(tuple(results), tuple(tangents), False, False, tuple(leaves), allow_unreachable=True, accumulate_grad=False)  # type: ignore[no-any-return]


_DIFFERENTIABLE: dict[Any, Any] = {aten._embedding_bag_forward_only.default: aten._embedding_bag.default}
"""What stands below autograd for an operator that has a derivative, and that operator."""


class _Replay:
    """Runs a captured graph on fakes of `recorder`."""

    def __init__(self, recorder: Recorder, graph: fx.Graph) -> None:
        self.recorder = recorder
        self.graph = graph
        self.values: dict[fx.Node, Any] = {}
        self.inputs: list[FakeTensor] = []
        self.copies: list[tuple[fx.Node, FakeTensor]] = []
        """Writes of inputs of which no gradient is asked: the input's node, and its new value."""

    def run(self) -> tuple[list[Any], list[int]]:
        """The results, and the inputs that the last of them are written to."""
        places: dict[fx.Node, int] = {}
        written: list[int] = []
        late: list[Any] = []
        for node in self.graph.nodes:
            self.recorder.stack = node.meta.get("stack", ())
            if node.op == "placeholder":
                places[node] = len(self.inputs)
                self.inputs.append(self._input(node))
                self.values[node] = self.inputs[-1]
            elif node.op == "output":
                return [*self._read(node.args[0]), *late], written
            elif node.target is aten.copy_.default:
                target, value = node.args[0], self._read(node.args[1])
                assert isinstance(target, fx.Node)
                if value.requires_grad:
                    written.append(places[target])
                    late.append(value)
                else:
                    self.copies.append((self.inputs[places[target]]._alias.node, value))
            else:
                self.values[node] = self._call(node)
        raise AssertionError("a graph without an output")

    def _input(self, node: fx.Node) -> FakeTensor:
        fake = self.recorder.input_like(node.meta["val"], node.name, bool(node.meta.get("requires_grad")))
        fake._alias.node.meta.update({k: node.meta[k] for k in ("source", "constant") if k in node.meta})
        if node.meta.get("param") and not fake.requires_grad:
            fake._alias.node.meta["param"] = True
        return fake

    def _call(self, node: fx.Node) -> Any:
        args, kwargs = self._read(node.args), self._read(node.kwargs)
        target: Any = _DIFFERENTIABLE.get(node.target, node.target)
        if not node.meta.get("no_grad"):
            return target(*args, **kwargs)
        last = next(iter(reversed(self.recorder.graph.nodes)))
        with torch.no_grad():
            value = target(*args, **kwargs)
        for made in reversed(self.recorder.graph.nodes):  # the joint graph may be differentiated in its turn
            if made is last:
                return value
            made.meta["no_grad"] = True
        return value

    def _read(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            return self.values[value]
        if isinstance(value, (list, tuple)):
            return type(value)([self._read(v) for v in value])
        if isinstance(value, dict):
            return {k: self._read(v) for k, v in value.items()}
        return value


__all__ = ["Joint", "Unsupported", "requires_grad", "trace_joint"]
