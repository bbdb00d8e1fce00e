"""The soak net: compile, run, train and free many small models in one process; memory stays flat.

    python -m tests.nets.soak --models 2000 [--seconds 600] [--seed 0]
    python -m tests.nets.soak --models 2000 --reset

Each model is new to framesmith: its classes and functions are executed from text anew, so that code objects, entries,
guards, graphs and libraries are its own. Their kinds are few, so that kernels come from the disk cache. After each
round over all kinds everything is let go and counted: models and all, or with `--reset` what was compiled for models
that live on. What grows after the first rounds, by model, must stay under `BOUNDS`.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import random
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import framesmith

# ruff: noqa: E501
KINDS = {
    "layers": "class Net(nn.Sequential):\n    def __init__(self):\n        super().__init__(nn.Linear({w}, {v}), "
              "nn.GELU(), nn.Linear({v}, {w}))\n",
    "norms": "class Net(nn.Sequential):\n    def __init__(self):\n        super().__init__(nn.Linear({w}, {v}), "
             "nn.BatchNorm1d({v}), nn.Dropout(0.1))\n",
    "attention": "class Net(nn.TransformerEncoderLayer):\n    def __init__(self):\n        super().__init__({w}, 2, "
                 "{v}, batch_first=True)\n",
    "images": "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.c = "
              "nn.Conv1d(1, {w}, 3)\n"
              "    def forward(self, x):\n        return self.c(x.unsqueeze(1)).relu().mean(1)\n",
    "broken": "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.a, self.b = "
              "nn.Linear({w}, {v}), nn.Linear({v}, 3)\n"
              "    def forward(self, x):\n        x = self.a(x).tanh()\n        framesmith.graph_break()\n        "
              "return self.b(x)\n",
    "state": "seen = []\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.a = "
             "nn.Linear({w}, {v})\n"
             "        self.register_buffer('n', torch.zeros(()))\n"
             "    def forward(self, x):\n        self.n += 1\n        self.last = x.detach()\n        seen.append(1)\n"
             "        return {{'y': self.a(x) * self.n, 'z': [x, self.last]}}['y']\n",
    "variants": "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.a, self.k = "
                "nn.Linear({w}, {w}), 0\n"
                "    def forward(self, x):\n        self.k = self.k % 3 + 1\n        for _ in range(self.k):\n"
                "            x = self.a(x).relu()\n        return x\n",
    "raising": "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.e = "
               "nn.Embedding({v}, {w})\n"
               "    def forward(self, x):\n        return self.e((x * 0).long() + {v} * int(x.dim() > 2)) + "
               "x.unsqueeze(-1)\n",
}  # fmt: skip
WIDTHS = ((8, 12), (16, 20))
BATCH = 4
BOUNDS = {"resident": 8192.0, "blocks": 12.0, "tracked": 3.0, "libraries": 0.01}
"""Growth by model: bytes of resident memory, blocks of Python's allocator, objects of its collector, loaded
libraries."""


def new_model(kind: str, widths: tuple[int, int]) -> Any:
    """A model whose classes and functions are new."""
    space: dict[str, Any] = {"torch": torch, "nn": torch.nn, "framesmith": framesmith, "__name__": "soaked"}
    exec(compile(KINDS[kind].format(w=widths[0], v=widths[1]), f"<soaked {kind}>", "exec"), space)
    return space["Net"]()


class Life:
    """A model, and what was compiled of it."""

    def __init__(self, kind: str, widths: tuple[int, int], options: dict[str, Any] | None = None) -> None:
        self.model = new_model(kind, widths)
        self.compiled = framesmith.compile(self.model, options=options)
        self.x = torch.randn(BATCH, 3, widths[0]) if kind == "attention" else torch.randn(BATCH, widths[0])
        self.optimiser = torch.optim.SGD(self.model.parameters(), 0.01)

    def use(self) -> None:
        """Train it, and call it in inference."""
        self.model.train()
        for _ in range(2):
            self.compiled(self.x).sum().backward()
            self.optimiser.step()
            self.optimiser.zero_grad()
        self.model.eval()
        with torch.no_grad():
            self.compiled(self.x)
            self.compiled(self.x)


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def libraries() -> int:
    """Libraries of compiled graphs that are loaded."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return len({line.split()[-1] for line in lines if line.endswith(".so") and "/lib" not in line.split()[-1]})


def counts() -> dict[str, float]:
    """What is there once nothing is used."""
    for _ in range(3):
        gc.collect()
    framesmith._C.trim_memory()
    ctypes.CDLL(None).malloc_trim(0)
    return {"resident": resident(), "blocks": sys.getallocatedblocks(), "tracked": len(gc.get_objects()),
            "libraries": libraries()}


def slope(points: list[tuple[int, float]]) -> float:
    """Of the line through the points, by Theil and Sen: the median of the slopes of all pairs."""
    found = sorted((b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(points, 2))
    return found[len(found) // 2] if found else 0.0


def soak(models: int, seconds: float = 1e9, seed: int = 0, out: Any = None, fast: bool = False,
         reset: bool = False) -> tuple[int, dict[str, float]]:
    """How many models were used, and by how much each count grew for one, after the first third. `fast`: fewer kernels,
    built quickly. `reset`: the same models again, with nothing compiled."""
    order = random.Random(seed)
    kinds = list(itertools.product(KINDS, WIDTHS[:1] if fast else WIDTHS))
    options = {"compiler_flags": "-O0"} if fast else None
    samples: list[tuple[int, dict[str, float]]] = []
    lives = {kind: Life(*kind, options) for kind in kinds if reset}
    done, end = 0, time.monotonic() + seconds
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while done < models and time.monotonic() < end:
            order.shuffle(kinds)
            for kind in kinds:
                (lives.get(kind) or Life(*kind, options)).use()
                done += 1
            if reset:
                framesmith.reset()
            framesmith.compiler.log.forget_warnings()
            framesmith.compiler.events.forget()  # they are bounded, at more than these models make
            samples.append((done, counts()))
            if out is not None:
                now = samples[-1][1]
                print(f"{done:6d} models  {now['resident'] / 2**20:8.1f} MiB  {now['blocks']:9.0f} blocks  "
                      f"{now['tracked']:8.0f} objects  "
                      f"{now['libraries']:4.0f} libraries", file=out, flush=True)
    late = samples[max(2, len(samples) // 3):]
    return done, {name: slope([(n, now[name]) for n, now in late]) for name in BOUNDS}


def types_that_grow(models: int) -> Counter[str]:
    """For a search: by how many the objects of each type have become more."""
    def census() -> Counter[str]:
        gc.collect()
        return Counter(str(type(x)) for x in gc.get_objects())

    soak(4 * models)
    before = census()
    soak(models)
    return census() - before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fast", action="store_true", help="fewer kernels, built without optimisation")
    parser.add_argument("--reset", action="store_true", help="models live on, and what was compiled is forgotten")
    parser.add_argument("--types", action="store_true", help="print the types of objects that become more")
    given = parser.parse_args()
    if given.types:
        print(*types_that_grow(given.models).most_common(30), sep="\n")
        return 0
    done, grown = soak(given.models, given.seconds, given.seed, sys.stdout, given.fast, given.reset)
    bad = [name for name in BOUNDS if grown[name] > BOUNDS[name]]
    for name, bound in BOUNDS.items():
        print(f"{name:10s} {grown[name]:10.2f} a model (bound {bound})")
    compiles = sum(framesmith.metrics()["compiles"].values())
    print(f"{done} models, {compiles:,} compiles: " + (f"{', '.join(bad)} grow" if bad else "flat"))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
