"""Dimensions whose sizes vary: names with ranges, and `dynamic_shapes` in the forms that programs bring.

Forms: a dict by argument name, or a sequence in the order of the arguments; for a tensor a dict {dimension: spec}, a
sequence of specs, or None; the same nesting as the argument has for containers. A spec is a `Dim`, one computed from a
`Dim` (`2 * d + 1`), `Dim.AUTO`, `Dim.DYNAMIC`, `Dim.STATIC`, an int (the size itself), or None (a constant). The
objects of `torch.export.Dim` are taken, too: they are known by what they have, nothing is imported for them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch.utils import _pytree as pytree

from framesmith.util.errors import ExportError


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension with a name and a range: every tensor that has it has the same size there. `scale * d + offset`, for
    whole numbers, is a dimension whose size follows from `d`.

    `min` and `max` are inclusive. Without a `min`, sizes go down to what the program allows, 1 at least. Raises
    ValueError for a name that is no identifier or an empty range.
    """

    name: str
    min: int | None = None
    max: int | None = None
    scale: int = 1
    offset: int = 0
    AUTO: ClassVar[Hint]
    DYNAMIC: ClassVar[Hint]
    STATIC: ClassVar[Hint]

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"{self.name!r} is no name of a dimension")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"no size from {self.min} to {self.max}")

    def __mul__(self, factor: int) -> Dim:
        if not isinstance(factor, int) or factor <= 0:
            raise ValueError("a dimension is multiplied by a positive whole number")
        return replace(self, scale=self.scale * factor, offset=self.offset * factor)

    __rmul__ = __mul__

    def __add__(self, more: int) -> Dim:
        return replace(self, offset=self.offset + more)

    __radd__ = __add__

    def __sub__(self, less: int) -> Dim:
        return self + -less

    def __str__(self) -> str:
        bounds = "".join(f", {k}={v}" for k, v in (("min", self.min), ("max", self.max)) if v is not None)
        text = f'Dim("{self.name}"{bounds})'
        text = text if self.scale == 1 else f"{self.scale} * {text}"
        return text if not self.offset else f"{text} {'-' if self.offset < 0 else '+'} {abs(self.offset)}"


@dataclass(frozen=True, slots=True)
class Hint:
    """A dimension without a name. `auto`: it varies as far as the program lets it. `dynamic`: it varies, within what
    the program asks of it. `static`: a constant."""

    kind: str
    min: int | None = None
    max: int | None = None

    def __call__(self, min: int | None = None, max: int | None = None) -> Hint:
        return Hint(self.kind, min, max)

    def __str__(self) -> str:
        return f"Dim.{self.kind.upper()}"


Dim.AUTO, Dim.DYNAMIC, Dim.STATIC = Hint("auto"), Hint("dynamic"), Hint("static")
AUTO, DYNAMIC, STATIC = Dim.AUTO, Dim.DYNAMIC, Dim.STATIC

Wish = Dim | Hint
Shapes = dict[int, dict[int, Wish]]
"""For the leaves of the arguments, by place: what is asked of their dimensions."""


def read_shapes(dynamic_shapes: Any, forward: Callable[..., Any], args: tuple[Any, ...],
                kwargs: dict[str, Any]) -> Shapes:
    """Return the requests of `dynamic_shapes` for each leaf of `(args, kwargs)`. Raises `ExportError` where it does not
    fit."""
    by_method = getattr(dynamic_shapes, "dynamic_shapes", None)
    if callable(by_method) and not isinstance(dynamic_shapes, Mapping):  # torch.export.ShapesCollection and its kin
        dynamic_shapes = by_method(forward, args, kwargs)
    found: Shapes = {}
    count = 0

    def visit(value: Any, spec: Any, path: str) -> None:
        nonlocal count
        if pytree.tree_is_leaf(value):
            if isinstance(value, torch.Tensor):
                if wishes := _of_tensor(value, spec, path):
                    found[count] = wishes
            elif spec is not None and not _is_none(spec):
                raise ExportError(f"dynamic_shapes has {spec!r} for {path}, which is no tensor")
            count += 1
            return
        children, names = _children(value)
        for child, name, part in zip(children, names, _parts(spec, value, children, names, path), strict=True):
            visit(child, part, f"{path}[{name!r}]")

    given = _by_argument(dynamic_shapes, forward, args, kwargs)
    for i, value in enumerate(args):
        visit(value, given[0][i], given[2][i])
    for name, value in kwargs.items():
        visit(value, given[1].get(name), name)
    return found


def _is_none(spec: Any) -> bool:
    return all(leaf is None for leaf in pytree.tree_leaves(spec))


