"""The digest of a call by which the processes of a world agree on which of them captures it for all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from framesmith.runtime.cache import key_of

_PLAIN = (bool, int, float, str, type(None))
_shape = torch._C.TensorBase.shape.__get__  # type: ignore[attr-defined]
_dtype = torch._C.TensorBase.dtype.__get__  # type: ignore[attr-defined]


def call_digest(values: Iterable[Any]) -> str:
    """Return a digest of arguments that processes which would make the same capture have in common: numbers and texts,
    and sizes of tensors and of the parameters of modules. No code of the program's runs."""
    with torch._C.DisableTorchFunctionSubclass():
        return key_of(*[list(_facts(value)) for value in values])


def _facts(value: Any) -> Iterator[Any]:
    yield type(value).__qualname__
    if isinstance(value, torch.Tensor):
        yield tuple(_shape(value)), str(_dtype(value)), value.requires_grad
    elif isinstance(value, nn.Module):
        yield from _of_module(value)
    elif type(value) in _PLAIN:
        yield value


def _of_module(module: nn.Module) -> Iterator[Any]:
    seen, stack = set[int](), [("", module)]
    while stack:
        path, one = stack.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        inside = one.__dict__
        yield path, type(one).__qualname__, inside.get("training")
        for kind in ("_parameters", "_buffers"):
            yield [(name, tuple(_shape(x))) for name, x in inside.get(kind, {}).items() if x is not None]
        stack += [(name, part) for name, part in inside.get("_modules", {}).items() if part is not None]
