"""The values of a graph that require grad, by autograd's rules: capture records below autograd, and marks each node.

`meta["grad"]`: whether the value requires grad in the program. `meta["no_grad"]`: it was computed from such values with
grad mode off, so no gradient goes through it. `meta["straight"]`, of `copy(before, now)`: a tensor that requires grad,
written with grad mode off: autograd goes on from what it was before. `meta["turn"]`: the number of the torch call that
recorded a node; `meta["overwritten"]`: of the one that wrote over its memory; `meta["in_place"]`: of the one that wrote
nothing else; `meta["in"]`: the input in whose memory the call left it. `meta["once"]`: it was written through a view;
gradients go through it in one backward only, though autograd saves nothing for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import torch
from torch.fx import Node

from framesmith.fake.outputs import is_detached, memory_of
from framesmith.fake.tensor import Alias, FakeTensor, is_differentiable, tensors_in
from framesmith.fake.wrappers import flattened, is_distributed, is_wrapper
from framesmith.graph.purity import is_view
from framesmith.graph.traversal import ancestors, last_node, nodes_after
from framesmith.util.errors import NeedsGrad, Unsupported

from . import trackers as t
from .break_points import ResultAsked, StopAt, choose_stop
from .frame_introspection import asks_for_gradients
from .overrides import tensors_among
from .session import Session
from .sources import Source

aten = torch.ops.aten
_WITHOUT = frozenset((
    aten.detach.default, aten.zeros_like.default, aten.ones_like.default, aten.empty_like.default,
    aten.full_like.default,
    aten.rand_like.default, aten.randn_like.default, aten.randint_like.default, aten.new_zeros.default,
    aten.new_ones.default,
    aten.new_empty.default, aten.new_full.default, aten.new_empty_strided.default,
))
"""Operators whose results have no gradient, though they read tensors that require one."""
_NOT_IMPLEMENTED = frozenset((aten.bernoulli.p, aten._unique2.default, aten.unique_consecutive.default,
                              aten.unique_dim.default))
"""Operators whose results require grad, and whose derivatives raise."""


_OF_SEVERAL = "a tensor is written of which one call made several views: they may not be used from then on"


class Gradients(Session):
    """The part of the session that knows which tensors require grad."""

    def __init__(self) -> None:
        self.differentiable: dict[Node, tuple[Source, bool]] = {}
        """Inputs that require grad: the path, and whether it is a leaf."""
        self.turn = 0
        self.leaves: list[Any] = []
        """Where gradients of distributed tensors enter the graph: see `distributed_tensors`."""
        self.former_views: list[Any] = []
        """Storages whose base is a view in the program, and has its own history here."""
        self.span: tuple[int, int] | None = None
        """The torch calls between which the graph is to end: see `ResultAsked`."""
        self.made_at = 0
        """The step of the first of them."""
        self.regions = 0
        """The number of regions of activation checkpointing so far."""

    def wants_grad(self, x: FakeTensor) -> bool:
        """`x.requires_grad`, of any tensor of the program."""
        if is_distributed(type(x)):
            return x.requires_grad
        if is_wrapper(type(x)):
            return any(map(self.wants_grad, flattened(x)[0].values()))
        alias = x._alias
        while alias.version != alias.storage.version and alias.parent is not None:
            if alias.func is aten.detach.default:
                return False
            alias = alias.parent
        return self.requires(alias.node)

    def view_grad(self, base: FakeTensor, view: FakeTensor) -> bool | None:
        """Return the grad mode in which residual code remakes a view; None: any, or the frame's."""
        if not self.wants_grad(base) or is_detached(view._alias):
            return None
        alias, made = view._alias, True
        while alias.parent is not None:
            alias, made = alias.parent, made and alias.grad
        return None if made is self.state.grad_enabled else made

    def requires(self, node: Node) -> bool:
        """Return whether a node's value requires grad."""
        return node in self.differentiable or bool(node.meta.get("grad"))

    def mark(self) -> tuple[Node | None, int] | None:
        """Return the graph's end before an operator, for `follow`; None while nothing requires grad."""
        if not self.differentiable:
            return None
        if self.span is not None and self.turn + 1 >= self.span[1]:
            raise StopAt("the gradient of a tensor is asked for where it is made",
                         choose_stop(self.frames, self.steps, self.made_at))
        return self.end()

    def end(self) -> tuple[Node | None, int]:
        """Return the graph's last node, and the number of writes so far."""
        return last_node(self.recorder.graph), len(self.recorder.written)

    def follow(self, last: Node | None, writes: int, transformed: bool = False) -> None:
        """Mark which of the nodes after `last` require grad; refuse those that autograd refuses, or that cannot be
        differentiated here."""
        self.turn += 1
        if self.span is not None and self.turn == self.span[0]:
            self.made_at = self.steps
        enabled = torch.is_grad_enabled()
        for node in nodes_after(self.recorder.graph, last):
            self._follow(node, enabled, transformed)
        for base, alias, before in self.recorder.written[writes:]:
            alone = {"in_place": self.turn} if len(self.recorder.written) == writes + 1 else {}
            for value in dict.fromkeys((before, _own_memory(base, before))):
                value.meta.setdefault("overwritten", self.turn)
                value.meta.update(alone)
            self._written(base, alias, before, enabled)
            own, _ = memory_of(base.node)
            if own.meta.get("turn") == self.turn:
                own.meta["in"] = base.storage.input

    def allows(self, alias: Alias, value: Node) -> None:
        """Raise eager's error where a tensor of inference mode may not be written, or in grad mode a view."""
        if alias.val.is_inference() and not torch.is_inference_mode_enabled() and not is_detached(alias):
            raise RuntimeError("Inplace update to inference tensor outside InferenceMode is not allowed."
                               "You can make a clone to get a normal tensor before doing inplace update."
                               "See https://github.com/pytorch/rfcs/pull/17 for more details.")
        self.refuse_former_view(alias)
        if not self.differentiable or alias.parent is None and not alias.storage.several or self.transformed:
            return
        several, made, base = False, True, alias
        while base.parent is not None:
            several, made, base = several or base.several, made and base.grad, base.parent
        if not torch.is_grad_enabled() or is_detached(alias):
            if alias.storage.several and self.requires(base.node):
                raise Unsupported(_OF_SEVERAL)
            return
        if made and not base.storage.several:
            return
        marked = {n for n in self.recorder.graph.nodes if "turn" in n.meta}  # the present call's nodes are not yet
        if not any(map(self.requires, (base.node, *ancestors([value], stop=marked)))):
            return
        if several:
            raise RuntimeError("a view is being modified inplace that is the output of a function that returns "
                               "multiple views; such "
                               "functions do not allow the output views to be modified inplace")
        if not made:
            raise RuntimeError("a view was created in no_grad mode and is being modified inplace with grad mode "
                               "enabled")
        raise Unsupported(_OF_SEVERAL)

    def refuse_former_view(self, alias: Alias) -> None:
        """Refuse a use of a tensor that shows what it is a view of."""
        if any(alias.storage is storage for storage in self.former_views):
            raise Unsupported("a view with gradients of a distributed tensor")

    def refuse_out(self, args: Any, kwargs: Any) -> None:
        """Break before a call with `out=` that autograd refuses, unless it has no derivative."""
        if torch.is_grad_enabled() and any(map(self.wants_grad, tensors_in([*args, *kwargs.values()]))):
            raise Unsupported("out= where tensors require grad", hint="call it under torch.no_grad()")

    def refuse_gradients(self, reason: str, asked: Iterable[Any]) -> NoReturn:
        """Refuse a call that asks for the gradients of fakes, or that watches them."""
        span = self.span_of(asked)
        raise Unsupported(reason) if span is None else ResultAsked(reason, span)

    def span_of_locals(self) -> tuple[int, int] | None:
        """Return the same of the variables of frames that are not at their end, if their code asks for gradients."""
        frames = [f for f in self.frames if asks_for_gradients(f.code, f.globals)]
        values = [x.content if type(x) is t.Cell else x for f in frames for x in (*f.locals, *f.stack)]
        return self.span_of(x.fake for x in tensors_among(v for v in values if v is not None))

    def span_of(self, asked: Iterable[Any]) -> tuple[int, int] | None:
        """Return the last torch call that made one of some fakes before the first that uses one, and that one; None if
        no gradient goes to them within the graph."""
        nodes = [x._alias.node for x in asked if type(x) is FakeTensor and self.wants_grad(x)]
        users = [n for node in nodes if node.op == "call_function" for n in node.users]
        if self.span is not None or not any(map(self.requires, users)):
            return None
        used = min(n.meta["turn"] for n in users if "turn" in n.meta)
        return max((turn for n in nodes if (turn := n.meta.get("turn", 0)) < used), default=0), used

    def _follow(self, node: Node, enabled: bool, transformed: bool) -> None:
        node.meta["turn"] = self.turn
        if not enabled:
            node.meta["no_grad"] = True
        if not any(map(self.requires, node.all_input_nodes)):
            node.meta["grad"] = False
            return
        if transformed and enabled:
            raise Unsupported("a function transform over tensors that require grad",
                              hint="call it under torch.no_grad()")
        if enabled and node.target in _NOT_IMPLEMENTED:
            raise Unsupported(f"{node.target} of a tensor that requires grad, whose derivative is an error in eager",
                              hint="detach() the tensor")
        # with grad mode off, a view says that it requires grad, though no gradient goes through it
        may = enabled or is_view(node.target)
        node.meta["grad"] = may and node.target not in _WITHOUT and _is_differentiable(node.meta["val"])

    def _written(self, base: Alias, alias: Alias, before: Node, enabled: bool) -> None:
        node = base.node
        known = self.differentiable.get(base.storage.input)  # type: ignore[arg-type]
        if enabled and not is_detached(alias):
            if known is not None and known[1]:
                raise NeedsGrad(known[0])  # eager refuses a write to a leaf
            if self.requires(before) and not self.requires(node):
                raise Unsupported("a tensor that requires grad is overwritten whole by what does not",
                                  hint="make a new tensor")
            # a view says what its base does, whatever is written to it
            if self.requires(node) and not self.requires(alias.node):
                alias.version = -1
            if self.requires(node) and alias.tensor is not base:
                self._written_through(base, alias)
            return
        if enabled and self.requires(alias.node):
            raise Unsupported("a detached tensor is written with one that requires grad", hint="clone() it first")
        if self.requires(before):
            base.node = self.recorder.emit(aten.copy.default, (before, node), base.val)
            base.node.meta.update(straight=True, grad=True, turn=self.turn)
            if len(node.users) > 1:  # the torch call that wrote reads what it wrote
                node.append(base.node)
                node.replace_all_uses_with(base.node, lambda user: user is not base.node)
                for reader in nodes_after(self.recorder.graph, base.node):
                    self._follow(reader, enabled, False)
        elif self.requires(node):  # the write gave it another tensor's value as it was
            base.node = self.recorder.emit(aten.detach.default, (node,), base.val)
            base.node.meta.update(grad=False, turn=self.turn)
        if alias is not base and base.node is not node:
            alias.version = -1

    def _written_through(self, base: Alias, alias: Alias) -> None:
        """Mark what a write through a view computes: autograd goes through such a write in one backward only."""
        if base.node.meta.get("turn") != self.turn:  # it is another tensor's value
            base.node = self.recorder.emit(aten.alias.default, (base.node,), base.val)
            base.node.meta.update(grad=True, turn=self.turn)
        for written in (base, alias):
            if written.version == base.storage.version:
                written.node.meta["once"] = True


def _own_memory(base: Alias, node: Node) -> Node:
    """Return the node whose memory a storage's value is a view of; the node itself if that memory is another
    tensor's."""
    root, _ = memory_of(node)
    return node if root.op == "placeholder" and root is not base.storage.input else root


def is_leaf(x: torch.Tensor) -> bool:
    """`x.is_leaf`. Raises Unsupported for views written in another grad mode than they were made in."""
    try:
        return x.is_leaf
    except RuntimeError as error:
        raise Unsupported("a view that autograd refuses to use") from error


def _is_differentiable(val: Any) -> bool:
    if isinstance(val, (tuple, list)):
        return any(map(_is_differentiable, val))
    return isinstance(val, torch.Tensor) and is_differentiable(val.dtype)
