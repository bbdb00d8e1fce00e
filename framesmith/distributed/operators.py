"""The collective operators that stand in graphs: PyTorch's functional collectives, which begin one,
and the wait for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from framesmith.graph.launch import OfOneGraph
from framesmith.util.serialize import serializable

ops = torch.ops._c10d_functional

ALL_REDUCE = ops.all_reduce.default
ALL_GATHER = ops.all_gather_into_tensor.default
REDUCE_SCATTER = ops.reduce_scatter_tensor.default
ALL_TO_ALL = ops.all_to_all_single.default
BROADCAST = ops.broadcast.default
COALESCED = {
    ops.all_reduce_coalesced.default: ALL_REDUCE, ops.all_gather_into_tensor_coalesced.default: ALL_GATHER,
    ops.reduce_scatter_tensor_coalesced.default: REDUCE_SCATTER,
}
"""Operators that do for each tensor of a list what another does for one."""
WAIT = ops.wait_tensor.default
STARTS = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, *COALESCED)


@serializable
@dataclass(frozen=True, slots=True)
class Reduce(OfOneGraph):
    """`torch.distributed.reduce`, which has no functional operator: gives what it leaves in a copy of a tensor. `root`:
    a rank in the group."""

    kind: str
    root: int
    group: str
    communicates: ClassVar[bool] = True

    @property
    def __name__(self) -> str:
        return "reduce"

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        value = x.clone(memory_format=torch.contiguous_format)
        dist.reduce(value, op=getattr(dist.ReduceOp, self.kind.upper()), group_dst=self.root,
                    group=c10d._resolve_process_group(self.group))  # type: ignore[arg-type]
        return value


@serializable
@dataclass(frozen=True, slots=True)
class Wait:
    """The call that waits for the collective which gives a tensor; until then that reads `operands`, whose memory must
    last. `name`, `line`: the collective's and the user's, which an error is told with."""

    name: str
    line: str = ""
    communicates: ClassVar[bool] = True

    @property
    def __name__(self) -> str:
        return "wait"

    def __str__(self) -> str:
        return f"wait for {self.name}"

    def at(self, line: str) -> Wait:
        """Return the same, at a line of the user's."""
        return Wait(self.name, line)

    def __call__(self, x: torch.Tensor, *operands: torch.Tensor) -> None:
        try:
            WAIT(x)
        except RuntimeError as error:
            error.add_note(f"framesmith: in the {self}, {self.line}")
            raise
