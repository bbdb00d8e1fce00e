"""Layouts of the values that a forward saves for its backward: they are private, so they keep the layout in which they
are computed.

Convolutions on matrix units run channels-last on a CUDA device (see `lower.layouts`), and so are their weights and
values computed from their images. Such a value's node has the strides in `meta["layout"]`; `meta["val"]` has eager's.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import fx

from framesmith.graph.purity import is_view
from framesmith.util.precision import channels_of, on_matrix_units

aten = torch.ops.aten
_CONVOLUTIONS = (aten.convolution.default, aten.conv2d.default)

Layout = tuple[int, ...] | None


def lay_out(nodes: Iterable[fx.Node], kept: Collection[fx.Node]) -> None:
    """Set the layout of those of `kept` that are weights or images of convolutions, or computed from images."""
    if not kept:
        return
    images: set[fx.Node] = set()
    weights: set[fx.Node] = set()
    for node in nodes:
        if node.op != "call_function":
            continue
        if node.target in _CONVOLUTIONS and _is_image(node) and on_matrix_units(node.meta["val"].dtype,
                                                                                *_channels(node)):
            images.update((node, node.args[0]))  # type: ignore[arg-type]
            if node.args[1].meta["val"].shape[1] != 1:  # type: ignore[union-attr]
                weights.add(node.args[1])  # type: ignore[arg-type]
        elif (node.target is operator.getitem
              or not is_view(node.target)) and any(a in images for a in node.all_input_nodes):
            images.add(node)
    for node in kept:
        if (node in images or node in weights) and _is_image(node):
            node.meta["layout"] = _channels_last(node.meta["val"].shape)


def strides_of(node: fx.Node) -> Any:
    """Return the strides of a saved value."""
    return node.meta.get("layout") or node.meta["val"].stride()


def _is_image(node: fx.Node) -> bool:
    val = node.meta["val"]
    return isinstance(val, torch.Tensor) and val.dim() == 4 and val.device.type == "cuda" and all(type(n) is int
                                                                                                  for n in val.shape)


def _channels(node: fx.Node) -> tuple[int, ...]:
    return channels_of(*(n.meta["val"] for n in node.args[:2]))  # type: ignore[union-attr]


def _channels_last(shape: torch.Size) -> tuple[int, ...]:
    _, channels, height, width = shape
    return height * width * channels, 1, width * channels, channels


__all__ = ["Layout", "lay_out", "strides_of"]
