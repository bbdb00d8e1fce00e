"""What `make run` shows: two real models compiled, with every figure that a user asks for first."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import framesmith
from benchmarks import models
from benchmarks.run import error_against
from framesmith.tools.interleaved import interleaved

SHOWN = {"BERT-6": "bert", "ResNet-18": "resnet18"}
QUIETED = ("torchao", "torch.utils._pytree")
"""Loggers of what transformers imports: torchao warns of each of its libraries that is for another platform."""


@dataclass(frozen=True)
class Row:
    """`eager`, `compiled`, `first`: seconds of a call, and of the first compiled one. `error`: relative to eager."""

    model: str
    eager: float
    compiled: float
    first: float
    graphs: int
    breaks: int
    error: float

    def cells(self) -> list[str]:
        """Format the columns of `table`."""
        times = [f"{self.eager * 1e3:.1f}", f"{self.compiled * 1e3:.1f}", f"{self.eager / self.compiled:.2f} x"]
        return [self.model, *times, f"{self.first:.2f}", str(self.graphs), str(self.breaks), f"{self.error:.1e}"]


def table(rows: Iterable[Row]) -> Table:
    """Build a table that fits 80 columns: no cell is cut or broken."""
    made = Table(title="framesmith.compile(model), inference on the CPU", box=box.SIMPLE_HEAD, collapse_padding=True,
                 pad_edge=False)
    for column in ("model", "eager\nms", "compiled\nms", "speed-up", "1st call\ns", "graphs", "breaks", "error"):
        made.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    for row in rows:
        made.add_row(*row.cells())
    return made


def _one(title: str, step) -> Row:
    step("building")
    model, args = models.named()[SHOWN[title]]()
    compiled = framesmith.compile(model)
    with torch.inference_mode():
        expected = model(*args)
        step("compiling")
        start = time.perf_counter()
        actual = compiled(*args)
        first = time.perf_counter() - start
        step("timing")
        times = interleaved({"eager": lambda: model(*args), "compiled": lambda: compiled(*args)}, rounds=9)
        step("explaining")
        found = framesmith.explain(model)(*args)
    eager, ours, error = times["eager"].median, times["compiled"].median, error_against(expected, actual)
    return Row(title, eager, ours, first, found.graph_count, found.break_count, error)


def main() -> None:
    """Compile and time the models, then print the table."""
    for name in QUIETED:
        logging.getLogger(name).setLevel(logging.ERROR)
    console = Console()
    rows = []
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console) as progress:
        for title in SHOWN:
            task = progress.add_task(title, total=None)

            def step(what: str, task=task, title=title) -> None:
                progress.update(task, description=f"{title}: {what}")

            rows.append(_one(title, step))
            progress.update(task, description=f"{title}: done", total=1, completed=1)
    console.print(table(rows))
    console.print("A second process starts faster still: compiled code is kept in the user's cache folder.")


if __name__ == "__main__":
    main()
