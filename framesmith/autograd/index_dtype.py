"""Narrow the indices of maxima that a half-precision pooling saves for its gradient: two bytes each instead of eight.

    out, places = max_pool2d_with_indices(x)               out, places = ...; near = places.to(int16)
    max_pool2d_with_indices_backward(g, x, places)          max_pool2d_with_indices_backward(g, x, near.to(int64))

On a CUDA device both are kernels of our own (`lower.pooling`), into which the casts are fused; `saved_values` then
saves the smallest value.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from framesmith.fake.tensor import new_fake

aten = torch.ops.aten
NEAR = torch.int16


def narrow_places(graph: fx.Graph) -> None:
    """Insert casts of indices to int16 and back between each pooling and its gradients, in place."""
    for pooling in [n for n in graph.nodes if n.target is aten.max_pool2d_with_indices.default and _is_near(n.args[0])]:
        for places in [n for n in pooling.users if n.target is operator.getitem and n.args[1] == 1]:
            readers = [n for n in places.users if n.target is aten.max_pool2d_with_indices_backward.default]
            if readers:
                near = _cast(graph, places, NEAR)
                wide = _cast(graph, near, torch.int64)
                for reader in readers:
                    reader.replace_input_with(places, wide)


def _is_near(image: Any) -> bool:
    val = image.meta["val"]
    half = val.dim() == 4 and val.device.type == "cuda" and val.dtype in (torch.bfloat16, torch.float16)
    return half and all(type(n) is int for n in val.shape) and val.shape[2] * val.shape[3] <= torch.iinfo(NEAR).max


def _cast(graph: fx.Graph, node: fx.Node, dtype: torch.dtype) -> fx.Node:
    with graph.inserting_after(node):
        out = graph.call_function(aten._to_copy.default, (node,), {"dtype": dtype})
    val = node.meta["val"]
    out.meta.update(node.meta, val=new_fake(tuple(val.shape), val.stride(), dtype, val.device))
    return out
