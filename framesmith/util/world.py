"""The size of the default process group."""

from __future__ import annotations

from typing import Any

import torch


def world_size() -> int:
    """Return how many processes the default process group has; 1 without a group."""
    dist: Any = torch.distributed
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1  # type: ignore[no-any-return]
