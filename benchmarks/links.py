"""A training step of DDP and FSDP2 over slow links: eager, framesmith and torch.compile, and what `plan` predicts.

    python -m benchmarks.links [--ranks 2] [--rate 1e9] [--delay 1e-3] [--rounds 12] [--peers] [--out FILE]

Links are those of `benchmarks.link_emulation`. Contenders take turns, one step each, in the same processes; so do the
bare module, and the collectives of a step without the step. The prediction knows the round trip and the rate of the
link, the rates of one product of matrices and one copy, and the seconds of a step of the bare module, all measured in
the same run; no time of a collective.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
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
from benchmarks.link_emulation import checked, emulated, unavailable
from framesmith.distributed.layouts import Layout
from framesmith.distributed.links import gloo

RESULTS = Path(__file__).parent / "results"
WIDTH, BLOCKS, BATCH, BUCKET = 512, 4, 256, 4
"""The module has 4.2 million parameters; `BUCKET` in MiB, so that there are several."""
LAYOUTS = {"DDP": Layout, "FSDP2": lambda ranks: Layout(ranks, sharded=True)}
ALONE, BARE = "collectives alone", "one rank"


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


def _bare(compiler: Callable[..., Any] | None) -> Any:
    return compiler(Net()) if compiler else Net()


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


WAYS = {BARE: _bare, "DDP": _ddp, "FSDP2": _fsdp}


def _stepping(model: Any) -> Callable[[], None]:
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.randn(BATCH, WIDTH)

    def step() -> None:
        model(x).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def _reducing(model: DistributedDataParallel) -> Callable[[], None]:
    """The collectives of a step of DDP: one for each bucket."""
    data = model._get_ddp_logging_data()
    sizes = str(data.get("rebuilt_bucket_sizes") or data["bucket_sizes"])
    buckets = [torch.zeros(int(size) // 4) for size in sizes.split(", ")]

    def communicate() -> None:
        for bucket in buckets:
            dist.all_reduce(bucket)

    return communicate


def _gathering(ranks: int) -> Callable[[], None]:
    """The collectives of a step of FSDP2: each block is gathered twice, and its gradients are scattered."""
    part = torch.zeros(sum(-(-len(p) // ranks) * p[0].numel() for p in Block().parameters()))
    whole = torch.zeros(len(part) * ranks)

    def communicate() -> None:
        for _ in range(BLOCKS):
            dist.all_gather_into_tensor(whole, part)
            dist.all_gather_into_tensor(whole, part)
            dist.reduce_scatter_tensor(part, whole)

    return communicate


def timed(rounds: int, steps: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Seconds of each round by step, in this rank; all ranks begin a step together."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for k in range(rounds + 3):
        for name, step in steps.items():
            dist.barrier()
            start = time.perf_counter()
            step()
            if k >= 3:
                times[name].append(time.perf_counter() - start)
    return times


def measured(rounds: int, peers: bool) -> dict[str, list[float]]:
    """Seconds of each round by contender, of one product and of one copy of a block's weights, in this rank."""
    compilers: dict[str, Any] = {"eager": None, "framesmith": framesmith.compile}
    if peers:
        compilers["torch.compile"] = torch.compile
    models = {f"{way}, {name}": make(compiler) for way, make in WAYS.items() for name, compiler in compilers.items()}
    steps: dict[str, Callable[[], object]] = {name: _stepping(model) for name, model in models.items()}
    for step in steps.values():
        step()
    x, weight, block = torch.randn(BATCH, WIDTH), torch.randn(WIDTH, 2 * WIDTH), torch.randn(4 * WIDTH * WIDTH)
    steps |= {f"DDP, {ALONE}": _reducing(models["DDP, eager"]), f"FSDP2, {ALONE}": _gathering(dist.get_world_size()),
              "product": lambda: x @ weight, "copy": block.clone}
    return timed(rounds, steps)


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


