"""Compares a compiled function with the plain one in everything that a program can see of its tensors.

Values, types, dtypes, strides, flags, which outputs share memory with which arguments, what the arguments hold
afterwards, the generator's state, the thread's torch state, and the exception that leaves.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import framesmith
from framesmith.compiler import FrameCompiler
from framesmith.config import Config
from framesmith.ledger import Ledger
from framesmith.testing import CompileCounter
from framesmith.wrapping import wrap_function

Fn = Callable[..., Any]


@dataclass(frozen=True)
class Fresh:
    """An argument that cannot be copied: made for each call."""

    make: Callable[[], Any]


def reasons(ledger: Ledger) -> list[str]:
    """Why graphs ended, and why frames run in eager."""
    return [b.reason for r in ledger.records for b in r.breaks] + [r.reason for r in ledger.refusals]


def check(fn: Fn, *args: Any, breaks: bool | None = False, **how: Any) -> Ledger:
    """See `agree`. `breaks`: True: it breaks, or runs in eager; False: it is captured whole; None: either, by the
    version of torch."""
    ledger = agree(fn, *args, fullgraph=breaks is False, **how)
    assert not breaks or reasons(ledger), "captured whole; a break was expected"
    return ledger


def agree(fn: Fn, *args: Any, fullgraph: bool = True, raises: type[Exception] | None = None, calls: int = 2,
          seed: int = 7,
          grad: bool = False) -> Ledger:
    """`fn` compiled and plain do the same, in each of `calls` calls."""
    ledger = Ledger()
    compiled = wrap_function(fn, FrameCompiler(Config(backend="eager", fullgraph=fullgraph, suppress_errors=False),
                                               ledger))
    for _ in range(calls):
        want = observed(fn, args, seed, grad)
        assert (want["error"] and want["error"][0]) == raises, want["error"]
        got = observed(compiled, args, seed, grad)
        assert differences(want, got) == [], differences(want, got)
    assert not fullgraph or ledger.records or want["error"], "nothing was captured"
    return ledger


def observed(fn: Fn, args: tuple[Any, ...], seed: int, grad: bool) -> dict[str, Any]:
    """What one call on copies of `args` did."""
    args = tuple(a.make() if isinstance(a, Fresh) else copy.deepcopy(a) for a in args)
    before = state()
    torch.manual_seed(seed)
    with torch.set_grad_enabled(grad):
        try:
            result, error = fn(*args), None
        except framesmith.exc.Unsupported:
            raise
        except Exception as e:
            result, error = None, (type(e), str(e))
        after = state()
    with torch._C.DisableTorchFunctionSubclass():
        everything = [*flat(args), *flat(result)]
        shown = [picture(v, everything) for v in (result, args)]
    out = {"result": shown[0], "args": shown[1], "error": error, "rng": torch.get_rng_state(), "state": after}
    restore(before)
    return out


def state() -> tuple[Any, ...]:
    """The thread's torch state."""
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.get_default_dtype(), torch.get_default_device(), torch.are_deterministic_algorithms_enabled(),
            torch.is_autocast_cache_enabled())


def restore(kept: tuple[Any, ...]) -> None:
    torch.set_grad_enabled(kept[0])
    torch.set_autocast_enabled("cpu", kept[2])
    torch.set_autocast_dtype("cpu", kept[3])
    torch.set_default_dtype(kept[4])
    if torch.get_default_device() != kept[5]:
        torch.set_default_device(kept[5])
    torch.use_deterministic_algorithms(kept[6])


