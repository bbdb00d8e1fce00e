"""Every architecture of the installed transformers for which rules and fixes give a tiny model, with random weights and
no downloads."""

from __future__ import annotations  # noqa: I001 - what transformers imports looks for operators that the benchmark's models declare

import copy
import functools
import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import benchmarks.models  # noqa: F401 - and no network
import transformers
from benchmarks.breadth.case import Case, NoModel, seeded
from benchmarks.breadth.families import NO_MODEL, SETTINGS
from benchmarks.breadth.inputs import VARIANTS, inputs
from benchmarks.breadth.shrinking import DEGREES, small
from transformers.models.auto import modeling_auto as tables
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

# The heads that may stand for an architecture: the first that can be built and called; in the order of the tables that
# know them.
_TABLES = (
    "FOR_CAUSAL_LM", "FOR_MASKED_LM", "FOR_SEQ_TO_SEQ_CAUSAL_LM", "FOR_SPEECH_SEQ_2_SEQ", "FOR_IMAGE_TEXT_TO_TEXT",
    "FOR_MULTIMODAL_LM",
    "FOR_IMAGE_CLASSIFICATION", "FOR_OBJECT_DETECTION", "FOR_UNIVERSAL_SEGMENTATION", "FOR_SEMANTIC_SEGMENTATION",
    "FOR_DEPTH_ESTIMATION",
    "FOR_CTC", "FOR_AUDIO_CLASSIFICATION", "FOR_VIDEO_CLASSIFICATION", "FOR_ZERO_SHOT_IMAGE_CLASSIFICATION",
)  # fmt: skip
_MOST_PARAMETERS = 400_000_000, 40_000_000, 40_000_000  # by degree
_MOST_HEADS = 3


@functools.cache
def _classes() -> dict[str, list[str]]:
    """Class names by model type; a first class that stands for several types is listed under the first of them."""
    by_type: dict[str, list[str]] = {}
    for table in (*(f"MODEL_{t}_MAPPING_NAMES" for t in _TABLES), "MODEL_MAPPING_NAMES"):
        for kind, head in getattr(tables, table).items():
            by_type.setdefault(kind, []).append(head if isinstance(head, str) else head[0])
    seen: set[str] = set()
    return {kind: heads for kind, heads in sorted(by_type.items()) if not (heads[0] in seen or seen.add(heads[0]))}


def names() -> list[str]:
    """Model types, one per architecture."""
    return list(_classes())


@dataclass(frozen=True)
class _Fit:
    """A way to build and call an architecture: a head, how little its configuration is shrunk, and the shape of its
    inputs."""

    head: str
    degree: int
    variant: int

    def build(self, name: str) -> nn.Module:
        return self.model_class(self.config(name))

    @property
    def model_class(self) -> Any:
        cls = getattr(transformers, self.head, None)
        if cls is None:
            raise NoModel("named in the tables of transformers, but not there")
        return cls

    def config(self, name: str) -> Any:
        """Of the class that the head names: a model of text has the configuration of the text."""
        return small(self.model_class.config_class or CONFIG_MAPPING[name], degree=self.degree,
                     **copy.deepcopy(SETTINGS.get(name, {})))

    def is_small(self, name: str) -> bool:
        """Whether few numbers are to be made; where that cannot be told without data, the smallest sizes are taken to
        be small."""
        try:
            with torch.device("meta"):
                return sum(p.numel() for p in self.build(name).parameters()) <= _MOST_PARAMETERS[self.degree]
        except Exception:
            return self.degree == 0


@functools.lru_cache(maxsize=1)
def _fit(name: str) -> _Fit:
    """The first way that works; where none does, the problem of the first."""
    if (reason := NO_MODEL.get(name)) is not None:
        raise NoModel(reason)
    first: Exception | None = None
    for head, degree in itertools.product(dict.fromkeys(_classes()[name][:_MOST_HEADS]), range(DEGREES)):
        fit = _Fit(head, degree, 0)
        try:
            if not fit.is_small(name):
                raise NoModel(f"more than {_MOST_PARAMETERS[degree]} parameters")
            model = seeded(lambda fit=fit: fit.build(name))  # type: ignore[misc]
        except Exception as problem:
            first = first or problem
            continue
        for variant in range(VARIANTS):
            try:
                with torch.no_grad():
                    model(**inputs(name, model, variant))
                return _Fit(head, degree, variant)
            except Exception as problem:
                first = first or problem
    assert first is not None
    raise first


def case(name: str) -> Case:
    """The architecture of a model type."""
    return Case(name, lambda: seeded(lambda: _fit(name).build(name)),
                lambda model: inputs(name, model, _fit(name).variant))