def predicted(ranks: int, link: dict[str, float], seconds: dict[str, float]) -> dict[str, dict[str, float]]:
    """Seconds of a step and of its communication by `plan`, from the link and the seconds of a product, a copy and a
    step of the bare module."""
    hardware = gloo(link["round_trip"] / 2, link["rate"] / 8, flops=2 * BATCH * WIDTH * 2 * WIDTH / seconds["product"],
                    bandwidth=2 * 4 * 4 * WIDTH * WIDTH / seconds["copy"])

    def plan(ranks: int, hardware: Any) -> Any:
        with torch.device("meta"):
            return framesmith.plan(Net(), ranks, hardware, (torch.empty(BATCH, WIDTH),), optimizer="sgd",
                                   bucket_cap_mb=BUCKET)

    found = plan(ranks, hardware.calibrated(plan(1, hardware).best.seconds, seconds[f"{BARE}, eager"]))
    steps = {way: found.of(layout(ranks)) for way, layout in LAYOUTS.items()}
    return {way: {"seconds": p.seconds, "communication": p.communication, "exposed": p.exposed}
            for way, p in steps.items()}


def run(ranks: int, rate: float, delay: float, rounds: int, peers: bool) -> dict[str, Any]:
    """Measure in `ranks` processes over emulated links, and predict."""
    with emulated(ranks, rate, delay) as links, tempfile.TemporaryDirectory(prefix="bench-") as folder:
        link = checked(links, int(rate / 8))
        words = ["-m", "benchmarks.links", "--ranks", str(ranks), "--rounds", str(rounds), *["--peers"] * peers,
                 "--store", str(Path(folder, "store"))]
        commands = [links.command(rank, [*words, "--rank", str(rank)]) for rank in range(ranks)]
        seconds = child.report_of_ranks(commands, child.caches(Path(folder)) | links.environment(), timeout=900)
    return {"ranks": ranks, "rate": rate, "delay": delay, "link": link, "seconds": seconds,
            "predicted": predicted(ranks, link, seconds)}


def rows_of(row: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table: steps, how much of their communication is hidden, and what was predicted."""
    seconds, rows = row["seconds"], []
    for name, step in seconds.items():
        way, _, who = name.partition(", ")
        guess, cells = row["predicted"].get(way), [""] * 4
        if guess and who in ("eager", ALONE):
            found = guess["seconds" if who == "eager" else "communication"]
            cells[2:] = f"{found * 1e3:.1f} ms", f"{found / step:.2f}"
        if guess and who != ALONE:
            cells[1] = f"{1 - guess['exposed'] / guess['communication']:.0%}"
            cells[0] = f"{1 - (step - seconds[f'{BARE}, {who}']) / seconds[f'{way}, {ALONE}']:.0%}"
        if who:
            rows.append([name, f"{step * 1e3:.1f} ms", *cells])
    return ["contender", "step", "communication hidden", "can be hidden", "predicted", "predicted / measured"], rows


def title(row: dict[str, Any]) -> str:
    """The links of a run, as measured."""
    rate, trip = row["link"]["rate"] / 1e9, row["link"]["round_trip"] * 1e3
    return f"{row['ranks']} ranks, {rate:.3g} Gbit/s and {trip:.2f} ms of a round trip, measured"


def _table(row: dict[str, Any]) -> Table:
    header, rows = rows_of(row)
    table = Table(*header, title=title(row))
    for cells in rows:
        table.add_row(*cells)
    return table


def _parsed(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rate", type=float, default=1e9, help="bit/s")
    parser.add_argument("--delay", type=float, default=1e-3, help="seconds in one direction")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--peers", action="store_true", help="torch.compile, too")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main() -> None:
    asked = _parsed()
    if asked.rank is not None:
        _rank(asked.rank, asked.ranks, asked.store, asked.rounds, asked.peers)
        return
    if reason := unavailable():
        raise SystemExit(reason)
    load = os.getloadavg()[0]
    row = run(asked.ranks, asked.rate, asked.delay, asked.rounds, asked.peers)
    Console().print(_table(row))
    out = asked.out or RESULTS / f"links-{asked.ranks}.json"
    about = {"date": datetime.date.today().isoformat(), "machine": machine.describe(), "load": load}
    out.write_text(json.dumps({**about, "row": row}, indent=1) + "\n")


if __name__ == "__main__":
    main()
