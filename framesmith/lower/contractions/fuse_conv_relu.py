"""A convolution's bias, a residual and a ReLU, computed by cuDNN with the convolution, on a CUDA device.

    relu(conv2d(x, w, b))                    ->  cudnn_convolution_relu(x, w, b)        of halves, with kernels of
                                                                                        several elements
    relu(conv2d(x, w, b) + z)                ->  cudnn_convolution_add_relu(x, w, z, b)              of float32 that may
                                                 be rounded
    relu(conv2d(x, w, b) + conv2d(y, v, c))  ->  cudnn_convolution_add_relu(x, w, conv2d(y, v), b + c)

with weights that are frozen. Others of halves are tiles of our own (`bound`); those of float32 multiply at a lower
rate, so there cuDNN rectifies kernels of one element, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith.graph.freeze import is_parameter_expression
from framesmith.lower.contractions.nodes import Nodes
from framesmith.lower.contractions.pack_linear import value_of
from framesmith.util.precision import channels_of, on_matrix_units

aten = torch.ops.aten
_LEFT_OUT: tuple[Any, ...] = (None, None, None, (1, 1), (0, 0), (1, 1), 1)
VECTOR = 8  # channels that are moved at once
FEW = 4  # channels that the library makes whole vectors


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution: sizes of image and weight, and its geometry. `added`: with a residual."""

    image: tuple[int, ...]
    weight: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    added: bool = False


Apt = Callable[[Layer], bool]


def fuse_conv_relu(graph: fx.Graph, is_apt: Apt = lambda layer: True) -> None:
    """Rewrite such convolutions in place, if `is_apt`."""
    for last in list(graph.nodes):
        if last.op != "call_function" or last.target is not aten.relu.default:
            continue
        source = last.args[0]
        with graph.inserting_before(last):
            new = _rectified(graph, source, is_apt) or _added(graph, source, is_apt)
        if new is None:
            continue
        new.meta = dict(last.meta)
        last.replace_all_uses_with(new)
        for node in (last, source, *source.all_input_nodes):
            if not node.users:
                graph.erase_node(node)


def _rectified(graph: fx.Graph, node: Any, is_apt: Apt) -> fx.Node | None:
    given = _given(node)
    if (given is None or _is_single(node) and value_of(node).dtype is not torch.float32
        or not is_apt(_layer(given, False))):
        return None
    x, weight, bias, *window = given
    return graph.call_function(aten.cudnn_convolution_relu.default, (x, weight, bias, *window))


def _added(graph: fx.Graph, node: fx.Node, is_apt: Apt) -> fx.Node | None:
    if (node.target is not aten.add.Tensor or node.kwargs or len(node.users) != 1
        or value_of(node).dtype is not torch.float32):
        return None
    for one, other in (node.args[:2], node.args[1::-1]):
        given = _given(one)
        if given is None or not isinstance(other, fx.Node) or not _is_like(value_of(other), value_of(one)):
            continue
        if not is_apt(_layer(given, True)):
            continue
        x, weight, bias, *window = given
        beside = _given(other)
        if beside is not None:
            add = Nodes(graph, node)
            bias = add(aten.add.Tensor, (bias, beside[2]), tuple(value_of(bias).shape))
            plain = add(aten.conv2d.default, (*beside[:2], None, *beside[3:]), tuple(value_of(other).shape))
            plain.meta["val"] = value_of(other)
            other.replace_all_uses_with(plain)
            graph.erase_node(other)
            other = plain
        return graph.call_function(aten.cudnn_convolution_add_relu.default, (x, weight, other, 1.0, bias, *window))
    return None


def _given(node: Any) -> tuple[Any, ...] | None:
    """All arguments of a convolution with frozen weights that nobody else reads, and that the library takes so."""
    if not isinstance(node, fx.Node) or node.target is not aten.conv2d.default or node.kwargs or len(node.users) != 1:
        return None
    given = (*node.args, *_LEFT_OUT[len(node.args) :])
    x, weight, bias, _, padding, _, groups = given
    if groups != 1 or isinstance(padding, str) or not isinstance(bias, fx.Node):
        return None
    frozen = is_parameter_expression(weight) and is_parameter_expression(bias)
    return given if frozen and _in_vectors([value_of(v) for v in (x, weight, bias)]) else None


def _layer(given: tuple[Any, ...], added: bool) -> Layer:
    image, weight = map(value_of, given[:2])
    stride, padding, dilation = (tuple(pair) * (2 // len(pair)) for pair in given[3:6])
    return Layer(tuple(image.shape), tuple(weight.shape), image.dtype, stride, padding, dilation, added)


def _in_vectors(values: list[Any]) -> bool:
    """Return whether image, weight and bias are of one type that matrix units multiply, their channels whole
    vectors."""
    image, weight, bias = values
    sizes = [*image.shape, *weight.shape]
    known = len(sizes) == 8 and len(bias.shape) == 1 and all(type(n) is int for n in sizes)
    if not known or not image.dtype is weight.dtype is bias.dtype or not on_matrix_units(image.dtype,
                                                                                         *channels_of(image, weight)):
        return False
    few = image.dtype is torch.float32 and weight.shape[1] <= FEW
    return weight.shape[0] % VECTOR == 0 and (few or weight.shape[1] % VECTOR == 0)


def _is_single(node: fx.Node) -> bool:
    """Return whether a kernel has one element."""
    return tuple(value_of(node.args[1]).shape[2:]) == (1, 1)


def _is_like(a: Any, b: Any) -> bool:
    return a.dtype is b.dtype and tuple(a.shape) == tuple(b.shape) and a.device == b.device