def picture(value: Any, args: list[torch.Tensor]) -> Any:
    """A comparable description of a value; tensors name those among `args` whose object or memory they are."""
    if isinstance(value, torch.Tensor):
        return tensor_picture(value, args)
    if isinstance(value, dict):
        return type(value), [(picture(k, args), picture(v, args)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [picture(v, args) for v in value]
    if isinstance(value, (set, frozenset)):
        return type(value), len(value)
    if type(value).__module__ == "numpy":
        numbers = value.tolist() if getattr(value, "dtype",
                                            None) is None or value.dtype.kind not in "fc" else torch.tensor(
                                                value.copy())
        return type(value), str(getattr(value, "dtype", "")), getattr(value, "shape", ()), numbers
    if isinstance(value, float):
        return float, repr(value)
    if isinstance(value, torch.nn.Module):
        return type(value), [picture(v, args) for m in value.modules() for v in (m.training, own_state(m))]
    if isinstance(value, torch.Generator):
        return value.get_state()
    if hasattr(value, "__dict__") and not callable(value):
        return type(value), picture(vars(value), args)
    return type(value), value


def own_state(m: torch.nn.Module) -> dict[str, Any]:
    return {**m._parameters, **m._buffers,
            **{k: v for k, v in vars(m).items() if not k.startswith("_") and not callable(v)}}


def tensor_picture(x: torch.Tensor, args: list[torch.Tensor]) -> tuple[Any, ...]:
    own = sorted((k, picture(v, args)) for k, v in vars(x).items())
    meta = (type(x), x.dtype, tuple(x.shape), x.layout, x.requires_grad, x.is_leaf, x.is_inference(), x.is_conj(),
            x.is_neg(),
            picture(x.grad, args) if x.is_leaf else None, own)
    if x.layout != torch.strided or x.is_quantized:
        return (*meta, x)
    shared = [i for i, a in enumerate(args) if storage(a) == storage(x) and storage(x)]
    same = [i for i, a in enumerate(args) if a is x]
    offset = x.storage_offset() if len(shared) > 1 else None
    value = "no data" if x.is_meta else x.detach().resolve_conj().clone()
    return (*meta, x.stride(), offset, shared, same, value)


def storage(x: torch.Tensor) -> int:
    """The identity of a tensor's memory; 0 if it has none."""
    return x.untyped_storage().data_ptr() if x.layout == torch.strided and x.numel() else 0


def flat(value: Any) -> list[torch.Tensor]:
    """The tensors in nested containers."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, torch.nn.Module):
        return [x for m in value.modules() for x in own_state(m).values() if isinstance(x, torch.Tensor)]
    return [x for v in value for x in flat(v)] if isinstance(value, (list, tuple)) else []


def differences(want: Any, got: Any, path: str = "") -> list[str]:
    """Where two pictures differ."""
    if isinstance(want, torch.Tensor) and isinstance(got, torch.Tensor):
        same = want.dtype == got.dtype and want.shape == got.shape and close(want, got)
        return [] if same else [f"{path}: {want} != {got}"]
    if type(want) is type(got) and isinstance(want, (list, tuple)) and len(want) == len(got):
        return [d for i, (a, b) in enumerate(zip(want, got, strict=True)) for d in differences(a, b, f"{path}.{i}")]
    if isinstance(want, dict) and isinstance(got, dict) and list(want) == list(got):
        return [d for k in want for d in differences(want[k], got[k], f"{path}.{k}")]
    return [] if type(want) is type(got) and want == got else [f"{path}: {want!r} != {got!r}"]


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.is_quantized or a.layout != torch.strided:
        return bool(torch.equal(a.to_dense() if not a.is_quantized else a.int_repr(),
                                b.to_dense() if not b.is_quantized else b.int_repr()))
    if not (a.is_floating_point() or a.is_complex()):
        return bool(torch.equal(a, b))
    return bool(torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True))


def one_graph(fn: Fn, *args: Any, calls: int = 2) -> None:
    """`fn` is one graph, and each of `calls` calls gives eager's result, gradients of all results' sum and state of the
    generator."""
    framesmith.reset()
    counter = CompileCounter()
    compiled = framesmith.compile(fn, fullgraph=True, backend=counter)
    for _ in range(calls):
        want, got = graded(fn, args), graded(compiled, args)
        assert differences(want, got) == [], differences(want, got)
    assert counter.frame_count == 1 + want["differentiated"], counter.frame_count


def graded(fn: Fn, args: tuple[Any, ...]) -> dict[str, Any]:
    args = tuple(a.make() if isinstance(a, Fresh) else copy.deepcopy(a) for a in args)
    inputs = flat(args)
    torch.manual_seed(7)
    result = fn(*args)
    with torch._C.DisableTorchFunctionSubclass():
        shown = picture(result, [*inputs, *flat(result)])
        total = sum(x.double().sum() for x in flat(result) if x.requires_grad)
        if isinstance(total, torch.Tensor):
            total.backward()
        grads = [picture(x.grad, []) for x in inputs]
    return {"result": shown, "grads": grads, "rng": torch.get_rng_state(),
            "differentiated": isinstance(total, torch.Tensor)}
