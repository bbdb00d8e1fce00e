"""Samples of PyTorch's own lists of operators and modules, as calls that can be made anew any number of times."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.testing._internal.common_modules import module_db
from torch.utils._pytree import tree_map

from tests.op_db import common_methods_invocations, op_db

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.int64, torch.bfloat16, torch.float64, torch.float16, torch.bool, torch.uint8,
                  torch.complex64,
                  torch.int32, torch.int16, torch.int8, torch.complex128, torch.complex32, torch.uint16, torch.uint32,
                  torch.uint64)
}  # fmt: skip
"""By name, in the order in which they are run."""
MODES = ("forward", "backward", "in place", "errors")
_UNSET = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
UNCOMPARED = dict.fromkeys(_UNSET, "memory is not set")
"""Operators whose values are not compared, and why. Random operators are: the generator is seeded, and eager's numbers
are promised."""
CANCELLING = {"special.ndtr": "1 + erf(x) is one function here, closer to the exact value than eager's sum of numbers "
                              "about one"}
"""Operators whose results are compared as what is left of numbers about one, and why."""
WIDE = {torch.complex32: torch.complex128, torch.complex64: torch.complex128}
MANY = 400
"""Of an operator with more samples only so many are made, evenly."""


@dataclass(frozen=True)
class Subject:
    """An operator or module in a dtype and a mode."""

    name: str
    dtype: str
    mode: str

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} {self.mode}"


@dataclass
class Call:
    """One call: `make()` gives the callable, positional and keyword arguments, fresh each time."""

    make: Callable[[bool], tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]
    processed: Callable[[Any], Any] = field(default=lambda result: result)
    """What of the result has a gradient that is defined."""


@functools.cache
def operators() -> dict[str, Any]:
    # Samples of random operators seed the generator and put its state back, which no graph does: calls are seeded here.
    setattr(common_methods_invocations, "wrapper_set_seed", lambda op, *args, **kw: op(*args, **kw))  # noqa: B010
    return {op.full_name: op for op in op_db}


@functools.cache
def modules() -> dict[str, Any]:
    return {info.name: info for info in module_db}


def subjects(names: list[str], dtypes: list[str], modes: list[str]) -> list[Subject]:
    """All of them, or those of these names (which may end in `*`); by dtype."""
    def wanted(name: str) -> bool:
        return not names or any(name == n or (n.endswith("*") and name.startswith(n[:-1])) for n in names)

    found = []
    for dtype in dtypes:
        for name, op in operators().items():
            if not wanted(name):
                continue
            if dtype == "float32" and "errors" in modes and op.error_inputs_func is not None:
                found.append(Subject(name, dtype, "errors"))
            if DTYPES[dtype] not in op.supported_dtypes("cpu"):
                continue
            differentiable = op.supports_autograd and DTYPES[dtype] in op.supported_backward_dtypes("cpu")
            has = {"forward": True, "backward": differentiable, "in place": op.inplace_variant is not None}
            found += [Subject(name, dtype, mode) for mode in modes if has.get(mode)]
        for name, info in modules().items():
            if wanted(name) and DTYPES[dtype] in info.supported_dtypes("cpu"):
                has = {"forward": True, "backward": info.supports_gradgrad or DTYPES[dtype].is_floating_point}
                found += [Subject(name, dtype, mode) for mode in modes if has.get(mode)]
    return found


@functools.lru_cache(maxsize=64)
def calls(subject: Subject) -> list[Call]:
    """All samples of it, always the same ones."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _module_calls(subject) if subject.name in modules() else _operator_calls(subject)


def chosen(count: int, most: int) -> list[int]:
    """At most so many (0: `MANY`) of `count` samples, evenly."""
    most = min(count, most or MANY)
    return [k * count // most for k in range(most)]


def _operator_calls(subject: Subject) -> list[Call]:
    op, dtype = operators()[subject.name], DTYPES[subject.dtype]
    if subject.mode == "errors":
        return [_operator_call(op.op, error.sample_input, False) for error in op.error_inputs("cpu")]
    samples = op.sample_inputs("cpu", dtype, requires_grad=subject.mode == "backward")
    fn = op.inplace_variant if subject.mode == "in place" else op.op
    samples = [s for s in samples if subject.mode != "in place" or not s.broadcasts_input]
    return [_operator_call(fn, sample, subject.mode == "backward") for sample in samples]


def _operator_call(fn: Any, sample: Any, grad: bool) -> Call:
    def make(wide: bool) -> Any:
        again = Again(wide, grad)
        return fn, tree_map(again, (sample.input, *sample.args)), tree_map(again, sample.kwargs)

    return Call(make, sample.output_process_fn_grad if grad else Call.__dataclass_fields__["processed"].default)


def _module_calls(subject: Subject) -> list[Call]:
    info, dtype, grad = modules()[subject.name], DTYPES[subject.dtype], subject.mode == "backward"
    out = []
    for training in (True, False) if info.train_and_eval_differ else (False,):
        for given in info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=grad, training=training):
            if given.forward_input is not None:
                out.append(Call(functools.partial(_made_module, info.module_cls, given, dtype, grad, training)))
    return out


def _made_module(kind: Any, given: Any, dtype: torch.dtype, grad: bool, training: bool, wide: bool) -> Any:
    again = Again(wide, grad)
    torch.manual_seed(0)
    module = kind(*tree_map(again, given.constructor_input.args), **tree_map(again, given.constructor_input.kwargs))
    module = module.to(dtype).to(WIDE.get(dtype, torch.float64) if wide else dtype).train(training)
    for parameter in module.parameters():
        if not is_lazy(parameter):
            parameter.requires_grad_(grad)
    return module, tree_map(again, given.forward_input.args), tree_map(again, given.forward_input.kwargs)


class Again:
    """Makes tensors again, in memory of their own that lies the same way; tensors that share memory still do."""

    def __init__(self, wide: bool, grad: bool) -> None:
        self.wide, self.grad = wide, grad
        self.storages: dict[int, torch.UntypedStorage] = {}

    def __call__(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        y = self._copy(x)
        if self.wide and (y.is_floating_point() or y.is_complex()):
            y = y.to(WIDE.get(y.dtype, torch.float64))
        return y.requires_grad_(self.grad and x.requires_grad)

    def _copy(self, x: torch.Tensor) -> torch.Tensor:
        if x.layout != torch.strided or x.is_nested or type(x) not in (torch.Tensor, torch.nn.Parameter) or x.is_meta:
            return x.detach().clone()
        x = x.detach()
        if x.is_conj():
            return self._copy(x.conj()).conj()
        if x.is_neg():
            return self._copy(torch._neg_view(x))._neg_view()
        storage = x.untyped_storage()
        mine = self.storages.setdefault(storage.data_ptr() if storage.nbytes() else id(x), storage.clone())
        return torch.empty(0, dtype=x.dtype).set_(mine, x.storage_offset(), x.shape, x.stride())
