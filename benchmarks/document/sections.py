"""The sections of figures by name: each a function that makes its text from committed JSON."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from benchmarks import dynamic, export, symbolic
from benchmarks import table as tables
from benchmarks.breadth import report
from benchmarks.document import distributed, onnx, operators, package, serving, summary
from benchmarks.document.markers import machine, table
from benchmarks.document.summary import RESULTS, devices, saved
from benchmarks.gpu import kernels as gpu_kernels
from benchmarks.gpu import table as gpu
from benchmarks.peers import ON_CPU, ON_CUDA
from benchmarks.training import table as training
from tests.nets import reliability

Rows = Callable[[dict[str, Any]], tuple[list[str], list[list[str]]]]


def _about(results: dict[str, Any]) -> str:
    return f"Machine: {machine(results['machine'])}. Date: {results['date']}."


def _paragraphs(*parts: str) -> str:
    return "\n\n".join(filter(None, parts))


# ---------------------------------------------------------------------------------------------------------------- CPU


def _each(pattern: str, rows_of: Rows, known: Iterable[str] = ()) -> str:
    """Make a table for each JSON file of a pattern, with machine, date, failures, and which of `known` are absent."""
    parts = []
    for path in sorted(RESULTS.glob(pattern), key=lambda path: len(path.name)):
        results = json.loads(path.read_text())
        parts.append(f"`benchmarks/results/{path.name}`. {_about(results)}")
        parts.append(table(*rows_of(results)))
        parts.append("\n".join(f"- {line}" for line in _failures(results)))
        absent = [name for name in known if name not in results["peers"]]
        parts.append(f"Not in this file: {'; '.join(absent)}." if absent else "")
    return _paragraphs(*parts)


def _failures(results: dict[str, Any]) -> list[str]:
    return tables.failures(results) if all("peers" in one for one in results["models"]) else []


# ---------------------------------------------------------------------------------------------------------------- GPU


def _titled(found: Iterable[gpu.Table | None]) -> str:
    return _paragraphs(*[f"**{title}**\n\n{table(header, rows)}" for title, header, rows in filter(None, found)])


def _gpu(kind: bool) -> str:
    results = devices()
    parts: list[gpu.Table | None] = []
    for precision, _ in gpu.PRECISIONS:
        parts += [gpu.speeds(results, kind, precision)]
        parts += [gpu.costs(results, kind, precision, mode) for mode in gpu.COSTLY]
    return _titled(parts)


def _gpu_machines() -> str:
    dates: dict[str, set[str]] = defaultdict(set)
    cores: dict[str, set[str]] = defaultdict(set)
    for entry in devices().rows.values():
        key = machine(entry["machine"] | {"threads": "some"})
        dates[key].add(entry["date"])
        cores[key] |= {str(entry["cores"])} if "cores" in entry else set()
    lines = []
    for key in sorted(dates):
        about = key.replace(", some threads", "")
        processes = f"each process on {' or '.join(sorted(cores[key]))} of the cores"
        lines.append(f"- {about}. Dates: {', '.join(sorted(dates[key]))}; {processes}.")
    return "\n".join(lines)


def _gpu_failures() -> str:
    return "\n".join(f"- {line}" for line in gpu.notes(devices())) or "No contender failed."


# ------------------------------------------------------------------------------------------------------------ breadth


def _breadth(name: str) -> str:
    results = saved(name)
    groups = report.groups(results["outcomes"])
    failed = [[str(len(names)), status, reason, ", ".join(names)] for status, reason, names in groups]
    unbuilt = sum(len(names) for status, _, names in groups if status == "no model")
    failed = [row for row in failed if row[1] != "no model"]
    return _paragraphs(
        report.sentence(name.split("-")[1], results, "dynamic" in name),
        _about(results),
        table(["models", "outcome", "reason", "names"], failed) if failed else "",
        f"{unbuilt} more could not be built or called by the script, and are not counted." if unbuilt else "",
    )


def _sentences() -> str:
    """The shares alone: the README has the page for the rest."""
    lines = []
    for name in ("breadth-transformers", "breadth-timm-eager"):
        suite, results = name.split("-")[1], saved(name)
        passed, counted = report.share(results["outcomes"])
        once, judged = report.share(saved(f"breadth-{suite}-dynamic")["outcomes"])
        lines.append(f"- {suite} ({results['backend']} back end): {passed} of {counted}; "
                     f"compiled once for three sizes: {once} of {judged}" + " (a sample)" * (judged < counted))
    return "\n".join(lines)


# -------------------------------------------------------------------------------------------- capture and reliability


_SEARCHES = ("random graphs", "random graphs, dynamic", "state", "argument grid, sanitized", "soak")


def _searches() -> str:
    """The README's table of the searches for differences: the page has machines, seeds and notes."""
    cases, differ = operators.samples()
    rows = [["PyTorch's own samples of its operators", f"{cases:,}", str(differ), "0",
             "`python -m tests.nets.operators`"]]
    found = reliability.recorded()
    for net in _SEARCHES:
        row, about = found[net], reliability.NETS[net].split(":")[0]
        rows.append([net if about.startswith("the same") else about, f"{row['cases']:,}", str(row["differences"]),
                     str(row["mended"]), f"`{row['command']}`"])
    return table(["search for differences from eager", "cases", "differed", "of them mended", "command"], rows)


