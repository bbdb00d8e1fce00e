"""The models whose packages are measured: `made(name)`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks import models
from benchmarks.export import UNet

Made = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]


def _bert_base(tokens: int = 128) -> Made:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig()), (torch.randint(0, 30000, (1, tokens)),)


class Decoding(torch.nn.Module):
    """A Llama that decodes with a static cache: each call reads all positions of it and writes one."""

    def __init__(self, model: torch.nn.Module, length: int) -> None:
        super().__init__()
        from transformers import StaticCache

        self.model, config = model, model.config
        self.cache = StaticCache(config=config, max_cache_len=length)
        self.cache.early_initialization(1, config.num_key_value_heads, config.hidden_size // config.num_attention_heads,
                                        torch.float32, torch.device("cpu"))
        for i, layer in enumerate(self.cache.layers):
            for name in ("keys", "values", "cumulative_length"):
                self.register_buffer(f"{name}_{i}", getattr(layer, name))

    def forward(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """token [1, 1], position [] -> logits [1, 1, words]"""
        for layer in self.cache.layers:
            layer.cumulative_length.copy_(position)
        return self.model(token, past_key_values=self.cache, use_cache=True).logits


def _decoding() -> Made:
    return Decoding(models.named()["llama"]()[0], 256), (torch.tensor([[7]]), torch.tensor(200))


def _image(name: str) -> Made:
    import timm

    return timm.create_model(name), (torch.randn(1, 3, 224, 224),)


class Translation(torch.nn.Module):
    """T5's scores of the next token of a text, given another."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import T5Config, T5ForConditionalGeneration

        self.model = T5ForConditionalGeneration(T5Config(use_cache=False))

    def forward(self, given: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        """given [1, tokens], text [1, tokens] -> logits [1, tokens, words]"""
        return self.model(given, decoder_input_ids=text).logits


class Transcription(torch.nn.Module):
    """Whisper's scores of a text, given the sound."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import WhisperConfig, WhisperForConditionalGeneration

        self.model = WhisperForConditionalGeneration(WhisperConfig(use_cache=False))

    def forward(self, sound: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        """sound [1, 80, 3000], text [1, tokens] -> logits [1, tokens, words]"""
        return self.model(sound, decoder_input_ids=text).logits


def _quantised(name: str) -> Made:
    from torchao import quantization as q

    model, args = MODELS["bert-base"]()
    q.quantize_(model, {"int8": q.Int8WeightOnlyConfig, "int8 dynamic": q.Int8DynamicActivationInt8WeightConfig,
                        "int4": lambda: q.IntxWeightOnlyConfig(torch.int4, q.PerGroup(32))}[name]())
    return model, args


MODELS: dict[str, Callable[[], Made]] = {
    "bert-base": _bert_base,
    "bert-base-16": lambda: _bert_base(16),
    "gpt2": models.named()["gpt2"],
    "llama": models.named()["llama"],
    "llama decoding": _decoding,
    "t5-small": lambda: (Translation(), (torch.randint(0, 32000, (1, 64)), torch.randint(0, 32000, (1, 16)))),
    "whisper-tiny": lambda: (Transcription(), (torch.randn(1, 80, 3000), torch.randint(0, 50000, (1, 16)))),
    "resnet18": models.named()["resnet18"],
    "resnet50": models.named()["resnet50"],
    "mobilenetv3_small_100": models.named()["mobilenetv3_small_100"],
    "efficientnet_b0": models.named()["efficientnet_b0"],
    "convnext_tiny": lambda: _image("convnext_tiny"),
    "swin_tiny": lambda: _image("swin_tiny_patch4_window7_224"),
    "vit_tiny_patch16_224": models.named()["vit_tiny_patch16_224"],
    "u-net": lambda: (UNet(32), (torch.randn(1, 3, 192, 192),)),
    "dlrm": models.named()["dlrm"],
    "lstm": models.named()["lstm"],
}
QUANTISED = {f"bert-base {name}": "bert-base" for name in ("int8", "int8 dynamic", "int4")}
"""By torchao: the names of quantised models, and of the float model of each."""


def made(name: str) -> Made:
    """Return a model in eval mode, and its arguments."""
    torch.manual_seed(0)
    model, args = _quantised(name.partition(" ")[2]) if name in QUANTISED else MODELS[name]()
    return model.eval(), args
