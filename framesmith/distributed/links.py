"""Devices and links between them, and the time of collectives: latency + bytes / rate for each message of a ring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch


@dataclass(frozen=True)
class Link:
    """A link of one rank: `latency` in seconds of a message, `rate` in bytes a second and direction."""

    latency: float
    rate: float


@dataclass(frozen=True)
class Hardware:
    """One device of each rank, and its links.

    `flops`: peak of multiplications and additions a second by dtype. `bandwidth`: bytes a second of its memory.
    `memory`: bytes. `within`, `between`: links of one rank within a host of `per_host` ranks, and between hosts.
    `efficiency`: the part of both peaks that operators reach. `overhead`: seconds of an operator that does nothing.
    `streams`: collectives of FSDP run on a stream while the device computes; on a CPU they block. `costs`: the function
    of `COLLECTIVES` that a collective has the cost of, where a backend's is not the usual one.
    """

    name: str
    flops: Mapping[torch.dtype, float]
    bandwidth: float
    memory: float
    within: Link
    between: Link
    per_host: int = 8
    efficiency: float = 0.6
    overhead: float = 0.0
    streams: bool = True
    costs: Mapping[str, str] = field(default_factory=dict)

    def seconds(self, flops: float, moved: float, dtype: torch.dtype) -> float:
        """Return the time of an operator by the roofline."""
        peak = self.flops.get(dtype) or min(self.flops.values())
        return self.overhead + max(flops / peak, moved / self.bandwidth) / self.efficiency

    def calibrated(self, predicted: float, measured: float) -> Hardware:
        """Return this hardware with the efficiency at which a step of `predicted` seconds takes `measured`."""
        return replace(self, efficiency=self.efficiency * predicted / measured)

    def link(self, ranks: int, stride: int) -> Link:
        """Return the slowest link of a ring of every `stride`-th rank. Rings over several hosts use the link of each
        rank that a host has in the group."""
        if (ranks - 1) * stride < self.per_host:
            return self.within
        there = max(1, min(ranks, self.per_host // stride))
        return Link(self.between.latency, min(self.within.rate, self.between.rate * there))

    def collective(self, name: str, size: float, ranks: int, stride: int = 1) -> float:
        """Return the seconds of a collective whose whole tensor (of all ranks) has `size` bytes."""
        return COLLECTIVES[self.costs.get(name, name)](self.link(ranks, stride), size, ranks) if ranks > 1 else 0.0


def _pass(link: Link, size: float, ranks: int) -> float:
    """Each rank sends a part to the next one, ranks - 1 times."""
    return (ranks - 1) * (link.latency + size / ranks / link.rate)


COLLECTIVES: dict[str, Callable[[Link, float, int], float]] = {
    "all_gather": _pass,
    "reduce_scatter": _pass,
    "all_reduce": lambda link, size, ranks: 2 * _pass(link, size, ranks),
    "send": lambda link, size, ranks: link.latency + size / link.rate,
}
"""Seconds by link, bytes of the whole tensor and ranks. Rings: Patarasuk and Yuan, "Bandwidth optimal all-reduce
algorithms for clusters of workstations", 2009."""

_HOPPER = {torch.bfloat16: 989e12, torch.float16: 989e12, torch.float32: 67e12}
_NVLINK, _INFINIBAND = Link(3e-6, 450e9), Link(5e-6, 50e9)
H100 = Hardware("H100 SXM", _HOPPER, 3.35e12, 80e9, _NVLINK, _INFINIBAND)
H200 = Hardware("H200 SXM", _HOPPER, 4.8e12, 141e9, _NVLINK, _INFINIBAND)
"""Peaks of NVIDIA's data sheets, without sparsity: NVLink 4 (900 GB/s in both directions) within hosts of 8, and
400 Gbit/s for each device between them."""


def gloo(latency: float, rate: float, *, flops: float = 1e11, bandwidth: float = 1e10, memory: float = 16e9
         ) -> Hardware:
    """Return CPUs with gloo over links of `latency` seconds and `rate` bytes a second. Its `reduce_scatter_tensor` is
    an `all_reduce`, and FSDP waits for collectives."""
    link = Link(latency, rate)
    return Hardware("CPU with gloo", {torch.float32: flops}, bandwidth, memory, link, link, 1, 1.0, 0.0, False,
                    {"reduce_scatter": "all_reduce"})
