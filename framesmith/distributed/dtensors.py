"""DTensors in captured code: mesh, placements and sizes are constants, and the graph has the local tensors; see
`capture.distributed_tensors`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._ops._embedding_ops import _MaskPartial
from torch.distributed.tensor.placement_types import _StridedShard
from torch.fx import Node

from framesmith.capture import trackers as t
from framesmith.capture.distributed_tensors import KINDS, Leaf, Making, fixed
from framesmith.capture.registry import OUTSIDE, by_name
from framesmith.capture.sources import Applied, Pinned, Source
from framesmith.capture.trackers import Args, Kwargs
from framesmith.capture.values import CONSTANT_TYPES, WRAP
from framesmith.distributed.operators import WAIT, ops
from framesmith.distributed.pending import waited
from framesmith.fake import FakeTensor
from framesmith.fake.handlers import HANDLERS, refused
from framesmith.fake.wrappers import DISTRIBUTED
from framesmith.util.errors import OddTensor, Unsupported
from framesmith.util.tables import entry

_DTENSOR = "torch.distributed.tensor.DTensor"
_API = "torch.distributed.tensor._api"


class _OwnMask(_MaskPartial):
    """The placement of rows that are to be summed up over processes, each of which masks the rows of others. The mask
    is of one result, where the dispatch keeps it with its own placements, and it masks a copy."""

    def _reduce_value(self, tensor: torch.Tensor, *where: Any) -> torch.Tensor:
        return super()._reduce_value(tensor.clone(), *where)

    def _reduce_shard_value(self, tensor: torch.Tensor, *where: Any) -> torch.Tensor:
        return super()._reduce_shard_value(tensor.clone(), *where)


_PLACEMENTS = (Shard, Replicate, Partial, _StridedShard, _OwnMask)
CONSTANT_TYPES.update(_PLACEMENTS)
WRAP.update(dict.fromkeys(_PLACEMENTS, WRAP[torch.dtype]))
HANDLERS[torch.ops._dtensor.shard_dim_alltoall.default] = refused


@entry(DISTRIBUTED, _DTENSOR)
def _operator(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute an operator by PyTorch's dispatch, which calls operators on local parts. What it would keep of a capture
    is refused, the state of a generator, or taken from it, the mask of rows that other processes have."""
    if torch.Tag.nondeterministic_seeded in func.tags:
        raise Unsupported("random numbers in a DTensor")
    out = func(*args, **kwargs)
    if type(out) is DTensor and any(map(_is_masked, out.placements)):
        return DTensor(out._local_tensor, replace(out._spec, placements=tuple(map(_unshared, out.placements))),
                       requires_grad=False)
    return out


def _is_masked(placement: Any) -> bool:
    return isinstance(placement, _MaskPartial)


def _unshared(placement: Any) -> Any:
    """Return a placement with the mask of this result, which the dispatch forgets."""
    if not _is_masked(placement):
        return placement
    mask = placement.mask_buffer.data
    placement.mask_buffer.release_mask()
    own = _OwnMask(placement.reduce_op, offset_shape=placement.offset_shape, offset_dim=placement.offset_dim)
    own.mask_buffer.materialize_mask(mask)
    return own


