"""A row of the results: one model in one precision, called or trained, in one or more modes; and who contends in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Figures = dict[str, Any]
Contenders = dict[str, tuple[str, str, dict[str, Any]]]
KERNELS, ABLATION = "kernels", "ablation"


@dataclass(frozen=True)
class Row:
    """`modes`: of framesmith's, or "ablation" alone; the first has the first calls. `peers`: beside torch.compile.
    `warm`: first calls alone, with the caches that a process before this one left. `alone`: while nothing else is on
    the device. The model "kernels" stands for the table of kernels."""

    model: str
    training: bool = False
    precision: str = "bf16"
    modes: tuple[str, ...] = ("default",)
    peers: bool = True
    rounds: int = 11
    warm: bool = False
    alone: bool = False

    def key(self, mode: str | None = None) -> str:
        """Of the figures in one mode; by default the first."""
        return f"{self.model} {'training' if self.training else 'inference'} {self.precision} {mode or self.modes[0]}"

    @property
    def has_first(self) -> bool:
        """Whether first calls are a part of its figures."""
        return not self.warm and self.model != KERNELS and self.modes != (ABLATION,)

    def __str__(self) -> str:
        return self.key(" and ".join(self.modes)) + (" again" if self.warm else "")


ABLATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "all on": ("default", {}),
    "no fusion": ("default", {"fusion": False}),
    "no tiling": ("default", {"tiling": False}),
    "no weight caching": ("default", {"weight_caching": False}),
    "with CUDA graphs": ("reduce-overhead", {}),
    "with templates": ("max-autotune-no-cudagraphs", {}),
    "with templates and CUDA graphs": ("max-autotune", {}),
}
"""Columns of a row whose mode is "ablation": framesmith's mode and options."""


def contenders(row: Row) -> Contenders:
    """Label -> peer, mode and options; the first is eager, torch.compile comes last."""
    found: Contenders = {"eager": ("eager", "default", {})}
    if row.modes == (ABLATION,):
        return found | {label: ("framesmith", mode, options) for label, (mode, options) in ABLATIONS.items()}
    for peer in ("framesmith", "torch.compile") if row.peers else ("framesmith",):
        found |= {label_of(peer, mode): (peer, mode, {}) for mode in row.modes}
    return found


def label_of(peer: str, mode: str) -> str:
    """The contender's name in the figures of a row."""
    return f"{peer}, {mode}"


def in_mode(found: Figures, mode: str) -> Figures:
    """The figures of one mode of a row, contenders by peer."""
    if mode == ABLATION or "peers" not in found:
        return found
    labels = {"eager": "eager", **{peer: label_of(peer, mode) for peer in ("framesmith", "torch.compile")}}
    rows = {peer: found["peers"].get(label) for peer, label in labels.items()}
    return {**found, "peers": {peer: figures for peer, figures in rows.items() if figures is not None}}
