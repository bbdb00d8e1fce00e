"""Training steps of DDP and FSDP2 on several GPUs of one host, over NCCL: eager, framesmith and torch.compile.

    python -m benchmarks.gpu.ranks [--models bert_b16 ...] [--ways DDP FSDP2] [--rounds 15] [--out FILE]

Parameters are float32, products and convolutions bfloat16 by autocast, the optimiser is fused AdamW; each rank has the
batch of the table of one GPU. A world of processes, with empty caches, measures one model in one way. Contenders take
turns, one step each; a step ends when the slowest rank's device is done. "first": seconds of the first step, compiling
included; "memory": the greatest of the allocator during the timed steps, of rank 0, with that contender's model alone.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

import framesmith
from benchmarks import child, machine
from benchmarks.gpu import models
from framesmith.distributed.work import blocks_of

RESULTS = Path(__file__).parents[1] / "results"
CHOSEN = ("bert_b16", "llama", "resnet50", "gpt2", "vit", "dlrm")
COMPILERS: dict[str, Callable[[Any], Any]] = {"eager": lambda m: m, "framesmith": framesmith.compile,
                                              "torch.compile": torch.compile}
WARM_UP = 3


def _replicated(model: nn.Module, contender: str) -> Any:
    return COMPILERS[contender](DistributedDataParallel(model, gradient_as_bucket_view=True))


def _sharded(model: nn.Module, contender: str) -> Any:
    """Shard each block, then the rest. torch.compile gets each block, as its documents advise."""
    by_block = contender == "torch.compile"
    for block in blocks_of(model):
        if by_block:
            block.compile()
        fully_shard(block)
    sharded: Any = fully_shard(model)
    return sharded if by_block else COMPILERS[contender](sharded)


WAYS: dict[str, Callable[[nn.Module, str], Any]] = {"DDP": _replicated, "FSDP2": _sharded}


def _stepping(name: str, way: str, contender: str) -> Callable[[], torch.Tensor]:
    model, given = models.named()[name]()
    call = WAYS[way](model.train(), contender)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            out = call(*given)
            loss = torch.stack([x.float().square().mean() for x in tree_leaves(dict(out) if hasattr(out, "keys")
                                else out) if isinstance(x, torch.Tensor)]).sum()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        return loss.detach()

    return step


def _seconds(step: Callable[[], torch.Tensor]) -> float:
    dist.barrier()
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def _rank(rank: int, ranks: int, store: str, name: str, way: str, rounds: int) -> None:
    torch.cuda.set_device(rank)
    models.DEVICE = f"cuda:{rank}"
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=ranks,
                            device_id=torch.device("cuda", rank))
    mine: dict[str, dict[str, Any]] = {}
    steps: dict[str, Callable[[], torch.Tensor]] = {}
    for contender in COMPILERS:
        before = torch.cuda.memory_allocated()
        step = _stepping(name, way, contender)
        dist.barrier()
        row: dict[str, Any] = {"first": _seconds(step), "losses": [float(step()) for _ in range(WARM_UP)]}
        torch.cuda.reset_peak_memory_stats()
        step()
        row["memory"] = torch.cuda.max_memory_allocated() - before
        mine[contender], steps[contender] = row | {"times": []}, step
    for _ in range(rounds):
        for contender, step in steps.items():
            mine[contender]["times"].append(_seconds(step))
    everyone: list[Any] = [None] * ranks
    dist.all_gather_object(everyone, mine)
    if rank == 0:
        for contender, row in mine.items():
            del row["times"]
            slowest = [max(each) for each in zip(*(one[contender].pop("times") for one in everyone), strict=True)]
            row |= {"step": statistics.median(slowest), "first": max(one[contender]["first"] for one in everyone)}
        print(json.dumps(mine))
    dist.barrier()
    dist.destroy_process_group()


def measured(ranks: int, name: str, way: str, rounds: int) -> dict[str, Any]:
    """Return what a world of its own measures of each contender, or its error."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        command = [sys.executable, "-m", "benchmarks.gpu.ranks", "--ranks", str(ranks), "--models", name, "--ways", way,
                   "--rounds", str(rounds), "--store", str(Path(folder, "store"))]
        try:
            found = child.report_of_ranks([[*command, "--rank", str(rank)] for rank in range(ranks)],
                                          child.caches(Path(folder)), timeout=300)
        except Exception as e:  # noqa: BLE001 - a world that fails is a row that says so
            found = {"error": f"{type(e).__name__}: {e}"[:200]}
    return {"model": name, "way": way, "ranks": ranks, "contenders": found}


def rows_of(report: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table."""
    rows = []
    for row in report["rows"]:
        found = row["contenders"]
        if "error" in found:
            rows.append([row["model"], row["way"], str(row["ranks"]), found["error"], *[""] * 6])
            continue
        steps = [found[contender]["step"] for contender in COMPILERS]
        firsts = [f"{found[contender]['first']:.1f}" for contender in COMPILERS if contender != "eager"]
        memory = [f"{found[contender]['memory'] / found['eager']['memory']:.2f}" for contender in COMPILERS
                  if contender != "eager"]
        rows.append([row["model"], row["way"], str(row["ranks"]), *[f"{s * 1e3:.1f}" for s in steps],
                     f"{steps[0] / steps[1]:.2f}", f"{steps[0] / steps[2]:.2f}", " / ".join(firsts),
                     " / ".join(memory)])
    return ["model", "way", "GPUs", *[f"{contender}, ms" for contender in COMPILERS], "framesmith, speed-up",
            "torch.compile, speed-up", "first step, s", "memory, eager = 1"], rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(CHOSEN), choices=list(models.named()))
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count())
    parser.add_argument("--out", type=Path, default=RESULTS / "ranks-cuda.json")
    for option, kind in (("--rank", int), ("--store", str)):
        parser.add_argument(option, type=kind, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.store:
        _rank(given.rank, given.ranks, given.store, given.models[0], given.ways[0], given.rounds)
        return
    about = machine.describe() | {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    report: dict[str, Any] = {"date": datetime.date.today().isoformat(), "machine": about, "rows": []}
    for name in given.models:
        for way in given.ways:
            report["rows"].append(measured(given.ranks, name, way, given.rounds))
            print(json.dumps(report["rows"][-1]), file=sys.stderr, flush=True)
            given.out.write_text(json.dumps(report, indent=1) + "\n")
    header, rows = rows_of(report)
    table = Table(*header)
    for row in rows:
        table.add_row(*row)
    Console(width=int(os.environ.get("COLUMNS", 160))).print(table)


if __name__ == "__main__":
    main()
