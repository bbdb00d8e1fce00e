"""Rewrite float32 convolutions whose weights change from call to call, and their gradients, into the operators of
csrc/convolution.cpp, each where it is faster. They read weights and images in their own layout, row by row: oneDNN
reorders both in each call, which is expensive for a weight that few positions of an image use, and cheap for one that
many use. In between both are measured.
"""

from __future__ import annotations

import operator
from math import prod
from typing import Any

import torch
from torch import fx

from framesmith import _C
from framesmith.graph.freeze import is_parameter_expression
from framesmith.graph.patterns import Match, p, tensors, values
from framesmith.lower.contractions.choice import CANDIDATES, KNOWN, Candidate
from framesmith.lower.contractions.nodes import Nodes, replace_result
from framesmith.lower.contractions.pack_linear import Choose, Request, rewrites, static
from framesmith.lower.geometry import row_major, same_layout, strides_of
from framesmith.lower.layouts import ARGUMENT_LAYOUTS, RESULT_LAYOUTS

aten = torch.ops.aten
library = torch.ops.framesmith
assert _C.LANES  # importing the core registers the operators

MEASURED_FLOPS = 2e7  # larger convolutions are measured with fewer channels: how much a weight is used stays the same
FEWEST_CHANNELS = 32
FEW = 4  # results of a group below which registers hold too few of them
FEW_PLACES, MANY_PLACES = 100, 1000


[x, w, g], [b, sizes, rest] = tensors("x w g"), values("b sizes rest")


@rewrites(p.convolution(x, w, b, *rest))
def _rewrite_convolution(m: Match, choose: Choose) -> fx.Node | None:
    """framesmith::convolution(x, w, b, ...)"""
    form = None if is_parameter_expression(m[w]) else _form(*m[x, w, rest])
    if form is None or _few(form) or choose(Request("convolution", torch.float32, form)) != "own":
        return None
    stride, padding, dilation, _, _, groups = m[rest]
    args = (*m[x, w, b], stride, padding, dilation, groups)
    return Nodes(m.graph, m.root)(library.convolution.default, args, tuple(m.root.meta["val"].shape))


@rewrites(p.convolution_backward(g, x, w, sizes, *rest))
def _rewrite_backward(m: Match, choose: Choose) -> None:
    """framesmith::convolution_images(g, w, ...), framesmith::convolution_weights(g, x, ...), sum(g): replaces the
    needed results one by one; the node keeps computing the others."""
    node, (tangent, image, weight, (*window, mask)) = m.root, m[g, x, w, rest]
    form = _form(image, weight, window)
    if form is None or tangent.meta["val"].dtype is not torch.float32 or any(user.target is not operator.getitem
                                                                             for user in node.users):
        return
    stride, padding, dilation, _, _, groups = window
    wanted: list[Any] = list(mask)
    geometry = (stride, padding, dilation, groups)
    rows = (
        ("convolution images", library.convolution_images.default, weight, image),
        ("convolution weights", library.convolution_weights.default, image, weight),
    )
    for place, (kind, target, other, of) in enumerate(rows):
        if not wanted[place] or (not place and _few(form)) or choose(Request(kind, torch.float32, form)) != "own":
            continue
        shape = tuple(of.meta["val"].shape)
        replace_result(node, place, target, (tangent, other, list(shape), *geometry), shape)
        wanted[place] = False
    if wanted == list(mask):
        return
    if wanted[2]:
        replace_result(node, 2, aten.sum.dim_IntList, (tangent, [0, 2, 3]), (form[4],))
        wanted[2] = False
    if not any(wanted):
        m.graph.erase_node(node)
        return
    node.args = (*node.args[:-1], wanted)
    node.meta["val"] = tuple(val if asked else None for val, asked in zip(node.meta["val"], wanted))


