"""Convolutions on a CUDA device: weights have their channels innermost as their images (see `lower.layouts`), biases
get their gradient from a sum of ours."""

from __future__ import annotations

import operator
from math import prod
from typing import Any

import torch
from torch import fx

from framesmith.graph.freeze import is_parameter_expression
from framesmith.lower.contractions.nodes import Nodes, replace_result
from framesmith.lower.layouts import channels_last
from framesmith.util.precision import channels_of, on_matrix_units

aten = torch.ops.aten
_CONVOLUTIONS = frozenset((
    aten.convolution.default, aten.conv2d.default, aten.cudnn_convolution_relu.default,
    aten.cudnn_convolution_add_relu.default,
))


def lay_out_conv_weights(graph: fx.Graph) -> None:
    """Weights that are frozen are laid out once; another would be laid out in each call. Copies of parameters in
    float32 have as much room as eager's library needs in a call, in which it lays out results: they lie so here."""
    convolutions = [n for n in graph.nodes if n.op == "call_function" and n.target in _CONVOLUTIONS]
    room = max(map(_bytes, convolutions), default=0)
    for node in convolutions:
        weight = node.args[1]
        value = weight.meta["val"]
        if not is_parameter_expression(weight) or len(value.shape) != 4 or not on_matrix_units(value.dtype,
                                                                                               *_channels(node)):
            continue
        taken = _bytes(weight) if weight.op == "placeholder" and value.dtype is torch.float32 else 0
        if taken > room:
            continue
        room -= taken
        add = Nodes(graph, node)
        with graph.inserting_before(node):
            if node.args[-1] == value.shape[0] > 1 == value.shape[1]:
                laid = _by_position(add, weight)
            else:
                laid = add(aten._to_copy.default, (weight,), tuple(value.shape), channels_last(value.shape))
                laid.kwargs = {"memory_format": torch.channels_last}
            node.update_arg(1, laid)


def _channels(node: fx.Node) -> tuple[int, ...]:
    return channels_of(*(n.meta["val"] for n in node.args[:2]))  # type: ignore[union-attr]


def _bytes(node: Any) -> int:
    """Of a value's elements; none where they cannot be counted."""
    value = node.meta["val"]
    return value.dtype.itemsize * prod(value.shape) if all(type(n) is int for n in value.shape) else 0


def _by_position(add: Nodes, weight: fx.Node) -> fx.Node:
    """A weight of one kernel for each channel, channels innermost in memory."""
    shape = tuple(weight.meta["val"].shape)
    turned = (*shape[2:], shape[1], shape[0])
    laid = add(aten.clone.default, (add(aten.permute.default, (weight, [2, 3, 1, 0]), turned),), turned)
    laid.kwargs = {"memory_format": torch.contiguous_format}
    return add(aten.permute.default, (laid, [3, 2, 0, 1]), shape, (1, shape[0], shape[0] * shape[3], shape[0]))


def split_bias_gradients(graph: fx.Graph) -> None:
    """The gradient of a bias is a sum over the tangent, for which the library has no kernel of its own either: as a
    nest it may be a part of what computes the tangent."""
    for node in list(graph.nodes):
        if node.target is not aten.convolution_backward.default or not _sums_halves(node):
            continue
        arguments: tuple[Any, ...] = node.args
        tangent, *rest, (of_image, of_weight, _) = arguments
        replace_result(node, 2, aten.sum.dim_IntList, (tangent, [0, 2, 3]), (tangent.meta["val"].shape[1],))
        node.args = (tangent, *rest, [of_image, of_weight, False])
        node.meta["val"] = (*node.meta["val"][:2], None)


def _sums_halves(node: fx.Node) -> bool:
    """Return whether the bias's gradient is asked for, of a tangent in half precision, beside others that only the
    library computes."""
    arguments: tuple[Any, ...] = node.args
    value, groups, wanted = arguments[0].meta["val"], arguments[-2], arguments[-1]
    taken = len(value.shape) == 4 and all(user.target is operator.getitem for user in node.users)
    return wanted[2] and any(wanted[:2]) and groups == 1 and taken and on_matrix_units(value.dtype)
