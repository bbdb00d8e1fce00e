"""Captured calls of `torch.distributed`: a function that writes a tensor is a collective operator, the wait for it and
a copy.

The wait is recorded with the call, `async_op` or not, and moves down to the first reader of the value when the graph is
compiled (`graph.sink_waits`). So the work that an asynchronous call gives has nothing left to wait for, and memory is
never read before it is there, whatever the program waits for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from framesmith.capture import trackers as t
from framesmith.capture.registry import by_name, calls, named
from framesmith.capture.trackers import Args, Kwargs
from framesmith.distributed import operators as o
from framesmith.distributed.groups import group_of
from framesmith.distributed.metadata import same_shape
from framesmith.fake import FakeTensor
from framesmith.util.errors import Unsupported

Body = Callable[..., Any]


def _collective(name: str, body: Body) -> None:
    """Register what a function of `torch.distributed` does: `body(group, **arguments)`, on fakes."""
    name = f"torch.distributed.distributed_c10d.{name}"

    @by_name(name)
    def row(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        given = inspect.signature(named(name)).bind(*args, **kwargs).arguments
        asynchronous = given.pop("async_op", t.FALSE).truth(tracer)
        group = group_of(tracer, given.pop("group", t.NONE))
        if group in c10d._world.pg_coalesce_state:
            raise Unsupported("a collective among others that are coalesced")
        with torch.no_grad():  # autograd does not see what is written, so gradients go on through what was before
            tracer.torch_call(partial(body, group), [], given)
        return t.Const(_completed()) if asynchronous else t.NONE


@cache
def _completed() -> Any:
    """Return a completed `Work`."""
    done: torch.futures.Future[None] = torch.futures.Future()
    done.set_result(None)
    return torch._C._distributed_c10d._create_work_from_future(done)  # type: ignore[attr-defined]


def _of_work(name: str) -> None:
    """Register a method of a work: there is nothing left to do for one that captured code began."""

    @calls(vars(dist.Work)[name].__func__)
    def row(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        if getattr(args[0], "value", None) is not _completed():
            raise Unsupported(f"Work.{name} of a collective that began elsewhere")
        return t.NONE if name == "synchronize" else t.TRUE


for _name in ("wait", "is_completed", "is_success", "synchronize"):
    _of_work(_name)


def _write(target: FakeTensor, begun: FakeTensor) -> None:
    if target.shape != begun.shape:
        raise Unsupported("a collective into a tensor of another size than that of what it gives")
    target.copy_(o.WAIT(begun))


def _sendable(*tensors: FakeTensor) -> None:
    """Leave to eager what it refuses, or sends otherwise."""
    if len({x.dtype for x in tensors}) > 1 or any(x.is_complex() or not x.is_contiguous() for x in tensors):
        raise Unsupported("a collective of tensors that are complex, of different dtypes or not contiguous")


def _kind(op: Any) -> str:
    """Return the name of a reduction."""
    if type(op) is not dist.ReduceOp.RedOpType or op is dist.ReduceOp.PREMUL_SUM:
        raise Unsupported("a collective with a reduction that has a factor")
    return str(op.name).lower()


def _rank(group: Any, on_all: int | None, in_group: int | None) -> int:
    return c10d._canonicalize_group_rank(group, on_all, in_group, return_global=False)


def all_reduce(group: Any, tensor: FakeTensor, op: Any = dist.ReduceOp.SUM) -> None:
    _sendable(tensor)
    _write(tensor, o.ALL_REDUCE(tensor, _kind(op), group.group_name))


def broadcast(group: Any, tensor: FakeTensor, src: int | None = None, group_src: int | None = None) -> None:
    _sendable(tensor)
    _write(tensor, o.BROADCAST(tensor, _rank(group, src, group_src), group.group_name))


def reduce(group: Any, tensor: FakeTensor, dst: int | None = None, op: Any = dist.ReduceOp.SUM,
           group_dst: int | None = None) -> None:
    _sendable(tensor)
    target = o.Reduce(_kind(op), _rank(group, dst, group_dst), group.group_name)
    recorder: Any = tensor._alias.storage.recorder
    value = same_shape(tensor)
    tensor.copy_(recorder.own(value, recorder.emit(target, (recorder.nodes(tensor),), value)))


def all_gather_into_tensor(group: Any, output_tensor: FakeTensor, input_tensor: FakeTensor) -> None:
    _sendable(output_tensor, input_tensor)
    _write(output_tensor, o.ALL_GATHER(input_tensor, group.size(), group.group_name))


def all_gather(group: Any, tensor_list: Sequence[FakeTensor], tensor: FakeTensor) -> None:
    _sendable(tensor, *tensor_list)
    if len(tensor_list) != group.size() or any(x.shape != tensor.shape for x in tensor_list):
        raise Unsupported("all_gather of tensors of different sizes")
    parts = o.WAIT(o.ALL_GATHER(tensor, group.size(), group.group_name)).chunk(group.size())
    for target, part in zip(tensor_list, parts, strict=True):
        target.copy_(part)


def reduce_scatter_tensor(group: Any, output: FakeTensor, input: FakeTensor, op: Any = dist.ReduceOp.SUM) -> None:
    _sendable(output, input)
    _write(output, o.REDUCE_SCATTER(input, _kind(op), group.size(), group.group_name))


def all_to_all_single(group: Any, output: FakeTensor, input: FakeTensor,
                      output_split_sizes: Sequence[int] | None = None,
                      input_split_sizes: Sequence[int] | None = None) -> None:
    _sendable(output, input)
    received, sent = (_splits(x, group.size(), sizes)
                      for x, sizes in ((output, output_split_sizes), (input, input_split_sizes)))
    _write(output, o.ALL_TO_ALL(input, received, sent, group.group_name))


_FUNCTIONS: dict[str, Body] = {
    "all_reduce": all_reduce, "broadcast": broadcast, "reduce": reduce, "all_gather": all_gather,
    "all_to_all_single": all_to_all_single,
    **dict.fromkeys(("all_gather_into_tensor", "all_gather_single"), all_gather_into_tensor),
    **dict.fromkeys(("reduce_scatter_tensor", "reduce_scatter_single"), reduce_scatter_tensor),
}
for _name, _body in _FUNCTIONS.items():
    _collective(_name, _body)


def _splits(x: FakeTensor, size: int, given: Sequence[int] | None) -> list[int]:
    """Return the sizes of the parts of a tensor, one for each process."""
    if not given:
        if not x.dim() or x.shape[0] % size:
            raise Unsupported("all_to_all of a size that the group does not divide")
        return [x.shape[0] // size] * size
    if len(given) != size or sum(given) != x.shape[0]:
        raise Unsupported("all_to_all of parts that are not the tensor")
    return list(given)


@by_name("torch.distributed._functional_collectives._maybe_wrap_tensor",
         "torch.distributed._functional_collectives.wait_tensor")
def _wait(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Functional collectives give plain tensors: what a graph reads is there."""
    return tracer.torch_call(o.WAIT, args, kwargs)  # type: ignore[no-any-return]


def _moved(x: FakeTensor, size: int, dim: int) -> torch.Tensor:
    """Put the parts of the first dimension side by side along another."""
    return torch.movedim(x.unflatten(0, (size, -1)), 0, dim).flatten(dim, dim + 1) if dim else x


def _stacked(x: FakeTensor, size: int, dim: int, cat_dim: int) -> torch.Tensor:
    return torch.cat(x.chunk(size, dim), cat_dim)


@by_name("torch._utils._maybe_view_chunk_cat", "torch._utils._chunk_or_narrow_cat")
def _arranged(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Put the parts of one dimension side by side along another. PyTorch's function loads the peer's symbolic sizes."""
    given = [*args, *kwargs.values()]
    return tracer.torch_call(_moved if len(given) == 3 else _stacked, given, {})  # type: ignore[no-any-return]
