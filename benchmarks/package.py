"""Packages of the benchmark's models: size, runtime, start of a C program, speed beside eager and framesmith.compile.

    python -m benchmarks.package [models ...] [--targets T,...] [--out FILE]

The runtime and its C example are built by CMake and found by `find_package`. "start" is from exec to the first answer
of the C program, with the file in the page cache: the least of some runs. Runs are timed in turn.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import framesmith
from benchmarks import machine, models
from framesmith.export.trees import flatten
from framesmith.package.packaging import TARGETS

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
MODELS = ("resnet18", "mobilenetv3_small_100", "bert", "gpt2", "llama", "vit_tiny_patch16_224", "efficientnet_b0",
          "lstm", "dlrm")
STARTS, ROUNDS = 7, 15


def build(folder: Path) -> tuple[Path, Path]:
    """The installed runtime, and the C example that found it there."""
    runtime, example, prefix = folder / "runtime", folder / "example", folder / "prefix"
    for command in (
        ["cmake", "-S", ROOT / "native", "-B", runtime, f"-DCMAKE_INSTALL_PREFIX={prefix}"],
        ["cmake", "--build", runtime, "-j2"],
        ["cmake", "--install", runtime, "--strip"],
        ["cmake", "-S", ROOT / "native" / "examples", "-B", example, f"-DCMAKE_PREFIX_PATH={prefix}"],
        ["cmake", "--build", example],
    ):
        subprocess.run(command, check=True, capture_output=True)
    return next(prefix.glob("lib*/libframesmith.so")), example / "run_c"


def start(program: Path, package: Path) -> float:
    """Milliseconds from exec to the end of the C program's first answer."""
    best = float("inf")
    for _ in range(STARTS):
        begin = time.perf_counter()
        subprocess.run([program, package], check=True, capture_output=True)
        best = min(best, time.perf_counter() - begin)
    return best * 1e3


def times(ways: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median milliseconds of each way, taken in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for run in ways.values():
        run()
        run()
    for _ in range(ROUNDS):
        for name, run in ways.items():
            begin = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(found) * 1e3 for name, found in seconds.items()}


def measure(name: str, targets: list[str], program: Path, folder: Path) -> dict[str, Any]:
    """The row of one model."""
    model, args = models.named()[name]()
    path = folder / f"{name}.fsm"
    begin = time.perf_counter()
    framesmith.package(model, args, path=path, targets=targets)
    took = time.perf_counter() - begin
    loaded, compiled = framesmith.load(path), framesmith.compile(model)
    with torch.no_grad():
        pairs = [(a, b) for a, b in zip(flatten(loaded(*args))[0], flatten(model(*args))[0], strict=True)
                 if isinstance(b, torch.Tensor)]
        error = max(((a - b).abs().max() / b.abs().max().clamp_min(1e-6)).item() for a, b in pairs)
        found = times({"eager": lambda: model(*args), "compile": lambda: compiled(*args),
                       "package": lambda: loaded(*args)})
    code = sum(info.file_size for info in members(path) if info.filename.endswith("code.so"))
    return {"model": name, "target": loaded.model.target, "package_s": took, "file_bytes": path.stat().st_size,
            "code_bytes": code, "start_ms": start(program, path), "relative_error": error,
            **{f"{way}_ms": ms for way, ms in found.items()}}


def members(path: Path) -> list[Any]:
    """The directory of a package."""
    with zipfile.ZipFile(path) as archive:
        return archive.infolist()


def show(report: dict[str, Any]) -> None:
    table = Table(title=f"runtime {report['runtime_bytes'] / 1e3:.0f} KB")
    columns = ("model", "target", "file_bytes", "start_ms", "eager_ms", "compile_ms", "package_ms", "relative_error")
    for column in columns:
        table.add_column(column)
    for row in report["rows"]:
        table.add_row(*[f"{row[c]:.3g}" if isinstance(row.get(c), float) else str(row.get(c, row.get("error", "")))
                        for c in columns])
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--out", type=Path, default=RESULTS / "package-cpu.json")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library, program = build(folder)
        needs = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
        report: dict[str, Any] = {
            "date": datetime.date.today().isoformat(), "machine": machine.describe(),
            "runtime_bytes": library.resolve().stat().st_size,
            "needs": sorted(os.path.basename(line.split()[0]) for line in needs.splitlines()), "rows": [],
        }
        assert not any(part in needs for part in ("torch", "python")), needs
        for model in given.models:
            try:
                report["rows"].append(measure(model, given.targets.split(","), program, folder))
            except framesmith.exc.PackageError as e:
                report["rows"].append({"model": model, "error": str(e)})
            (folder / f"{model}.fsm").unlink(missing_ok=True)
            given.out.write_text(json.dumps(report, indent=1) + "\n")
    show(report)


if __name__ == "__main__":
    main()
