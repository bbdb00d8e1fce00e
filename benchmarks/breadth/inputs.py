"""Keyword arguments for a model, by the names of its forward's parameters and its configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.breadth.case import NoModel
from benchmarks.breadth.families import BOXED, CHANNELS, FRAMES
from benchmarks.breadth.patches import grid, patches, shapes
from benchmarks.breadth.shrinking import IMAGE, VOCABULARY
from benchmarks.breadth.sizes import now

VARIANTS = 5
_RESERVED = 5  # tokens below are padding, beginning, end; those above VOCABULARY - 10 stand for pictures and the like


def setting(config: Any, *names: str, default: Any = None) -> Any:
    """The first of the settings that `config` or one of its sub-configurations has and that is not None."""
    for name in names:
        for part in (config, *(getattr(config, k, None) for k in getattr(config, "sub_configs", {}))):
            if getattr(part, name, None) is not None:
                return getattr(part, name)
    return default


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def tokens(model: nn.Module, fewer: int = 0) -> Tensor:
    """[batch, length - fewer], none of them reserved."""
    top = min(setting(model.config, "vocab_size", default=VOCABULARY), VOCABULARY) - 10
    sizes = now().batch, now().length - fewer
    return torch.randint(_RESERVED, max(top, _RESERVED + 2), sizes, generator=_generator())


def _normal(*sizes: int) -> Tensor:
    """[batch, *sizes]"""
    return torch.randn(now().batch, *sizes, generator=_generator())


def _side(config: Any) -> tuple[int, int]:
    size = setting(config, "image_size", "img_size", default=IMAGE)
    return _sides(size, size) if isinstance(size, int) else _sides(*tuple(size)[-2:])


def _sides(height: int, width: int) -> tuple[int, int]:
    return now().scaled(height), now().scaled(width)


def pictures(model: nn.Module, side: int | None = None) -> Tensor:
    """[batch, channels, height, width]."""
    sides = _side(model.config) if side is None else _sides(side, side)
    return _normal(setting(model.config, "num_channels", "in_channels", "in_chans", default=3), *sides)


def _spectrum(model: nn.Module) -> Tensor:
    config = model.config
    bins = setting(config, "num_mel_bins", "input_feat_per_channel", "feature_size", "input_dim", default=80)
    positions = setting(config, "max_source_positions", default=32)
    return _normal(bins, 2 * positions) if hasattr(config, "max_source_positions") else _normal(now().time(64), bins)


def _series(model: nn.Module) -> Tensor:
    """[batch, time] where the model looks back by lags, else [batch, time, channels]."""
    length = setting(model.config, "context_length", "seq_length", default=32)
    if (lags := setting(model.config, "lags_sequence")) is not None:
        return _normal(length + max(lags))
    return _normal(length, setting(model.config, "num_input_channels", default=1))


def _hidden(model: nn.Module) -> Tensor:
    return _normal(now().length, setting(model.config, "hidden_size", "d_model", default=32))


# By parameter; what a signature names beyond these must have a default.
_MAKERS: dict[str, Callable[[nn.Module], Any]] = {
    "input_ids": tokens,
    "decoder_input_ids": lambda m: tokens(m, 5),
    "pixel_values": pictures,
    "pixel_values_videos": lambda m: _normal(setting(m.config, "num_frames", "frames_per_clip", default=4), 3,
                                             *_side(m.config)),
    "input_features": _spectrum,
    "input_values": lambda m: _normal(now().time(800)),
    "hidden_states": _hidden,
    "inputs_embeds": _hidden,
    "noise_embeds": _hidden,
    "context_hidden_states": _hidden,
    "encoder_hidden_states": _hidden,
    "latents": lambda m: _normal(setting(m.config, "hidden_size", default=32), now().length),
    "inputs": tokens,
    "state": lambda m: _normal(setting(m.config, "max_state_dim", default=32)),
    "states": lambda m: _normal(now().length, setting(m.config, "state_dim", default=17)),
    "actions": lambda m: _normal(now().length, setting(m.config, "act_dim", default=4)),
    "rewards": lambda m: _normal(now().length, 1),
    "returns_to_go": lambda m: _normal(now().length, 1),
    "timesteps": lambda m: torch.arange(now().length).expand(now().batch, now().length),
    "flattened_patches": lambda m: torch.cat([torch.arange(1, 17)[:, None].repeat(now().batch, 1, 2).float(),
                                              _normal(16, setting(m.config, "patch_embed_hidden_size",
                                                                         default=768))], -1),
    "past_values_padding": lambda m: torch.zeros(now().batch, setting(m.config, "context_length", default=32),
                                                 dtype=torch.long),
    "freq": lambda m: torch.zeros(now().batch, 1, dtype=torch.long),
    "prompt_pixel_values": pictures,
    "prompt_masks": pictures,
    "high_res_pixel_values": lambda m: pictures(m, setting(m.config, "high_res_image_size", default=64)),
    "is_longer": lambda m: torch.arange(now().batch)[:, None] % 2 == 1,
    "visual_feats": lambda m: _normal(5, setting(m.config, "visual_feat_dim", default=2048)),
    "visual_pos": lambda m: _normal(5, setting(m.config, "visual_pos_dim", default=4)),
    "grid_thw": lambda m: grid(),
    "image_grid_thw": lambda m: grid(),
    "target_sizes": lambda m: shapes(),
    "spatial_shapes": lambda m: shapes(),
    "image_sizes": lambda m: torch.tensor([_side(m.config)] * now().batch),
    "merge_sizes": lambda m: torch.full((now().batch,), 2),
    "image_merge_sizes": lambda m: torch.full((now().batch,), 2),
    "classes_input_ids": lambda m: tokens(m, 7),
    "classes_structure": lambda m: torch.ones(now().batch, dtype=torch.long),
    "tasks_input_ids": lambda m: tokens(m, 7),
    "past_values": lambda m: _series(m),
    "past_time_features": lambda m: _series(m)[..., None],
    "query_embeds": lambda m: _normal(6, setting(m.config, "hidden_size", default=32)),
    "qformer_input_ids": tokens,
}  # fmt: skip

# Parameters that have a default, and are given where a signature has them: without them the model refuses, or leaves
# out a part.
_OPTIONAL = (
    "image_grid_thw", "image_sizes", "spatial_shapes", "image_merge_sizes", "target_sizes", "high_res_pixel_values",
    "is_longer",
    "visual_feats", "visual_pos", "actions", "rewards", "returns_to_go", "timesteps",
)  # fmt: skip
# The same for what most do without: not given at first.
_LATER = ("encoder_hidden_states", "input_features")
# What comes as patches if the signature names one of these.
_GRIDS = frozenset({"grid_thw", "image_grid_thw", "target_sizes", "spatial_shapes"})
_PATCHED = ("hidden_states", "pixel_values")


# Other shapes of the same things, for a model that does not take the first: dimensions for frames, tiles or channels;
# other orders, sizes.
_OTHER: dict[str, tuple[Callable[[nn.Module], Any], ...]] = {
    "pixel_values": (lambda m: pictures(m)[:, None].repeat(1, 2 if hasattr(m.config, "image_grid_pinpoints") else 1, 1,
                                                           1, 1),
                     lambda m: pictures(m, 64), lambda m: pictures(m, 224)),
    "pixel_values_videos": (lambda m: _normal(4, 3, *_sides(64, 64)),
                            lambda m: _normal(4, 3, *_sides(336, 336))),
    "input_values": (lambda m: _normal(1, now().time(6400)), lambda m: _normal(now().time(6400)),
                     lambda m: _normal(setting(m.config, "max_length", default=64),
                                       setting(m.config, "num_mel_bins", default=16))),
    "input_features": (lambda m: _spectrum(m).transpose(1, 2),
                       lambda m: _normal(1, now().time(64), setting(m.config, "num_mel_bins", default=64)),
                       lambda m: _normal(now().time(64), setting(m.config, "num_mel_bins", "input_feat_per_channel",
                                                            default=80))),
    "hidden_states": (lambda m: _hidden(m).transpose(1, 2), lambda m: _normal(1, now().time(6400))),
    "latents": (lambda m: _hidden(m),),
    "input_ids": (tokens, lambda m: _codes(m, tokens(m), False), lambda m: _codes(m, tokens(m), True)),
}


def _codes(model: nn.Module, ids: Tensor, rows: bool) -> Tensor:
    """A token of each codebook, and of the text, at each place; or, `rows`, a row for each codebook."""
    books = setting(model.config, "num_codebooks")
    if books is None:
        return ids
    return ids.repeat(books, 1) if rows else ids[..., None].repeat(1, 1, books + 1)


def _made(model: nn.Module, parameter: str, parameters: Any, variant: int) -> Any:
    if parameter in _PATCHED and not _GRIDS.isdisjoint(parameters):
        return patches(model, flat=variant != 1, batched="spatial_shapes" in parameters)
    others = _OTHER.get(parameter, ())
    make = _MAKERS.get(parameter) if variant == 0 or not others else others[min(variant, len(others)) - 1]
    if make is None:
        raise NoModel(f"no rule makes its input {parameter}")
    return make(model)


def _mask(ids: Tensor) -> Tensor:
    """All ones, but for padding at the end of the last row."""
    mask = torch.ones_like(ids)
    mask[-1, -3:] = 0
    return mask


def _boxes(ids: Tensor) -> Tensor:
    """A box of four corners, left to right and top to bottom, for each token."""
    corners = torch.randint(0, 30, (*ids.shape, 2), generator=_generator())
    return torch.cat([corners, corners + 9], -1)


def _count(features: Any) -> int:
    """How many tokens stand for one picture, by the features of all."""
    found = getattr(features, "pooler_output", features)
    if isinstance(found, (list, tuple)):
        return sum(f.shape[:-1].numel() for f in found) // now().batch
    return found.shape[:-1].numel() // now().batch


def _with_pictures(model: nn.Module, made: dict[str, Any]) -> None:
    """As many tokens that stand for a picture as the model makes features of it."""
    token = setting(model.config, "image_token_id", "image_token_index")
    body = next((m for m in model.modules() if hasattr(m, "get_image_features")), None)
    if token is None or body is None or "input_ids" not in made or "pixel_values" not in made:
        return
    accepted = inspect.signature(body.get_image_features).parameters
    with torch.no_grad():
        features = body.get_image_features(**{k: v for k, v in made.items() if k in accepted and k != "input_ids"})
    text, pictures = made["input_ids"], torch.full((now().batch, _count(features)), token)
    start = setting(model.config, "vision_start_token_id")
    before = text[:, :0] if start is None else torch.full((now().batch, 1), start)
    made["input_ids"] = torch.cat([text[:, :3], before, pictures, text[:, 3:]], 1)
    if "mm_token_type_ids" in inspect.signature(type(model).forward).parameters:
        made["mm_token_type_ids"] = (made["input_ids"] == token).int()
        _with_positions(model, made)


def _with_positions(model: nn.Module, made: dict[str, Any]) -> None:
    """The positions that `generate` prepares and gives to forward: rows and columns for what stands for a picture."""
    body = next((m for m in model.modules() if hasattr(m, "get_rope_index")), None)
    if body is not None:
        accepted = inspect.signature(body.get_rope_index).parameters
        made["position_ids"] = body.get_rope_index(**{k: v for k, v in made.items() if k in accepted})[0]


def _wanted(model: nn.Module, parameters: Any, variant: int) -> list[str]:
    """Main inputs, what has no default, and decoder tokens."""
    main = model.main_input_name
    wanted = [main] if isinstance(main, str) else list(main)
    wanted += [p.name for p in list(parameters.values())[1:]
               if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD or p.name in ("input_ids", "pixel_values")]
    if model.config.is_encoder_decoder and "decoder_input_ids" in parameters:
        wanted.append("decoder_input_ids")
    if variant < VARIANTS - 1:
        wanted += [name for name in (*_OPTIONAL, *(_LATER if variant else ())) if name in parameters]
    return list(dict.fromkeys(wanted))


_MASKED = {
    "classes_attention_mask": "classes_input_ids", "tasks_attention_mask": "tasks_input_ids",
    "past_observed_mask": "past_values",
    "input_features_mask": "input_features", "audio_mel_mask": "audio_mel", "pixel_attention_mask": "pixel_values",
}  # fmt: skip


def _masks(made: dict[str, Any], parameters: Any) -> None:
    """Masks of ones over what is not text."""
    for mask, of in _MASKED.items():
        required = mask in parameters and (parameters[mask].default is inspect.Parameter.empty
                                           or mask != "pixel_attention_mask")
        if of in made and (required or mask in parameters and "spatial_shapes" in parameters):
            made[mask] = torch.ones(made[of].shape if of == "past_values" else made[of].shape[:2], dtype=torch.long)


def inputs(name: str, model: nn.Module, variant: int = 0) -> dict[str, Any]:
    """What `model` is called with: its main inputs, what it cannot do without, decoder tokens, a mask over text.

    `variant`: which of the shapes that models of its kind may take.
    """
    parameters = inspect.signature(type(model).forward).parameters
    made: dict[str, Any] = {"use_cache": False} if variant == VARIANTS - 1 and "use_cache" in parameters else {}
    wanted = _wanted(model, parameters, variant)
    variant %= VARIANTS - 1
    for parameter in wanted:
        if not parameter.endswith("_mask"):
            made[parameter] = _made(model, parameter, parameters, variant)
    _masks(made, parameters)
    if name in FRAMES and variant == 0:
        made["pixel_values"] = made["pixel_values"][:, None].repeat(1, FRAMES[name], 1, 1, 1)
    if name in CHANNELS and variant == 0:
        made["input_values"] = made["input_values"][:, None]
    if name in BOXED:
        made["bbox"] = _boxes(made["input_ids"])
    _with_pictures(model, made)
    if "attention_mask" in parameters and set(made) <= {"input_ids", "decoder_input_ids", "use_cache"}:
        ids = made["input_ids"]
        made["attention_mask"] = _mask(ids if ids.dim() == 2 else ids[..., 0])
    elif "use_cache" in made and "attention_mask" in parameters and "input_ids" in made:
        made["attention_mask"] = torch.ones_like(made["input_ids"])
    return made
