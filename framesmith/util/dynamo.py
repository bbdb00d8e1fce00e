"""TorchDynamo's frame hook, which may be at work around ours or beside it. It is reached through its C part; nothing is
imported."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import CodeType

import torch

_hook = torch._C._dynamo.eval_frame


@contextlib.contextmanager
def dynamo_off() -> Iterator[None]:
    """Its hook is off in this thread."""
    theirs = _hook.set_eval_frame(None)
    try:
        yield
    finally:
        _hook.set_eval_frame(theirs)


def hide_from_dynamo(code: CodeType) -> None:
    """It does not look into frames of `code`, nor into what they call."""
    if hasattr(_hook, "set_code_exec_strategy"):
        skip = _hook._FrameAction.SKIP
        _hook.set_code_exec_strategy(code, _hook._FrameExecStrategy(skip, skip))
    elif hasattr(_hook, "skip_code"):
        _hook.skip_code(code)


def stance() -> str:
    """Return what `torch.compiler.set_stance` was given last. ("force_eager" never gets here: compiled functions ask
    for it at each call.)"""
    return getattr(getattr(sys.modules.get("torch._dynamo.eval_frame"), "_stance", None), "stance", "default")


def recompile_limit() -> int | None:
    """TorchDynamo's own limit, if the program has loaded it."""
    return getattr(sys.modules.get("torch._dynamo.config"), "recompile_limit", None)
