"""What `make run` shows: two real models compiled, with every figure that a user asks for first."""

from __future__ import annotations

import time

import torch
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import framesmith
from benchmarks import models
from benchmarks.measure import interleaved
from benchmarks.run import error_against

SHOWN = {"BERT-6": "bert", "ResNet-18": "resnet18"}


def _one(name: str, step) -> list[str]:
    step("building")
    model, args = models.named()[name]()
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
    eager, ours = times["eager"].median, times["compiled"].median
    return [f"{eager * 1e3:.1f} ms", f"{ours * 1e3:.1f} ms", f"{eager / ours:.2f} x", f"{first:.2f} s",
            str(found.graph_count), str(found.break_count), f"{error_against(expected, actual):.1e}"]


def main() -> None:
    """Compile and time the models, then print the table."""
    console = Console()
    table = Table(title="framesmith.compile(model), inference on the CPU")
    for column in ("model", "eager", "compiled", "speed-up", "1st call", "graphs", "breaks", "error"):
        table.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console) as progress:
        for title, name in SHOWN.items():
            task = progress.add_task(title, total=None)
            row = _one(name, lambda what, task=task, title=title: progress.update(task, description=f"{title}: {what}"))
            progress.update(task, description=f"{title}: done", total=1, completed=1)
            table.add_row(title, *row)
    console.print(table)
    console.print("The first call of a second process is faster still: compiled code is kept in the user's cache folder.")


if __name__ == "__main__":
    main()
