"""What surrounds one call: modes and settings of the process, functions of torch's and Python's replaced, and inputs of
another kind."""

from __future__ import annotations

import contextlib
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from .state_places import other

Around = Callable[[], contextlib.AbstractContextManager[Any]]


@contextlib.contextmanager
def replaced(owner: Any, name: str, make: Callable[[Any], Any] = other) -> Iterator[None]:
    own = name in vars(owner)
    before = getattr(owner, name)
    setattr(owner, name, make(before))
    try:
        yield
    finally:
        setattr(owner, name, before) if own else delattr(owner, name)


@contextlib.contextmanager
def setting(getter: Callable[[], Any], setter: Callable[[Any], Any], value: Any) -> Iterator[None]:
    before = getter()
    setter(value)
    try:
        yield
    finally:
        setter(before)


@contextlib.contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name) if before is None else os.environ.__setitem__(name, before)


@contextlib.contextmanager
def hooked(register: Callable[..., Any], hook: Callable[..., Any]) -> Iterator[None]:
    handle = register(hook)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def another_os() -> Iterator[None]:
    """An entry of sys.modules replaced: what is imported already stays."""
    before = sys.modules["os"]
    sys.modules["os"] = types.ModuleType("os")
    try:
        yield
    finally:
        sys.modules["os"] = before


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out + out if func in (torch.sin, F.relu, torch.tanh, F.linear) else out


class Dispatching(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out + 1 if func is torch.ops.aten.mul.Tensor else out


@contextlib.contextmanager
def errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def _outputs(module: Any, args: Any, out: Any) -> Any:
    return out * 2 if isinstance(out, torch.Tensor) else out


AROUND: dict[str, Around] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "enable_grad": torch.enable_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no autocast": lambda: torch.autocast("cpu", enabled=False),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "double": lambda: setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "meta": lambda: torch.device("meta"),
    "cpu": lambda: torch.device("cpu"),
    "deterministic": lambda: setting(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "precision": lambda: setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"),
    "one thread": lambda: setting(torch.get_num_threads, torch.set_num_threads, 1),
    "flush denormal": lambda: setting(lambda: False, torch.set_flush_denormal, True),
    "F.relu": lambda: replaced(F, "relu"),
    "F.linear": lambda: replaced(F, "linear"),
    "F.layer_norm": lambda: replaced(F, "layer_norm"),
    "F.gelu": lambda: replaced(F, "gelu"),
    "torch.sin": lambda: replaced(torch, "sin"),
    "torch.tanh": lambda: replaced(torch, "tanh"),
    "Tensor.__mul__": lambda: replaced(torch.Tensor, "__mul__"),
    "Tensor.add": lambda: replaced(torch.Tensor, "add"),
    "Tensor.chunk": lambda: replaced(torch.Tensor, "chunk"),
    "Tensor.sum": lambda: replaced(torch.Tensor, "sum"),
    "Tensor.mT": lambda: replaced(torch.Tensor, "mT", lambda old: property(lambda self: 7)),
    "Linear.forward": lambda: replaced(nn.Linear, "forward"),
    "ReLU.forward": lambda: replaced(nn.ReLU, "forward"),
    "Module.__call__": lambda: replaced(nn.Module, "__call__"),
    "Sequential.forward": lambda: replaced(nn.Sequential, "forward"),
    "Dropout.forward": lambda: replaced(nn.Dropout, "forward"),
    "Module.__getattr__": lambda: replaced(
        nn.Module, "__getattr__", lambda old: lambda self, name: 5.0 if name == "width" else old(self, name)
    ),
    "_BatchNorm.forward": lambda: replaced(nn.modules.batchnorm._BatchNorm, "forward"),
    "Linear.__call__": lambda: replaced(nn.Linear, "__call__"),
    "global forward hook": lambda: hooked(nn.modules.module.register_module_forward_hook, _outputs),
    "global pre hook": lambda: hooked(
        nn.modules.module.register_module_forward_pre_hook,
        lambda m, a: tuple([x * 2 if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in a]),
    ),
    "global backward hook": lambda: hooked(
        nn.modules.module.register_module_full_backward_hook,
        lambda m, gi, go: tuple([g if g is None else g * 2 for g in gi]),
    ),
    "environment": lambda: environment("STATE_NET", "yes"),
    "environment 2": lambda: environment("STATE_NET_2", "1"),
    "sys.modules": another_os,
    "function mode": Doubling,
    "dispatch mode": Dispatching,
    "warnings are errors": errors,
    "mkldnn off": lambda: torch.backends.mkldnn.flags(enabled=False),
    "saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),
}


def _strided(x: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(2, -1)[..., ::2] if x.dim() else x


INPUTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "double": lambda x: x.double(),
    "bfloat16": lambda x: x.bfloat16(),
    "int": lambda x: x.int(),
    "bool": lambda x: x > 0,
    "complex": lambda x: x * (1 + 1j),
    "requires grad": lambda x: x.requires_grad_() if x.is_floating_point() else x,
    "parameter": lambda x: nn.Parameter(x, x.is_floating_point()),
    "strided": _strided,
    "transposed": lambda x: x.mT.contiguous().mT if x.dim() > 1 else x,
    "expanded": lambda x: x[:1].expand(x.shape),
    "longer": lambda x: torch.cat([x, x]),
    "shorter": lambda x: x[:1],
    "empty": lambda x: x[:0],
    "deeper": lambda x: x[None],
    "conjugate": lambda x: (x * (1 + 1j)).conj(),
    "negative": lambda x: (x * 1j).conj().imag,
    "offset": lambda x: torch.cat([x, x])[len(x) :],
    "an element each": lambda x: x.expand(2, *x.shape)[1],
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x,
    "inference": lambda x: _inference(x),
    "number": lambda x: 2.0,
    "none": lambda x: None,
    "subclass": lambda x: x.as_subclass(Plain),
    "sparse": lambda x: x.to_sparse(),
    "nan": lambda x: x * float("nan"),
    "attribute": lambda x: _noted(x),
    "list": lambda x: [x],
    "buffer": lambda x: nn.Buffer(x),
    "view": lambda x: x.view(x.shape),
    "non-leaf": lambda x: x.requires_grad_().mul(1) if x.is_floating_point() else x,
}


class Plain(torch.Tensor):
    pass


def _inference(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return x.clone()


def _noted(x: torch.Tensor) -> torch.Tensor:
    x.note = 1  # type: ignore[attr-defined]
    return x
