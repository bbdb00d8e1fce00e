"""`export_program`: trace, check, build."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, overload

from framesmith.export.adopt import adopt, is_exported
from framesmith.export.build import build, prepare
from framesmith.export.drafting import Draft, draft
from framesmith.export.exported import Program
from framesmith.export.operators import SETS
from framesmith.export.ranges import SpecialisedDimension
from framesmith.export.trace import trace
from framesmith.export.trees import flatten
from framesmith.util.errors import ExportError

Model = Callable[..., Any]
Args = Sequence[Any]
Kwargs = Mapping[str, Any] | None


@overload
def export_program(model: Model, args: Args = ..., kwargs: Kwargs = ..., *, dynamic_shapes: Any = ...,
                   operators: str = ..., joint: bool = ..., mode: Literal["strict"] = ...) -> Program: ...
@overload
def export_program(model: Model, args: Args = ..., kwargs: Kwargs = ..., *, dynamic_shapes: Any = ...,
                   operators: str = ..., joint: bool = ..., mode: Literal["draft"]) -> Draft: ...
def export_program(model: Model, args: Args = (), kwargs: Kwargs = None, *, dynamic_shapes: Any = None,
                   operators: str = "core", joint: bool = False, mode: str = "strict") -> Program | Draft:
    """Export the program that `model(*args, **kwargs)` is, as one graph. A `torch.export.ExportedProgram` is taken,
    too.

    `dynamic_shapes`: which sizes vary (see `export.dims`). `operators`: "core" ATen, "prims", or "aten" as captured.
    `joint`: with its backward, for the parameters and arguments that require grad. `mode="draft"`: go on past each
    obstacle, and return a `Draft` with all of them.

    Raises `ExportError` where the program cannot be captured whole, and `SpecialisedDimension`, which names each line
    and proposes what to change, where it ties a dimension down that was to vary.
    """
    if operators not in SETS:
        raise ExportError(f"operators is one of {', '.join(SETS)}, not {operators!r}")
    if is_exported(model):
        return adopt(model, operators)
    if mode == "draft":
        return draft(model, args, kwargs, dynamic_shapes, operators)
    given, named, shapes, labels = prepare(model, tuple(args), dict(kwargs or {}), dynamic_shapes)
    traced = trace(model, given, named, shapes, labels, training=joint)
    if traced.constraints.violations:
        raise SpecialisedDimension(traced.constraints.violations)
    leaves, tree = flatten((given, named))
    return build(traced, operators, leaves, labels, tree, type(model).__name__, joint)
