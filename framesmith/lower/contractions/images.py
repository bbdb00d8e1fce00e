"""Convolutions on a CUDA device: weights have their channels innermost as their images (see `lower.layouts`), biases get their gradient
from a sum of ours."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from framesmith.graph.freeze import is_parameter_expression
from framesmith.lower.contractions.nodes import Nodes
from framesmith.lower.layouts import channels_last

aten = torch.ops.aten
_CONVOLUTIONS = (aten.convolution.default, aten.conv2d.default, aten.cudnn_convolution_relu.default)
_HALF = (torch.float16, torch.bfloat16)


def lay_out_weights(graph: fx.Graph) -> None:
    """Weights that are frozen are laid out once; another would be laid out by the library in each call."""
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in _CONVOLUTIONS or not is_parameter_expression(weight := node.args[1]):
            continue
        value = weight.meta["val"]
        if len(value.shape) == 4 and value.dtype in _HALF and node.args[-1] == value.shape[0] > 1 == value.shape[1]:
            with graph.inserting_before(node):
                node.update_arg(1, _by_position(Nodes(graph, node), weight))
        elif len(value.shape) == 4 and value.dtype in _HALF:
            with graph.inserting_before(node):
                add = Nodes(graph, node)
                node.update_arg(1, add(aten._to_copy.default, (weight,), tuple(value.shape), channels_last(value.shape)))
            node.args[1].kwargs = {"memory_format": torch.channels_last}


def _by_position(add: Nodes, weight: fx.Node) -> fx.Node:
    """A weight of one kernel for each channel, channels innermost in memory."""
    shape = tuple(weight.meta["val"].shape)
    turned = (*shape[2:], shape[1], shape[0])
    laid = add(aten.clone.default, (add(aten.permute.default, (weight, [2, 3, 1, 0]), turned),), turned)
    laid.kwargs = {"memory_format": torch.contiguous_format}
    return add(aten.permute.default, (laid, [3, 2, 0, 1]), shape, (1, shape[0], shape[0] * shape[3], shape[0]))


def part_bias_gradients(graph: fx.Graph) -> None:
    """The gradient of a bias is a sum over the tangent, for which the library has no kernel of its own either: as a nest it may be a part
    of what computes the tangent."""
    for node in list(graph.nodes):
        if node.target is not aten.convolution_backward.default or not _sums_halves(node):
            continue
        arguments: tuple[Any, ...] = node.args
        tangent, *rest, (of_image, of_weight, _) = arguments
        for item in [user for user in node.users if user.args[1] == 2]:
            with graph.inserting_before(item):
                new = Nodes(graph, item)(aten.sum.dim_IntList, (tangent, [0, 2, 3]), tuple(item.meta["val"].shape))
            new.meta["val"] = item.meta["val"]
            item.replace_all_uses_with(new)
            graph.erase_node(item)
        node.args = (tangent, *rest, [of_image, of_weight, False])
        node.meta["val"] = (*node.meta["val"][:2], None)


def _sums_halves(node: fx.Node) -> bool:
    """Whether the bias's gradient is asked for, of a tangent in half precision, beside others that only the library computes."""
    arguments: tuple[Any, ...] = node.args
    value, groups, wanted = arguments[0].meta["val"], arguments[-2], arguments[-1]
    taken = all(user.target is operator.getitem for user in node.users)
    return wanted[2] and any(wanted[:2]) and groups == 1 and len(value.shape) == 4 and value.dtype in _HALF and taken
