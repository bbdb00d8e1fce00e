"""The device of a graph: one, for which kernels are generated; operators on tensors of another run as eager calls."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import fx

from framesmith.util.errors import OddTensor

CPU = torch.device("cpu")
KINDS = ("cpu", "cuda")


def main_device(graph: fx.Graph) -> torch.device:
    """Return the CUDA device with most of the graph's values; without any, the CPU. Raises `OddTensor` for a device of
    another kind."""
    count: Counter[torch.device] = Counter()
    for node in graph.nodes:
        count.update(set(devices_of(node.meta.get("val"))))
    for device in count:
        if device.type not in KINDS:
            raise OddTensor(f"tensors on {device}", hint="kernels are made for the CPU and for CUDA devices")
    del count[CPU]
    return max(count, key=count.__getitem__) if count else CPU


def devices_of(val: Any) -> list[torch.device]:
    """Return the devices of a node's value."""
    if isinstance(val, (tuple, list)):
        return [device for item in val for device in devices_of(item)]
    device = getattr(val, "device", None)
    return [device] if isinstance(device, torch.device) else []
