"""Fuse a convolution's bias, a residual and a ReLU into cuDNN's convolution, on a CUDA device.

Weights are frozen. With a residual, float32 may be rounded to TF32; without one, half-precision kernels have several
elements: 1x1 kernels are tiles of our own (`template_heuristics`). Those multiply float32 at a lower rate, so there
cuDNN also takes 1x1 kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith.graph.freeze import is_parameter_expression
from framesmith.graph.patterns import Match, arguments, p, rewrite, tensors, values
from framesmith.lower.contractions.nodes import Nodes
from framesmith.lower.contractions.pack_linear import sizes_of, static, surely_filled, value_of
from framesmith.symbolic.node import hint_of
from framesmith.util.precision import channels_of, on_matrix_units

aten = torch.ops.aten
VECTOR = 8  # channels that are moved at once
FEW = 4  # channels that the library makes whole vectors


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution: sizes of image and weight, and its geometry. `added`: with a residual. A dynamic size is the
    present one."""

    image: tuple[int, ...]
    weight: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    added: bool = False


Apt = Callable[[Layer], bool]


def _is_taken(conv: fx.Node) -> bool:
    """Return whether the library supports a convolution with this epilogue."""
    *tensors, _, _, _, groups = arguments(conv)
    return groups == 1 and _in_vectors([*map(value_of, tensors)])


[x, y, z], [window, other] = tensors("x y z"), values("window other")
w, b, v, c = tensors("w b v c", is_parameter_expression)
conv = p.conv2d.default(x, w, b, *window).where(_is_taken)
second_conv = p.conv2d.default(y, v, c, *other).where(_is_taken)
RECTIFIED, ADDED, ADDED_TWO = p.relu(conv), p.relu(conv + z), p.relu(conv + second_conv)


def fuse_conv_relu(graph: fx.Graph, is_apt: Apt = lambda layer: True) -> None:
    """Rewrite such convolutions in place, where `is_apt` allows it."""
    rewrite(graph, {RECTIFIED: _rectified, ADDED_TWO: _added, ADDED: _added}, is_apt)


def _rectified(m: Match, is_apt: Apt) -> fx.Node | None:
    """cudnn_convolution_relu(x, w, b)"""
    single = tuple(value_of(m[w]).shape[2:]) == (1, 1)
    if single and value_of(m[conv]).dtype is not torch.float32 or not is_apt(_layer(m, False)):
        return None
    return m.graph.call_function(aten.cudnn_convolution_relu.default, (*m[x, w, b], *m[window]))


def _added(m: Match, is_apt: Apt) -> fx.Node | None:
    """cudnn_convolution_add_relu(x, w, z, b), or (x, w, conv2d(y, v), b + c)"""
    value, residual, bias = value_of(m[conv]), m[second_conv] or m[z], m[b]
    if (value.dtype is not torch.float32 or not _is_like(value_of(residual), value) or not is_apt(_layer(m, True))):
        return None
    if m[second_conv]:
        add = Nodes(m.graph, m[conv])
        bias = add(aten.add.Tensor, m[b, c], tuple(value_of(bias).shape))
        residual = add.of(aten.conv2d.default, (*m[y, v], None, *m[other]), value_of(residual))
    return m.graph.call_function(aten.cudnn_convolution_add_relu.default, (*m[x, w], residual, 1.0, bias, *m[window]))


def _layer(m: Match, added: bool) -> Layer:
    image, weight = map(value_of, m[x, w])
    stride, padding, dilation = (tuple(pair) * (2 // len(pair)) for pair in m[window][:3])
    sizes = (image.shape[0], weight.shape[1], *image.shape[2:])
    return Layer(tuple(map(hint_of, sizes)), tuple(weight.shape), image.dtype, stride, padding, dilation, added)


def _in_vectors(values: list[Any]) -> bool:
    """Return whether image, weight and bias are of one type that matrix units multiply, their channels whole
    vectors, and no image can be empty."""
    image, weight, bias = values
    ranks = len(image.shape), len(weight.shape), len(bias.shape)
    if ranks != (4, 4, 1) or not static(weight) or not surely_filled(image):
        return False
    alike = image.dtype is weight.dtype is bias.dtype
    if not alike or not on_matrix_units(image.dtype, *channels_of(image, weight)):
        return False
    few = image.dtype is torch.float32 and weight.shape[1] <= FEW
    return weight.shape[0] % VECTOR == 0 and (few or weight.shape[1] % VECTOR == 0)


def _is_like(a: Any, b: Any) -> bool:
    return a.dtype is b.dtype and sizes_of(a) == sizes_of(b) and a.device == b.device
