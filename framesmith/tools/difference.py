"""Comparison of tensors, with a tolerance for the rounding of their dtype, and for eager's own error against a run in
float64 (an element's, or any element's, except at steps of the function)."""

from __future__ import annotations

from typing import Any

import torch

TOLERANCES = {torch.float64: 1e-9, torch.complex128: 1e-9, torch.float32: 2e-5, torch.complex64: 2e-5,
              torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.complex32: 3e-3}  # fmt: skip
_WIDE = {torch.complex32: torch.complex128, torch.complex64: torch.complex128}


def to_float64(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor in float64 or complex128; a leaf stays one."""
    if not (x.is_floating_point() or x.is_complex()):
        return x
    made = x.detach().to(_WIDE.get(x.dtype, torch.float64))
    return made.requires_grad_() * 1 if x.grad_fn is not None else made.requires_grad_(x.requires_grad)


def strides(x: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of dimensions with more than one element."""
    return tuple([s for n, s in zip(x.shape, x.stride(), strict=True) if n > 1]) if x.numel() else ()


def mismatch(a: torch.Tensor, b: torch.Tensor, exact: Any, least: float = 0.0, tolerance: float | None = None) -> str:
    """Describe the difference in dtype, shape and values; "" if there is none. `exact`: the result in float64, where
    there is one. `least`: the magnitude of the terms, whose rounding remains if they cancel. `tolerance`: relative, in
    the place of the dtype's."""
    if a.is_nested and b.is_nested:
        return next((found for x, y in zip(a.unbind(), b.unbind()) if (found := mismatch(x, y, None))), "")
    if a.layout != b.layout:
        return f"{a.layout} became {b.layout}"
    if a.layout != torch.strided:
        a, b, exact = a.to_dense(), b.to_dense(), None
    if a.dtype is not b.dtype or a.shape != b.shape:
        return f"{a.dtype} {tuple(a.shape)} became {b.dtype} {tuple(b.shape)}"
    if a.dtype not in TOLERANCES:
        return "" if torch.equal(a, b) else f"{few(a)} became {few(b)}"
    kind = torch.complex128 if a.is_complex() else torch.float64
    x, y = a.to(kind).reshape(-1), b.to(kind).reshape(-1)
    scale = torch.where(x.isfinite(), x.abs(), 0.0).max().item() if x.numel() else 0.0
    scale = max(scale, least)
    relative = TOLERANCES[a.dtype] if tolerance is None else tolerance
    room = torch.where(x.isfinite(), relative * (x.abs() + 0.1 * scale) + 1e-30, 0.0)
    if isinstance(exact, torch.Tensor) and exact.shape == a.shape:
        off = (exact.to(kind).reshape(-1) - x).abs()
        usual = torch.where(off <= 30 * room, off, 0.0)  # the rest are steps of the function
        room = room + 4 * torch.maximum(usual.max() if off.numel() else usual, torch.where(off.isfinite(), off, 0.0))
    same = (x == y) | (x.isnan() & y.isnan()) | ((x - y).abs() <= room)
    return "" if same.all() else f"{few(x[~same])} became {few(y[~same])}"


def few(x: torch.Tensor) -> list[Any]:
    return x.reshape(-1)[:4].tolist()  # type: ignore[no-any-return]


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest difference of two elements; infinite if only one is NaN, or shapes differ."""
    a, b = (x if x.layout is torch.strided else x.to_dense() for x in (a, b))
    if a.shape != b.shape or not a.numel():
        return 0.0 if a.shape == b.shape else float("inf")
    kind = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
    x, y = a.detach().to(kind), b.detach().to(kind)
    off = torch.where((x == y) | (x.isnan() & y.isnan()), 0.0, (x - y).abs())
    return float(torch.where(off.isnan(), float("inf"), off).max())
