"""Keyword arguments for a model, by the names of its forward's parameters and its configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.breadth.case import NoModel
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
    "past_values": lambda m: _normal(BATCH, setting(m.config, "context_length", "seq_length", default=32),
                                     setting(m.config, "num_input_channels", default=1)),
}  # fmt: skip


def _mask(ids: Tensor) -> Tensor:
    """All ones, but for padding at the end of the last row."""
    mask = torch.ones_like(ids)
    mask[-1, -3:] = 0
    return mask


def inputs(name: str, model: nn.Module) -> dict[str, Any]:
    """What `model` is called with: its main inputs, what it cannot do without, decoder tokens, a mask over text."""
    parameters = inspect.signature(type(model).forward).parameters
    main = model.main_input_name
    wanted = [main] if isinstance(main, str) else list(main)
    wanted += [p.name for p in list(parameters.values())[1:]
               if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD or p.name in ("input_ids", "pixel_values")]
    if model.config.is_encoder_decoder and "decoder_input_ids" in parameters:
        wanted.append("decoder_input_ids")
    made: dict[str, Any] = {}
    for parameter in dict.fromkeys(wanted):
        if parameter not in _MAKERS:
            raise NoModel(f"no rule makes its input {parameter}")
        made[parameter] = _MAKERS[parameter](model)
    if "attention_mask" in parameters and set(made) <= {"input_ids", "decoder_input_ids"}:
        made["attention_mask"] = _mask(made["input_ids"])
    return made
