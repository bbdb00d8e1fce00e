"""Traceable wrapper subclasses: tensors made of other tensors, by PyTorch's protocol.

`__tensor_flatten__` names the parts and a context, `__tensor_unflatten__` makes a tensor of both, and
`__torch_dispatch__` computes by what it does to the parts. A tensor of such a class over fakes is its own fake: PyTorch
asks the class about each operator on it, and what the class does to the parts is recorded.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, ValuesView
from functools import cache
from typing import Any

import torch

_declared: weakref.WeakSet[type] = weakref.WeakSet()


def declare(cls: type) -> None:
    """Take the program's word that operators on tensors of a class, and of those derived from it, depend on their
    operands alone and have no side effects: its `__torch_dispatch__` runs in capture, and not in calls."""
    _declared.add(cls)


def is_wrapper(cls: Any) -> bool:
    """Tell whether tensors of a class are made of others by the protocol, and the class may run in capture alone: it is
    PyTorch's own, or declared."""
    return _has_protocol(cls) and (_is_torchs(cls) or not _declared.isdisjoint(cls.__mro__))


@cache
def _has_protocol(cls: Any) -> bool:
    return issubclass(cls, torch.Tensor) and all(
        hasattr(cls, name) for name in ("__tensor_flatten__", "__tensor_unflatten__"))


@cache
def _is_torchs(cls: Any) -> bool:
    """Return whether the class that answers `__torch_dispatch__` is defined in PyTorch."""
    answers = next(c for c in cls.__mro__ if "__torch_dispatch__" in vars(c))
    return cls.__module__.startswith("torch.") and answers.__module__.startswith("torch.")


def flattened(x: Any) -> tuple[dict[str, Any], Any]:
    """The parts of a tensor of such a class, by name, and the context; no `__torch_function__` is asked."""
    with torch._C.DisableTorchFunctionSubclass():
        names, context = x.__tensor_flatten__()
        return {name: getattr(x, name) for name in names}, context


def wrappers_among(values: Iterable[Any]) -> Iterator[Any]:
    """The tensors of such classes among `values`, lists and tuples opened."""
    for v in values:
        if isinstance(v, (list, tuple, ValuesView)):
            yield from wrappers_among(v)
        elif is_wrapper(type(v)):  # type: ignore[arg-type]
            yield v
