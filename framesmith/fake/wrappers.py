"""Traceable wrapper subclasses: tensors made of other tensors, by PyTorch's protocol.

`__tensor_flatten__` names the parts and a context, `__tensor_unflatten__` makes a tensor of both, and
`__torch_dispatch__` computes by what it does to the parts. A tensor of such a class over fakes is its own fake: PyTorch
calls the class for each operator on it, and its operators on the parts are recorded.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, ValuesView
from functools import cache
from typing import Any

import torch

_declared: weakref.WeakSet[type] = weakref.WeakSet()

DISTRIBUTED: dict[str, Callable[..., Any]] = {}
"""Module and name of classes whose operators communicate -> function that computes `func(*args, **kwargs)` of such an
operator. A gradient may be distributed in another way than its tensor."""


def declare(cls: type) -> None:
    """Trust the program that operators on tensors of a class, and of its subclasses, depend on their operands alone and
    have no side effects: its `__torch_dispatch__` runs during capture, and not in calls."""
    _declared.add(cls)


def is_wrapper(cls: Any) -> bool:
    """Return whether tensors of a class wrap others by the protocol, and the class may run during capture only: it is
    PyTorch's own, or declared."""
    return _has_protocol(cls) and (_is_pytorchs(cls) or not _declared.isdisjoint(cls.__mro__))


def by_processes(cls: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute an operator on tensors of such a class."""
    return DISTRIBUTED[f"{cls.__module__}.{cls.__qualname__}"](func, args, kwargs)


@cache
def is_distributed(cls: Any, /) -> bool:
    """Return whether operators on tensors of a class communicate."""
    return f"{cls.__module__}.{cls.__qualname__}" in DISTRIBUTED


@cache
def _has_protocol(cls: Any) -> bool:
    return issubclass(cls, torch.Tensor) and all(
        hasattr(cls, name) for name in ("__tensor_flatten__", "__tensor_unflatten__"))


@cache
def _is_pytorchs(cls: Any) -> bool:
    """Return whether the class, and that which defines `__torch_dispatch__`, are of PyTorch or of its library of
    quantised tensors."""
    answers = next(c for c in cls.__mro__ if "__torch_dispatch__" in vars(c))
    return all(c.__module__.partition(".")[0] in ("torch", "torchao") for c in (cls, answers))


def flattened(x: Any) -> tuple[dict[str, Any], Any]:
    """Return the parts of a tensor of such a class, by name, and the context, without calling a
    `__torch_function__`."""
    with torch._C.DisableTorchFunctionSubclass():
        names, context = x.__tensor_flatten__()
        return {name: getattr(x, name) for name in names}, context


def wrappers_among(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the tensors of such classes among `values`, lists and tuples opened."""
    for v in values:
        if isinstance(v, (list, tuple, ValuesView)):
            yield from wrappers_among(v)
        elif is_wrapper(type(v)):  # type: ignore[arg-type]
            yield v
