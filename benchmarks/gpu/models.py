"""The models of the GPU tables: built from configs with random weights on the device, nothing downloaded.

`named()` maps a name to a builder of `(model, inputs)`; building is deterministic.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks import models as small
from benchmarks.gpu.decoding import Decoder
from benchmarks.gpu.diffusion import DiffusionUNet

Build = Callable[[], tuple[nn.Module, tuple]]
_TABLE: dict[str, Build] = {}
DEVICE = "cuda"
INFERENCE_ONLY = frozenset(("decoding",))


def named() -> dict[str, Build]:
    """The builders by name, in the order of the tables."""
    return dict(_TABLE)


def model(build: Build) -> Build:
    """Registers a row: seeds, builds on the device, drops nothing out, evaluation mode."""

    def seeded() -> tuple[nn.Module, tuple]:
        torch.manual_seed(0)
        with torch.device(DEVICE):
            module, inputs = build()
        for part in module.modules():
            if isinstance(part, nn.modules.dropout._DropoutNd):
                part.p = 0.0
        return module.to(DEVICE).eval(), tuple([x.to(DEVICE) if isinstance(x, Tensor) else x for x in inputs])

    _TABLE[build.__name__] = seeded
    return seeded


class Chain(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.sigmoid(torch.relu((x + y) * y) - x)


@model
def pointwise() -> tuple[nn.Module, tuple]:
    return Chain(), (torch.randn(8192, 8192), torch.randn(8192, 8192))


def _ids(vocabulary: int, batch: int, length: int) -> Tensor:
    return torch.randint(0, vocabulary, (batch, length))


def _bert(batch: int, length: int) -> tuple[nn.Module, tuple]:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig()
    return BertForMaskedLM(config), (_ids(config.vocab_size, batch, length),)


@model
def bert_b16() -> tuple[nn.Module, tuple]:
    return _bert(16, 512)


@model
def bert_b1() -> tuple[nn.Module, tuple]:
    return _bert(1, 128)


@model
def gpt2() -> tuple[nn.Module, tuple]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(use_cache=False)
    return GPT2LMHeadModel(config), (_ids(config.vocab_size, 8, 512),)


@model
def llama() -> tuple[nn.Module, tuple]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=2048, intermediate_size=5504, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=16,
        vocab_size=32_000,
        use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config), (_ids(config.vocab_size, 4, 512),)


@model
def t5() -> tuple[nn.Module, tuple]:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(d_model=768, d_ff=3072, num_layers=12, num_heads=12, use_cache=False)

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = T5ForConditionalGeneration(config)

        def forward(self, ids: Tensor, after: Tensor) -> Tensor:
            return self.model(input_ids=ids, decoder_input_ids=after).logits

    return Pair(), (_ids(config.vocab_size, 8, 512), _ids(config.vocab_size, 8, 128))


@model
def whisper() -> tuple[nn.Module, tuple]:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        d_model=768, encoder_layers=12, decoder_layers=12, encoder_attention_heads=12, decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072, use_cache=False,
    )  # fmt: skip

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = WhisperForConditionalGeneration(config)

        def forward(self, features: Tensor, ids: Tensor) -> Tensor:
            return self.model(input_features=features, decoder_input_ids=ids).logits

    return Pair(), (torch.randn(4, 80, 3000), _ids(config.vocab_size, 4, 64))


def _timm(name: str, batch: int) -> tuple[nn.Module, tuple]:
    import timm

    return timm.create_model(name, pretrained=False), (torch.randn(batch, 3, 224, 224),)


@model
def resnet50() -> tuple[nn.Module, tuple]:
    return _timm("resnet50", 64)


@model
def vit() -> tuple[nn.Module, tuple]:
    return _timm("vit_base_patch16_224", 64)


@model
def mobilenetv3() -> tuple[nn.Module, tuple]:
    return _timm("mobilenetv3_large_100", 64)


@model
def convnext() -> tuple[nn.Module, tuple]:
    return _timm("convnext_tiny", 32)


@model
def swin() -> tuple[nn.Module, tuple]:
    return _timm("swin_tiny_patch4_window7_224", 32)


@model
def dlrm() -> tuple[nn.Module, tuple]:
    batch, per_bag, bags, rows = 4096, 4, 8, 100_000
    indices = torch.randint(0, rows, (bags, batch * per_bag))
    offsets = torch.arange(0, batch * per_bag, per_bag).repeat(bags, 1)
    return small.DLRM(bags, rows), (torch.randn(batch, 13), indices, offsets)


class Unrolled(nn.Module):
    """A recurrent cell, 200 steps written out."""

    def __init__(self, width: int = 256, steps: int = 200) -> None:
        super().__init__()
        self.cell, self.steps = nn.RNNCell(width, width), steps

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        for t in range(self.steps):
            h = self.cell(x[t], h)
        return h


@model
def rnn() -> tuple[nn.Module, tuple]:
    return Unrolled(), (torch.randn(200, 64, 256), torch.zeros(64, 256))


@model
def diffusion() -> tuple[nn.Module, tuple]:
    return DiffusionUNet(), (torch.randn(2, 4, 64, 64), torch.tensor([500, 500]), torch.randn(2, 77, 768))


@model
def decoding() -> tuple[nn.Module, tuple]:
    return Decoder(), (_ids(32_000, 1, 1), torch.tensor([512]))
