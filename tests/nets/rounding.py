"""Where eager's own answer hangs on the last bits that an operator rounds to, or is lost within one of its operators.

Eager's `atan2` is one function in the vector part of a loop and another in the rest of it, and its sums have the
order of the machine's vectors: a decision that hangs on such a bit (which of two equal values is the greatest,
whether a number is above 0.5) is not defined by the program. Only programs that differ are looked at in this way.
Operators that IEEE defines to the bit (sums of two, real products and quotients, comparisons, roots) are left as they
are, so what they decide has to be the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from framesmith.tools.difference import TOLERANCES, mismatch

RUNS = 256
_BITS = 2.0
_LANES = 256
_INEXACT = """exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sigmoid
log_sigmoid erf erfc erfinv gelu silu mish softplus elu celu hardswish atan2 hypot pow reciprocal rsqrt lerp addcmul
addcdiv logaddexp lgamma digamma xlogy xlog1py entr"""
_SUMS = """sum nansum mean var std var_mean prod cumsum cumprod logsumexp logcumsumexp norm vector_norm softmax
log_softmax mm bmm addmm baddbmm addmv mv dot vdot convolution layer_norm batch_norm rms_norm group_norm avg_pool2d
mse_loss scaled_dot_product_attention index_add scatter_add embedding_dense"""
_EXACT = "hardtanh softshrink hardshrink threshold hardsigmoid leaky_relu"
"""Others that are one loop over elements, though their gradients are not said to be."""
_KINDS = "inexact", "sum", "exact"
_SPREADS = "var", "std", "var_mean", "std_mean"
_EXTREMES = "min max amin amax aminmax"
_AFFIXES = re.compile(r"^(_|native_|fused_|linalg_|mkldnn_|special_)*|"
                      r"(_backward|_backward_data|_forward|_overrideable|_math|_flash_attention_for_cpu|_for_cpu|_legit|_)*$")


def _kind(func: Any, args: Any) -> str:
    name = _AFFIXES.sub("", func.overloadpacket.__name__)
    if name in ("mul", "div") and any(isinstance(x, torch.Tensor) and x.is_complex() for x in args):
        return "inexact"
    if name in _EXTREMES.split():
        return "extreme"
    if name == "add" and not torch.is_grad_enabled():  # of the engine, over gradients that come together
        return "sum"
    kinds = ("inexact", _INEXACT), ("sum", _SUMS), ("exact", _EXACT)
    found = next((kind for kind, names in kinds if name in names.split()), "")
    return found or ("exact" if torch.Tag.pointwise in func.tags else "")


class Rounded(TorchDispatchMode):
    """Eager with other last bits: in what sums read, and in what other inexact operators give. Of three seeds one has
    pointwise operators in the vector part of their loops and one has them outside of it, where they may be other
    functions (`gelu` of an infinity and the gradient of `elu` at NaN are NaN in one alone). Seed -1: eager as it is."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.moves, self.place = seed >= 0, (None, _strided, _together)[seed % 3] if seed >= 0 else None
        self.flushes = (_KINDS, _KINDS[:2], _KINDS, ())[seed % 4] if seed >= 0 else ()
        self.generator = torch.Generator().manual_seed(max(seed, 0))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        moves = self.moves and all(map(_has_numbers, args))
        kind, kwargs = _kind(func, args) if moves else "", kwargs or {}
        if func._schema.is_mutable:
            if kind == "sum":
                args[0].copy_(self._moved(args[0]))
            result = func(*args, **kwargs)
            if kind in ("inexact", "sum") and isinstance(result, torch.Tensor):
                result.copy_(self._moved(result))
            return result
        given, args = args, tree_map(_flushed, args) if kind in self.flushes else args
        args = tree_map(self._moved, args) if kind == "sum" else args
        if kind == "sum" and func.overloadpacket is torch.ops.aten.prod:
            args = self._reordered(*args), *args[1:]
        result = func(*args, **kwargs)
        if kind == "sum" and func.overloadpacket.__name__ in _SPREADS:
            result = tree_map(self._either, result, func(*given, **kwargs))
        if self.place is not None and isinstance(result, torch.Tensor) and kind in ("inexact", "exact"):
            placed = tree_map(lambda x: self.place(x, result.shape), args)
            options = {k: v for k, v in kwargs.items() if k != "memory_format"}
            result = result.copy_(func(*placed, **options).reshape(-1)[:result.numel()].reshape(result.shape))
        if kind == "extreme":
            orders = [func(*tree_map(partial(_ordered, order), args), **kwargs) for order in (1, -1)]
            return tree_map(self._one_of_two, result, *orders)
        return tree_map(self._moved, result) if kind == "inexact" else result

    def _either(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Of equal numbers a mean may be one of them, or a bit off, as their count has it: so their variance is nothing
        in some rows, and next to nothing in others."""
        return torch.where(torch.rand(x.shape, generator=self.generator) < 0.5, x, y)

    def _one_of_two(self, x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        """A zero that is the least or greatest of several: which of them hangs on their order and on the vectors that
        they lie in, so that its sign is that of any."""
        if not x.is_floating_point():
            return x
        chosen = torch.where(torch.rand(x.shape, generator=self.generator) < 0.5, low, -high)
        return torch.where(x == 0, torch.zeros_like(x).copysign(chosen), x)

    def _reordered(self, x: torch.Tensor, dim: int | None = None, *_: Any) -> torch.Tensor:
        """The factors of a product in another order: which partial products are lost (too great, or too small) hangs
        on it."""
        if dim is None:
            return x.flatten()[torch.randperm(x.numel(), generator=self.generator)].reshape(x.shape)
        return x.index_select(dim, torch.randperm(x.shape[dim], generator=self.generator)) if x.dim() else x

    def _moved(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not (x.is_floating_point() or x.is_complex()):
            return x
        wide = x.to(torch.complex128 if x.is_complex() else torch.float64)
        shape = (*x.shape, 2) if x.is_complex() else x.shape
        noise = torch.randint(-1, 2, shape, generator=self.generator).double() * (_BITS * torch.finfo(x.dtype).eps)
        noise = torch.view_as_complex(noise) if x.is_complex() else noise
        wide = wide * (1 + noise)
        return torch.empty_like(x).copy_(torch.where(noise == 0, x, wide.to(x.dtype)))  # as `x` lies


def _has_numbers(x: Any) -> bool:
    """Whether a value is no tensor without memory, as autograd makes of zeros."""
    return not isinstance(x, torch.Tensor) or not x._is_zerotensor() and x.device.type != "meta"


def _flushed(x: Any) -> Any:
    """A tensor whose numbers are zero where they are too small for a normal float32: some of eager's kernels, told to
    flush them, take them for neither zeros nor numbers."""
    if not isinstance(x, torch.Tensor) or x.dtype not in (torch.float32, torch.bfloat16):
        return x
    return torch.empty_like(x).copy_(torch.where(x.abs() < torch.finfo(torch.float32).tiny, x * 0, x))


def _ordered(order: int, x: Any) -> Any:
    """A tensor of which zeros are ordered by their signs, or the other way round."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        return x
    return torch.where(x == 0, torch.full_like(x, torch.finfo(x.dtype).tiny).copysign(x * order), x)


def _strided(x: Any, shape: torch.Size) -> Any:
    """A tensor with room between its elements."""
    return torch.stack([x, x], -1)[..., 0] if isinstance(x, torch.Tensor) else x


def _together(x: Any, shape: torch.Size) -> Any:
    """A tensor's elements one behind the other, and more of them, so that they fill whole vectors."""
    if not isinstance(x, torch.Tensor) or x.dim() == 0:
        return x
    flat = x.expand(shape).reshape(-1)
    return torch.cat([flat, flat.new_ones(-flat.numel() % _LANES)])


class Overflows(TorchDispatchMode):
    """Finds operators that overflow within: of finite numbers they give what is not finite, where a run in float64
    gives a number of their dtype. What eager gives then (an infinity, a NaN, a zero) hangs on the order of its
    sums."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given, gave = (all(map(_is_finite, tree_leaves(x))) for x in ((args, kwargs), result))
        if given and not gave and not func._schema.is_mutable:
            try:
                exact = func(*tree_map(_wide, args), **tree_map(_wide, kwargs))
            except (RuntimeError, NotImplementedError):
                return result
            if any(_is_lost(x, y) for x, y in zip(tree_leaves(result), tree_leaves(exact), strict=True)):
                self.found.append(func.overloadpacket.__name__)
        return result


def _is_finite(x: Any) -> bool:
    return not isinstance(x, torch.Tensor) or x._is_zerotensor() or bool(x.isfinite().all())


def _wide(x: Any) -> Any:
    if isinstance(x, torch.Tensor) and x.is_floating_point():
        return x.double()
    return torch.float64 if isinstance(x, torch.dtype) and x.is_floating_point else x


def _is_lost(x: Any, exact: Any) -> bool:
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        return False
    return bool((~x.isfinite() & (exact.abs() <= torch.finfo(x.dtype).max)).any())


def overflows(run: Callable[[], Any]) -> list[str]:
    """The operators of a run that overflow within."""
    mode = Overflows()
    with mode:
        run()
    return mode.found


def reads_unseen_writes(run: Callable[[], Any]) -> bool:
    """Whether a gradient reads memory that was written, after autograd kept it, past its version counter: which of the
    two values it reads hangs on what autograd keeps."""
    written = []

    def unpack(kept: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        now, before = kept
        written.append(not torch.allclose(now, before, 0.0, 0.0, equal_nan=True))
        return now

    with torch.autograd.graph.saved_tensors_hooks(lambda x: (x, x.detach().clone()), unpack):
        run()
    return any(written)


class Leftovers(TorchDispatchMode):
    """Finds whether `as_strided` reads memory of a result that is larger than the result: what an operator left there
    (`mse_loss` the squares that it has the mean of) is none of the program's."""

    def __init__(self) -> None:
        super().__init__()
        self.larger: dict[int, Any] = {}
        self.found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_storage(x)._cdata for x in tree_leaves((args, kwargs)) if _has_memory(x)}
        self.found |= func is torch.ops.aten.as_strided.default and not given.isdisjoint(self.larger)
        result = func(*args, **(kwargs or {}))
        for x in filter(_has_memory, tree_leaves(result)):
            size = x.numel() and 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
            if _storage(x)._cdata not in given and _storage(x).nbytes() > size * x.itemsize:
                self.larger[_storage(x)._cdata] = _storage(x)
        return result


