"""The sections on packages and the service: tables of the files that have been measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import package, package_emulated, serving
from benchmarks.document.markers import NOT_MEASURED, machine, table
from benchmarks.document.summary import RESULTS, saved


def _found(name: str) -> dict[str, Any] | None:
    return saved(name) if (RESULTS / f"{name}.json").exists() else None


def _about(results: dict[str, Any]) -> str:
    return f"Machine: {machine(results['machine'])}. Date: {results['date']}."


def _measured(name: str, rows_of: Callable[..., Any], failures: Callable[..., list[str]] = lambda results: []) -> str:
    results = _found(name)
    if results is None:
        return NOT_MEASURED
    failed = "\n".join(f"- {line}" for line in failures(results))
    return f"{_about(results)}\n\n{table(*rows_of(results))}\n\n{failed}".strip()


def packages() -> str:
    """Print a row for each model and way, and what has failed."""
    return _measured("package-cpu", package.rows_of, package.failures)


def emulated() -> str:
    """Print a row for each model whose package ran under an emulator."""
    return _measured("package-aarch64", package_emulated.rows_of)


def service() -> str:
    """Print a row for each model, way and concurrency, and what has failed."""
    return _measured("serving-cpu", serving.rows_of, serving.failures)


def soaks() -> str:
    """Print the outcomes of requests while workers are killed, and under overload."""
    parts = []
    for name in ("serving-soak", "serving-overload"):
        if results := _found(name):
            rows = [[outcome, f"{count:,}"] for outcome, count in sorted(results["answers"].items())]
            parts.append(
                f"{results['model']}, {results['workers']} workers, {results['rate_per_s']:.3g} requests/s of "
                f"{results['capacity_per_s']:.3g} that it answers, {results['seconds']:g} seconds, {results['killed']} "
                f"workers killed: p50 {results['p50_ms']:,.0f} ms, p99 {results['p99_ms']:,.0f} ms, longest "
                f"{results['longest_ms']:,.0f} ms. {_about(results)}\n\n{table(['outcome', 'requests'], rows)}")
    return "\n\n".join(parts) or NOT_MEASURED
