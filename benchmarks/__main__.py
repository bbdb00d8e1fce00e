"""Framesmith beside eager and the installed peers, in one process, interleaved.

    python -m benchmarks [MODEL ...] [--peers] [--cold] [--ablate] [--rounds N] [--out FILE]

`python -m benchmarks.document` writes what was measured into the documents.
"""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path

import torch
from rich.console import Console

from benchmarks import machine, models, peers, run, table

RESULTS = Path(__file__).parent / "results"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("models", nargs="*", help="names; all by default")
    parser.add_argument("--peers", action="store_true", help="beside every installed peer, not eager alone")
    parser.add_argument("--cold", action="store_true", help="time first calls in fresh processes")
    parser.add_argument("--ablate", action="store_true", help="turn framesmith's options off one by one instead")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu",
                        help="cuda: models and inputs on the GPU, float32 products in TF32 for all")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=None, help="the JSON file to write")
    return parser.parse_args()


def main() -> None:
    """Run what the arguments ask for; print a table, write JSON."""
    args = _arguments()
    console = Console()
    chosen = args.models or list(models.named())
    on_device = peers.ON_CUDA if args.device == "cuda" else peers.ON_CPU
    names = [n for n in on_device if (args.peers or n in ("eager", "framesmith")) and peers.installed(n)]
    results: dict = {"date": datetime.date.today().isoformat(), "machine": machine.describe(), "peers": names,
                     "models": []}
    if args.device == "cuda":
        torch.set_float32_matmul_precision("high")
        results["machine"] |= {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    with console.status("") as status:
        for name in chosen:
            def report(what: str, name: str = name) -> None:
                status.update(f"{name}: {what}")

            if args.ablate:
                results["models"].append(run.ablate(name, rounds=args.rounds, report=report))
            else:
                results["models"].append(run.measure(name, names, rounds=args.rounds, cold_start=args.cold,
                                                     device=args.device, report=report))
    out = args.out or RESULTS / ("ablation-cpu.json" if args.ablate else f"inference-{args.device}.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")
    if args.ablate:
        console.print(table.terminal("speed-up over eager, one option off at a time", *table.ablation(results)))
        return
    header, rows = table.rows_of(results)
    console.print(table.terminal("speed-up over eager (seconds of the first call with an empty cache)", header, rows))
    for line in table.failures(results):
        console.print(line, markup=False)


if __name__ == "__main__":
    main()