def _capture_cost() -> str:
    results = saved("capture-cost")
    figures, aims = results["figures"], results["aims"]
    rows = []
    for name in dict.fromkeys(name for row in figures.values() for name in row):
        cells = [row.get(name) for row in figures.values()]
        texts = [f"{c:.2f}" if isinstance(c, float) else "–" if c is None else f"fails: {c}" for c in cells]
        rows.append([name.replace("(us)", "(µs)"), *texts, f"≤ {aims[name]:g}" if name in aims else ""])
    model = f"BERT of {results['layers']} layers{', narrow' if results['small'] else ''}"
    about = f"{_about(results)} Load: {results['load']:.1f}. Model: {model}."
    return _paragraphs(about, table(["", *figures, "aim"], rows))


def _metrics_cost() -> str:
    results = saved("metrics-cost")
    ways = ("unwatched", "noise", "watched", "added", "profiled")
    rows = [[name.replace("(us)", "(µs)"), *[f"{row[way]:.3f}" for way in ways]]
            for name, row in results["figures"].items()]
    about = f"{_about(results)} Load: {results['load']:.1f}. Aim: at most {results['aim']:g} µs added."
    return _paragraphs(about, table(["", *ways], rows))


def _dynamic() -> str:
    every = saved("dynamic-cpu"), saved("dynamic-cuda")
    return _paragraphs(*(part for one in every for part in (_about(one), table(*dynamic.rows_of(one)))))


def _algebra() -> str:
    results = saved("symbolic-cpu")
    return _paragraphs(_about(results), table(*symbolic.speed_rows(results)), table(*symbolic.compile_rows(results)))


def _export() -> str:
    results = saved("export-named")
    passed = f"{results['passed']} of {results['counted']} exported, loaded and equal at three sizes."
    return _paragraphs(f"{passed} {_about(results)}", table(*export.rows_of(results)))


def _export_libraries() -> str:
    parts = []
    for suite in [s for s in ("transformers", "timm") if (RESULTS / f"export-{s}.json").exists()]:
        results = saved(f"export-{suite}")
        failed = [[name, row["problem"].splitlines()[0][:160]] for name, row in results["models"].items()
                  if row["status"] == "fail"]
        passed = f"{suite}: {results['passed']} of {results['counted']} exported, loaded and equal at three sizes."
        parts += [f"{passed} {_about(results)}", table(["model", "why not"], failed) if failed else ""]
    return _paragraphs(*parts)


