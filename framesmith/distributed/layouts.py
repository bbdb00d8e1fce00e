"""The time and memory of a training step by layout: data (DDP or FSDP2), tensor and pipeline parallel, or their
products."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from framesmith.distributed.links import Hardware
from framesmith.distributed.work import ROOT, Operator, Parameter, Work

BUCKET, FIRST_BUCKET = 25 << 20, 1 << 20
"""Bytes of the reducer's buckets in DistributedDataParallel."""
STATES = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
"""Copies of the parameters that an optimiser keeps."""


@dataclass(frozen=True)
class Layout:
    """`data` replicas, each of `pipeline` stages of `tensor` ranks. Ranks of one tensor-parallel group are neighbours;
    then come replicas, and stages are farthest apart. `sharded`: replicas share parameters by FSDP2."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    sharded: bool = False

    @property
    def ranks(self) -> int:
        return self.data * self.tensor * self.pipeline

    def __str__(self) -> str:
        kinds = (("FSDP2" if self.sharded else "DDP", self.data), ("TP", self.tensor), ("PP", self.pipeline))
        return " × ".join(f"{name} {size}" for name, size in kinds if size > 1) or "one rank"


@dataclass(frozen=True)
class Options:
    """`micro_batches`: batches of the recorded size that each rank of the mesh contributes to a step. `bucket`: bytes
    of DDP's buckets."""

    optimizer: str = "adamw"
    micro_batches: int = 1
    bucket: float = BUCKET


@dataclass(frozen=True)
class Prediction:
    """Seconds of a step and bytes of the fullest rank. `communication`: all of it; `exposed`: that during which nothing
    is computed. `idle`: what ranks wait for other stages."""

    layout: Layout
    seconds: float
    compute: float
    communication: float
    exposed: float
    idle: float
    memory: float
    parts: Mapping[str, float]


def layouts(work: Work, ranks: int, per_host: int) -> Iterator[Layout]:
    """Enumerate the layouts of `ranks`: tensor-parallel groups lie within a host and divide a dimension of each matrix,
    and each stage has a block."""
    blocks = len(work.saved) - 1
    sizes = [n for n in range(1, ranks + 1) if ranks % n == 0]
    matrices = [p.shape for p in work.parameters if len(p.shape) == 2 and p.unit != ROOT]
    for tensor in sizes:
        if tensor > 1 and (tensor > per_host or not matrices
                           or not all(any(n % tensor == 0 for n in shape) for shape in matrices)):
            continue
        for pipeline in sizes:
            if ranks % (tensor * pipeline) or pipeline > max(1, blocks):
                continue
            data = ranks // (tensor * pipeline)
            yield Layout(data, tensor, pipeline)
            if data > 1:
                yield Layout(data, tensor, pipeline, sharded=True)


@dataclass(frozen=True)
class _Stage:
    """The part of a step that one rank computes: units in order, and by unit the seconds of forward and backward."""

    units: tuple[int, ...]
    parameters: tuple[Parameter, ...]
    forward: Mapping[int, float]
    backward: Mapping[int, float]
    ready: tuple[tuple[float, float], ...]
    """(seconds of the backward, bytes) of each gradient."""


