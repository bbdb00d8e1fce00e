"""`plan`: what a training step would take and need on many ranks, by layout, before anything runs."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from framesmith.distributed.layouts import STATES, Layout, Options, Prediction, fastest, layouts, predict
from framesmith.distributed.links import Hardware
from framesmith.distributed.work import Work, recorded
from framesmith.util.errors import FramesmithError

SHOWN = 12
"""Rows of a table."""


@dataclass(frozen=True)
class Plan:
    """`predictions` of all layouts, those that fit first, by time. `best`: the fastest that fits, or None."""

    hardware: Hardware
    ranks: int
    work: Work
    predictions: tuple[Prediction, ...]
    best: Prediction | None

    def __rich__(self) -> Table:
        title = f"{self.ranks} × {self.hardware.name}: " + (str(self.best.layout) if self.best else "nothing fits")
        table = Table("layout", title=title)
        for name in ("step", "compute", "exposed", "idle", "memory per rank", "fits"):
            table.add_column(name, justify="right")
        for p in self.predictions[:SHOWN]:
            times = [_time(x) for x in (p.seconds, p.compute, p.exposed, p.idle)]
            fits = "yes" if p.memory <= self.hardware.memory else "no"
            table.add_row(str(p.layout), *times, f"{p.memory / 1e9:.1f} GB", fits,
                          style="bold" if p is self.best else None)
        if (left := len(self.predictions) - SHOWN) > 0:
            table.caption = f"and {left} layouts more"
        return table

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=120).print(self)
        return text.getvalue().rstrip()

    def of(self, layout: Layout) -> Prediction:
        """Return the prediction of a layout. Raises KeyError for one that is not in the plan."""
        return {p.layout: p for p in self.predictions}[layout]


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def plan(model: nn.Module, mesh: int | DeviceMesh, hardware: Hardware, args: Sequence[Any] = (),
         kwargs: Mapping[str, Any] | None = None, *, loss: Callable[[Any], Tensor] | None = None,
         optimizer: str = "adamw", micro_batches: int = 1, bucket_cap_mb: float = 25.0) -> Plan:
    """Predict a training step of `model` for the layouts of a mesh, and propose the fastest that fits in memory.

    One step for `args` and `kwargs`, the batch of one rank, is recorded on meta tensors, so weights need not exist.
    `mesh`: a number of ranks, or a mesh of up to three dimensions, whose layouts have its sizes in the order pipeline,
    data, tensor. `loss` takes the model's result. `optimizer`: a key of `STATES`. Raises FramesmithError where the step
    does not run without values.
    """
    if optimizer not in STATES:
        raise FramesmithError(f"no optimizer {optimizer!r}; there are {', '.join(STATES)}")
    ranks = mesh if isinstance(mesh, int) else mesh.size()
    if ranks < 1 or micro_batches < 1:
        raise FramesmithError(f"a plan of {ranks} ranks and {micro_batches} micro-batches; both are at least 1")
    work = recorded(model, args, kwargs or {}, loss)
    shape = None if isinstance(mesh, int) else [n for n in mesh.shape if n > 1]
    options = Options(optimizer, micro_batches, bucket_cap_mb * (1 << 20))
    found = [predict(work, hardware, layout, options) for layout in layouts(work, ranks, hardware.per_host)
             if shape is None or [n for n in (layout.pipeline, layout.data, layout.tensor) if n > 1] == shape]
    found.sort(key=lambda p: (p.memory > hardware.memory, p.seconds, p.memory))
    return Plan(hardware, ranks, work, tuple(found), fastest(found, hardware.memory))
