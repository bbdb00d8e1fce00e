"""The table of rows: what each operator is in ONNX."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from framesmith.export.operators import LIBRARIES, SETS
from framesmith.util.tables import entry

aten = torch.ops.aten
NAME = "onnx"
ROWS: dict[Any, Callable[..., Any]] = {}
"""target -> a function of the emitter and the call's arguments, tensors and sizes as values, that gives its value, or
a tuple of values. It raises `NoForm` for arguments that ONNX cannot say."""
FAMILIES: dict[Any, str] = {}
"""target -> the family that its row is of."""


def row(family: str, *targets: Any) -> Any:
    """Register a row for targets, or for those of them that this version of PyTorch has."""
    FAMILIES.update(dict.fromkeys(targets, family))
    return entry(ROWS, *targets)


def _belongs(target: Any) -> bool:
    """Return whether an exported graph keeps an operator whole: it has a row, or is another library's."""
    return target in ROWS or target is operator.getitem or (
        isinstance(target, torch._ops.OpOverload) and target.namespace != "aten" and target.name() not in LIBRARIES)


SETS[NAME] = _belongs
