"""Packages of models beside other compilers' files: size, runtime, start of a process, speed.

    python -m benchmarks.package [--models M,...] [--quantised] [--without PEER,...] [--targets T,...] [--again]
                                 [--out FILE]

The runtime and its C example are built by CMake and found by `find_package`. "start" is from exec to the end of the
first answer, with the file in the page cache: the least of some runs; of a C program, for AOTInductor of a C++ program,
and for what has no other interface ("python") of an interpreter with NumPy. Answers are timed in turn, beside eager and
`framesmith.compile`: "warm" is the median, "speed" the compiled function's time over the contender's, each the lower
decile of its rounds (what other guests of the host take from a round is no contender's), with the interval in which 90%
of samples drawn again lie. The compiled function takes two turns a round: its own "speed" is what the machine leaves
uncertain. Differences are from eager of the same model; for quantised ones, also eager's from the float model.

The file is written after each model, and models that it has are left out, unless `--again` is given or the machine is
another one; so a command that was interrupted goes on. Files of AOTInductor are kept in `build/peers`: another of
another model would show as a difference.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import shutil
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
from benchmarks import machine
from benchmarks.package_models import MODELS, QUANTISED, made
from benchmarks.package_peers import PEERS, Tensors, TensorsOnly, build_tools, bytes_of, python_command
from framesmith.package.packaging import TARGETS
from framesmith.peers import flat_tensors

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
STARTS, ROUNDS, SAMPLES = 5, 41, 1000
AGAIN = "compile, again"
REST = 0.1
"""Seconds before each call that is timed: threads of a contender poll for milliseconds after a call, on processors that
the next one needs."""
ORDER = (*MODELS, *QUANTISED)
KEPT = ROOT / "build" / "peers"
SLOW = ("AOTInductor",)
"""Peers that take minutes to write a file, which is kept for the next run."""


def build(folder: Path, *flags: str) -> tuple[Path, Path]:
    """Build the runtime and the C example that finds it installed. `flags`: further ones of CMake, for both."""
    runtime, example, prefix = folder / "runtime", folder / "example", folder / "prefix"
    for command in (
        ["cmake", "-S", ROOT / "native", "-B", runtime, f"-DCMAKE_INSTALL_PREFIX={prefix}", *flags],
        ["cmake", "--build", runtime, "-j2"],
        ["cmake", "--install", runtime, "--strip"],
        ["cmake", "-S", ROOT / "native" / "examples", "-B", example, f"-DCMAKE_PREFIX_PATH={prefix}", *flags],
        ["cmake", "--build", example],
    ):
        subprocess.run(command, check=True, capture_output=True)
    name = Path("python", "framesmith_runtime")
    module = shutil.copytree(ROOT / "native" / name, folder / name)
    shutil.copy(ROOT / "framesmith" / "package" / "binding.py", module)
    return next(prefix.glob("lib*/libframesmith.so")), example / "run_c"


def start(command: list[str], env: dict[str, str]) -> float:
    """Milliseconds from exec to the end of a program's first answer."""
    best = float("inf")
    for _ in range(STARTS):
        begin = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, **env})
        best = min(best, time.perf_counter() - begin)
    return best * 1e3


