"""Compares what a compiled model returns with what eager returns: containers, strides, types and values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from framesmith import _C
from framesmith.compiler import FrameCompiler, Ledger
from framesmith.config import Config

TOLERANCE = 1e-5


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """The tensors and plain values in nested containers and in the attributes of library objects (a cache, say), with their paths."""
    if isinstance(value, dict):
        return [leaf for k, v in value.items() for leaf in leaves(v, f"{path}.{k}")]
    if isinstance(value, (list, tuple)):
        return [leaf for i, v in enumerate(value) for leaf in leaves(v, f"{path}[{i}]")]
    if type(value).__module__.startswith("transformers.cache"):
        return [leaf for k, v in sorted(vars(value).items()) for leaf in leaves(v, f"{path}.{k}")]
    return [(path, value)]


def containers(value: Any) -> Any:
    """The types of nested containers."""
    if isinstance(value, dict):
        return type(value), {k: containers(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [containers(v) for v in value]
    return type(value)


def error(ours: Tensor, eager: Tensor) -> float:
    """The largest difference over the largest value; infinite where one of both is finite and the other not, or NaN in one alone."""
    finite = torch.isfinite(eager)
    if not torch.equal(finite, torch.isfinite(ours)) or not torch.equal(ours[~finite].nan_to_num(), eager[~finite].nan_to_num()):
        return float("inf")
    if not finite.any():
        return 0.0
    difference = (ours[finite].double() - eager[finite].double()).abs().max()
    return float(difference / eager[finite].double().abs().max().clamp_min(1e-30))


def assert_same(ours: Any, eager: Any) -> None:
    """Same containers, same metadata, floating-point values within `TOLERANCE`, all others equal."""
    assert containers(ours) == containers(eager)
    mine, theirs = leaves(ours), leaves(eager)
    assert [path for path, _ in mine] == [path for path, _ in theirs]
    for (path, a), (_, b) in zip(mine, theirs, strict=True):
        if not isinstance(b, Tensor):
            continue
        assert (a.shape, a.dtype, a.stride(), a.requires_grad) == (b.shape, b.dtype, b.stride(), b.requires_grad), path
        if b.dtype.is_floating_point:
            assert error(a, b) <= TOLERANCE, path
        else:
            assert torch.equal(a, b), path


class Watched:
    """A model compiled with a ledger of its own: faults of the compiler are raised, not run in eager."""

    def __init__(self, model: nn.Module) -> None:
        self.ledger = Ledger()
        self.run = _C.CompiledFunction(model, FrameCompiler(Config.from_env(suppress_errors=False), self.ledger))

    def assert_whole(self, graphs: int) -> None:
        """So many captured frames, each one graph without a break; nothing was left in eager."""
        assert self.ledger.refusals == []
        assert [b for r in self.ledger.records for b in r.breaks] == []
        assert [bool(r.operators) for r in self.ledger.records] == [True] * graphs
