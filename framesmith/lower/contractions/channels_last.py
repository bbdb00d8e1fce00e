"""Convolutions on a CUDA device: weights are channels-last like their images (see `lower.layouts`), and gradients of
biases are sums of our own."""

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
    """Make frozen weights channels-last once; others would be converted in each call. Copies of float32 parameters are
    limited to the memory that eager's library needs in a call to convert results, which are channels-last here."""
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
    """Return the bytes of a value; 0 if its size is unknown."""
    value = node.meta["val"]
    return value.dtype.itemsize * prod(value.shape) if all(type(n) is int for n in value.shape) else 0


def _by_position(add: Nodes, weight: fx.Node) -> fx.Node:
    """Return a depthwise weight with its channels innermost in memory."""
    shape = tuple(weight.meta["val"].shape)
    turned = (*shape[2:], shape[1], shape[0])
    laid = add(aten.clone.default, (add(aten.permute.default, (weight, [2, 3, 1, 0]), turned),), turned)
    laid.kwargs = {"memory_format": torch.contiguous_format}
    return add(aten.permute.default, (laid, [3, 2, 0, 1]), shape, (1, shape[0], shape[0] * shape[3], shape[0]))


def split_bias_gradients(graph: fx.Graph) -> None:
    """Compute the gradient of a bias as a sum over the tangent, for which the library has no special kernel: a nest can
    be fused with the one that computes the tangent."""
    for node in list(graph.nodes):
        if node.target is not aten.convolution_backward.default or not _sums_halves(node):
            continue
        arguments: tuple[Any, ...] = node.args
        tangent, *rest, (of_image, of_weight, _) = arguments
        replace_result(node, 2, aten.sum.dim_IntList, (tangent, [0, 2, 3]), (tangent.meta["val"].shape[1],))
        node.args = (tangent, *rest, [of_image, of_weight, False])
        node.meta["val"] = (*node.meta["val"][:2], None)


def _sums_halves(node: fx.Node) -> bool:
    """Return whether the bias's gradient is needed, from a half-precision tangent, together with others that only the
    library computes."""
    arguments: tuple[Any, ...] = node.args
    value, groups, wanted = arguments[0].meta["val"], arguments[-2], arguments[-1]
    taken = len(value.shape) == 4 and all(user.target is operator.getitem for user in node.users)
    return wanted[2] and any(wanted[:2]) and groups == 1 and taken and on_matrix_units(value.dtype)
