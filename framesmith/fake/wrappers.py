"""Traceable wrapper subclasses: tensors made of other tensors, by PyTorch's protocol.

`__tensor_flatten__` names the parts and a context, `__tensor_unflatten__` makes a tensor of both, and
`__torch_dispatch__` computes by what it does to the parts. A tensor of such a class over fakes is its own fake: PyTorch
asks the class about each operator on it, and what the class does to the parts is recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, ValuesView
from functools import cache
from typing import Any

import torch


@cache
def is_wrapper(cls: Any) -> bool:
    """Tell whether tensors of a class are made of others by the protocol."""
    return issubclass(cls, torch.Tensor) and all(
        hasattr(cls, name) for name in ("__tensor_flatten__", "__tensor_unflatten__"))


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
