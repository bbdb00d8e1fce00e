"""Attention with score modifications beside torch.compile, each in turn: `python -m benchmarks.gpu.attention`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn.attention import flex_attention as flex

import framesmith
from benchmarks.gpu.measure import interleaved

BATCH, HEADS, LENGTH = 4, 16, 4096
CASES = ((64, "causal", "plain"), (128, "causal", "plain"), (64, "window", "plain"), (64, "all", "alibi"),
         (128, "window", "plain"),
         (128, "all", "alibi"))
"""Width of a head, mask, modification."""
MASKS: dict[str, Any] = {"all": None, "causal": lambda b, h, q, k: q >= k, "window": lambda b, h, q,
                         k: (q >= k) & (q - k < 256)}
PEERS: dict[str, Callable[..., Any]] = {"framesmith": framesmith.compile, "torch.compile": torch.compile}


def modification(name: str) -> Any:
    slopes = torch.exp2(-8 * torch.arange(1, HEADS + 1, device="cuda").float() / HEADS)
    return (lambda score, b, h, q, k: score + slopes[h] * (q - k)) if name == "alibi" else None


def row(width: int, mask: str, mod: str) -> dict[str, dict[str, float]]:
    """For each peer seconds of the first step, and milliseconds of a forward without gradients and of a step."""
    blocks = MASKS[mask] and flex.create_block_mask(MASKS[mask], None, None, LENGTH, LENGTH, device="cuda")
    change = modification(mod)
    q, k, v = (torch.randn(BATCH, HEADS, LENGTH, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
               for _ in range(3))
    tangent = torch.randn_like(q)

    def program(q: Any, k: Any, v: Any) -> Any:
        return flex.flex_attention(q, k, v, change, blocks)

    def forward(compiled: Any) -> None:
        with torch.no_grad():
            compiled(q, k, v)

    def step(compiled: Any) -> None:
        compiled(q, k, v).backward(tangent)

    found: dict[str, dict[str, float]] = {}
    compiled = {name: compile(program) for name, compile in PEERS.items()}
    for name, each in compiled.items():
        begun = time.perf_counter()
        step(each)
        torch.cuda.synchronize()
        found[name] = {"first step, s": time.perf_counter() - begun}
    for what, call in (("forward, ms", forward), ("step, ms", step)):
        timings = interleaved({name: partial(call, each) for name, each in compiled.items()}, rounds=7, slice_ms=10.0)
        for name, timing in timings.items():
            found[name][what] = 1e3 * timing.median
    return found


def main(cases: Any = CASES) -> None:
    for case in cases:
        found = row(*case)
        texts = [f"{name}: " + ", ".join(f"{what} {value:.3f}" for what, value in each.items()) for name,
                 each in found.items()]
        mine, theirs = found.values()
        ratios = ", ".join(f"{theirs[what] / mine[what]:.2f}" for what in mine)
        print(*case, "|", " | ".join(texts), "| torch.compile / framesmith:", ratios, flush=True)


if __name__ == "__main__":
    main(CASES[int(sys.argv[1]):] if len(sys.argv) > 1 else CASES)