_SUITE = {
    "tests": "tests", "captured": "captured", "run again": "hits", "broke": "broke", "refused": "refused",
    "faults": "faults",
}  # fmt: skip


def _cpython() -> str:
    results = saved("cpython-suite")
    files = results["files"]
    rows = []
    for f in files:
        seconds = [f"{f[key]:.0f}" for key in ("plain_s", "hooked_s")]
        outcome = "passed" if f["passed"] else f"{len(f['failed'])} failed"
        rows.append([f["file"], *[str(f.get(key, 0)) for key in _SUITE.values()], *seconds, outcome])
    passed, tests = sum(f["passed"] for f in files), sum(f["tests"] for f in files)
    about = f"{passed} of {len(files)} files, with {tests} tests, pass under the hook as they do without it."
    header = ["file", *_SUITE, "plain s", "hooked s", "outcome"]
    return _paragraphs(f"{about} Python {results['python']}. Date: {results['date']}.", table(header, rows))


_FUZZ = {"first seed": "start", "programs": "count", "equal": "same", "left out": "left_out", "captured": "captured"}


def _fuzz() -> str:
    rows = []
    for r in saved("fuzz"):
        about = [r["date"], r["python"], r["torch"], r["backend"], "data" if r.get("data") else ""]
        rows.append([*about, *[str(r[key]) for key in _FUZZ.values()], ", ".join(map(str, r["failed"])) or "none"])
    return table(["date", "Python", "PyTorch", "back end", "with", *_FUZZ, "seeds that differ"], rows)


SECTIONS: dict[str, Callable[[], str]] = {
    "figures": summary.text,
    "breadth": _sentences,
    "searches": _searches,
    "cpu inference": partial(_each, "inference-cpu*.json", tables.rows_of, ON_CPU),
    "gpu inference, peers": partial(_each, "inference-cuda*.json", tables.rows_of, ON_CUDA),
    "cpu training": partial(_each, "training-cpu*.json", training.rows_of),
    "cpu ablations": partial(_each, "ablation-cpu*.json", tables.ablation),
    "training ablations": partial(_each, "training-ablation-cpu*.json", training.rows_of),
    "gpu inference": partial(_gpu, False),
    "gpu training": partial(_gpu, True),
    "gpu machines": _gpu_machines,
    "gpu failures": _gpu_failures,
    "gpu memory": lambda: _titled([gpu.pools(devices())]),
    "gpu ceilings": lambda: _titled([gpu.roofline(devices())]),
    "gpu ablations": lambda: _titled([gpu.ablations(devices())]),
    "gpu kernels": lambda: table(*gpu_kernels.rows_of(devices().kernels)),
    "breadth transformers": partial(_breadth, "breadth-transformers"),
    "breadth timm": partial(_breadth, "breadth-timm-eager"),
    "breadth transformers, dynamic": partial(_breadth, "breadth-transformers-dynamic"),
    "breadth timm, dynamic": partial(_breadth, "breadth-timm-dynamic"),
    "capture cost": _capture_cost,
    "metrics cost": _metrics_cost,
    "dynamic sizes": _dynamic,
    "algebra": _algebra,
    "export": _export,
    "export libraries": _export_libraries,
    "packages": serving.packages,
    "packages, emulated": serving.emulated,
    "serving": serving.service,
    "serving soaks": serving.soaks,
    "first steps of ranks": distributed.first_steps,
    "links": distributed.slow_links,
    "ranks, gpu": distributed.steps_on_gpus,
    "plans": distributed.plans,
    "cpython suite": _cpython,
    "fuzz": _fuzz,
    "reliability": lambda: reliability.table(reliability.rows()),
    "operators": operators.totals,
    "scalar operations": package.scalar_operations,
    "decompositions": package.decompositions,
    "passes": package.passes,
    "onnx": onnx.figures,
    "onnx operators": onnx.operators,
    "operators partly in eager": operators.partly,
    "operators not compared": operators.uncompared,
}
"""The name between the markers -> what makes the section."""
