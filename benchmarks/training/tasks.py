"""What is trained: the named models in train mode, dropout off, each with its loss, and what a step of it is."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import models, peers
from benchmarks.training import nets

Criterion = Callable[[Any], Tensor]
Optimizer = Callable[[Iterable[Tensor]], torch.optim.Optimizer]


class Loss(nn.Module):
    """The model and its loss as one module: `module(*inputs)` is a scalar."""

    def __init__(self, model: nn.Module, criterion: Criterion, labelled: bool) -> None:
        super().__init__()
        self.model = model
        self.criterion = criterion
        self.labelled = labelled

    def forward(self, *inputs: Tensor) -> Tensor:
        out = self.model(*inputs, labels=inputs[0]) if self.labelled else self.model(*inputs)
        return self.criterion(out)


@dataclass
class Task:
    """`module(*inputs)` is the loss. A step is: gradients to None, forward, loss, backward, and the optimiser's step if
    there is one."""

    module: nn.Module
    inputs: tuple[Tensor, ...]
    optimizer: Optimizer | None = None

    def copy(self) -> Task:
        return copy.deepcopy(self)

    def leaves(self) -> dict[str, Tensor]:
        """What gets a gradient, by name."""
        return dict(self.module.named_parameters()) | {f"input {i}": x for i,
                                                       x in enumerate(self.inputs) if x.requires_grad}

    def forget_gradients(self) -> None:
        for leaf in self.leaves().values():
            leaf.grad = None

    def step(self, peer: str, **options: Any) -> Callable[[], None]:
        """One training step by a peer: it compiles the loss, or with an optimiser the whole step."""
        if self.optimizer is not None:
            return peers.build(peer, self._whole(self.optimizer), (), **options)
        leaves = list(self.leaves().values())
        loss = peers.build(peer, self.module, self.inputs, **options)

        def step() -> None:
            for leaf in leaves:
                leaf.grad = None
            loss().backward()

        return step

    def whole(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """What a compiler is given, and its arguments."""
        return (self.module, self.inputs) if self.optimizer is None else (self._whole(self.optimizer), ())

    def _whole(self, make: Optimizer) -> Callable[[], None]:
        module, inputs, optimizer = self.module, self.inputs, make(self.module.parameters())

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            module(*inputs).backward()
            optimizer.step()

        return step


def mean_of_squares(out: Tensor) -> Tensor:
    return out.square().mean()


def cross_entropy(out: Tensor) -> Tensor:
    """Against the class that the position in the batch (and in the image) gives: [n, classes, ...] -> scalar."""
    target = torch.arange(out.numel() // out.shape[1]).view(out.shape[0], *out.shape[2:]) % out.shape[1]
    return F.cross_entropy(out, target)


def clicks(out: Tensor) -> Tensor:
    """Every second one clicked: [n, 1] -> scalar."""
    return F.binary_cross_entropy(out, (torch.arange(out.shape[0]) % 2).to(out.dtype).unsqueeze(1))


def own_loss(out: Any) -> Tensor:
    """What a model of transformers makes of its labels."""
    return out.loss


# Which loss a model is trained with; where not said, the mean of squares.
CRITERIA: dict[str, Criterion] = {
    "dlrm": clicks, "lstm": cross_entropy, "bert": own_loss, "gpt2": own_loss, "llama": own_loss,
    "resnet18": cross_entropy,
    "mobilenetv3_small_100": cross_entropy, "efficientnet_b0": cross_entropy, "vit_tiny_patch16_224": cross_entropy,
    "unet": cross_entropy,
}  # fmt: skip
OPTIMIZERS: dict[str, Optimizer] = {"adam": torch.optim.Adam,
                                    "fused adam": functools.partial(torch.optim.Adam, fused=True)}
BUILDERS = {**models.named(), "unet": nets.unet, "mlp": nets.mlp}
NAMES = (*BUILDERS, *(f"mlp+{optimizer}" for optimizer in OPTIMIZERS))


def task(name: str) -> Task:
    """The task of a name among `NAMES` ("mlp+adam": of the model, with the optimiser). The same name gives equal
    tensors each time."""
    model_name, _, optimizer = name.partition("+")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, inputs = BUILDERS[model_name]()
    for part in model.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
    if not any(True for _ in model.parameters()):
        inputs = tuple(x.requires_grad_() for x in inputs)
    criterion = CRITERIA.get(model_name, mean_of_squares)
    return Task(Loss(model, criterion, criterion is own_loss).train(), inputs, OPTIMIZERS.get(optimizer))
