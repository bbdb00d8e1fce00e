"""A training scenario runs plain and compiled, and shows the same.

A scenario is a function of `c`, which compiles a function or a module (or leaves it as it is), and returns whatever is
to be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from framesmith.compiler import FrameCompiler
from framesmith.config import Config
from framesmith.ledger import Ledger
from framesmith.wrapping import Request, wrap_function, wrap_module

Scenario = Callable[[Any], Any]


def agree(scenario: Scenario, breaks: bool | None = False, backend: str = "eager", rtol: float = 1e-5) -> Ledger:
    """Compiled and plain show the same; compiled whole, unless it `breaks` (None: either will do)."""
    ledger = Ledger()
    config = Config(backend=backend, fullgraph=breaks is False, suppress_errors=False, warn=False)

    def compiled(fn: Any) -> Any:
        callback = FrameCompiler(config, ledger)
        if isinstance(fn, nn.Module):
            return wrap_module(fn, callback, Request(compile=compiled, options={}))
        return wrap_function(fn, callback)

    want, got = _shown(scenario, lambda fn: fn), _shown(scenario, compiled)
    assert not (found := list(differences(want, got, "", rtol))), "\n".join(found)
    assert any(record.operators for record in ledger.records), "nothing was captured"
    broke = any(r.breaks for r in ledger.records) or ledger.refusals
    assert broke or not breaks, "captured whole; a break was expected"
    return ledger


def _shown(scenario: Scenario, compile: Any) -> Any:
    torch.manual_seed(3)
    with torch.enable_grad():
        return picture(scenario(compile))


def error_of(call: Callable[[], Any]) -> str:
    """The type of what a call raises."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "none"


def picture(value: Any) -> Any:
    """What of a value is compared."""
    if isinstance(value, torch.Tensor):
        flags = type(value).__name__, value.dtype, tuple(value.shape), value.requires_grad, value.is_leaf
        return ("tensor", flags, value.detach().clone(), picture(value.grad) if value.is_leaf else None)
    if isinstance(value, nn.Module):
        return [(n, picture(x)) for n, x in (*value.named_parameters(), *value.named_buffers())]
    if isinstance(value, dict):
        return [(k, picture(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return [picture(v) for v in value]
    return value


def differences(want: Any, got: Any, path: str, rtol: float) -> Any:
    if isinstance(want, torch.Tensor) and isinstance(got, torch.Tensor):
        if not torch.allclose(want, got, rtol=rtol, atol=rtol, equal_nan=True):
            yield f"{path}: {want} != {got}"
    elif isinstance(want, (list, tuple)) and isinstance(got, (list, tuple)) and len(want) == len(got):
        for i, (a, b) in enumerate(zip(want, got, strict=True)):
            yield from differences(a, b, f"{path}.{i}", rtol)
    elif type(want) is not type(got) or want != got:
        yield f"{path}: {want!r} != {got!r}"