def _has_memory(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.layout == torch.strided and _has_numbers(x)


def _storage(x: torch.Tensor) -> Any:
    return x.untyped_storage()


def reads_leftovers(run: Callable[[], Any]) -> bool:
    """Whether a run reads what an operator left behind its result."""
    mode = Leftovers()
    with mode:
        run()
    return mode.found


def is_exact(a: torch.Tensor, b: torch.Tensor, exact: Any) -> bool:
    """Whether `b` is, wherever it differs from eager's `a`, what a run in float64 gives."""
    if not isinstance(exact, torch.Tensor) or (a.dtype, a.shape) != (b.dtype, b.shape) or a.shape != exact.shape:
        return False
    near = torch.isclose(b, exact.to(b.dtype), TOLERANCES.get(a.dtype, 0.0), 0.0, equal_nan=True)
    return not mismatch(torch.where(near, b, a), b, None)


def roundings(run: Callable[[], Any]) -> list[Any]:
    """Run a program under a mode, and then with other last bits, several times. Every other time numbers that are too
    small for a normal float32 are zero, as compiled code may have them (docs/training.md, `numerics`); once in four
    times for inexact operators alone."""
    shown = []
    try:
        for seed in range(-1, RUNS):
            torch.set_flush_denormal(seed >= 0 and seed % 2 == 0)
            with Rounded(seed):
                shown.append(run())
    finally:
        torch.set_flush_denormal(False)
    return shown


def is_rounding(a: torch.Tensor, b: torch.Tensor, others: list[Any], apart: Callable[[Any, Any], str]) -> bool:
    """Whether `b` is, wherever it differs from eager's `a`, as eager's with other last bits: a number or a decision
    that they give there, or no further off. Autograd has other formulas for some operators under a mode: a value that
    these change is eager's in both."""
    if a.dtype is not b.dtype or a.shape != b.shape or not isinstance(others[0], torch.Tensor):
        return False
    plain, *others = [x for x in others if isinstance(x, torch.Tensor) and x.dtype is a.dtype and x.shape == a.shape]
    if apart(a, plain):
        return not apart(plain, b)
    nearest, inexact = a, a.is_floating_point() or a.is_complex()
    for other in others:
        as_far = b == other
        if inexact:
            reach = (other - a).abs() * 4
            as_far |= b.isnan() & other.isnan() | torch.isclose(b, other, TOLERANCES[a.dtype], 0.0)
            as_far |= ((b - a).abs() <= reach) & reach.isfinite()
        nearest = torch.where(as_far, b, nearest)
    return not apart(nearest, b)
