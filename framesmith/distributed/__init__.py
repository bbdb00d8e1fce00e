"""Collectives of process groups as operators of the graph: each file fills the rows of one stage's table."""

import torch

from framesmith.capture.registry import LATE, named

if torch.distributed.is_available():
    from framesmith.distributed import capture, derivatives, groups, lowering, metadata, modules, pending  # noqa: F401

    LATE.append((lambda: named("torch.distributed.tensor.DTensor") is not None, "framesmith.distributed.dtensors"))
