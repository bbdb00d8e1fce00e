"""What of a graph requires grad, as autograd would have it: capture records below autograd, and says it of each node.

`meta["grad"]`: whether the value requires grad in the program. `meta["no_grad"]`: it was computed of such values with grad mode off, so no
gradient goes through it. `meta["stale"]`: a tensor that requires grad, after a write with grad mode off; autograd goes on from what it was
before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from framesmith.fake.tensor import Alias, FakeTensor, Storage
from framesmith.graph.purity import is_view
from framesmith.util.errors import NeedsGrad, Unsupported

from .sources import Source

aten = torch.ops.aten
_WITHOUT = frozenset((
    aten.detach.default, aten.zeros_like.default, aten.ones_like.default, aten.empty_like.default, aten.full_like.default,
    aten.rand_like.default, aten.randn_like.default, aten.randint_like.default, aten.new_zeros.default, aten.new_ones.default,
    aten.new_empty.default, aten.new_full.default, aten.new_empty_strided.default, aten.bernoulli.p, aten.bernoulli.default,
))
"""Operators whose results have no gradient, though they read tensors that require one."""


class Gradients:
    """The part of the session that knows which tensors require grad."""

    recorder: Any

    def __init__(self) -> None:
        self.differentiable: dict[Node, tuple[Source, bool]] = {}
        """Inputs that require grad: the path, and whether it is a leaf."""
        self.requiring: set[Storage] = set()
        """Storages whose present value requires grad."""

    def wants_grad(self, x: FakeTensor) -> bool:
        """`x.requires_grad`, of any tensor of the program."""
        return self._requires(x._alias.node)

    def mark(self) -> tuple[Node | None, int] | None:
        """Where the graph ends before an operator; None while nothing requires grad."""
        if not self.differentiable:
            return None
        return next(iter(reversed(self.recorder.graph.nodes)), None), len(self.recorder.written)

    def follow(self, last: Node | None, writes: int, transformed: bool = False) -> None:
        """Say of the nodes after `last` what requires grad, and refuse what autograd refuses or what cannot be differentiated here."""
        new = []
        for node in reversed(self.recorder.graph.nodes):
            if node is last:
                break
            new.append(node)
        enabled = torch.is_grad_enabled()
        for node in reversed(new):
            self._follow(node, enabled, transformed)
        for base, alias, before in self.recorder.written[writes:]:
            self._written(base, alias, before, enabled and not _is_detached(alias))

    def _follow(self, node: Node, enabled: bool, transformed: bool) -> None:
        read = node.all_input_nodes
        if any(n.meta.get("stale") for n in read):
            if enabled:
                raise Unsupported("a tensor that requires grad is read in grad mode after it was written without",
                                  hint="write it at the end of the step, or outside of the compiled code")
            node.meta["stale"] = is_view(node.target)
        if not any(map(self._requires, read)):
            node.meta["grad"] = False
            return
        if transformed and enabled:
            raise Unsupported("a function transform over tensors that require grad", hint="call it under torch.no_grad()")
        if not enabled:
            node.meta["no_grad"] = True
        node.meta["grad"] = enabled and node.target not in _WITHOUT and _is_differentiable(node.meta["val"])

    def _requires(self, node: Node) -> bool:
        return node in self.differentiable or bool(node.meta.get("grad"))

    def _written(self, base: Alias, alias: Alias, before: Node, enabled: bool) -> None:
        storage, node = base.storage, base.node
        known = self.differentiable.get(storage.input)  # type: ignore[arg-type]
        if enabled and known is not None and known[1]:
            raise NeedsGrad(known[0])  # eager refuses a write to a leaf
        if enabled:
            if self._requires(node):
                self.requiring.add(storage)
            elif self._requires(before):
                raise Unsupported("a tensor that requires grad is overwritten whole by what does not", hint="make a new tensor")
            return
        if storage in self.requiring:
            raise Unsupported("a tensor that requires grad is written with grad mode off")
        if self._requires(node):  # the write gave it another tensor's value as it was
            node = base.node = self.recorder.emit(aten.detach.default, (node,), base.val)
            alias.version = alias.version if alias is base else -1
        if known is not None:
            node.meta["stale"] = True


def _is_detached(alias: Alias) -> bool:
    while alias.parent is not None and alias.func is not aten.detach.default:
        alias = alias.parent
    return alias.parent is not None


def _is_differentiable(val: Any) -> bool:
    if isinstance(val, (tuple, list)):
        return any(map(_is_differentiable, val))
    return isinstance(val, torch.Tensor) and (val.dtype.is_floating_point or val.dtype.is_complex)


__all__ = ["Gradients"]