def times(ways: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Return the seconds of each way by round; all take turns, in another order each round, with a rest before each.

    In one order each way would find in the caches what the same other way left there: eager's weights are those of
    `framesmith.compile` where these are not packed, a package's are not.
    """
    order = list(ways.items())
    shuffle = random.Random(0).shuffle
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for run in ways.values():
        run()
        run()
    for _ in range(ROUNDS):
        shuffle(order)
        for name, run in order:
            time.sleep(REST)
            begin = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def speed(base: list[float], other: list[float]) -> list[float]:
    """Return the ratio of the lower deciles, `base / other`, and its 90% interval, by bootstrap over rounds: [low,
    ratio, high]."""
    pairs = list(zip(base, other, strict=True))
    draw = random.Random(0).choices
    ratios = sorted(_deciles(draw(pairs, k=len(pairs))) for _ in range(SAMPLES))
    return [ratios[SAMPLES // 20], _deciles(pairs), ratios[-SAMPLES // 20]]


def _deciles(pairs: list[tuple[float, float]]) -> float:
    """Return the ratio of the lower deciles of the first and of the second elements."""
    first, second = (sorted(column)[len(pairs) // 10] for column in zip(*pairs))
    return first / second


def difference(found: Any, wanted: Any) -> float:
    """Return the greatest difference of results, relative to the greatest element of each."""
    pairs = zip(flat_tensors(found), flat_tensors(wanted), strict=True)
    return max(((a - b).abs().max() / b.abs().max().clamp_min(1e-6)).item() for a, b in pairs)


class Bench:
    """What all rows share. `tools`: a folder of the programs that start files."""

    def __init__(self, tools: Path, targets: list[str], peers: list[str]) -> None:
        self.tools, self.targets, self.peers = tools, targets, peers
        self.library, self.program = build(tools)
        if "AOTInductor" in peers:
            build_tools(tools)

    def rows(self, name: str, folder: Path) -> list[dict[str, Any]]:
        """Return the rows of one model: eager, `framesmith.compile`, its package, and the files of others."""
        model, args = made(name)
        wrapped = TensorsOnly(model).eval()
        compiled = framesmith.compile(model)
        ways: dict[str, Callable[[], Any]] = {"eager": lambda: model(*args), "compile": lambda: compiled(*args)}
        files = ("package", *self.peers)
        rows: dict[str, dict[str, Any]] = {way: {"model": name, "way": way} for way in (*ways, *files)}
        with torch.no_grad():
            wanted = flat_tensors(model(*args))
            for way in files:
                begin = time.perf_counter()
                try:
                    make = self.package if way == "package" else self.peer
                    call, found = make(way, wrapped, args, KEPT / name if way in SLOW else folder)
                    rows[way] |= {**found, "write_s": time.perf_counter() - begin,
                                  "relative_error": difference(call(), wanted)}
                    ways[way] = call
                except Exception as e:  # noqa: BLE001 - a contender that fails is a row that says why
                    rows[way]["error"] = " ".join(f"{type(e).__name__}: {e}".split())[:300]
            found = times({**ways, AGAIN: ways["compile"]})
            again = found.pop(AGAIN)
            for way, seconds in found.items():
                rows[way]["warm_ms"] = statistics.median(seconds) * 1e3
                rows[way]["speed"] = speed(found["compile"], again if way == "compile" else seconds)
            if name in QUANTISED:
                rows["eager"]["relative_error"] = difference(wanted, made(QUANTISED[name])[0](*args))
        return list(rows.values())

    def package(self, way: str, model: Any, tensors: Tensors, folder: Path) -> tuple[Callable[[], Any], dict[str, Any]]:
        path = folder / "model.fsm"
        framesmith.package(model, tensors, path=path, targets=self.targets)
        loaded = framesmith.load(path)
        env = {"FRAMESMITH_RUNTIME": str(self.library), "PYTHONPATH": str(self.tools / "python")}
        by_python = python_command("framesmith_runtime")(self.tools, path, tensors)
        return lambda: loaded(*tensors), {
            "file_bytes": bytes_of(path), "runtime_bytes": self.library.resolve().stat().st_size,
            "code_bytes": sum(i.file_size for i in members(path) if i.filename.endswith("code.so")),
            "target": loaded.model.target, "start_ms": start([str(self.program), str(path)], {}),
            "python_start_ms": start(by_python, env),
        }

    def peer(self, way: str, model: Any, tensors: Tensors, folder: Path) -> tuple[Callable[[], Any], dict[str, Any]]:
        peer = PEERS[way]
        path = peer.write(model, tensors, folder)
        command = peer.command(self.tools, path, tensors)
        column = "start_ms" if command[0].startswith(str(self.tools)) else "python_start_ms"
        return peer.call(path, tensors), {"file_bytes": bytes_of(path), "runtime_bytes": peer.runtime(command),
                                          column: start(command, {})}


def members(path: Path) -> list[Any]:
    """The directory of a package."""
    with zipfile.ZipFile(path) as archive:
        return archive.infolist()


COLUMNS = {"model": "model", "way": "way", "file_bytes": "file, MB", "runtime_bytes": "runtime, MB",
           "start_ms": "start, ms", "python_start_ms": "start by python, ms", "warm_ms": "warm, ms",
           "speed": "speed", "relative_error": "difference"}


def _cell(value: str | int | float | list[float]) -> str:
    """Print a name, bytes, a number, or a number with its interval."""
    if isinstance(value, list):
        low, middle, high = value
        return f"{middle:.3g} [{low:.3g}, {high:.3g}]"
    return f"{value / 1e6:.3g}" if isinstance(value, int) else f"{value:.3g}" if isinstance(value, float) else value


def rows_of(report: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table."""
    columns = {key: name for key, name in COLUMNS.items() if any(key in row for row in report["rows"])}
    rows = []
    for row in report["rows"]:
        cells = [_cell(row.get(c, "")) for c in columns]
        rows.append([*cells[:-1], "fails" if "error" in row else cells[-1]])
    return list(columns.values()), rows


def failures(report: dict[str, Any]) -> list[str]:
    """A line for each contender that has failed."""
    return [f"{row['model']}, {row['way']}: {row['error']}" for row in report["rows"] if "error" in row]


def show(report: dict[str, Any]) -> None:
    header, rows = rows_of(report)
    table = Table(*header, title="packages")
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print(table)
    console.print("\n".join(failures(report)), markup=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(MODELS), help=", ".join(MODELS))
    parser.add_argument("--quantised", action="store_true", help="also: " + ", ".join(QUANTISED))
    parser.add_argument("--without", default="", help="peers to leave out: " + ", ".join(PEERS))
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--again", action="store_true", help="measure models that the file has, too")
    parser.add_argument("--out", type=Path, default=RESULTS / "package-cpu.json")
    given = parser.parse_args()
    wanted = [*given.models, *(QUANTISED if given.quantised else ())]
    before = json.loads(given.out.read_text()) if given.out.exists() else {}
    report: dict[str, Any] = {"date": datetime.date.today().isoformat(), "machine": machine.describe(), "needs": [],
                              "rows": [], "seconds": {}}
    if before.get("machine") == report["machine"]:
        report |= {key: before[key] for key in ("needs", "rows", "seconds")}
    left = [model for model in wanted if given.again or model not in report["seconds"]]
    with tempfile.TemporaryDirectory() as name:
        tools = Path(name)
        if left:
            bench = Bench(tools, given.targets.split(","), [p for p in PEERS if p not in given.without.split(",")])
            needs = subprocess.run(["ldd", bench.program], check=True, capture_output=True, text=True).stdout
            assert not any(part in needs for part in ("torch", "python")), needs
            report["needs"] = sorted(os.path.basename(line.split()[0]) for line in needs.splitlines())
        for model in left:
            with tempfile.TemporaryDirectory(dir=tools) as folder:
                begin = time.perf_counter()
                rows = bench.rows(model, Path(folder))
                rows += [row for row in report["rows"] if row["model"] != model]
                report["rows"] = sorted(rows, key=lambda row: ORDER.index(row["model"]))
                report["seconds"][model] = time.perf_counter() - begin
            given.out.write_text(json.dumps(report, indent=1) + "\n")
    show(report)


if __name__ == "__main__":
    main()
