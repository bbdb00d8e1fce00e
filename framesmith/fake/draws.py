"""Comparisons of random numbers with a constant outcome: `torch.rand([]) < 0.0` is False."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from framesmith.fake.recording import Recording
from framesmith.fake.tensor import FakeTensor

_aten = torch.ops.aten
_DRAWN = frozenset({_aten.rand.default, _aten.rand_like.default})
_EXACT = (torch.float32, torch.float64)
"""Dtypes in which a number below one is not rounded to one."""


def _below(number: float) -> bool | None:
    """Return whether all numbers of [0, 1) are below `number`; None if some are."""
    return False if number <= 0 else True if number >= 1 else None


def _up_to(number: float) -> bool | None:
    return False if number < 0 else True if number >= 1 else None


_COMPARISONS: dict[Any, tuple[Callable[[float], bool | None], bool]] = {
    _aten.lt.Scalar: (_below, True), _aten.ge.Scalar: (_below, False), _aten.le.Scalar: (_up_to, True),
    _aten.gt.Scalar: (_up_to, False),
}  # fmt: skip
"""The test on the constant, and the outcome of the comparison if it holds."""


def decided(rec: Recording, fake: FakeTensor) -> bool | None:
    """Return the truth of `fake` if it compares one random number with a constant that decides it, else None."""
    node = rec.nodes(fake)
    test, meaning = _COMPARISONS.get(node.target, (None, True))
    if test is None or fake.numel() != 1:
        return None
    drawn, number = node.args
    if not (isinstance(drawn, Node) and drawn.target in _DRAWN and drawn.meta["val"].dtype in _EXACT
            and isinstance(number, float | int)):
        return None
    found = test(number)
    return None if found is None else found is meaning
