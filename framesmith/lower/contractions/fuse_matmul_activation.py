"""Fuse a layer's activation into the library's product, on a CUDA device: a ReLU, or in half precision a tanh GELU.

Only where the activation would be a kernel of its own: other pointwise operations after it would fuse it at no cost.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from framesmith.graph.patterns import Match, Through, p, rewrite, tensors
from framesmith.lower.contractions.pack_linear import value_of
from framesmith.lower.geometry import strides_of
from framesmith.prims.core import Spec
from framesmith.util.precision import HALF

aten = torch.ops.aten
LAYERS = frozenset((
    aten.linear.default, aten.matmul.default, aten.mm.default, aten.addmm.default, aten.bmm.default,
    aten.baddbmm.default,
    aten.conv1d.default, aten.conv2d.default, aten.convolution.default,
))
VIEWS = frozenset((aten.reshape.default, aten.view.default, aten._unsafe_view.default, aten.t.default,
                   aten.transpose.int))


def _zeros(graph: fx.Graph, product: fx.Node, known: dict[Any, fx.Node]) -> fx.Node:
    """Return a bias of zeros, shared by all layers of a width."""
    value = value_of(product)
    key = value.shape[1], value.dtype, value.device
    if key not in known:
        with graph.inserting_before(next(iter(n for n in graph.nodes if n.op != "placeholder"))):
            known[key] = graph.call_function(aten.zeros.default, ([key[0]],), {"dtype": key[1], "device": key[2]})
        known[key].meta = {"val": Spec((key[0],), key[1], key[2], (1,)), "kept": True}
    return known[key]


def _has_bias(product: fx.Node) -> bool:
    """Return whether the addend is one contiguous vector of the result's type."""
    bias, out = value_of(product.args[0]), value_of(product)
    return (len(bias.shape) == 1 and bias.dtype is out.dtype and bias.shape[0] == out.shape[1]
            and strides_of(bias)[0] == 1)


def _is_half(product: fx.Node) -> bool:
    """Return whether the library's own kernels are no faster than those with an activation and no bias."""
    value = value_of(product)
    return value.dtype in HALF and value.device.type == "cuda" and all(type(n) is int and n > 1 for n in value.shape)


def _is_layer(node: fx.Node) -> bool:
    """Return whether a reader needs its argument in memory."""
    if node.target in VIEWS:
        return all(map(_is_layer, node.users))
    return node.op == "output" or node.target in LAYERS


x, w, b = tensors("x w b")
product = p.addmm.default(b, x, w).where(_has_bias) | p.mm.default(x, w).where(_is_half)
flat = Through(p.reshape.targets, product)
ACTIVATED = p.relu(flat) | p.gelu(flat, approximate="tanh")


def fuse_matmul_activations(graph: fx.Graph) -> None:
    """Rewrite layers with such activations, in place."""
    rewrite(graph, {ACTIVATED: _fused}, {})


def _fused(m: Match, zeros: dict[Any, fx.Node]) -> fx.Node | None:
    """_addmm_activation(b, x, w), in half precision also with use_gelu=True; frozen zeros replace a missing bias."""
    old, gelu = m[product], m.root.target is aten.gelu.default
    if gelu and value_of(old).dtype not in HALF or not all(map(_is_layer, m.root.users)):
        return None
    args = (m[b] or _zeros(m.graph, old, zeros), *m[x, w])
    with m.graph.inserting_before(old):
        new = m.graph.call_function(aten._addmm_activation.default, args, {"use_gelu": True} if gelu else {})
    new.meta = dict(old.meta)
    old.replace_all_uses_with(new)
    return (*m[flat], new)[0]
