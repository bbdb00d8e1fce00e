"""Rewrite convolutions with frozen weights into the kernel that was chosen for them, channels-last by explicit
permutes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith.graph.freeze import is_parameter_expression
from framesmith.graph.patterns import Match, p, tensors, values
from framesmith.loops.contract import packed_columns
from framesmith.lower.contractions.depthwise import depthwise, depthwise_geometry
from framesmith.lower.contractions.geometry import VectorUnit, contract, pack, pack_groups, window_geometry
from framesmith.lower.contractions.nodes import Nodes
from framesmith.lower.contractions.pack_linear import (
    Choose,
    Request,
    add_bias,
    packed_elements,
    rewrites,
    sizes_of,
    static,
    surely_filled,
    usual,
)
from framesmith.lower.windows import Pair, pair
from framesmith.prims.core import Size

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Convolution:
    """The arguments of a call on images: x (images, channels, height, width), weight (out, channels / groups, kernel
    height, width)."""

    x: fx.Node
    weight: fx.Node
    bias: Any
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int
    usual: tuple[int, ...]
    """The shape of x, with hints for dynamic sizes."""

    @property
    def shape(self) -> tuple[Size, Size, Size, Size]:
        """The shape of x."""
        images, _, h, w = sizes_of(self.x.meta["val"])
        return (images, self.groups * self.weight.meta["val"].shape[1], h, w)

    @property
    def request(self) -> tuple[int, ...]:
        """Every relevant size except groups."""
        o, _, kh, kw = self.weight.meta["val"].shape
        return (*self.usual, o, kh, kw, *self.stride, *self.padding, *self.dilation)


[x], [w] = tensors("x"), tensors("w", is_parameter_expression)
b, stride, padding, dilation, groups = values("b stride padding dilation groups")
CONVOLUTION = ((p.conv1d.default | p.conv2d.default)(x, w, b, stride, padding, dilation, groups)
               | p.convolution(x, w, b, stride, padding, dilation, False, ..., groups))


@rewrites(CONVOLUTION)
def _rewrite_convolution(m: Match, choose: Choose) -> fx.Node | None:
    """permute(contract(pad(permute(x)), pack(w)) + b), permute(depthwise(permute(x), pack(w)) + b) of one channel in a
    group; of an image of one line, unsqueezed."""
    image, weight = m[x, w]
    vx, vw = image.meta["val"], weight.meta["val"]
    rank = len(vw.shape)
    if rank not in (3, 4) or len(vx.shape) != rank:
        return None
    filled = surely_filled(vw) and surely_filled(vx, behind=1)
    if not static(vw) or not filled or vx.dtype is not vw.dtype or vx.device.type != "cpu":
        return None
    if not _known(m[stride, padding, dilation]):
        return None
    # channels are the weight's, though the input's may be a symbol that is guarded to be equal
    line, present = rank == 3, (usual(vx.shape[0]), m[groups] * vw.shape[1], *map(usual, vx.shape[2:]))
    pairs = [(first, pair(size)[1]) if line else pair(size)
             for size, first in zip(m[stride, padding, dilation], (1, 0, 1))]
    window: tuple[Any, ...] = (*pairs, m[groups], (*present[:2], *((1,) if line else ()), *present[2:]))
    add = Nodes(m.graph, m.root)
    if not line:
        return _image(add, Convolution(image, weight, m[b], *window), choose)
    if vx.dtype is not torch.float32:
        return None
    image, weight = (add(aten.unsqueeze.default, (t, 2), (*v.shape[:2], 1, v.shape[2]))
                     for t, v in ((image, vx), (weight, vw)))
    out = _image(add, Convolution(image, weight, m[b], *window), choose)
    if out is None:
        m.graph.erase_node(image)
        m.graph.erase_node(weight)
        return None
    images, o, _, width = out.meta["val"].shape
    return add(aten.squeeze.dim, (out, 2), (images, o, width), (o * width, 1, o))


def _known(value: Any) -> bool:
    """Return whether all parameters of a window are known."""
    return all(map(_known, value)) if isinstance(value, (tuple, list)) else type(value) is int


def _image(add: Nodes, c: Convolution, choose: Choose) -> fx.Node | None:
    """Return the nodes of the kernel chosen for `c`; None: eager's."""
    vx, vw = c.x.meta["val"], c.weight.meta["val"]
    if c.groups == 1:
        build = _KERNELS.get(choose(Request("conv", vx.dtype, c.request)))
        return None if build is None else build(add, c, choose.unit)
    if vx.dtype is not torch.float32:
        return None
    if vw.shape[1] == 1:
        return _depthwise(add, c, choose.unit) if choose(Request("depthwise", vx.dtype, c.request)) == "own" else None
    return _own(add, c, choose.unit) if choose(Request("grouped", vx.dtype, (c.groups, *c.request))) == "own" else None


