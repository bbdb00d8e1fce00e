"""Process groups and device meshes in captured code: constants, guarded by their identity, with ranks and sizes."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from framesmith.capture import trackers as t
from framesmith.capture.registry import IDENTIFIED, by_name, folds, named
from framesmith.capture.sources import Pinned
from framesmith.capture.trackers import Args, Kwargs
from framesmith.util.errors import Unsupported

_C10D = "torch.distributed.distributed_c10d"
_MESH = "torch.distributed.device_mesh.DeviceMesh"

IDENTIFIED.update((f"{_C10D}.ProcessGroup", _MESH, "torch._C._distributed_c10d.ReduceOp.RedOpType"))
folds(*[vars(dist.ProcessGroup)[name].__func__ for name in ("rank", "size", "name")])


@dataclass(slots=True)
class _Default:
    """A guard: the default process group is the same as at capture."""

    group: weakref.ref[Any]

    def __call__(self, read: Any) -> bool:
        return dist.is_initialized() and read() is self.group()


def default_group(tracer: Any) -> Any:
    """Return the default process group, and guard it."""
    read = c10d._get_default_group
    known = tracer.readings.get((read, ()))
    if known is None:
        known = tracer.readings[read, ()] = tracer.folded(read, ())
        tracer.guard(Pinned(read), "callable", _Default(weakref.ref(known)))
    return known


def group_of(tracer: Any, given: t.Tracker) -> Any:
    """Return the process group that an argument names, of which this process is a member."""
    group = given.real(tracer)
    if group is None:
        return default_group(tracer)
    if group is dist.GroupMember.NON_GROUP_MEMBER or c10d._rank_not_in_group(group):
        raise Unsupported("a process group without this process")
    return group


def _of_group(name: str) -> None:
    """Register a function that tells facts of a process group, by default of the default one, which never change."""

    @by_name(f"{_C10D}.{name}")
    def row(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        group = (args[0] if args else kwargs.get("group", t.NONE)).real(tracer)
        if group is None:
            default_group(tracer)
        return tracer.fold_call(named(f"{_C10D}.{name}"), args, kwargs)


for _name in ("get_rank", "get_world_size", "get_backend", "get_process_group_ranks", "get_group_rank",
              "get_global_rank", "_rank_not_in_group", "_get_group_size_by_name", "_resolve_process_group",
              "_canonicalize_group_rank", "_get_process_group_name"):
    _of_group(_name)


@by_name(f"{_C10D}._get_default_group", f"{_C10D}._WorldMeta.WORLD")
def _default(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.Const(default_group(tracer))


def _of_mesh(path: str) -> None:
    """Register a function of device meshes that never gives something else."""

    @by_name(path)
    def row(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        return tracer.fold_call(named_in_class(path), args, kwargs)


def named_in_class(path: str) -> Any:
    """Return the function of a class of a loaded module, by its path; or the getter of a property."""
    owner, _, name = path.rpartition(".")
    found = vars(named(owner))[name]
    return getattr(found, "fget", found)


for _name in ("size", "get_group", "get_all_groups", "get_rank", "get_local_rank", "get_coordinate", "__getitem__"):
    _of_mesh(f"{_MESH}.{_name}")
for _name in ("_resolve_group", "_group_or_group_name"):
    by_name(f"torch.distributed._functional_collectives.{_name}")(
        lambda tracer, args, kwargs, name=_name: tracer.fold_call(
            named(f"torch.distributed._functional_collectives.{name}"), args, kwargs))
