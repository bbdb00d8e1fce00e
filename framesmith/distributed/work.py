"""The work of a training step, operator by operator, recorded on meta tensors: no weight is allocated or read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from framesmith.util.errors import FramesmithError

ROOT = 0
"""The unit of what is in no block."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a unit: `ready` is the number of operators of the backward before its gradient is complete."""

    unit: int
    elements: int
    itemsize: int
    shape: tuple[int, ...]
    ready: int = 0

    @property
    def bytes(self) -> int:
        return self.elements * self.itemsize


@dataclass(frozen=True)
class Operator:
    """An operator of a unit: operations of products, bytes that it reads and writes, and the dtype of its result."""

    unit: int
    flops: float
    bytes: float
    dtype: torch.dtype


@dataclass(frozen=True)
class Work:
    """A step of one micro-batch. Units are the root and the blocks, in the order of their execution; `saved` and
    `results`: bytes by unit that stay for the backward, and of the unit's result; `attentions`: by unit."""

    parameters: tuple[Parameter, ...]
    forward: tuple[Operator, ...]
    backward: tuple[Operator, ...]
    saved: tuple[float, ...]
    results: tuple[float, ...]
    attentions: tuple[int, ...]


class _Recorder(TorchDispatchMode):
    """Lists operators, with the operations that PyTorch's flop counter has for them; a view costs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.unit = ROOT
        self.operators: list[Operator] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        results = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        read = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        views = {x.untyped_storage()._cdata for x in read} if not func._schema.is_mutable else set()
        if results and any(x.untyped_storage()._cdata not in views for x in results):
            count = flop_registry.get(func.overloadpacket)
            flops = count(*args, **(kwargs or {}), out_val=out) if count is not None else 0.0
            self.add(flops, [*read, *results], results[0].dtype)
        return out

    def add(self, flops: float, touched: Sequence[Tensor], dtype: torch.dtype) -> None:
        self.operators.append(Operator(self.unit, flops, float(sum(x.numel() * x.itemsize for x in touched)), dtype))


class _Attention(torch.autograd.Function):
    """Attention as fused kernels compute it: of the scores nothing is written but a sum for each row."""

    @staticmethod
    def forward(ctx: Any, recorder: _Recorder, causal: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = q.new_empty(*q.shape[:-1], v.shape[-1])
        rows = q.new_empty(q.shape[:-1], dtype=torch.float32)
        ctx.recorder = recorder
        ctx.flops = 2.0 * q.shape[:-1].numel() * k.shape[-2] * (q.shape[-1] + v.shape[-1]) / (2 if causal else 1)
        ctx.save_for_backward(q, k, v, out, rows)
        recorder.add(ctx.flops, [q, k, v, out], q.dtype)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        q, k, v, out, _ = ctx.saved_tensors
        found = [torch.empty_like(x) for x in (q, k, v)]
        ctx.recorder.add(2.5 * ctx.flops, [q, k, v, out, *grads, *found], q.dtype)
        return None, None, *found


class _FusedAttention(TorchFunctionMode):
    """Calls of `scaled_dot_product_attention` as one operator, which meta tensors would compute step by step."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder, self.count = recorder, [0]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not nn.functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        named: dict[str, Any] = kwargs or {}
        q, k, v, *rest = list(args) + [named[name] for name in ("query", "key", "value") if name in named]
        causal = bool(named.get("is_causal", rest[2] if len(rest) > 2 else False))
        self.count.extend([0] * (self.recorder.unit + 1 - len(self.count)))
        self.count[self.recorder.unit] += 1
        return _Attention.apply(self.recorder, causal, q, k, v)