def _own(add: Nodes, c: Convolution, unit: VectorUnit) -> fx.Node:
    images, channels, h, w = c.shape
    o, depth, kh, kw = c.weight.meta["val"].shape
    last = _channels_last(add, c)
    py, px = c.padding
    padded = (images, h + 2 * py, w + 2 * px, channels)
    if c.padding != (0, 0):
        last = add(aten.constant_pad_nd.default, (last, [0, 0, px, px, py, py], 0.0), padded)
    geometry = window_geometry(padded, o, (kh, kw), c.stride, c.dilation, c.groups, unit)
    depth *= kh * kw
    moved = add(aten.permute.default, (c.weight, [2, 3, 1, 0]), (kh, kw, depth // (kh * kw), o),
                (kw, 1, kh * kw, depth))
    flat = add(aten.reshape.default, (moved, [depth, o]), (depth, o))
    size = packed_elements(geometry, depth)
    if c.groups == 1:
        packed = add(pack, (flat, geometry.columns, geometry.lane), (size,))
    else:
        packed = add(pack_groups, (flat, c.groups, geometry.columns, geometry.lane), (size * c.groups,))
    return _channels_second(add, add_bias(add, add(contract, (last, packed, geometry), geometry.shape), c.bias))


def _depthwise(add: Nodes, c: Convolution, unit: VectorUnit) -> fx.Node:
    images, channels, h, w = c.shape
    o, _, kh, kw = c.weight.meta["val"].shape
    last = _channels_last(add, c)
    if o != channels:  # several results a channel: each reads its own copy
        strides = (channels * h * w, w, 1, h * w)
        single = add(aten.unsqueeze.default, (last, 4), (images, h, w, channels, 1), (*strides, 1))
        repeated = (images, h, w, channels, o // channels)
        wide = add(aten.expand.default, (single, list(repeated)), repeated, (*strides, 0))
        last = add(aten.reshape.default, (wide, [images, h, w, o]), (images, h, w, o))
    geometry = depthwise_geometry((images, h, w, o), (kh, kw), c.stride, c.padding, c.dilation, unit)
    rows = add(aten.reshape.default, (c.weight, [o, kh * kw]), (o, kh * kw))
    flat = add(aten.t.default, (rows,), (kh * kw, o), (1, kh * kw))
    size = kh * kw * packed_columns(o, geometry.columns, geometry.lane)
    packed = add(pack, (flat, geometry.columns, geometry.lane), (size,))
    return _channels_second(add, add_bias(add, add(depthwise, (last, packed, geometry), geometry.shape), c.bias))


def _channels_last(add: Nodes, c: Convolution) -> fx.Node:
    images, channels, h, w = c.shape
    return add(aten.permute.default, (c.x, [0, 2, 3, 1]), (images, h, w, channels), (channels * h * w, w, 1, h * w))


def _channels_second(add: Nodes, x: fx.Node) -> fx.Node:
    images, h, w, channels = sizes_of(x.meta["val"])
    return add(aten.permute.default, (x, [0, 3, 1, 2]), (images, channels, h, w),
               (h * w * channels, 1, w * channels, channels))


def _mkldnn(add: Nodes, c: Convolution, unit: VectorUnit) -> fx.Node:
    shape = c.shape
    o, _, kh, kw = c.weight.meta["val"].shape
    sizes = zip(shape[2:], (kh, kw), c.stride, c.padding, c.dilation)
    oh, ow = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes)
    window = (list(c.padding), list(c.stride), list(c.dilation), 1)
    packed = add(torch.ops.mkldnn._reorder_convolution_weight.default, (c.weight, *window, list(c.usual)),
                 tuple(c.weight.meta["val"].shape))
    args: tuple[Any, ...] = (c.x, packed, c.bias, *window, "none", [], "")
    return add(torch.ops.mkldnn._convolution_pointwise.default, args, (shape[0], o, oh, ow),
               (oh * ow * o, 1, ow * o, o))


_KERNELS = {"own": _own, "mkldnn": _mkldnn}
