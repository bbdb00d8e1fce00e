"""Traceable wrapper subclasses: tensors made of other tensors, by PyTorch's protocol.

`__tensor_flatten__` names the parts and a context, `__tensor_unflatten__` makes a tensor of both, and
`__torch_dispatch__` computes by what it does to the parts. A tensor of such a class over fakes is its own fake: PyTorch
asks the class about each operator on it, and what the class does to the parts is recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch


@cache
def is_wrapper(cls: type) -> bool:
    """Tell whether tensors of a class are made of others by the protocol."""
    return (issubclass(cls, torch.Tensor) and hasattr(cls, "__tensor_flatten__") and hasattr(cls, "__tensor_unflatten__")
            and cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__)  # type: ignore[comparison-overlap]


def flattened(x: Any) -> tuple[dict[str, Any], Any]:
    """The parts of a tensor of such a class, by name, and the context; no `__torch_function__` is asked."""
    with torch._C.DisableTorchFunctionSubclass():
        names, context = x.__tensor_flatten__()
        return {name: getattr(x, name) for name in names}, context


def wrappers_among(values: Iterable[Any]) -> bool:
    """Tell whether there is a tensor of such a class among `values`, lists and tuples opened."""
    return any(is_wrapper(type(v)) if isinstance(v, torch.Tensor)
               else type(v) in (list, tuple) and wrappers_among(v) for v in values)
