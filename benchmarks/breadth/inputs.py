"""Keyword arguments for a model, by the names of its forward's parameters and its configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.breadth.case import NoModel
from benchmarks.breadth.families import BOXED, CHANNELS, FRAMES
from benchmarks.breadth.shrinking import IMAGE, VOCABULARY

BATCH, LENGTH = 2, 12
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


def tokens(model: nn.Module, length: int = LENGTH) -> Tensor:
    """[2, length], none of them reserved."""
    top = min(setting(model.config, "vocab_size", default=VOCABULARY), VOCABULARY) - 10
    return torch.randint(_RESERVED, max(top, _RESERVED + 2), (BATCH, length), generator=_generator())


def _normal(*sizes: int) -> Tensor:
    return torch.randn(*sizes, generator=_generator())


def _side(config: Any) -> tuple[int, int]:
    size = setting(config, "image_size", "img_size", default=IMAGE)
    return (size, size) if isinstance(size, int) else tuple(size)[-2:]  # type: ignore[return-value]


def pictures(model: nn.Module) -> Tensor:
    """[2, channels, height, width]."""
    return _normal(BATCH, setting(model.config, "num_channels", "in_channels", "in_chans", default=3), *_side(model.config))


def _spectrum(model: nn.Module) -> Tensor:
    config = model.config
    bins = setting(config, "num_mel_bins", "input_feat_per_channel", "feature_size", "input_dim", default=80)
    positions = setting(config, "max_source_positions", default=32)
    return _normal(BATCH, bins, 2 * positions) if "max_source_positions" in config else _normal(BATCH, 64, bins)


def _series(model: nn.Module) -> Tensor:
    """[2, time] where the model looks back by lags, else [2, time, channels]."""
    length = setting(model.config, "context_length", "seq_length", default=32)
    if (lags := setting(model.config, "lags_sequence")) is not None:
        return _normal(BATCH, length + max(lags))
    return _normal(BATCH, length, setting(model.config, "num_input_channels", default=1))


# By parameter; what a signature names beyond these must have a default.
_MAKERS: dict[str, Callable[[nn.Module], Any]] = {
    "input_ids": tokens,
    "decoder_input_ids": lambda m: tokens(m, 7),
    "pixel_values": pictures,
    "pixel_values_videos": lambda m: _normal(BATCH, setting(m.config, "num_frames", "frames_per_clip", default=4), 3, *_side(m.config)),
    "input_features": _spectrum,
    "input_values": lambda m: _normal(BATCH, 800),
    "hidden_states": lambda m: _normal(BATCH, LENGTH, setting(m.config, "hidden_size", default=32)),
    "inputs_embeds": lambda m: _normal(BATCH, LENGTH, setting(m.config, "hidden_size", default=32)),
    "past_values": lambda m: _series(m),
    "past_time_features": lambda m: _series(m)[..., None],
    "past_observed_mask": lambda m: torch.ones_like(_series(m)),
    "query_embeds": lambda m: _normal(BATCH, 6, setting(m.config, "hidden_size", default=32)),
    "qformer_input_ids": tokens,
}  # fmt: skip


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
        return sum(f.shape[:-1].numel() for f in found) // BATCH
    return found.shape[:-1].numel() // BATCH


def _with_pictures(model: nn.Module, made: dict[str, Any]) -> None:
    """As many tokens that stand for a picture as the model makes features of it."""
    token = setting(model.config, "image_token_id", "image_token_index")
    body = next((m for m in model.modules() if hasattr(m, "get_image_features")), None)
    if token is None or body is None or "input_ids" not in made or "pixel_values" not in made:
        return
    accepted = inspect.signature(body.get_image_features).parameters
    with torch.no_grad():
        features = body.get_image_features(**{k: v for k, v in made.items() if k in accepted and k != "input_ids"})
    text, pictures = made["input_ids"], torch.full((BATCH, _count(features)), token)
    made["input_ids"] = torch.cat([text[:, :3], pictures, text[:, 3:]], 1)


def _wanted(model: nn.Module, parameters: Any) -> list[str]:
    """Main inputs, what has no default, and decoder tokens."""
    main = model.main_input_name
    wanted = [main] if isinstance(main, str) else list(main)
    wanted += [p.name for p in list(parameters.values())[1:]
               if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD or p.name in ("input_ids", "pixel_values")]
    if model.config.is_encoder_decoder and "decoder_input_ids" in parameters:
        wanted.append("decoder_input_ids")
    return list(dict.fromkeys(wanted))


def inputs(name: str, model: nn.Module) -> dict[str, Any]:
    """What `model` is called with: its main inputs, what it cannot do without, decoder tokens, a mask over text."""
    parameters = inspect.signature(type(model).forward).parameters
    made: dict[str, Any] = {}
    for parameter in _wanted(model, parameters):
        if parameter not in _MAKERS:
            raise NoModel(f"no rule makes its input {parameter}")
        made[parameter] = _MAKERS[parameter](model)
    if name in FRAMES:
        made["pixel_values"] = made["pixel_values"][:, None].repeat(1, FRAMES[name], 1, 1, 1)
    if name in CHANNELS:
        made["input_values"] = made["input_values"][:, None]
    if name in BOXED:
        made["bbox"] = _boxes(made["input_ids"])
    _with_pictures(model, made)
    if "attention_mask" in parameters and set(made) <= {"input_ids", "decoder_input_ids"}:
        made["attention_mask"] = _mask(made["input_ids"])
    return made
