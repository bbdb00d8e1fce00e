"""Every architecture of the installed transformers for which rules and fixes give a tiny model, with random weights and no downloads."""

from __future__ import annotations  # noqa: I001 - what transformers imports looks for operators that the benchmark's models declare

import functools

from torch import nn

import benchmarks.models  # noqa: F401 - and no network
import transformers
from benchmarks.breadth.case import Case, NoModel, seeded
from benchmarks.breadth.families import NO_MODEL, SETTINGS
from benchmarks.breadth.inputs import inputs
from benchmarks.breadth.shrinking import small
from transformers.models.auto import modeling_auto as tables
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

# The head that stands for an architecture: the first table that knows it.
_TABLES = (
    "FOR_CAUSAL_LM", "FOR_MASKED_LM", "FOR_SEQ_TO_SEQ_CAUSAL_LM", "FOR_SPEECH_SEQ_2_SEQ", "FOR_IMAGE_TEXT_TO_TEXT", "FOR_MULTIMODAL_LM",
    "FOR_IMAGE_CLASSIFICATION", "FOR_OBJECT_DETECTION", "FOR_UNIVERSAL_SEGMENTATION", "FOR_SEMANTIC_SEGMENTATION", "FOR_DEPTH_ESTIMATION",
    "FOR_CTC", "FOR_AUDIO_CLASSIFICATION", "FOR_VIDEO_CLASSIFICATION", "FOR_ZERO_SHOT_IMAGE_CLASSIFICATION",
)  # fmt: skip


@functools.cache
def _classes() -> dict[str, str]:
    """Class name by model type; a class that stands for several types is listed under the first."""
    by_type: dict[str, str] = {}
    for table in (*(f"MODEL_{t}_MAPPING_NAMES" for t in _TABLES), "MODEL_MAPPING_NAMES"):
        for kind, head in getattr(tables, table).items():
            by_type.setdefault(kind, head if isinstance(head, str) else head[0])
    seen: set[str] = set()
    return {kind: head for kind, head in sorted(by_type.items()) if not (head in seen or seen.add(head))}


def names() -> list[str]:
    """Model types, one per architecture."""
    return list(_classes())


def _build(name: str) -> nn.Module:
    if (reason := NO_MODEL.get(name)) is not None:
        raise NoModel(reason)
    cls = getattr(transformers, _classes()[name])
    config = small(CONFIG_MAPPING[name], **SETTINGS.get(name, {}))
    return cls(config)


def case(name: str) -> Case:
    """The architecture of a model type."""
    return Case(name, lambda: seeded(lambda: _build(name)), lambda model: inputs(name, model))
