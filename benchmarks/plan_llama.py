"""What `framesmith.plan` predicts for a training step of a Llama with 7 billion parameters on 8, 64 and 1,024 H100s.

    python -m benchmarks.plan_llama [--ranks 8 64 1024] [--out FILE]

The model is made on meta tensors, and nothing is measured: the same version of PyTorch gives the same file on any
machine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import framesmith
from framesmith.distributed.layouts import Layout, Prediction
from framesmith.distributed.links import H100

RESULTS = Path(__file__).parent / "results"
TOKENS, OPTIMIZER = 4096, "adamw"
WIDTH, INNER, LAYERS, HEADS, WORDS = 4096, 11008, 32, 32, 32000
"""The sizes of Llama 7B (Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", 2023)."""


def _rotated(x: Tensor, angles: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat((-b, a), dim=-1) * angles.sin()


class Layer(nn.Module):
    """Causal attention with rotary positions, and a gated linear unit."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        y = self.before(x)
        q, k, v = (linear(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for linear in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(_rotated(q, angles), _rotated(k, angles), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """The model with its loss: the cross-entropy of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.layers, self.norm = nn.ModuleList(Layer() for _ in range(LAYERS)), nn.RMSNorm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        angles = torch.empty(tokens.shape[1], WIDTH // HEADS, dtype=x.dtype)
        for layer in self.layers:
            x = layer(x, angles)
        return F.cross_entropy(self.head(self.norm(x))[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def model() -> tuple[Llama, Tensor]:
    """Llama 7B in bfloat16 without values, and a sequence of tokens."""
    with torch.device("meta"):
        return Llama().to(torch.bfloat16), torch.empty(1, TOKENS, dtype=torch.int64)


def kind(layout: Layout) -> str:
    """The kinds of parallelism of a layout, without their sizes."""
    return " × ".join(part.rsplit(" ", 1)[0] if layout.ranks > 1 else part for part in str(layout).split(" × "))


def _entry(p: Prediction) -> dict[str, Any]:
    return {"layout": str(p.layout), "kind": kind(p.layout), "seconds": p.seconds, "compute": p.compute,
            "communication": p.communication, "exposed": p.exposed, "idle": p.idle, "memory": p.memory,
            "parts": dict(p.parts), "fits": p.memory <= H100.memory}


def planned(ranks: Sequence[int]) -> dict[str, Any]:
    """The predictions of all layouts by number of ranks, the fastest that fit first."""
    llama, tokens = model()
    plans = [framesmith.plan(llama, n, H100, (tokens,), optimizer=OPTIMIZER) for n in ranks]
    return {"torch": torch.__version__.split("+")[0], "parameters": sum(p.numel() for p in llama.parameters()),
            "tokens": TOKENS, "hardware": H100.name, "optimizer": OPTIMIZER,
            "plans": {str(n): [_entry(p) for p in plan.predictions] for n, plan in zip(ranks, plans, strict=True)}}


def rows_of(results: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table: for each number of ranks the fastest layout of each kind; the first is proposed."""
    rows = []
    for ranks, found in results["plans"].items():
        seen: dict[str, dict[str, Any]] = {}
        for one in found:
            seen.setdefault(one["kind"], one)
        for k, one in enumerate(seen.values()):
            times = [f"{one[part] * 1e3:,.0f} ms" for part in ("seconds", "communication", "exposed", "idle")]
            best = "proposed" if k == 0 and one["fits"] else "" if one["fits"] else "does not fit"
            rows.append([f"{int(ranks):,}: {one['layout']}", *times, f"{one['memory'] / 1e9:.1f} GB", best])
    return ["ranks: layout", "step", "communication", "exposed", "idle", "memory of a rank", ""], rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 1024])
    parser.add_argument("--out", type=Path, default=RESULTS / "plan-llama.json")
    asked = parser.parse_args()
    results = planned(asked.ranks)
    for row in rows_of(results)[1]:
        print(" | ".join(row))
    asked.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
