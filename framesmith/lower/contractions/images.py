"""Weights of convolutions on a CUDA device, channels innermost as their images (see `lower.layouts`)."""

from __future__ import annotations

import torch
from torch import fx

from framesmith.graph.freeze import is_parameter_expression
from framesmith.lower.contractions.nodes import Nodes
from framesmith.lower.layouts import channels_last

aten = torch.ops.aten
_CONVOLUTIONS = (aten.convolution.default, aten.conv2d.default)
_HALF = (torch.float16, torch.bfloat16)


def lay_out_weights(graph: fx.Graph) -> None:
    """Weights that are frozen are laid out once; another would be laid out by the library in each call."""
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in _CONVOLUTIONS or not is_parameter_expression(weight := node.args[1]):
            continue
        value = weight.meta["val"]
        if len(value.shape) == 4 and value.dtype in _HALF:
            with graph.inserting_before(node):
                add = Nodes(graph, node)
                node.update_arg(1, add(aten._to_copy.default, (weight,), tuple(value.shape), channels_last(value.shape)))
            node.args[1].kwargs = {"memory_format": torch.channels_last}