def on_meta(model: nn.Module) -> nn.Module:
    """Return a copy of a module whose parameters and buffers are meta tensors; nothing is copied but the objects."""
    memo: dict[int, Any] = {}
    for x in (*model.parameters(), *model.buffers()):
        empty = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
        memo[id(x)] = nn.Parameter(empty, x.requires_grad) if isinstance(x, nn.Parameter) else empty
    return copy.deepcopy(model, memo)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a model: the members with parameters of its outermost lists of modules."""
    found: list[nn.Module] = []
    for child in [model] if isinstance(model, nn.Sequential) else model.children():
        if isinstance(child, nn.ModuleList | nn.Sequential):
            found += [block for block in child if any(True for _ in block.parameters())]
        else:
            found += blocks_of(child)
    return found


def _loss(out: Any) -> Tensor:
    """Return the loss of a result: `loss` where it has one, or else the sum of means of its floating-point
    tensors."""
    if isinstance(loss := getattr(out, "loss", None), Tensor):
        return loss
    values = [x.mean() for x in tree_leaves(out) if isinstance(x, Tensor) and x.requires_grad]
    if not values:
        raise FramesmithError("no result of the model requires grad: there is no step to plan")
    return torch.stack(values).sum()


def recorded(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], loss: Callable[[Any], Tensor] | None
             ) -> Work:
    """Run a step on meta tensors. Raises FramesmithError where the model's step reads values, or has no gradient."""
    model = on_meta(model)
    args, kwargs = tree_map(lambda x: x.to("meta") if isinstance(x, Tensor) else x, (tuple(args), dict(kwargs)))
    blocks = blocks_of(model)
    unit_of = {id(p): k + 1 for k, block in enumerate(blocks) for p in block.parameters()}
    recorder, results, saved = _Recorder(), [0.0] * (len(blocks) + 1), [0.0] * (len(blocks) + 1)
    attention = _FusedAttention(recorder)
    trained = {id(p): p for p in model.parameters()}
    ready: dict[int, int] = {}
    kept: dict[int, Any] = {x.untyped_storage()._cdata: x for x in (*model.parameters(), *model.buffers())}

    def enter(unit: int) -> Callable[..., None]:
        def before(*_: Any) -> None:
            recorder.unit = unit
        return before

    def leave(unit: int) -> Callable[..., None]:
        def behind(module: Any, args: Any, out: Any) -> None:
            recorder.unit = ROOT
            results[unit] = float(sum(x.numel() * x.itemsize for x in tree_leaves(out) if isinstance(x, Tensor)))
        return behind

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage._cdata not in kept:
            kept[storage._cdata] = x
            saved[recorder.unit] += storage.nbytes()
        return x

    for k, block in enumerate(blocks, 1):
        block.register_forward_pre_hook(enter(k))
        block.register_forward_hook(leave(k))
    for p in trained.values():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(lambda p: ready.update({id(p): len(recorder.operators)}))
    try:
        with torch.device("meta"), attention, recorder:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
                value = (loss or _loss)(model(*args, **kwargs))
            forward, recorder.operators = tuple(recorder.operators), []
            value.backward()
    except (NotImplementedError, RuntimeError) as error:
        raise FramesmithError(f"the step does not run without values: {error}") from error
    parameters = tuple(Parameter(unit_of.get(key, ROOT), p.numel(), p.itemsize, tuple(p.shape), ready.get(key, -1))
                       for key, p in trained.items())
    backward = _attributed(recorder.operators, parameters)
    counts = attention.count + [0] * (len(saved) - len(attention.count))
    return Work(parameters, forward, backward, tuple(saved), tuple(results), tuple(counts))


def _attributed(operators: Sequence[Operator], parameters: Sequence[Parameter]) -> tuple[Operator, ...]:
    """Give each operator of the backward the unit of the next gradient that is complete."""
    marks = sorted((p.ready, p.unit) for p in parameters if p.ready >= 0)
    found, at = [], 0
    for k, operator in enumerate(operators):
        while at < len(marks) - 1 and marks[at][0] <= k:
            at += 1
        found.append(replace(operator, unit=marks[at][1] if marks else ROOT))
    return tuple(found)
