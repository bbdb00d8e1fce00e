"""Tiny models of many architectures, built from configs with random weights; nothing is downloaded.

`TRANSFORMERS` and `TIMM` map a name to a `Row`: `build()` gives the model in eval mode, `inputs(large)` keyword
arguments for it, where `large=True` has another batch size and, for sequences, another length.
"""

from __future__ import annotations  # noqa: I001 - the benchmark's models declare operators that timm's imports look for

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import benchmarks.models  # noqa: F401
import timm
import transformers

Inputs = Callable[[bool], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Row:
    """`build`: the model in eval mode; `inputs`: its keyword arguments, for the first size or the second; `whole`: one
    graph, no break."""

    build: Callable[[], nn.Module]
    inputs: Inputs
    whole: bool = True


TRANSFORMERS: dict[str, Row] = {}
TIMM: dict[str, Row] = {}

VOCABULARY = 99
_SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
          "intermediate_size": 64}


def _seeded(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def seeded() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = build().eval()
            _spread(module)
            return module

    return seeded


def _spread(module: nn.Module) -> None:
    """Make what initialisation leaves constant or next to nothing count: a zero gate, layer scale or head would hide
    errors."""
    for value in [*module.parameters(), *module.buffers()]:
        if not value.is_floating_point() or value.numel() < 2:
            continue
        if (value == value.flatten()[0]).all():
            value.data += torch.rand_like(value) * 0.2
        elif value.dim() > 1 and value.std() < 0.005:
            value.data *= 0.05 / value.std()


def tokens(large: bool) -> Tensor:
    """Token numbers, [2, 12] or [3, 20]; none of the reserved ones."""
    generator = torch.Generator().manual_seed(int(large))
    return torch.randint(5, VOCABULARY, (3, 20) if large else (2, 12), generator=generator)


def text(large: bool) -> dict[str, Any]:
    return {"input_ids": tokens(large)}


def masked_text(large: bool) -> dict[str, Any]:
    """Tokens with padding at the end of the last row."""
    ids = tokens(large)
    mask = torch.ones_like(ids)
    mask[-1, -4:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def pairs(large: bool) -> dict[str, Any]:
    """Encoder and decoder tokens."""
    return {"input_ids": tokens(large), "decoder_input_ids": tokens(large)[:, :7].contiguous()}


def pixels(size: int, name: str = "pixel_values") -> Inputs:
    def inputs(large: bool) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(int(large))
        return {name: torch.randn(3 if large else 2, 3, size, size, generator=generator)}

    return inputs


def pictures_and_text(large: bool) -> dict[str, Any]:
    return {**masked_text(large), **pixels(32)(large)}


def spectrum(large: bool) -> dict[str, Any]:
    """Whisper's: 80 mel bands, twice the encoder's positions; the length is fixed, the batch varies."""
    generator = torch.Generator().manual_seed(int(large))
    return {
        "input_features": torch.randn(3 if large else 2, 80, 60, generator=generator),
        "decoder_input_ids": tokens(large)[:, :7].contiguous(),
    }


def waveform(large: bool) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(int(large))
    return {"input_values": torch.randn(3 if large else 2, 900 if large else 640, generator=generator)}


def _transformer(name: str, head: str, inputs: Inputs = text, family: str | None = None, **settings: Any) -> None:
    """A row: class `head`, config class `<family>Config`, the small sizes where `settings` do not say otherwise."""

    def build() -> nn.Module:
        config = getattr(transformers,
                         (family or head.split("For")[0].removesuffix("Model").removesuffix("LMHead")) + "Config")
        return getattr(transformers, head)(config(**settings))

    TRANSFORMERS[name] = Row(_seeded(build), inputs, name not in _WITH_BREAKS)


def _small(name: str, head: str, inputs: Inputs = text, family: str | None = None, **settings: Any) -> None:
    _transformer(name, head, inputs, family, **{**_SMALL, **settings})


# The first slices by the value of a tensor that a scripted function returns; the second scans under a function
# transform.
_WITH_BREAKS = ("deberta", "mamba")

_SEQ2SEQ = {
    "vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "pad_token_id": 1,
}  # fmt: skip
_VISION = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
_CLIP = {"text_config": {**_SMALL, "eos_token_id": 98}, "vision_config": _VISION, "projection_dim": 16}
_SPEECH = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "conv_dim": (16, 16, 16),
    "conv_stride": (4, 2, 2), "conv_kernel": (8, 3, 2), "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2, "vocab_size": 32,
}  # fmt: skip

_small("albert", "AlbertForMaskedLM", masked_text, embedding_size=16)
_transformer("bart", "BartForConditionalGeneration", pairs, **_SEQ2SEQ)
_transformer("bloom", "BloomForCausalLM", masked_text, vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4)
_small("camembert", "CamembertForMaskedLM", masked_text)
_transformer("clip", "CLIPModel", pictures_and_text, **_CLIP)
_small("cohere", "CohereForCausalLM", num_key_value_heads=2)
_small("convbert", "ConvBertForMaskedLM", embedding_size=32)
_small("deberta", "DebertaForMaskedLM", masked_text, relative_attention=True, pos_att_type=["p2c", "c2p"])
_small(
    "deberta_v2", "DebertaV2ForMaskedLM", masked_text, relative_attention=True, pos_att_type=["p2c",
    "c2p"], position_buckets=8,
)
_transformer(
    "distilbert", "DistilBertForMaskedLM", masked_text, vocab_size=VOCABULARY, dim=32, n_layers=2,
    n_heads=4, hidden_dim=64,
)
_small("electra", "ElectraForMaskedLM", masked_text, embedding_size=16)
_small("ernie", "ErnieForMaskedLM", masked_text)
_small("falcon", "FalconForCausalLM", masked_text, bos_token_id=1, eos_token_id=2)
_small("fnet", "FNetForMaskedLM")
_transformer(
    "funnel", "FunnelForMaskedLM", vocab_size=VOCABULARY, d_model=32, n_head=4, d_head=8,
    d_inner=64, block_sizes=[1, 1], num_decoder_layers=1,
)
_small("gemma", "GemmaForCausalLM", num_key_value_heads=2, head_dim=8, pad_token_id=0)
_small("gemma2", "Gemma2ForCausalLM", num_key_value_heads=2, head_dim=8, pad_token_id=0, sliding_window=8)
_small(
    "gemma3", "Gemma3ForCausalLM", family="Gemma3Text", num_key_value_heads=2, head_dim=8, pad_token_id=0,
    sliding_window=8,
)
_transformer(
    "gpt_neo", "GPTNeoForCausalLM", vocab_size=VOCABULARY, hidden_size=32, num_layers=2,
    num_heads=4, attention_types=[[["global", "local"], 1]], window_size=8,
)
_small("gpt_neox", "GPTNeoXForCausalLM")
_transformer("gptj", "GPTJForCausalLM", vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, rotary_dim=4)
_small("granite", "GraniteForCausalLM", num_key_value_heads=2)
_transformer("hubert", "HubertModel", waveform, **_SPEECH)
_small("layoutlm", "LayoutLMForMaskedLM", masked_text)
_transformer("mamba", "MambaForCausalLM", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=4)
_transformer("m2m_100", "M2M100ForConditionalGeneration", pairs, **_SEQ2SEQ)
_small("mistral", "MistralForCausalLM", masked_text, num_key_value_heads=2, sliding_window=8)
_small("mixtral", "MixtralForCausalLM", num_key_value_heads=2, num_local_experts=4)
_small(
    "mobilebert", "MobileBertForMaskedLM", masked_text, embedding_size=32, intra_bottleneck_size=32,
    true_hidden_size=32,
)
_small("mpnet", "MPNetForMaskedLM", masked_text)
_small("olmo", "OlmoForCausalLM", eos_token_id=2, pad_token_id=1)
_transformer(
    "opt", "OPTForCausalLM", masked_text, vocab_size=VOCABULARY, hidden_size=32,
    num_hidden_layers=2, num_attention_heads=4, ffn_dim=64, word_embed_proj_dim=32,
)
_transformer("pegasus", "PegasusForConditionalGeneration", pairs, **_SEQ2SEQ)
_small("phi", "PhiForCausalLM")
_small("phi3", "Phi3ForCausalLM", pad_token_id=0)
_small("qwen2", "Qwen2ForCausalLM", masked_text, num_key_value_heads=2)
_small("qwen3", "Qwen3ForCausalLM", num_key_value_heads=2, head_dim=8)
_small("roberta", "RobertaForMaskedLM", masked_text)
_small("roformer", "RoFormerModel", masked_text, family="RoFormer", embedding_size=32)
_small("squeezebert", "SqueezeBertForMaskedLM", masked_text, embedding_size=32)
_small("stablelm", "StableLmForCausalLM", num_key_value_heads=4)
_small("starcoder2", "Starcoder2ForCausalLM", num_key_value_heads=2)
_transformer(
    "t5", "T5ForConditionalGeneration", pairs, vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64,
    num_layers=2, num_heads=4,
)
_transformer("vit", "ViTForImageClassification", pixels(32), **_VISION)
_transformer("wav2vec2", "Wav2Vec2Model", waveform, **_SPEECH)
_transformer(
    "whisper", "WhisperForConditionalGeneration", spectrum, **{**_SEQ2SEQ,
    "max_source_positions": 30, "decoder_start_token_id": 2, "eos_token_id": 2, "bos_token_id": 2},
)
_small("xlm_roberta", "XLMRobertaForMaskedLM", masked_text)
_transformer(
    "xlnet", "XLNetLMHeadModel", masked_text, vocab_size=VOCABULARY, d_model=32, n_layer=2,
    n_head=4, d_inner=64,
)


def _timm(name: str, size: int, **settings: Any) -> None:
    """A row: timm's architecture `name` at `size` pixels, with `settings` that make it small."""

    def build() -> nn.Module:
        return timm.create_model(name, pretrained=False, num_classes=10, **settings)

    TIMM[name] = Row(_seeded(build), pixels(size, "x"))


_timm("beit_base_patch16_224", 64, img_size=64, embed_dim=64, depth=2, num_heads=2)
_timm("cait_xxs24_224", 64, img_size=64, depth=2, embed_dim=64, num_heads=2)
_timm("convnext_atto", 64)
_timm("convnextv2_atto", 64)
_timm("convmixer_1024_20_ks9_p14", 56)
_timm("deit_tiny_distilled_patch16_224", 64, img_size=64, depth=2)
_timm("dla34", 64)
_timm("dpn48b", 64)
_timm("eca_resnet33ts", 64)
_timm("edgenext_xx_small", 64)
_timm("efficientformer_l1", 224, depths=(1, 1, 1, 2))
_timm("fbnetc_100", 64)
_timm("gernet_s", 64)
_timm("ghostnet_100", 64)
_timm("gmlp_ti16_224", 64, img_size=64)
_timm("hrnet_w18_small", 64)
_timm("inception_v3", 96)
_timm("lcnet_050", 64)
_timm("levit_128s", 64, img_size=64)
_timm("maxvit_rmlp_pico_rw_256", 64, img_size=64)
_timm("mixer_s32_224", 64, img_size=64)
_timm("mnasnet_100", 64)
_timm("mobilevit_xxs", 64)
_timm("nf_resnet26", 64)
_timm("pit_ti_224", 64, img_size=64)
_timm("poolformer_s12", 64)
_timm("pvt_v2_b0", 64)
_timm("regnety_002", 64)
_timm("repvgg_a0", 64)
_timm("resmlp_12_224", 64, img_size=64)
_timm("resnest14d", 64)
_timm("resnet50", 64)
_timm("resnext26ts", 64)
_timm("sebotnet33ts_256", 64, img_size=64)
_timm("seresnet18", 64)
_timm("skresnet18", 64)
_timm("swin_tiny_patch4_window7_224", 56, img_size=56, depths=(2, 2), num_heads=(2, 4), embed_dim=32)
_timm("swinv2_tiny_window8_256", 64, img_size=64, depths=(2, 2), num_heads=(2, 4), embed_dim=32)
_timm("tf_efficientnet_b0", 64)
_timm("tinynet_e", 64)
_timm("tnt_s_patch16_224", 64, img_size=64, depth=2)
_timm("twins_svt_small", 64, img_size=64)
_timm("vgg11_bn", 64)
_timm("vit_relpos_small_patch16_224", 64, img_size=64, depth=2)
_timm("volo_d1_224", 64, img_size=64)
_timm("xception41", 96)
_timm("xcit_nano_12_p16_224", 64, img_size=64, depth=2)
