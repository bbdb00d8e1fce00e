"""Layers whose activation the library computes with the product, on a CUDA device.

    relu(addmm(b, x, w))                ->  _addmm_activation(b, x, w)
    gelu(addmm(b, x, w), "tanh")        ->  _addmm_activation(b, x, w, use_gelu=True)      of halves; of float32 the
                                                                                           library has none
    relu(mm(x, w))                      ->  _addmm_activation(zeros, x, w)                 the zeros are kept

Only where the activation would be a pass of its own: what else is computed element by element behind it would take it
along for nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from framesmith.lower.contractions.pack_linear import value_of
from framesmith.prims.core import Spec

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
LAYERS = frozenset((
    aten.linear.default, aten.matmul.default, aten.mm.default, aten.addmm.default, aten.bmm.default,
    aten.baddbmm.default,
    aten.conv1d.default, aten.conv2d.default, aten.convolution.default,
))
PRODUCTS = frozenset((aten.addmm.default, aten.mm.default))
VIEWS = frozenset((aten.reshape.default, aten.view.default, aten._unsafe_view.default, aten.t.default,
                   aten.transpose.int))


def fuse_matmul_activations(graph: fx.Graph) -> None:
    """Rewrite such layers in place."""
    zeros: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in PRODUCTS or node.kwargs or not _is_plain(node):
            continue
        last = _only_user(node)
        if last is not None and last.target is aten.reshape.default:
            last = _only_user(last)
        gelu = _is_gelu(last) if last is not None else None
        if (last is None or gelu is None or gelu and value_of(node).dtype not in HALF
            or not all(map(_is_layer, last.users))):
            continue
        args = node.args if node.target is aten.addmm.default else (_zeros(graph, node, zeros), *node.args)
        with graph.inserting_before(node):
            new = graph.call_function(aten._addmm_activation.default, args, {"use_gelu": True} if gelu else {})
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        last.replace_all_uses_with(last.args[0])  # type: ignore[arg-type]
        graph.erase_node(last)
        graph.erase_node(node)


def _zeros(graph: fx.Graph, product: fx.Node, known: dict[Any, fx.Node]) -> fx.Node:
    """A bias that adds nothing, one for all layers of a width."""
    value = value_of(product)
    key = value.shape[1], value.dtype, value.device
    if key not in known:
        with graph.inserting_before(next(iter(n for n in graph.nodes if n.op != "placeholder"))):
            known[key] = graph.call_function(aten.zeros.default, ([key[0]],), {"dtype": key[1], "device": key[2]})
        known[key].meta = {"val": Spec((key[0],), key[1], key[2], (1,)), "kept": True}
    return known[key]


def _is_plain(product: fx.Node) -> bool:
    """Return whether the library takes an activation along: of a product with a vector for each row, or (in halves,
    where its own kernels are no slower) with none."""
    if product.target is aten.addmm.default:
        return _is_bias(product)
    value = value_of(product)
    return value.dtype in HALF and value.device.type == "cuda" and all(type(n) is int and n > 1 for n in value.shape)


def _is_bias(node: fx.Node) -> bool:
    """Return whether what is added is one contiguous vector of the result's type."""
    bias, out = value_of(node.args[0]), value_of(node)
    return len(bias.shape) == 1 and bias.dtype is out.dtype and bias.shape[0] == out.shape[1] and _step(bias) == 1


def _step(value: Any) -> Any:
    return (value.stride() if callable(value.stride) else value.stride)[0]


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _is_gelu(node: fx.Node) -> bool | None:
    """Return whether an activation is a GELU; None for what the library does not compute."""
    if node.target is aten.relu.default:
        return False
    approximate = node.kwargs.get("approximate") or (node.args[1] if len(node.args) > 1 else "none")
    return True if node.target is aten.gelu.default and approximate == "tanh" else None


def _is_layer(node: fx.Node) -> bool:
    """Return whether a reader wants its argument in memory."""
    if node.target in VIEWS:
        return all(map(_is_layer, node.users))
    return node.op == "output" or node.target in LAYERS