def _form(x: Any, weight: Any, window: list[Any]) -> tuple[int, ...] | None:
    """Return (images, channels, height, width, results, kernel, stride, padding, dilation, groups) of a convolution
    that the kernels support."""
    stride, padding, dilation, transposed, _, groups = window
    vx, vw = x.meta["val"], weight.meta["val"]
    if (transposed or len(vx.shape) != 4 or len(vw.shape) != 4 or not static(vx, vw) or not prod(vx.shape)
        or not prod(vw.shape)):
        return None
    if any(v.dtype is not torch.float32 or v.device.type != "cpu" or not _is_row_major(v) for v in (vx, vw)):
        return None
    if any(type(n) is not int for n in (*stride, *padding, *dilation)):
        return None
    pairs = (tuple(p) * (2 // len(p)) for p in (stride, padding, dilation))
    return (*vx.shape, vw.shape[0], *vw.shape[2:], *(n for pair in pairs for n in pair), groups)


def _is_row_major(value: Any) -> bool:
    return same_layout(value.shape, strides_of(value), row_major(value.shape))


def _few(form: tuple[int, ...]) -> bool:
    return form[4] // form[-1] < FEW


def _tensors(request: Request) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, tuple[Any, ...], int]:
    """Return example arguments for a measurement: tangent, image and weight of one image, with fewer channels where
    there are many; stride, padding and dilation; groups."""
    _, c, h, w, o, kh, kw, *rest, groups = request.shape
    window = tuple(rest[i : i + 2] for i in (0, 2, 4))
    while (groups == 1 and 2 * c * o * kh * kw * h * w // prod(window[0]) > MEASURED_FLOPS
           and max(c, o) > FEWEST_CHANNELS):
        c, o = (c // 2, o) if c >= o else (c, o // 2)
    x, weight = torch.ones(1, c, h, w), torch.ones(o, c // groups, kh, kw)
    return torch.ones_like(library.convolution(x, weight, None, *window, groups)), x, weight, window, groups


def _candidates(request: Request) -> dict[str, Candidate]:
    tangent, x, weight, window, groups = _tensors(request)
    out = torch.empty_like(tangent)
    return {
        "aten": lambda: aten.convolution(x, weight, None, *window, False, (0, 0), groups),
        "own": lambda: library.convolution.out(x, weight, None, *window, groups, out=out),
    }


def _gradient_candidates(request: Request) -> dict[str, Candidate]:
    tangent, x, weight, window, groups = _tensors(request)
    images = request.kind == "convolution images"
    other, of, own = (weight, x, library.convolution_images) if images else (x, weight, library.convolution_weights)
    out = torch.empty_like(of)
    mask = [images, not images, False]
    return {
        "aten": lambda: aten.convolution_backward(tangent, x, weight, None, *window, False, (0, 0), groups, mask),
        "own": lambda: own.out(tangent, other, of.shape, *window, groups, out=out),
    }


def _known(request: Request) -> str | None:
    images, c, h, w, o, kh, kw, sh, sw, *_, groups = request.shape
    places = images * (h // sh) * (w // sw)
    if o // groups < FEW:
        return "own" if kh * kw > 9 else "aten"  # oneDNN's own kernels of a channel's weights stop at 3 by 3
    if kh * kw == 1 or places <= FEW_PLACES:
        return "own"
    return "aten" if places >= MANY_PLACES and c // groups >= _C.LANES else None


CANDIDATES["convolution"] = _candidates
CANDIDATES["convolution images"] = CANDIDATES["convolution weights"] = _gradient_candidates
KNOWN.update(dict.fromkeys(("convolution", "convolution images", "convolution weights"), _known))
for _target in (library.convolution.default, library.convolution_images.default, library.convolution_weights.default):
    ARGUMENT_LAYOUTS[_target] = lambda position, value, frozen: row_major(value.shape) if len(
        value.shape) == 4 else None
    RESULT_LAYOUTS[_target] = lambda spec, values: row_major(spec.shape)
