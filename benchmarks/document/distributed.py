"""The sections on many processes: steps over slow links, first steps of several ranks, and the plan of a Llama."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import links, plan_llama, ranks
from benchmarks.document.markers import NOT_MEASURED, machine, table
from benchmarks.document.summary import RESULTS, saved
from benchmarks.gpu import ranks as gpu_ranks


def _about(results: dict[str, Any]) -> str:
    return f"Machine: {machine(results['machine'])}. Load: {results['load']:.1f}. Date: {results['date']}."


def slow_links(folder: Path = RESULTS) -> str:
    """Print a table for each file of links."""
    parts = []
    for path in sorted(folder.glob("links-*.json")):
        results = json.loads(path.read_text())
        parts.append(f"**{links.title(results['row'])}**. {_about(results)}\n\n{table(*links.rows_of(results['row']))}")
    return "\n\n".join(parts) or NOT_MEASURED


def steps_on_gpus() -> str:
    """Print the table of steps on several GPUs."""
    results = saved("ranks-cuda")
    about = (f"{results['rows'][0]['ranks']} x {results['machine']['device']}, CUDA {results['machine']['cuda']}, "
             f"PyTorch {results['machine']['torch']}. Date: {results['date']}.")
    return f"{about}\n\n{table(*gpu_ranks.rows_of(results))}"


def first_steps(path: Path = RESULTS / "ranks.json") -> str:
    """Print the processor time of first steps of one rank and of several."""
    if not path.exists():
        return NOT_MEASURED
    results = json.loads(path.read_text())
    return f"Rounds: {results['rounds']}. {_about(results)}\n\n{table(*ranks.rows_of(results['rows']))}"


def plans() -> str:
    """Print the fastest layout of each kind by number of ranks."""
    results = saved("plan-llama")
    about = (f"{results['parameters'] / 1e9:.2f} billion parameters in bfloat16, {results['tokens']:,} tokens a rank, "
             f"{results['optimizer']}; {results['hardware']}, 8 to a host. PyTorch {results['torch']}.")
    return f"{about}\n\n{table(*plan_llama.rows_of(results))}"
