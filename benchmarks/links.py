"""A training step of DDP and FSDP2 over slow links: eager, framesmith and torch.compile, and what `plan` predicts.

    python -m benchmarks.links [--ranks 2] [--rate 1e9] [--delay 1e-3] [--rounds 12] [--peers] [--out FILE]

Links are those of `benchmarks.link_emulation`; the round trip and the throughput are measured first. Contenders take
turns, one step each, in the same processes. The prediction knows the link's rate and delay as asked for, and the
seconds of a step of the bare module, measured in turns with them; no time of a collective.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
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
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import framesmith
from benchmarks import child, machine
from benchmarks.link_emulation import checked, emulated
from framesmith.distributed.layouts import Layout
from framesmith.distributed.links import gloo

RESULTS = Path(__file__).parent / "results"
WIDTH, BLOCKS, BATCH, BUCKET = 512, 4, 256, 4
"""The module has 4.2 million parameters; `BUCKET` in MiB, so that there are several."""


class Block(nn.Module):
    """A norm and two linear layers with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Blocks in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def _ddp(compiler: Callable[..., Any] | None) -> Any:
    model = DistributedDataParallel(Net(), bucket_cap_mb=BUCKET)
    return compiler(model) if compiler else model


def _fsdp(compiler: Callable[..., Any] | None) -> Any:
    mesh, model = init_device_mesh("cpu", (dist.get_world_size(),)), Net()
    for block in model.blocks:
        if compiler:
            block.compile(backend="inductor") if compiler is torch.compile else setattr(
                block, "forward", compiler(block.forward))
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


WAYS = {"DDP": _ddp, "FSDP2": _fsdp}


def _stepping(model: Any) -> Callable[[], None]:
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.randn(BATCH, WIDTH)

    def step() -> None:
        model(x).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def measured(rounds: int, peers: bool) -> dict[str, list[float]]:
    """Seconds of each round's step by contender, in this rank; all begin a step together."""
    compilers: dict[str, Any] = {"eager": None, "framesmith": framesmith.compile}
    if peers:
        compilers["torch.compile"] = torch.compile
    steps = {"bare": _stepping(Net())}
    steps |= {f"{way}, {name}": _stepping(make(compiler)) for way, make in WAYS.items()
              for name, compiler in compilers.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for k in range(rounds + 3):
        for name, step in steps.items():
            dist.barrier()
            start = time.perf_counter()
            step()
            if k >= 3:
                times[name].append(time.perf_counter() - start)
    return times


def _rank(rank: int, ranks: int, store: str, rounds: int, peers: bool) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    found: list[Any] = [None] * ranks
    dist.all_gather_object(found, measured(rounds, peers))
    if rank == 0:
        slowest = {name: [max(each) for each in zip(*(one[name] for one in found), strict=True)] for name in found[0]}
        print(json.dumps({name: statistics.median(times) for name, times in slowest.items()}))
    dist.barrier()
    dist.destroy_process_group()


def predicted(ranks: int, rate: float, delay: float, bare: float) -> dict[str, float]:
    """Seconds of a step by `plan`, where a step of the bare module takes `bare` seconds."""
    hardware = gloo(delay, rate / 8)

    def plan(ranks: int, hardware: Any) -> Any:
        with torch.device("meta"):
            return framesmith.plan(Net(), ranks, hardware, (torch.empty(BATCH, WIDTH),), optimizer="sgd",
                                   bucket_cap_mb=BUCKET)

    alone = plan(1, hardware).best.seconds
    found = plan(ranks, hardware.calibrated(alone, bare))
    return {"DDP": found.of(Layout(ranks)).seconds, "FSDP2": found.of(Layout(ranks, sharded=True)).seconds}


def run(ranks: int, rate: float, delay: float, rounds: int, peers: bool) -> dict[str, Any]:
    """Measure in `ranks` processes over emulated links, and predict."""
    with emulated(ranks, rate, delay) as links, tempfile.TemporaryDirectory(prefix="bench-") as folder:
        link = checked(links)
        environment = os.environ | child.caches(Path(folder)) | links.environment()
        words = ["-m", "benchmarks.links", "--ranks", str(ranks), "--rounds", str(rounds), *["--peers"] * peers,
                 "--store", str(Path(folder, "store"))]
        processes = [subprocess.Popen(links.command(rank, [*words, "--rank", str(rank)]), env=environment, text=True,
                                      stdout=subprocess.PIPE) for rank in range(ranks)]
        try:
            said = [process.communicate(timeout=900)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
    lines = [line for line in said[0].splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError("rank 0 reported nothing")
    seconds = json.loads(lines[-1])
    return {"ranks": ranks, "rate": rate, "delay": delay, "link": link, "seconds": seconds,
            "predicted": predicted(ranks, rate, delay, seconds["bare"])}


def _table(row: dict[str, Any]) -> Table:
    rate, trip = row["link"]["rate"] / 1e9, row["link"]["round_trip"] * 1e3
    table = Table("contender", "step", "predicted for eager", "predicted / measured",
                  title=f"{row['ranks']} ranks, measured {rate:.2f} Gbit/s and {trip:.2f} ms of a round trip")
    for name, seconds in row["seconds"].items():
        guess = row["predicted"].get(name.removesuffix(", eager"))
        table.add_row(name, f"{seconds * 1e3:.1f} ms", *([f"{guess * 1e3:.1f} ms", f"{guess / seconds:.2f}"] if guess
                                                        else []))
    return table


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rate", type=float, default=1e9, help="bit/s")
    parser.add_argument("--delay", type=float, default=1e-3, help="seconds in one direction")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--peers", action="store_true", help="beside torch.compile too")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank is not None:
        _rank(asked.rank, asked.ranks, asked.store, asked.rounds, asked.peers)
        return
    row = run(asked.ranks, asked.rate, asked.delay, asked.rounds, asked.peers)
    Console().print(_table(row))
    out = asked.out or RESULTS / f"links-{asked.ranks}.json"
    out.write_text(json.dumps({"machine": machine.describe(), "load": os.getloadavg()[0], "row": row}, indent=1) + "\n")


if __name__ == "__main__":
    _main()
