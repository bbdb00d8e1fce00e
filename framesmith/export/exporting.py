"""`export_program`: trace, check, build."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from framesmith.export.build import build, prepare
from framesmith.export.operators import DIALECTS
from framesmith.export.program import Program
from framesmith.export.ranges import SpecialisedDimension
from framesmith.export.trace import trace
from framesmith.export.trees import flatten
from framesmith.util.errors import ExportError


def export_program(model: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, *,
                   dynamic_shapes: Any = None, operators: str = "core", joint: bool = False) -> Program:
    """The program that `model(*args, **kwargs)` is, as one graph.

    `dynamic_shapes`: which sizes vary (see `export.dims`). `operators`: "core" ATen, "prims", or "aten" as captured.
    `joint`: with its backward.

    Raises `ExportError` where the program cannot be captured whole, and `SpecialisedDimension`, which names each line
    and proposes what to change, where it ties a dimension down that was to vary.
    """
    if operators not in DIALECTS:
        raise ExportError(f"operators is one of {', '.join(DIALECTS)}, not {operators!r}")
    given, named, shapes, labels = prepare(model, tuple(args), dict(kwargs or {}), dynamic_shapes)
    traced = trace(model, given, named, shapes, labels, training=joint)
    if traced.constraints.violations:
        raise SpecialisedDimension(traced.constraints.violations)
    leaves, tree = flatten((given, named))
    return build(traced, operators, leaves, labels, tree, type(model).__name__)
