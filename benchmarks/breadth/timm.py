"""The architectures of the installed timm: of each family of names the smallest variant, on small pictures, with random
weights."""

from __future__ import annotations  # noqa: I001 - torchvision, which timm imports, looks for operators that the benchmark's models declare

import functools
import inspect
import re
from typing import Any

import torch
from torch import nn

import benchmarks.models  # noqa: F401 - and no network
import timm
from benchmarks.breadth.case import Case, NoModel, seeded
from benchmarks.breadth.sizes import now

# Words in a name that say how large a variant is, the smallest first; a family's names differ in these and in numbers
# alone.
_SIZES = (
    "zepto", "atto", "femto", "pico", "nano", "n", "xxs", "xxtiny", "pwee", "dpwee", "wee", "dwee", "xs", "xx", "xtiny",
    "xsmall", "ti",
    "tiny", "t", "mini", "little", "dlittle", "s", "small", "m", "medium", "mediumd", "betwixt", "b", "base", "so",
    "plus", "tall", "wide",
    "short", "c", "d", "e", "f", "k", "a", "kobe", "l", "large", "xl", "xlarge", "xxl", "xxlarge", "x", "h", "huge",
    "g", "giant",
    "giantopt", "gigantic", "big",
)  # fmt: skip
_RANK = {word: rank for rank, word in enumerate(_SIZES)}
_SIDES = (64, 96, 128, 160, 192, 224, 256, 288, 336, 384, 448)
_DEPTH = 2


def _words(name: str) -> list[str]:
    """The words of a name without numbers, but for the generation: resnetv2 is no resnet."""
    return [w if re.fullmatch(r"[a-z]+v\d", w) else re.sub(r"\d+", "", w) for w in name.split("_")]


def _size(name: str) -> tuple[Any, ...]:
    """What sorts the variants of a family."""
    billions = re.search(r"_(\d+)b_", name)
    return billions is not None, [_RANK[w] for w in _words(name)
                                  if w in _RANK], list(map(int, re.findall(r"\d+", name))), name


@functools.cache
def names() -> list[str]:
    """The smallest name of each family in each of timm's modules of models."""
    families: dict[tuple[str, ...], list[str]] = {}
    for module in timm.list_modules():
        for name in timm.list_models(module=module):
            family = module, *(w for w in _words(name) if w and w not in _RANK)
            families.setdefault(family, []).append(name)
    return sorted(min(variants, key=_size) for variants in families.values())


def _pictures(side: int, device: str = "cpu") -> torch.Tensor:
    """[batch, 3, height, width]"""
    side = now().scaled(side)
    return torch.randn(now().batch, 3, side, side, generator=torch.Generator().manual_seed(0)).to(device)


_UNFIT = (TypeError, AssertionError, ValueError, RuntimeError, KeyError, AttributeError)
"""What timm's models raise where an argument or a size does not fit them."""


def _takes(name: str, settings: dict[str, Any], side: int, device: str) -> Exception | None:
    """Why the model cannot be built with `settings` or takes no pictures of this side; None if it can and does."""
    try:
        with torch.device(device), torch.no_grad():
            timm.create_model(name, **settings).eval()(_pictures(side, device))
    except _UNFIT as problem:
        return problem
    return None


@functools.lru_cache(maxsize=1)
def _fit(name: str) -> tuple[dict[str, Any], int]:
    """(arguments, side of the pictures): few blocks if the number can be chosen, and the smallest pictures that the
    model takes.

    Tried without data first, which costs next to nothing; some models want to see data.
    """
    problem: Exception | None = None
    for device in ("meta", "cpu"):
        for depth in ({"depth": _DEPTH}, {}):
            for side in _SIDES:
                for settings in ({**depth, "img_size": side}, depth):
                    problem = _takes(name, settings, side, device)
                    if problem is None:
                        return settings, side
                if depth and "depth" in str(problem):
                    break
    raise NoModel(f"no size fits: {type(problem).__name__}: {problem}")


def _inputs(name: str, model: nn.Module) -> dict[str, Any]:
    return {next(iter(inspect.signature(model.forward).parameters)): _pictures(_fit(name)[1])}


def case(name: str) -> Case:
    """The architecture of a name that `timm.create_model` knows."""
    return Case(name, lambda: seeded(lambda: timm.create_model(name, **_fit(name)[0])),
                lambda model: _inputs(name, model))
