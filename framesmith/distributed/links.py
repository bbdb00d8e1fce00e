"""Devices and links between them, and the time of collectives: latency + bytes / rate for each message of a ring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil

import torch


@dataclass(frozen=True)
class Link:
    """A link of one rank: `latency` in seconds of a message, `rate` in bytes a second and direction."""

    latency: float
    rate: float


Cost = Callable[[Link, float, int], float]
"""Seconds by link, bytes of the whole tensor and ranks."""


def _ring(link: Link, size: float, ranks: int, segments: int = 1) -> float:
    """Simulate a ring: each rank sends a part to the next one, ranks - 1 times, in segments that wait for each
    other."""
    return (ranks - 1) * (segments * link.latency + size / ranks / link.rate)


COLLECTIVES: dict[str, Cost] = {
    "all_gather": _ring,
    "reduce_scatter": _ring,
    "all_reduce": lambda link, size, ranks: 2 * _ring(link, size, ranks),
    "send": lambda link, size, ranks: link.latency + size / link.rate,
}
"""Rings: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009."""


@dataclass(frozen=True)
class Hardware:
    """One device of each rank, and its links.

    `flops`: peak of multiplications and additions a second by dtype. `bandwidth`: bytes a second of its memory.
    `memory`: bytes. `within`, `between`: links of one rank within a host of `per_host` ranks, and between hosts.
    `efficiency`: the part of both peaks that operators reach. `overhead`: seconds of an operator that does nothing.
    `streams`: collectives of FSDP run on a stream while the device computes; on a CPU they block. `costs`: of
    collectives that cost other than those of `COLLECTIVES`. `copied`: times that a collective copies the whole tensor
    and one rank's part of it, within the memory of a rank.
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
    costs: Mapping[str, Cost] = field(default_factory=dict)
    copied: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def seconds(self, flops: float, moved: float, dtype: torch.dtype) -> float:
        """Return the time of an operator by the roofline."""
        peak = self.flops.get(dtype) or min(self.flops.values())
        return self.overhead + max(flops / peak, moved / self.bandwidth) / self.efficiency

    def copy(self, size: float) -> float:
        """Return the time in which `size` bytes are read and written elsewhere."""
        return 2 * size / self.bandwidth / self.efficiency

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
        if ranks == 1:
            return 0.0
        whole, part = self.copied.get(name, (0, 0))
        return ((self.costs.get(name) or COLLECTIVES[name])(self.link(ranks, stride), size, ranks)
                + self.copy(size * (whole + part / ranks)))


_HOPPER = {torch.bfloat16: 989e12, torch.float16: 989e12, torch.float32: 67e12}
_NVLINK, _INFINIBAND = Link(3e-6, 450e9), Link(5e-6, 50e9)
H100 = Hardware("H100 SXM", _HOPPER, 3.35e12, 80e9, _NVLINK, _INFINIBAND)
H200 = Hardware("H200 SXM", _HOPPER, 4.8e12, 141e9, _NVLINK, _INFINIBAND)
"""Peaks of NVIDIA's data sheets, without sparsity: NVLink 4 (900 GB/s in both directions) within hosts of 8, and
400 Gbit/s for each device between them."""

SEGMENT = 1 << 20
"""Bytes of the longest segment of gloo's ring."""


def _gloo_gather(link: Link, size: float, ranks: int) -> float:
    """Simulate Gloo's gather: each part is sent in two halves."""
    return _ring(link, size, ranks, 2)


def _gloo_reduce(link: Link, size: float, ranks: int) -> float:
    """Simulate Gloo's reduction: each part is sent in segments, of which there are two at least; then the sums go
    around likewise."""
    return 2 * _ring(link, size, ranks, max(2, ceil(ceil(size / SEGMENT) / ranks)))


GLOO: dict[str, Cost] = {
    "all_gather": _gloo_gather, "all_reduce": _gloo_reduce, "reduce_scatter": _gloo_reduce,
}
"""A receiver tells its sender that it is ready before a segment is sent. That message stands behind the segment that
the receiver is sending, and so each segment costs a latency, although two are under way. `reduce_scatter_tensor` is an
`all_reduce`."""
_GLOO_COPIES = {"all_gather": (1, 1), "reduce_scatter": (1, 1)}
"""`all_gather` fills a buffer and copies it to the result; `reduce_scatter` copies what it sums up, and then a part."""


def gloo(latency: float, rate: float, *, flops: float = 1e11, bandwidth: float = 1e10, memory: float = 16e9
         ) -> Hardware:
    """Return CPUs with gloo over links of `latency` seconds and `rate` bytes a second. FSDP waits for collectives."""
    link = Link(latency, rate)
    return Hardware("CPU with gloo", {torch.float32: flops}, bandwidth, memory, link, link, 1, 1.0, 0.0, False,
                    GLOO, _GLOO_COPIES)