@entry(HANDLERS, ops._wrap_tensor_autograd.default)
def _wrapped(recorder: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wait for a collective, whose value PyTorch wraps in an `AsyncCollectiveTensor`: the wait moves down to the first
    reader."""
    return recorder.dispatch(WAIT, args, kwargs)


@dataclass(eq=False, slots=True)
class Local:
    """The function that gives the local part of a DTensor, with its history in any grad mode. `placements`: those that
    its gradient has, known when the function around it was captured. `shape`: a tensor of this shape without values of
    its own is given, for gradients that have other placements than those of the local part."""

    placements: Any = None
    shape: tuple[int, ...] | None = None

    def __call__(self, x: Any) -> torch.Tensor:
        if not x.requires_grad:
            return _present(x)
        with torch.enable_grad():  # the function may enable it
            return _Local.apply(x, self.placements, self.shape)  # type: ignore[no-any-return]


def _present(x: Any) -> torch.Tensor:
    part = x._local_tensor
    return waited(part) if type(part) is AsyncCollectiveTensor else part


class _Local(torch.autograd.Function):
    """See `Local`. The derivative of its backward is that of `from_local`."""

    @staticmethod
    def forward(ctx: Any, x: Any, placements: Any, shape: Any) -> torch.Tensor:  # type: ignore[override]
        ctx.mesh, ctx.placements, ctx.layout = x.device_mesh, placements, (x.shape, x.stride())
        part = _present(x)
        return part.view_as(part) if shape is None else part.new_empty(()).expand(shape)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        shape, stride = ctx.layout
        return DTensor.from_local(grad, ctx.mesh, ctx.placements, shape=shape, stride=stride), None, None


class _Input:
    """A DTensor that is an input. If it requires grad, there is an input of the graph for all placements that its
    gradients have, so that the engine adds these up as DTensors: the local part for the first, receivers for others."""

    def __init__(self, tracer: Any, value: Any, source: Source) -> None:
        self.tracer, self.value, self.source = tracer, value, source
        self.main = Local()
        self.local = self._input(self.main, "{}.to_local()")
        self.receivers: list[tuple[Local, FakeTensor]] = []

    def _input(self, function: Any, text: str) -> FakeTensor:
        tracer, path = self.tracer, Applied(self.source, function, text)
        tracer.wrapped_parts[path] = None
        with tracer.recorder.off():
            part = function(self.value)
        return tracer.input(part, path).fake  # type: ignore[no-any-return]

    def plain(self, grad: Any) -> tuple[Node, FakeTensor]:
        """Return the node of the input that has such a gradient, and the local part of that."""
        if type(grad) is not DTensor:
            raise Unsupported(f"a gradient that is a {type(grad).__name__}, of a DTensor")
        part: Any = grad._local_tensor
        return self.tracer.recorder.nodes(self._of(grad.placements, part)), part

    def _of(self, placements: Any, part: FakeTensor) -> FakeTensor:
        if self.main.placements in (None, placements) and part.shape == self.local.shape:
            self.main.placements = placements
            return self.local
        for receiver, fake in self.receivers:
            if receiver.placements == placements:
                return fake
        receiver = Local(placements, tuple(map(int, part.shape)))
        self.receivers.append((receiver, self._input(receiver, f"gradients of {{}} with {placements}")))
        return self.receivers[-1][1]


@dataclass(eq=False, slots=True)
class _Like:
    """A guard: a DTensor has this mesh, these placements and this layout."""

    spec: Any
    requires_grad: bool

    def __call__(self, x: Any) -> bool:
        spec = x._spec
        return (spec is self.spec or spec.mesh is self.spec.mesh and spec == self.spec) and (
            x.requires_grad is self.requires_grad)


def _settings() -> tuple[Any, ...]:
    """Return what the program may change of the dispatch of operators on DTensors, as `loss_parallel` does."""
    dispatcher: Any = DTensor._op_dispatcher
    return dispatcher._custom_op_handlers, dispatcher._allow_implicit_replication


@dataclass(eq=False, slots=True)
class _Settings:
    """A guard: operators are dispatched as at capture."""

    handlers: dict[Any, Any]
    implicit: bool

    def __call__(self, read: Any) -> bool:
        return bool(read() == (self.handlers, self.implicit))


def _guard_dispatcher(tracer: Any) -> None:
    if (_settings, ()) not in tracer.readings:
        handlers, implicit = tracer.readings[_settings, ()] = _settings()
        tracer.guard(Pinned(_settings), "callable", _Settings(dict(handlers), implicit))


@entry(OUTSIDE, _DTENSOR)
def _dtensor(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    found = tracer.known(value, source)
    if found is not None:
        return found  # type: ignore[no-any-return]
    if isinstance(value._local_tensor, FakeTensor):
        return tracer.remember(value, t.WrapperTensor(value))  # type: ignore[no-any-return]
    if source is None:
        raise Unsupported("a DTensor that has no path from the frame")
    if value.device_mesh.get_coordinate() is None:
        raise OddTensor("a DTensor on a mesh without this process")
    tracer.surroundings.bind("operators on a DTensor, which run whole: what they read is not seen")
    tracer.guard(source, "type", type(value))
    _guard_dispatcher(tracer)
    tracer.guard(source, "callable", _Like(value._spec, value.requires_grad))
    outside = _Input(tracer, value, source)
    fake = DTensor(fixed(outside.local), value._spec, requires_grad=False)
    if value.requires_grad:
        fake.requires_grad_()
        tracer.leaves.append(Leaf(fake, outside.plain))
    return tracer.remember(value, t.WrapperTensor(fake, value=value, source=source))  # type: ignore[no-any-return]


@by_name(f"{_API}.DTensor.from_local")
def _from_local(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if kwargs.get("run_check", t.FALSE).truth(tracer):
        raise Unsupported("DTensor.from_local with a check over all processes")
    _guard_dispatcher(tracer)
    return tracer.torch_call(Making(DTensor.from_local), args, kwargs)  # type: ignore[no-any-return]


@by_name(f"{_API}.distribute_tensor", f"{_API}._dtensor_init_helper")
def _communicating(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    raise Unsupported("a DTensor made of a whole tensor")


class _Kind:
    """See `capture.distributed_tensors.Kind`."""

    def parted(self, x: Any) -> tuple[dict[str, Any], Any]:
        spec = x._spec
        if any(map(_is_masked, spec.placements)):
            raise Unsupported("rows of an embedding leave captured code before they are summed over processes")
        if type(spec)(spec.mesh, spec.placements, tensor_meta=spec.tensor_meta) != spec:
            raise Unsupported("a DTensor with an order of shards of its own leaves captured code")
        placements = tuple([Replicate() if p.is_partial() else p for p in spec.placements])
        return {"grad_placements": placements}, partial(_whole, spec, x.requires_grad)

    @contextmanager
    def engine(self) -> Iterator[None]:
        """Take zeros as replicated."""
        dispatcher: Any = DTensor._op_dispatcher
        before, dispatcher._allow_implicit_replication = dispatcher._allow_implicit_replication, True
        try:
            yield
        finally:
            dispatcher._allow_implicit_replication = before


KINDS[_DTENSOR] = _Kind()


def _whole(spec: Any, grad: bool, local: torch.Tensor) -> Any:
    with torch.set_grad_enabled(grad):
        return DTensor.from_local(local, spec.mesh, spec.placements, run_check=False, shape=spec.shape,
                                  stride=spec.stride)
