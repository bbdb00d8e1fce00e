"""Collectives of process groups as operators of the graph: each file fills the rows of one stage's table."""

import torch

if torch.distributed.is_available():
    from framesmith.distributed import capture, derivatives, groups, lowering, metadata, modules, pending  # noqa: F401
