"""Restoration of generators and buffers after calls."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


@contextlib.contextmanager
def state_restored(model: Any) -> Iterator[None]:
    """Restore, after the block, the states of the generators, and the buffers of a module that changed in it."""
    buffers = list(model.buffers()) if isinstance(model, nn.Module) else []
    before = [(x, x.detach().clone(), x._version) for x in buffers]
    with torch.random.fork_rng():
        try:
            yield
        finally:
            with torch.no_grad():
                for x, value, version in before:
                    if x._version != version:
                        x.copy_(value)
