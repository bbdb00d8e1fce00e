"""Models over many sizes, for `benchmarks.dynamic`: how each is built, and the inputs of its calls."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Inputs = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """`about`: the model and its sizes in words; `build` makes the model, `sizes` the inputs of each call. `every`: one
    of so many sizes is timed. `trains`: a call is a step of training, its result a gradient."""

    about: str
    build: Callable[[], Any]
    sizes: Callable[[random.Random], list[Inputs]]
    every: int = 1
    trains: bool = False


def _tokens(count: int, batch: int, length: int, mask: bool) -> Callable[[random.Random], list[Inputs]]:
    def sizes(rng: random.Random) -> list[Inputs]:
        pairs = [(rng.randint(1, batch), rng.randint(1, length)) for _ in range(count)]
        return [{"input_ids": torch.randint(0, 1000, pair),
                 **({"attention_mask": torch.ones(pair, dtype=torch.long)} if mask else {})} for pair in pairs]

    return sizes


def _images(rng: random.Random) -> list[Inputs]:
    return [{"x": torch.randn(rng.randint(1, 4), 3, side, side)} for side in range(64, 256, 16)]


def _bert() -> Any:
    import transformers
    config = transformers.BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
                                     intermediate_size=1024, vocab_size=1000)
    return transformers.BertModel(config)


def _gpt2() -> Any:
    import transformers
    config = transformers.GPT2Config(n_embd=256, n_layer=4, n_head=4, vocab_size=1000, use_cache=False)
    return transformers.GPT2Model(config)


class _Decoder(torch.nn.Module):
    """One token more of GPT-2, given the keys and values of those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = _gpt2()

    def forward(self, input_ids: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        from transformers import DynamicCache
        cache = DynamicCache(list(zip(keys.unbind(), values.unbind())))
        out: torch.Tensor = self.model(input_ids=input_ids, past_key_values=cache, use_cache=True)[0]
        return out


def _cached(rng: random.Random) -> list[Inputs]:
    return [{"input_ids": torch.randint(0, 1000, (1, 1)), "keys": torch.randn(4, 1, 4, length, 64),
             "values": torch.randn(4, 1, 4, length, 64)} for length in range(1, 201)]


def _whisper() -> Any:
    import transformers
    config = transformers.WhisperConfig(
        d_model=256, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=1024, decoder_ffn_dim=1024, vocab_size=1000, max_source_positions=200, use_cache=False,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)
    return transformers.WhisperModel(config)


def _spoken(rng: random.Random) -> list[Inputs]:
    return [{"input_features": torch.randn(2, 80, 400), "decoder_input_ids": torch.randint(0, 1000, (2, length))}
            for length in rng.sample(range(2, 200), 20)]


def _resnet() -> Any:
    import timm
    return timm.create_model("resnet18")


def _bert_base() -> Any:
    import transformers
    return transformers.BertModel(transformers.BertConfig(vocab_size=1000))


def _llama() -> Any:
    import transformers
    config = transformers.LlamaConfig(hidden_size=1024, num_hidden_layers=8, num_attention_heads=16,
                                      num_key_value_heads=4, intermediate_size=2816, vocab_size=1000, use_cache=False)
    return transformers.LlamaModel(config)


def _resnet50() -> Any:
    import timm
    return timm.create_model("resnet50")


def _pictures(rng: random.Random) -> list[Inputs]:
    return [{"x": torch.randn(rng.randint(1, 16), 3, side, side)}
            for side in (rng.randrange(64, 260, 4) for _ in range(40))]


CPU_CASES = {
    "bert": Case("BERT (4 layers, 256 wide), 40 pairs of batch 1…16 and length 1…512", _bert,
                 _tokens(40, 16, 512, True)),
    "gpt2": Case("GPT-2 (4 layers, 256 wide), 20 pairs of batch 1…8 and length 1…256", _gpt2,
                 _tokens(20, 8, 256, False)),
    "decode": Case("GPT-2 (4 layers, 256 wide), 200 tokens, each with the cache of those before it", _Decoder, _cached,
                   every=20),
    "whisper": Case("Whisper (2 + 2 layers, 256 wide), 20 lengths 2…200 of the text", _whisper, _spoken),
    "bert-training": Case("BERT (4 layers, 256 wide), forward and backward, 12 pairs of batch 1…8 and length 1…256",
                          _bert, _tokens(12, 8, 256, True), trains=True),
    "resnet18": Case("ResNet-18, 12 resolutions 64…240, batch 1…4", _resnet, _images),
}

GPU_CASES = {
    "bert": Case("BERT-base, 40 pairs of batch 1…16 and length 1…512", _bert_base, _tokens(40, 16, 512, True), every=4),
    "llama": Case("Llama (8 layers, 1,024 wide), 40 pairs of batch 1…16 and length 1…512", _llama,
                  _tokens(40, 16, 512, False), every=4),
    "resnet50": Case("ResNet-50, 40 pairs of batch 1…16 and resolution 64…256", _resnet50, _pictures, every=4),
}