def _by_argument(shapes: Any, forward: Callable[..., Any], args: tuple[Any, ...],
                 kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any], list[str]]:
    """(specs of the positional arguments, of the named ones, names of the positional ones)."""
    try:
        parameters = list(inspect.signature(forward).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
    more = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)
    first = [names[i] if i < len(names) else f"{rest or 'args'}[{i - len(names)}]" for i in range(len(args))]
    if shapes is None:
        return [None] * len(args), {}, first
    if isinstance(shapes, Mapping):
        known = {*names, *kwargs, *(p.name for p in parameters), *([rest] if rest else ())}
        for name in shapes:
            if name not in known:
                raise ExportError(f"dynamic_shapes names {name!r}, which is no argument; there are "
                                  f"{', '.join([*first, *kwargs])}")
        tail = shapes.get(rest) if rest else None
        positional = [shapes.get(names[i]) if i < len(names) else None if tail is None else tail[i - len(names)]
                      for i in range(len(args))]
        rest_of = shapes.get(more) if more else None
        inner: Mapping[str, Any] = rest_of if isinstance(rest_of, Mapping) else {}
        return positional, {k: shapes.get(k, inner.get(k)) for k in kwargs}, first
    shapes = list(shapes)
    if len(shapes) != len(args) + len(kwargs):
        raise ExportError(f"dynamic_shapes has {len(shapes)} entries for {len(args) + len(kwargs)} arguments")
    return shapes[:len(args)], dict(zip(kwargs, shapes[len(args):], strict=True)), first


def _children(value: Any) -> tuple[list[Any], list[Any]]:
    """Return the parts of a container, as the tree has them, and their names."""
    children, _ = pytree.SUPPORTED_NODES[_kind(value)].flatten_fn(value)
    names = list(value) if isinstance(value, Mapping) and len(value) == len(children) else list(range(len(children)))
    return list(children), names


def _kind(value: Any) -> Any:
    return pytree._get_node_type(value)


def _parts(spec: Any, value: Any, children: list[Any], names: list[Any], path: str) -> list[Any]:
    if spec is None:
        return [None] * len(children)
    if isinstance(spec, Mapping):
        unknown = [k for k in spec if k not in names]
        if unknown:
            raise ExportError(f"dynamic_shapes of {path} names {unknown[0]!r}; there are {names}")
        return [spec.get(n) for n in names]
    if isinstance(spec, Sequence) and not isinstance(spec, str):
        parts = list(spec)
    elif type(spec) is type(value):
        parts = _children(spec)[0]
    else:
        raise ExportError(f"dynamic_shapes has {spec!r} for {path}, which is a {type(value).__name__}")
    if len(parts) != len(children):
        raise ExportError(f"dynamic_shapes of {path} has {len(parts)} entries for {len(children)} parts")
    return parts


def _of_tensor(x: torch.Tensor, spec: Any, path: str) -> dict[int, Wish]:
    if spec is None:
        return {}
    if isinstance(spec, Mapping):
        entries = list(spec.items())
    elif isinstance(spec, Sequence) and not isinstance(spec, str):
        if len(spec) != x.dim():
            raise ExportError(f"dynamic_shapes of {path} has {len(spec)} entries for {x.dim()} dimensions")
        entries = list(enumerate(spec))
    else:
        raise ExportError(f"dynamic_shapes has {spec!r} for the tensor {path}; a dict {{dimension: Dim}} is needed")
    wishes: dict[int, Wish] = {}
    for d, wish in entries:
        if not isinstance(d, int) or not -x.dim() <= d < x.dim():
            raise ExportError(f"dynamic_shapes of {path} names dimension {d!r} of {x.dim()}")
        d %= x.dim()
        if (read := _wish(wish, x.shape[d], f"{path}, dimension {d}")) is not None:
            wishes[d] = read
    return wishes


def _wish(spec: Any, size: int, where: str) -> Wish | None:
    """Return the request for one dimension; None for a constant."""
    if spec is None or isinstance(spec, Hint) and spec.kind == "static":
        return None
    if isinstance(spec, int):
        if spec != size:
            raise ExportError(f"{where} has the size {size}, dynamic_shapes says {spec}")
        return None
    if isinstance(spec, Dim | Hint):
        return spec
    kind = getattr(getattr(spec, "type", None), "name", None)
    if kind in ("AUTO", "DYNAMIC", "STATIC"):  # torch.export.Dim.AUTO
        return None if kind == "STATIC" else Hint(kind.lower(), spec.min, spec.max)
    value = getattr(spec, "value", None)
    if isinstance(value, int) and hasattr(spec, "__name__"):  # a constant that torch.export has made a Dim of
        return _wish(value, size, where)
    root, fn = getattr(spec, "root", None), getattr(spec, "fn", None)
    if root is not None and callable(fn):
        whole = _wish(root, size, where)
        assert isinstance(whole, Dim)
        offset = fn(0)
        return replace(whole, scale=fn(1) - offset, offset=offset)
    if hasattr(spec, "__name__") and hasattr(spec, "min") and hasattr(spec, "max"):
        lo = spec.min if type(spec.min) is int and spec.min else None
        return Dim(spec.__name__, lo, spec.max if type(spec.max) is int else None)
    raise ExportError(f"dynamic_shapes has {spec!r} for {where}, which is no dimension")
