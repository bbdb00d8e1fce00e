"""Small configurations of transformers' architectures, made by rules over the names of their settings."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

VOCABULARY = 99
IMAGE = 32
_WIDTH, _LAYERS, _HEADS, _INNER = 32, 2, 4, 64

# The first pattern that matches a setting's whole name gives its value, if the setting's default is an int (or None
# where it may be one).
_RULES: tuple[tuple[str, int], ...] = (
    (r"(?:.*_)?vocab_size|vocab_size_.*|n_vocab|.*_vocab", VOCABULARY),
    (r"decoder_start_token_id|bos_token_id|.*_bos_token_id", 2),
    (r"eos_token_id|.*_eos_token_id|sep_token_id|eod_token_id", 3),
    (r"pad_token_id|.*_pad_token_id", 1),
    (r"(?:image|media|boi_image)_token_(?:id|index)|im_patch_id|image_patch_id", VOCABULARY - 1),
    (r"video_token_(?:id|index)", VOCABULARY - 2),
    (r"audio_token_(?:id|index)", VOCABULARY - 3),
    (r"(?:vision|image|boi|img)_?start_token_(?:id|index)|boi_token_(?:id|index)", VOCABULARY - 4),
    (r"(?:vision|image|eoi|img)_?end_token_(?:id|index)|eoi_token_(?:id|index)", VOCABULARY - 5),
    (r".*_token_(?:id|index)", 4),
    (r"num_key_value_heads|n_kv_heads|num_kv_heads|swa_num_key_value_heads|multi_query_group_num", 2),
    (r"(?:.*_)?(?:num_attention_heads|n_heads?|num_heads|attention_heads"
     r"|num_self_attention_heads|num_cross_attention_heads)", _HEADS),
    (r"(?:.*_)?head_dim|d_kv|d_head|attention_head_size|(?:.*_)?head_size", 8),
    (r"qk_rope_head_dim|qk_nope_head_dim|v_head_dim|index_head_dim", 8),
    (r"kv_lora_rank|q_lora_rank|.*lora_rank|lora_.*_dim", 16),
    (r"(?:num_)?(?:.*_)?(?:hidden_layers|encoder_layers|decoder_layers"
     r"|n_layers?|num_layers|adapter_layers|attention_layers)", _LAYERS),
    (r"n_layer|depth|num_blocks|encoder_depth|decoder_depth|num_encoder_blocks_per_stage", _LAYERS),
    (r"(?:.*_)?(?:intermediate_size|ffn_dim|ffn_size|feedforward_dim|feed_forward_hidden_size|ff_dim|intermediate_dim)|d_ff|d_inner"
     r"|n_inner|dim_feedforward", _INNER),
    (r"(?:.*_)?(?:hidden_size|hidden_dim|embed_dim|embedding_size|embedding_dim|d_model|n_embd|emb_dim|lm_hidden_dim|model_dim)|dim"
     r"|hidden_sizes|projector_dim|projection_dim|out_hidden_size|projection_size"
     r"|feature_size|mask_feature_size|fpn_feature_size", _WIDTH),
    (r"image_size|img_size|pretrain_image_size|max_img_size", IMAGE),
    (r"num_mel_bins|feature_projection_input_dim", 16),
    (r"sliding_window|window_size|attention_window|local_attention|attention_chunk_size|sliding_window_size", 8),
    (r"(?:num_|n_)?(?:local_|routed_|moe_num_)?experts|num_local_experts|n_routed_experts|moe_num_experts", 4),
    (r"num_experts_per_tok|moe_topk|moe_top_k|top_k_experts", 2),
    (r"n_group|topk_group|n_groups", 1),
    (r"num_queries|num_query_tokens|latent_query_num", 6),
    (r"num_codevectors_per_group", 8),
    (r"codebook_size", 16),
    (r"num_conv_pos_embeddings", 16),
    (r"num_conv_pos_embedding_groups|upsample_groups", 2),
    (r"xvector_output_dim|classifier_proj_size|codevector_dim|proj_codevector_dim|conv_hidden_size", 16),
    (r"max_position_embeddings|n_positions|max_source_positions|max_target_positions|max_seq_len", 128),
)  # fmt: skip
_COMPILED = tuple((re.compile(pattern), value) for pattern, value in _RULES)


# What a class sets for one of its parts beyond the part's own defaults is kept, if it is of these types.
_KEPT = (str, bool, float)
_LAYER_KINDS = ("layer_types", "layers_block_type", "block_types", "layers_types", "hybrid_layer_types")
_WIDTHS = re.compile(
    r"(?:.*_)?(?:hidden_size|hidden_dim|embed_dim|d_model|intermediate_size|num_attention_heads|num_heads|head_dim)|depth")


_COUNTS = re.compile(r".*layers?|depth|.*vocab.*|.*_token_(?:id|index)|.*experts.*|.*_id|num_blocks|.*_depth")
DEGREES = 3


def _rule(name: str) -> int | None:
    return next((value for pattern, value in _COMPILED if pattern.fullmatch(name)), None)


def _value(config: PreTrainedConfig, name: str) -> Any:
    """The setting, None where the configuration refuses to give one."""
    try:
        return getattr(config, name, None)
    except Exception:  # one that may vary over layers: the message says to ask elsewhere
        return None


def _layers(like: PreTrainedConfig) -> int:
    """So many that each kind of layer occurs, if eight are enough."""
    for name in _LAYER_KINDS:
        kinds = _value(like, name)
        if isinstance(kinds, (list, tuple)) and kinds:
            return min((n for n in range(_LAYERS, 9) if set(kinds[:n]) == set(kinds)), default=_LAYERS)
    return _LAYERS


def _pyramid(like: PreTrainedConfig) -> bool:
    """Whether sizes are given stage by stage, so that widths hang together."""
    return any(isinstance(_value(like, n), (list, tuple))
               for n in ("num_heads", "num_attention_heads", "hidden_sizes", "depths"))


def _size(name: str, value: int, like: PreTrainedConfig, degree: int) -> int | None:
    if (_pyramid(like) or degree > 0) and _WIDTHS.fullmatch(name) or degree > 1 and not _COUNTS.fullmatch(name):
        return None
    size = _rule(name)
    if size is None or name.endswith(("_id", "_index")):
        return size
    if name == "window_size" and _value(like, "patch_size") or size == _LAYERS and _named_stages(like) > _LAYERS:
        return None
    if size == IMAGE and isinstance(patch := _value(like, "patch_size"), int) and patch >= IMAGE:
        size = 4 * patch
    if name == "num_key_value_heads" and value == _value(like, "num_attention_heads"):
        return _HEADS
    if size == _LAYERS and "layers" in name:
        size = _layers(like)
    return min(size, value)


def _named_stages(like: PreTrainedConfig) -> int:
    """The last of the stages whose results a backbone gives."""
    names = _value(like, "out_features")
    return max((int(n) for name in names for n in re.findall(r"\d+$", name)),
               default=0) if isinstance(names, (list, tuple)) else 0


def _stages(name: str, value: Any) -> Any:
    """Two layers a stage at the most."""
    return type(value)(min(2, v) for v in value) if name == "depths" and all(type(v) is int for v in value) else None


def _rope(value: dict[str, Any]) -> dict[str, Any] | None:
    """Sections of a rotary embedding that share out half a head."""
    return {**value, "mrope_section": [2, 1, 1]} if "mrope_section" in value else None


def _setting(field: dataclasses.Field[Any], value: Any, like: PreTrainedConfig, degree: int) -> Any:
    """The small value of a setting; None to leave it to the class."""
    if type(value) is int and type(field.default) in (int, type(None)):
        return _size(field.name, value, like, degree)
    if isinstance(value, (list, tuple)):
        if field.name == "image_grid_pinpoints":
            return [[IMAGE, IMAGE]]
        kept = degree > 0 and value != field.default and not field.name.startswith("_")
        return value if kept else _stages(field.name, value)
    if isinstance(value, dict):
        return _rope(value) if field.name.startswith("rope") else None
    if value is None and field.name == "head_dim" and degree == 0 and _value(like, "num_attention_heads"):
        return _rule("head_dim")
    return value if type(value) in _KEPT and value != field.default and not field.name.startswith("_") else None


def _flat_rope(like: PreTrainedConfig) -> bool:
    """Whether all layers share one rotary embedding."""
    parameters = _value(like, "rope_parameters") or {}
    return not any(isinstance(part, dict) or part in (_value(like, "layer_types") or ()) for item in parameters.items()
                   for part in item)


def _speaks_of(cls: type[PreTrainedConfig], word: str) -> bool:
    """Whether the text of the model's module has a word."""
    module = importlib.util.find_spec(cls.__module__.replace("configuration_", "modeling_"))
    return module is not None and module.origin is not None and word in Path(module.origin).read_text()


def small(cls: type[PreTrainedConfig], like: PreTrainedConfig | None = None, degree: int = 0,
          **settings: Any) -> PreTrainedConfig:
    """A configuration of `cls` with small sizes; `settings` (also of sub-configurations, as dictionaries) prevail.

    `degree` 1 leaves widths as they are, which hang together in ways of their own; 2 all but the numbers of layers,
    tokens and experts.

    Sub-configurations have the classes that they have in `like` (default: `cls()`), so that a family keeps its usual
    parts.
    """
    like = cls() if like is None else like
    chosen: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        own = settings.pop(field.name, None)
        value = _value(like, field.name)
        if isinstance(value, PreTrainedConfig) and (own is None or isinstance(own, dict)):
            chosen[field.name] = small(type(value), value, degree, **(own or {}))
        elif (new := own if own is not None else _setting(field, value, like, degree)) is not None:
            chosen[field.name] = new
    if _named_stages(like):
        chosen["out_features"] = list(_value(like, "out_features"))
    if not degree and "rope_parameters" in (f.name for f in dataclasses.fields(cls)) and _flat_rope(like) \
            and _speaks_of(cls, "mrope_section"):
        chosen.setdefault("rope_parameters",
                          {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]})
    return cls(**chosen, **settings)
