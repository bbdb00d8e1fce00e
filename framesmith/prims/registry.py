"""The table of decompositions: one row an ATen overload, filled by the family files of `prims/rules`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from framesmith.util.tables import entry

Rule = Callable[..., Any]

rules: dict[Any, Rule] = {}
aten = torch.ops.aten


def decomposes(*overloads: Any) -> Callable[[Rule], Rule]:
    """Register a rule for ATen overloads.

    It is called as `rule(builder, *args, **kwargs)` with values in place of tensors and returns a value, a tuple of
    values (None where the op gives none), or NotImplemented: the call then stays as it is, an extern call.
    """
    assert rules.keys().isdisjoint(overloads), overloads
    return entry(rules, *overloads)


def overload(path: str) -> Any:
    """Return an ATen overload by "name.overload", or None where this version of PyTorch has none."""
    name, _, variant = path.partition(".")
    packet = getattr(aten, name, None)
    return getattr(packet, variant or "default", None) if packet is not None else None


def decomposes_named(*paths: str) -> Callable[[Rule], Rule]:
    """Register a rule as `decomposes` does, for overloads by name, which not every version has."""
    return decomposes(*[found for path in paths if (found := overload(path)) is not None])
