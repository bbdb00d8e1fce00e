"""Rewrite linear layers and convolutions with frozen weights into the kernel that was chosen for them.

    linear(x, W, b)  ->  contract(x, pack(W^T)) + b
    conv2d(x, W, b)  ->  permute(contract(pad(permute(x)), pack(W)) + b)      channels-last by explicit permutes

so that bias, activation and residual are ordinary pointwise nodes, which the scheduler fuses into the contraction's epilogue. `pack` depends on
parameters only: `graph.freeze` makes it a constant that follows the parameter's version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import fx

from framesmith.graph.freeze import is_input_free, is_parameter_expression
from framesmith.loops.contract import packed_columns
from framesmith.lower.contractions.depthwise import depthwise, depthwise_geometry
from framesmith.lower.contractions.geometry import Geometry, contract, linear_geometry, pack, window_geometry
from framesmith.lower.contractions.nodes import Nodes

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Request:
    """A contraction to choose a kernel for. `kind` is "linear" or "conv"; `shape` holds every size that matters."""

    kind: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def key(self) -> str:
        return f"{self.kind} {str(self.dtype).removeprefix('torch.')} {'x'.join(map(str, self.shape))}"


Choose = Callable[[Request], str]
Rewrite = Callable[[fx.Graph, fx.Node, Choose], fx.Node | None]
REWRITES: dict[Any, Rewrite] = {}


def _rewrites(*targets: Any) -> Callable[[Rewrite], Rewrite]:
    def register(rewrite: Rewrite) -> Rewrite:
        REWRITES.update(dict.fromkeys(targets, rewrite))
        return rewrite

    return register


def rewrite_contractions(graph: fx.Graph, choose: Choose) -> fx.Graph:
    """Replace every contraction that has a frozen weight and a better kernel, in place; returns `graph`."""
    for node in list(graph.nodes):
        rewrite = REWRITES.get(node.target) if node.op == "call_function" else None
        if rewrite is None:
            continue
        with graph.inserting_before(node):
            new = rewrite(graph, node, choose)
        if new is not None:
            new.meta["val"] = node.meta["val"]  # eager's strides, should it be a result
            node.replace_all_uses_with(new)
            graph.erase_node(node)
    return graph


def _static(*values: Any) -> bool:
    return all(type(size) is int for value in values for size in value.shape)


def _value(node: Any) -> Any:
    return node.meta["val"] if isinstance(node, fx.Node) else None


def _add_bias(add: Nodes, out: fx.Node, bias: Any) -> fx.Node:
    return out if bias is None else add(aten.add.Tensor, (out, bias), out.meta["val"].shape)


def _linear(graph: fx.Graph, node: fx.Node, choose: Choose, x: Any, weight: Any, bias: Any, transposed: bool) -> fx.Node | None:
    """`weight` is (n, k) when `transposed`, else (k, n)."""
    vx, vw = _value(x), _value(weight)
    if vw is None or len(vw.shape) != 2 or not is_parameter_expression(weight) or not _static(vx, vw):
        return None
    n, k = vw.shape if transposed else vw.shape[::-1]
    shape = (*vx.shape[:-1], n)
    m = prod(vx.shape[:-1])
    if not m * k * n or vx.dtype is not vw.dtype or vx.device.type != "cpu":
        return None
    add = Nodes(graph, node)
    kernel = choose(Request("linear", vx.dtype, (m, k, n)))
    if kernel == "own":
        geometry = linear_geometry(m, k, n, shape)
        columns = add(aten.t.default, (weight,), (k, n), (1, k)) if transposed else weight
        packed = add(pack, (columns, geometry.columns, geometry.lane), (packed_elements(geometry, k),))
        return _add_bias(add, add(contract, (x, packed, geometry), shape), bias)
    if kernel == "mkldnn":
        rows = weight if transposed else add(aten.t.default, (weight,), (n, k), (1, n))
        packed = add(torch.ops.mkldnn._reorder_linear_weight.default, (rows, m), (n, k))
        return add(torch.ops.mkldnn._linear_pointwise.default, (x, packed, bias, "none", [], ""), shape)
    return None


def packed_elements(geometry: Geometry, depth: int) -> int:
    """Elements of the packed weight."""
    return depth * packed_columns(geometry.n, geometry.columns, geometry.lane)


@_rewrites(aten.linear.default)
def _rewrite_linear(graph: fx.Graph, node: fx.Node, choose: Choose) -> fx.Node | None:
    x, weight, bias = (*node.args, None)[:3]
    return _linear(graph, node, choose, x, weight, bias, True)


@_rewrites(aten.addmm.default)
def _rewrite_addmm(graph: fx.Graph, node: fx.Node, choose: Choose) -> fx.Node | None:
    bias, x, weight = node.args
    if node.kwargs:
        return None
    return _linear(graph, node, choose, x, weight, bias, False)


@_rewrites(aten.mm.default, aten.matmul.default)
def _rewrite_matmul(graph: fx.Graph, node: fx.Node, choose: Choose) -> fx.Node | None:
    x, weight = node.args
    vx = _value(x)
    if vx is None or len(vx.shape) < 2:
        return None
    return _linear(graph, node, choose, x, weight, None, False)


def _pair(value: Any) -> tuple[int, int]:
    values = [value] if isinstance(value, int) else list(value)
    return (values[0], values[-1])


def _argument(node: fx.Node, position: int, default: Any) -> Any:
    return node.args[position] if len(node.args) > position else default


@_rewrites(aten.conv2d.default, aten.convolution.default)
def _rewrite_convolution(graph: fx.Graph, node: fx.Node, choose: Choose) -> fx.Node | None:
    full = node.target is aten.convolution.default
    if full and (node.args[6] or len(node.args[1].meta["val"].shape) != 4):
        return None
    x, weight, bias = node.args[0], node.args[1], _argument(node, 2, None)
    stride, padding, dilation = (_pair(_argument(node, i, d)) for i, d in ((3, 1), (4, 0), (5, 1)))
    groups = _argument(node, 8 if full else 6, 1)
    vx, vw = _value(x), _value(weight)
    if len(vx.shape) != 4 or not is_parameter_expression(weight) or not _static(vx, vw) or vx.dtype is not vw.dtype:
        return None
    o, c, kh, kw = vw.shape
    if not prod(vx.shape):
        return None
    if groups != 1:
        plain = groups == vx.shape[1] and c == 1 and vx.dtype is torch.float32 and vx.device.type == "cpu"
        if not plain or choose(Request("depthwise", vx.dtype, (*vx.shape, o, kh, kw, *stride, *padding, *dilation))) != "own":
            return None
        return _own_depthwise(Nodes(graph, node), x, weight, bias, stride, padding, dilation)
    kernel = choose(Request("conv", vx.dtype, (*vx.shape, o, kh, kw, *stride, *padding, *dilation)))
    if kernel == "own":
        return _own_convolution(Nodes(graph, node), x, weight, bias, stride, padding, dilation)
    if kernel == "mkldnn":
        return _mkldnn_convolution(Nodes(graph, node), x, weight, bias, stride, padding, dilation)
    return None


def _own_convolution(add: Nodes, x: fx.Node, weight: fx.Node, bias: Any, stride: Any, padding: Any, dilation: Any) -> fx.Node:
    images, c, h, w = x.meta["val"].shape
    o, _, kh, kw = weight.meta["val"].shape
    last = add(aten.permute.default, (x, [0, 2, 3, 1]), (images, h, w, c), (c * h * w, w, 1, h * w))
    hp, wp = h + 2 * padding[0], w + 2 * padding[1]
    if padding != (0, 0):
        last = add(aten.constant_pad_nd.default, (last, [0, 0, padding[1], padding[1], padding[0], padding[0]], 0.0), (images, hp, wp, c))
    geometry = window_geometry((images, hp, wp, c), o, (kh, kw), stride, dilation)
    depth = kh * kw * c
    moved = add(aten.permute.default, (weight, [2, 3, 1, 0]), (kh, kw, c, o), (kw, 1, kh * kw, c * kh * kw))
    flat = add(aten.reshape.default, (moved, [depth, o]), (depth, o))
    packed = add(pack, (flat, geometry.columns, geometry.lane), (packed_elements(geometry, depth),))
    out = _add_bias(add, add(contract, (last, packed, geometry), geometry.shape), bias)
    _, oh, ow, _ = geometry.shape
    return add(aten.permute.default, (out, [0, 3, 1, 2]), (images, o, oh, ow), (oh * ow * o, 1, ow * o, o))


def _own_depthwise(add: Nodes, x: fx.Node, weight: fx.Node, bias: Any, stride: Any, padding: Any, dilation: Any) -> fx.Node:
    images, c, h, w = x.meta["val"].shape
    o, _, kh, kw = weight.meta["val"].shape
    last = add(aten.permute.default, (x, [0, 2, 3, 1]), (images, h, w, c), (c * h * w, w, 1, h * w))
    if o != c:  # several results a channel: each reads its own copy
        single = add(aten.unsqueeze.default, (last, 4), (images, h, w, c, 1), (c * h * w, w, 1, h * w, 1))
        wide = add(aten.expand.default, (single, [images, h, w, c, o // c]), (images, h, w, c, o // c), (c * h * w, w, 1, h * w, 0))
        last = add(aten.reshape.default, (wide, [images, h, w, o]), (images, h, w, o))
    geometry = depthwise_geometry((images, h, w, o), (kh, kw), stride, padding, dilation)
    rows = add(aten.reshape.default, (weight, [o, kh * kw]), (o, kh * kw))
    flat = add(aten.t.default, (rows,), (kh * kw, o), (1, kh * kw))
    packed = add(pack, (flat, geometry.columns, geometry.lane), (kh * kw * packed_columns(o, geometry.columns, geometry.lane),))
    out = _add_bias(add, add(depthwise, (last, packed, geometry), geometry.shape), bias)
    _, oh, ow, _ = geometry.shape
    return add(aten.permute.default, (out, [0, 3, 1, 2]), (images, o, oh, ow), (oh * ow * o, 1, ow * o, o))


def _mkldnn_convolution(add: Nodes, x: fx.Node, weight: fx.Node, bias: Any, stride: Any, padding: Any, dilation: Any) -> fx.Node:
    value, shape = add.like.meta["val"], x.meta["val"].shape
    out_shape, o = tuple(value.shape), value.shape[1]
    packed = add(
        torch.ops.mkldnn._reorder_convolution_weight.default,
        (weight, list(padding), list(stride), list(dilation), 1, list(shape)),
        tuple(weight.meta["val"].shape),
    )
    args = (x, packed, bias, list(padding), list(stride), list(dilation), 1, "none", [], "")
    _, _, oh, ow = out_shape
    return add(torch.ops.mkldnn._convolution_pointwise.default, args, out_shape, (oh * ow * o, 1, ow * o, o))


def worth_freezing(node: fx.Node) -> bool:
    """Whether an expression of parameters that holds `node` saves work in every call (views alone do not).

    What reads no parameter costs its kernels no memory traffic: it must hold work (rotary angles, a table looked up) to be kept as a constant.
    """
    if is_input_free(node):
        return not _is_view(node) and node.target not in _CHEAP
    return not _is_view(node)


_CHEAP = frozenset(
    getattr(aten, name).default if not overload else getattr(getattr(aten, name), overload)
    for name, overload in (
        ("arange", ""), ("arange", "start"), ("arange", "start_step"), ("full", ""), ("zeros", ""), ("ones", ""), ("empty", "memory_format"),
        ("eye", ""), ("eye", "m"), ("scalar_tensor", ""), ("full_like", ""), ("zeros_like", ""), ("ones_like", ""), ("empty_like", ""),
        ("add", "Tensor"), ("sub", "Tensor"), ("rsub", "Scalar"), ("mul", "Tensor"), ("neg", ""), ("_to_copy", ""), ("clone", ""),
        ("eq", "Scalar"), ("ne", "Scalar"), ("lt", "Scalar"), ("le", "Scalar"), ("gt", "Scalar"), ("ge", "Scalar"),
        ("eq", "Tensor"), ("ne", "Tensor"), ("lt", "Tensor"), ("le", "Tensor"), ("gt", "Tensor"), ("ge", "Tensor"),
        ("bitwise_and", "Tensor"), ("bitwise_or", "Tensor"), ("bitwise_not", ""), ("logical_and", ""), ("logical_or", ""),
        ("logical_not", ""), ("where", "self"), ("fill", "Scalar"), ("lift_fresh_copy", ""), ("lift_fresh", ""),
    )
)


def _is_view(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(r.alias_info is not None for r in schema.returns)


