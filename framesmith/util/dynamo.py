"""Coexistence with TorchDynamo's frame hook, which may be active around ours. It is reached through its C part; nothing
is imported."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

import torch

_hook = torch._C._dynamo.eval_frame


@contextlib.contextmanager
def dynamo_off() -> Iterator[None]:
    """Turn its hook off in this thread within the block."""
    theirs = _hook.set_eval_frame(None)
    try:
        yield
    finally:
        _hook.set_eval_frame(theirs)


def hide_from_dynamo(code: CodeType) -> None:
    """Let it skip frames of `code`, and all frames that they call."""
    if hasattr(_hook, "set_code_exec_strategy"):
        skip = _hook._FrameAction.SKIP
        _hook.set_code_exec_strategy(code, _hook._FrameExecStrategy(skip, skip))
    elif hasattr(_hook, "skip_code"):
        _hook.skip_code(code)


STANCES = ("default", "force_eager", "eager_on_recompile", "fail_on_recompile", "eager_then_compile",
           "aot_eager_then_compile")


@dataclass(frozen=True, slots=True)
class Stance:
    """A policy for calls that no compiled variant accepts."""

    stance: str = "default"


_stance = Stance()
"""Ours, under `install`. Compiled functions look at it."""


def set_stance(new: Stance) -> Stance:
    """Set ours, and return the previous one."""
    global _stance
    before, _stance = _stance, new
    return before


def stance() -> str:
    """Return what `torch.compiler.set_stance` was given last. ("force_eager" never gets here: compiled functions ask
    for it at each call.)"""
    if _stance.stance != "default":
        return _stance.stance
    return getattr(getattr(sys.modules.get("torch._dynamo.eval_frame"), "_stance", None), "stance", "default")


def recompile_limit() -> int | None:
    """TorchDynamo's own limit, if the program has loaded it."""
    return getattr(sys.modules.get("torch._dynamo.config"), "recompile_limit", None)
