"""The processor time of a first step of training, of one rank and of several that share an empty cache.

    python -m benchmarks.ranks [--ranks 4] [--rounds 3] [--models bert ...] [--ways DDP FSDP2] [--out FILE]

A first step is: compile, forward, backward, step of the optimiser. Its processor time is that of all ranks and of the
compilers that they start, added up: where there are fewer processors than ranks, seconds on the clock say little.
torch, the compiler's modules and the model are loaded before. Worlds of one and of several ranks take turns.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import resource
import statistics
import sys
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
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import framesmith
from benchmarks import child, machine
from benchmarks.models import declare_torchvision_operators
from framesmith.distributed.work import blocks_of

declare_torchvision_operators()  # timm and transformers need them


def _language(kind: str) -> Callable[[], tuple[nn.Module, tuple[Any, ...]]]:
    def build() -> tuple[nn.Module, tuple[Any, ...]]:
        import transformers

        sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024,
                 "vocab_size": 1000}
        name = {"bert": "BertForMaskedLM", "llama": "LlamaForCausalLM"}[kind]
        config = getattr(transformers, f"{kind.capitalize()}Config")(**sizes)
        return _Loss(getattr(transformers, name)(config)), (torch.randint(0, 1000, (4, 64)),)

    return build


class _Loss(nn.Module):
    """The loss of a language model of transformers, of the words themselves."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.model(ids).logits.flatten(0, 1), ids.flatten())


def _resnet() -> tuple[nn.Module, tuple[Any, ...]]:
    import timm

    return timm.create_model("resnet18"), (torch.randn(2, 3, 128, 128),)


MODELS = {"bert": _language("bert"), "resnet18": _resnet, "llama": _language("llama")}


def _sharded(model: nn.Module) -> nn.Module:
    for block in blocks_of(model):
        fully_shard(block)
    return fully_shard(model)  # type: ignore[return-value]


WAYS: dict[str, Callable[[nn.Module], nn.Module]] = {"DDP": DistributedDataParallel, "FSDP2": _sharded}


def _used() -> float:
    """Seconds of processor time of this process and of those that it has started and that have ended."""
    return sum(r.ru_utime + r.ru_stime for r in map(resource.getrusage, (resource.RUSAGE_SELF,
                                                                          resource.RUSAGE_CHILDREN)))


def _rank(rank: int, ranks: int, store: str, model: str, way: str, eager: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    built, given = MODELS[model]()
    wrapped = WAYS[way](built.train())
    optimiser = torch.optim.SGD(wrapped.parameters(), lr=1e-3)
    framesmith.compile(torch.nn.Linear(4, 4), options={"cache": False})(torch.ones(2, 4))
    dist.barrier()
    used, began = _used(), time.perf_counter()
    call: Any = wrapped if eager else framesmith.compile(wrapped)
    loss = call(*given).float().square().mean()
    loss.backward()
    optimiser.step()
    mine = {"processor": _used() - used, "clock": time.perf_counter() - began}
    everyone: list[Any] = [None] * ranks
    dist.all_gather_object(everyone, mine)
    if rank == 0:
        print(json.dumps({"processor": [one["processor"] for one in everyone],
                          "clock": max(one["clock"] for one in everyone), "loss": float(loss.detach())}))
    dist.barrier()
    dist.destroy_process_group()


def first_step(ranks: int, model: str, way: str, eager: bool = False) -> dict[str, Any]:
    """What the first step of a world with a cache of its own took: processor time by rank, and seconds on the clock."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        command = [sys.executable, "-m", "benchmarks.ranks", "--ranks", str(ranks), "--models", model, "--ways", way,
                   "--store", str(Path(folder, "store")), *["--eager"] * eager]
        commands = [[*command, "--rank", str(rank)] for rank in range(ranks)]
        return child.report_of_ranks(commands, child.caches(Path(folder)))


def measured(ranks: int, rounds: int, models: Sequence[str], ways: Sequence[str]) -> list[dict[str, Any]]:
    """Medians over rounds of the sums of processor time."""
    rows = []
    for model in models:
        for way in ways:
            found = [(first_step(1, model, way), first_step(ranks, model, way)) for _ in range(rounds)]
            idle = sum(first_step(ranks, model, way, eager=True)["processor"])
            one, several = (statistics.median(sum(each[k]["processor"]) for each in found) for k in (0, 1))
            ratio = statistics.median(sum(b["processor"]) / sum(a["processor"]) for a, b in found)
            rows.append({"model": model, "way": way, "ranks": ranks, "one": one, "several": several, "ratio": ratio,
                         "eager": idle, "by_rank": sorted(found[-1][1]["processor"]),
                         "clock": [statistics.median(each[k]["clock"] for each in found) for k in (0, 1)]})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def rows_of(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of a table."""
    cells = [[row["model"], row["way"], str(row["ranks"]), f"{row['one']:.2f} s", f"{row['several']:.2f} s",
              f"{row['ratio']:.2f}", f"{row['eager']:.2f} s"] for row in rows]
    return ["model", "way", "ranks", "one rank", "all ranks", "ratio", "all ranks, eager"], cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=[*MODELS], choices=[*MODELS])
    parser.add_argument("--ways", nargs="+", default=[*WAYS], choices=[*WAYS])
    parser.add_argument("--out", type=Path)
    for name, kind in (("--rank", int), ("--store", str)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--eager", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.store:
        _rank(given.rank, given.ranks, given.store, given.models[0], given.ways[0], given.eager)
        return
    load = os.getloadavg()[0]
    rows = measured(given.ranks, given.rounds, given.models, given.ways)
    header, cells = rows_of(rows)
    table = Table(*header, title="Processor time of the first step")
    for row in cells:
        table.add_row(*row)
    Console().print(table)
    if given.out:
        about = {"date": datetime.date.today().isoformat(), "machine": machine.describe(), "load": load}
        given.out.write_text(json.dumps({**about, "rounds": given.rounds, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