def stages(count: int, pipeline: int) -> list[tuple[int, ...]]:
    """Divide units 1 .. count evenly; the root's embedding and head are in the first stage and count as its own."""
    cuts = [count * k // pipeline for k in range(pipeline + 1)]
    found = [tuple(range(a + 1, b + 1)) for a, b in zip(cuts, cuts[1:], strict=False)]
    return [(ROOT, *found[0]), *found[1:]]


def _by_unit(operators: tuple[Operator, ...], seconds: list[float]) -> dict[int, float]:
    found: dict[int, float] = {}
    for operator, time in zip(operators, seconds, strict=True):
        found[operator.unit] = found.get(operator.unit, 0.0) + time
    return found


def _stage(work: Work, hardware: Hardware, layout: Layout, units: tuple[int, ...]) -> _Stage:
    """Take the units of a stage: each operator and matrix is divided by the tensor-parallel ranks."""
    share = 1 / layout.tensor

    def seconds(operators: tuple[Operator, ...]) -> list[float]:
        return [hardware.seconds(x.flops * share, x.bytes * share, x.dtype) if x.unit in units else 0.0
                for x in operators]

    forward, backward = seconds(work.forward), seconds(work.backward)
    until = [0.0, *accumulate(backward)]
    own = tuple(p for p in work.parameters if p.unit in units)
    ready = sorted((until[p.ready], p.bytes * (share if len(p.shape) > 1 else 1)) for p in own if p.ready >= 0)
    stage = _Stage(units, own, _by_unit(work.forward, forward), _by_unit(work.backward, backward), tuple(ready))
    return _copying(stage, hardware, layout) if layout.sharded else stage


def _copying(stage: _Stage, hardware: Hardware, layout: Layout) -> _Stage:
    """Add the copies of FSDP2: from the buffer of a gather to parameters, and from gradients to that of a scatter."""
    forward, backward = dict(stage.forward), dict(stage.backward)
    for unit, size in _unit_bytes(stage, layout).items():
        forward[unit] = forward.get(unit, 0.0) + hardware.copy(size)
        backward[unit] = backward.get(unit, 0.0) + hardware.copy(size) * (1 if unit == ROOT else 2)
    return replace(stage, forward=forward, backward=backward)


def buckets(ready: tuple[tuple[float, float], ...], cap: float) -> list[tuple[float, float]]:
    """Group gradients in the order in which they are complete: (when the last is ready, bytes) of each bucket."""
    found: list[tuple[float, float]] = []
    size, limit = 0.0, min(FIRST_BUCKET, cap)
    for time, gradient in ready:
        size += gradient
        if size >= limit:
            found.append((time, size))
            size, limit = 0.0, cap
    return [*found, (ready[-1][0], size)] if size else found


@dataclass(frozen=True)
class _Communication:
    """Seconds of collectives, and those of them in which the device computes nothing."""

    total: float = 0.0
    exposed: float = 0.0


def _replicated(stage: _Stage, hardware: Hardware, layout: Layout, cap: float) -> _Communication:
    """Return the time of the buckets, and what they still take when the backward is over."""
    free = total = 0.0
    for ready, size in buckets(stage.ready, cap):
        seconds = hardware.collective("all_reduce", size, layout.data, layout.tensor)
        free, total = max(free, ready) + seconds, total + seconds
    return _Communication(total, max(0.0, free - sum(stage.backward.values())))


def _unit_bytes(stage: _Stage, layout: Layout) -> dict[int, float]:
    """Bytes of each unit's parameters on one tensor-parallel rank."""
    return {unit: sum(p.bytes / (layout.tensor if len(p.shape) > 1 else 1) for p in stage.parameters if p.unit == unit)
            for unit in stage.units}


def _sharded(stage: _Stage, hardware: Hardware, layout: Layout) -> _Communication:
    """Return the communication of a forward and a backward of FSDP2: units are gathered in both (the root only in the
    forward, behind which it stays), one ahead of the computation, and gradients are scattered behind each unit. What a
    rank has of a unit is copied to the buffer of the gather first."""
    sizes = _unit_bytes(stage, layout)

    def cost(name: str, unit: int) -> float:
        return hardware.collective(name, sizes[unit], layout.data, layout.tensor) if sizes[unit] else 0.0

    def gathering(unit: int) -> float:
        return hardware.copy(sizes[unit] / layout.data) + cost("all_gather", unit)

    steps = [*((stage.forward.get(u, 0.0), gathering(u), 0.0) for u in stage.units),
             *((stage.backward.get(u, 0.0), gathering(u) if u != ROOT else 0.0, cost("reduce_scatter", u))
               for u in reversed(stage.units))]
    computed = sum(seconds for seconds, _, _ in steps)
    total = sum(gather + scatter for _, gather, scatter in steps)
    if not hardware.streams:
        return _Communication(total, total)
    gathered = scattered = now = before = 0.0
    for seconds, gather, scatter in steps:
        gathered = max(gathered, before) + gather
        before = now
        now = max(now, gathered) + seconds
        if scatter:
            scattered = max(scattered, now) + scatter
    return _Communication(total, max(now, scattered) - computed)


def _tensor_parallel(stage: _Stage, work: Work, hardware: Hardware, tensor: int) -> float:
    """Return the seconds of gathering and scattering activations, which wait for each other: around each attention and
    each other part of a block, in forward and backward (Korthikanti et al., "Reducing Activation Recomputation in Large
    Transformer Models", 2022)."""
    return sum(2 * (work.attentions[u] + 1) * hardware.collective("all_reduce", work.results[u], tensor)
               for u in stage.units)


def _memory(stage: _Stage, work: Work, layout: Layout, options: Options, batches: int) -> dict[str, float]:
    """Bytes of one rank by kind; a stage keeps the activations of as many micro-batches as stages are left."""
    sizes = _unit_bytes(stage, layout)
    whole = sum(sizes.values())
    trained = sum(size for _, size in stage.ready)
    share = layout.data if layout.sharded else 1
    largest = sorted((size for unit, size in sizes.items() if unit != ROOT), reverse=True)[:2]
    gathered = sizes.get(ROOT, 0.0) + sum(largest) + (largest[0] if largest else 0.0)
    saved = sum(work.saved[u] for u in stage.units) / layout.tensor
    return {
        "parameters": whole / share, "gradients": trained / share, "optimizer": STATES[options.optimizer] * trained
        / share, "buffers": gathered if share > 1 else trained if layout.data > 1 else 0.0,
        "activations": saved * min(layout.pipeline, batches),
    }


def predict(work: Work, hardware: Hardware, layout: Layout, options: Options) -> Prediction:
    """Predict a step. A replica of several ranks computes as many micro-batches, so that all layouts of a mesh compute
    the same step; stages run them one forward, one backward. DDP copies gradients to its buckets and back."""
    batches = options.micro_batches * layout.tensor * layout.pipeline
    replicated = layout.data > 1 and not layout.sharded
    parts = [_stage(work, hardware, layout, units) for units in stages(len(work.saved) - 1, layout.pipeline)]
    compute = [sum(s.forward.values()) + sum(s.backward.values()) for s in parts]
    sharded = [_sharded(s, hardware, layout) if layout.sharded else _Communication() for s in parts]
    blocking = [_tensor_parallel(s, work, hardware, layout.tensor) for s in parts]
    ends = [_replicated(s, hardware, layout, options.bucket) if replicated else _Communication() for s in parts]
    kept = [_memory(s, work, layout, options, batches) for s in parts]
    fullest = max(kept, key=lambda each: sum(each.values()))
    trained = max(sum(size for _, size in part.ready) for part in parts)
    update = (trained / (layout.data if layout.sharded else 1) * (3 + 2 * STATES[options.optimizer])
              / hardware.bandwidth / hardware.efficiency) + (2 * hardware.copy(trained) if replicated else 0.0)
    waits = [a.exposed + b for a, b in zip(sharded, blocking, strict=True)]
    slowest = max(range(len(parts)), key=lambda k: compute[k] + waits[k])
    filling = layout.pipeline - 1
    boundary = max(work.results[1:], default=0.0) / layout.tensor
    sends = 2 * filling * hardware.collective("send", boundary, 2, layout.tensor * layout.data) if filling else 0.0
    idle = filling * (compute[slowest] + waits[slowest])
    last = max(ends, key=lambda each: each.exposed)
    exposed = batches * waits[slowest] + last.exposed + sends
    communication = batches * (sharded[slowest].total + blocking[slowest]) + last.total + sends
    computed = batches * compute[slowest] + update
    return Prediction(layout, computed + exposed + idle, computed, communication, exposed, idle, sum(fullest.values()),
                      fullest)


def fastest(found: list[Prediction], memory: float) -> Prediction | None:
    """Return the fastest prediction that fits in `memory`; of equals, the one with the least memory."""
    fitting = [p for p in found if p.memory <= memory]
    return min(fitting, key=lambda p: (p.seconds, p.memory), default=None)


