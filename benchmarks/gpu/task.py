"""What is measured of a model: a call without gradients, or forward, loss and backward, in one precision."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import framesmith
from benchmarks.gpu import models
from benchmarks.peers import flat_tensors

PRECISIONS = ("bf16", "tf32")


@dataclass
class Task:
    """`model(*inputs)`, in `precision`: "bf16" is autocast, "tf32" float32 with products in TF32."""

    model: nn.Module
    inputs: tuple[Any, ...]
    training: bool
    precision: str

    @staticmethod
    def named(name: str, training: bool, precision: str) -> Task:
        """The same name gives equal tensors each time."""
        model, inputs = models.named()[name]()
        if hasattr(model, "keep_in"):
            model.keep_in(torch.bfloat16 if precision == "bf16" else torch.float32)
        model.train(training)
        if training and not any(True for _ in model.parameters()):
            inputs = tuple([x.requires_grad_() for x in inputs])
        return Task(model, inputs, training, precision)

    def copy(self) -> Task:
        return Task(copy.deepcopy(self.model), self.inputs, self.training, self.precision)

    def in_double(self) -> list[Tensor]:
        """What the results would be."""
        wide = Task(copy.deepcopy(self.model).double(), tuple(map(_double, self.inputs)), self.training, "tf32")
        return wide.results(wide.step(wide.model))

    def leaves(self) -> list[Tensor]:
        """What gets a gradient."""
        return [*self.model.parameters(), *[x for x in self.inputs if isinstance(x, Tensor) and x.requires_grad]]

    def contexts(self) -> tuple[torch.set_grad_enabled, torch.autocast]:
        """Gradients and autocast as the task says: enter both at once."""
        return torch.set_grad_enabled(self.training), torch.autocast("cuda", torch.bfloat16,
                                                                     enabled=self.precision == "bf16")

    def step(self, model: Callable[..., Any]) -> Callable[[], Any]:
        """One call of `model`, which computes what the task's model does."""
        leaves = self.leaves() if self.training else []

        def call() -> Any:
            gradients, casts = self.contexts()
            with gradients, casts:
                out = model(*self.inputs)
            if self.training:
                loss = flat_tensors(out)[0]
                for leaf in leaves:
                    leaf.grad = None
                loss.to(torch.promote_types(loss.dtype, torch.float32)).square().mean().backward()
            return out

        return call

    def results(self, call: Callable[[], Any]) -> list[Tensor]:
        """What a step gives: its output, and with training the gradients."""
        out = flat_tensors(call())[:1]
        return [t.detach().clone() for t in [*out, *[leaf.grad for leaf in self.leaves() if leaf.grad is not None]]]


def _double(x: Any) -> Any:
    if isinstance(x, Tensor) and x.dtype.is_floating_point:
        return x.detach().double().requires_grad_(x.requires_grad)
    return x


def compiled(peer: str, mode: str, model: nn.Module, options: dict[str, Any] | None = None) -> Callable[..., Any]:
    """The model as a contender calls it; `options` are framesmith's alone."""
    if peer == "eager":
        return model
    if peer == "framesmith":
        return framesmith.compile(model, mode=mode, options=options)
    return torch.compile(model, mode=None if mode == "default" else mode)


def error(got: list[Tensor], true: list[Tensor]) -> float:
    """Largest relative error of a tensor, in the Frobenius norm; a norm counts as at least a thousandth of the largest
    one (gradients that are zero in exact arithmetic are not)."""
    norms = [t.double().norm().item() for t in true]
    least = max(norms) / 1e3
    worst = 0.0
    for g, t, norm in zip(got, true, norms, strict=True):
        found = (g.double() - t.double()).norm().item() / max(norm, least, 1e-30)
        worst = max(worst, found) if found == found else float("inf")
    return worst
