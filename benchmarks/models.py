"""The twelve named models: built from configs with random weights, nothing downloaded.

`named()` maps a name to a builder; a builder returns `(model, inputs)` in eval mode, where `model(*inputs)` runs it.
Building is deterministic (each builder seeds the generator).
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch import Tensor, nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")

Model = Callable[..., object]
Build = Callable[[], tuple[nn.Module, tuple]]

_TABLE: dict[str, Build] = {}
_library: torch.library.Library | None = None


def declare_torchvision_operators() -> None:
    """Declares the operators that torchvision's meta registrations name, where its CUDA library cannot load.

    Without it `import torchvision` (and so timm, and parts of transformers) fails beside a CPU-only torch.
    """
    global _library
    if _library is not None or torch.version.cuda is not None or hasattr(torch.ops.torchvision, "nms"):
        return
    _library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


declare_torchvision_operators()


def named() -> dict[str, Build]:
    """The builders by name, in the order of the tables."""
    return dict(_TABLE)


def model(build: Build) -> Build:
    """Registers a row of the table; the row seeds, builds and puts the model into eval mode."""

    def seeded() -> tuple[nn.Module, tuple]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module, inputs = build()
        return module.eval(), inputs

    seeded.__name__ = seeded.__qualname__ = build.__name__
    seeded.__doc__ = build.__doc__
    _TABLE[build.__name__] = seeded
    return seeded


class PointwiseChain(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.sigmoid(torch.relu((x + y) * y) - x)


class Branchy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(10, 20)
        self.second = nn.Linear(20, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if x.mean() > 0:
            x = torch.relu(x)
        else:
            x = torch.sigmoid(x)
        return self.second(x)


def mlp(sizes: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for wide_in, wide_out in zip(sizes[:-1], sizes[1:], strict=True):
        layers += [nn.Linear(wide_in, wide_out), nn.ReLU()]
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    """Deep learning recommendation model (Naumov et al. 2019): embedding bags, pairwise dots, two towers."""

    def __init__(self, bags: int = 8, rows: int = 10_000, width: int = 64, dense: int = 13) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(bags))
        self.bottom = mlp([dense, 512, 256, width])
        pairs = (bags + 1) * bags // 2
        self.top = mlp([width + pairs, 512, 256])
        self.last = nn.Linear(256, 1)
        row, column = torch.tril_indices(bags + 1, bags + 1, offset=-1)
        self.register_buffer("row", row, persistent=False)
        self.register_buffer("column", column, persistent=False)

    def forward(self, dense: Tensor, indices: Tensor, offsets: Tensor) -> Tensor:
        """dense [n, 13], indices [bags, n * per_bag], offsets [bags, n] -> [n, 1]"""
        x = self.bottom(dense)
        looked_up = [bag(indices[i], offsets[i]) for i, bag in enumerate(self.bags)]
        together = torch.stack([x, *looked_up], dim=1)
        dots = torch.bmm(together, together.transpose(1, 2))
        z = torch.cat([x, dots[:, self.row, self.column]], dim=1)
        return torch.sigmoid(self.last(self.top(z)))


class TwoLayerLSTM(nn.Module):
    def __init__(self, width: int = 128, hidden: int = 256, classes: int = 10) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        out, (_, _) = self.lstm(x)
        return self.head(out[:, -1])


@model
def pointwise() -> tuple[nn.Module, tuple]:
    return PointwiseChain(), (torch.randn(2048, 2048), torch.randn(2048, 2048))


@model
def branchy() -> tuple[nn.Module, tuple]:
    return Branchy(), (torch.randn(5, 10),)


@model
def dlrm() -> tuple[nn.Module, tuple]:
    batch, per_bag, bags, rows = 128, 4, 8, 10_000
    indices = torch.randint(0, rows, (bags, batch * per_bag))
    offsets = torch.arange(0, batch * per_bag, per_bag).repeat(bags, 1)
    return DLRM(bags, rows), (torch.randn(batch, 13), indices, offsets)


@model
def lstm() -> tuple[nn.Module, tuple]:
    return TwoLayerLSTM(), (torch.randn(4, 32, 128),)


@model
def bert() -> tuple[nn.Module, tuple]:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(num_hidden_layers=6)
    return BertForMaskedLM(config), (torch.randint(0, config.vocab_size, (1, 128)),)


@model
def gpt2() -> tuple[nn.Module, tuple]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=6)
    return GPT2LMHeadModel(config), (torch.randint(0, config.vocab_size, (1, 128)),)


@model
def llama() -> tuple[nn.Module, tuple]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=8,
        vocab_size=32_000,
    )
    return LlamaForCausalLM(config), (torch.randint(0, config.vocab_size, (1, 128)),)


def _timm(name: str, size: int = 224) -> tuple[nn.Module, tuple]:
    import timm

    return timm.create_model(name, pretrained=False), (torch.randn(1, 3, size, size),)


@model
def resnet18() -> tuple[nn.Module, tuple]:
    return _timm("resnet18")


@model
def resnet50() -> tuple[nn.Module, tuple]:
    return _timm("resnet50")


@model
def mobilenetv3_small_100() -> tuple[nn.Module, tuple]:
    return _timm("mobilenetv3_small_100")


@model
def efficientnet_b0() -> tuple[nn.Module, tuple]:
    return _timm("efficientnet_b0")


@model
def vit_tiny_patch16_224() -> tuple[nn.Module, tuple]:
    return _timm("vit_tiny_patch16_224")
