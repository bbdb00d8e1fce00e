"""The prims that combine elements along dims: reductions and scans."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.prims.core import Size, Spec, define
from framesmith.util.precision import compute_dtype

aten = torch.ops.aten


def reduced_shape(shape: tuple[Size, ...], dims: tuple[int, ...], keepdim: bool) -> tuple[Size, ...]:
    """Return the shape left when `dims` are reduced: dropped, or kept with size 1."""
    if keepdim:
        return tuple([1 if dim in dims else size for dim, size in enumerate(shape)])
    return tuple([size for dim, size in enumerate(shape) if dim not in dims])


def _reduce_spec(x: Any, dims: tuple[int, ...], keepdim: bool) -> Spec:
    return Spec(reduced_shape(x.shape, dims, keepdim), x.dtype, x.device)


def _arg_spec(x: Any, dim: int, keepdim: bool) -> Spec:
    return Spec(reduced_shape(x.shape, (dim,), keepdim), torch.int64, x.device)


def _var_mean_spec(x: Any, dims: tuple[int, ...], keepdim: bool, correction: Any) -> tuple[Spec, Spec]:
    shape = reduced_shape(x.shape, dims, keepdim)
    return Spec(shape, x.dtype, x.device), Spec(shape, x.dtype, x.device)


def _sum(x: torch.Tensor, dims: tuple[int, ...], keepdim: bool) -> torch.Tensor:
    return torch.sum(x, dims, keepdim, dtype=x.dtype) if dims else x.clone()


def _prod(x: torch.Tensor, dims: tuple[int, ...], keepdim: bool) -> torch.Tensor:
    out = x.to(compute_dtype(x.dtype))
    for dim in reversed(dims):
        out = torch.prod(out, dim, keepdim, dtype=out.dtype)
    return out.to(x.dtype)


def _over_dims(function: Any) -> Any:
    def call(x: torch.Tensor, dims: tuple[int, ...], keepdim: bool) -> torch.Tensor:
        return function(x, dims, keepdim) if dims else x.clone()

    return call


def _var_mean(x: torch.Tensor, dims: tuple[int, ...], keepdim: bool, correction: Any) -> tuple[torch.Tensor, ...]:
    return torch.var_mean(x, dims, correction=correction, keepdim=keepdim)


define("sum", "reduction", _sum, _reduce_spec, extern=aten.sum.dim_IntList,
       doc="sum(x, dims, keepdim): numbers; 16-bit floats accumulate in float32")
define("prod", "reduction", _prod, _reduce_spec, doc="prod(x, dims, keepdim)")
for _name, _variant, _doc in (("amax", "default", "NaN wins; numbers and bool"), ("any", "dims", "bool to bool"),
                              ("amin", "default", "NaN wins; numbers and bool"), ("all", "dims", "bool to bool")):
    define(_name, "reduction", _over_dims(getattr(torch, _name)), _reduce_spec,
           extern=getattr(getattr(aten, _name), _variant), doc=f"{_name}(x, dims, keepdim): {_doc}")
for _name in ("argmax", "argmin"):
    define(_name, "reduction", getattr(torch, _name), _arg_spec, extern=getattr(aten, _name).default,
           doc=f"{_name}(x, dim, keepdim) -> int64: the first of equals, the first NaN before all")
define("var_mean", "reduction", _var_mean, _var_mean_spec, outputs=2,
       doc="var_mean(x, dims, keepdim, correction) -> (var, mean): floats; divisor max(0, count - correction)")


def _scan_spec(x: Any, dim: int) -> Spec:
    return Spec(x.shape, x.dtype, x.device)


define("cumsum", "scan", lambda x, dim: torch.cumsum(x, dim, dtype=x.dtype), _scan_spec, extern=aten.cumsum.default,
       doc="cumsum(x, dim)")
define("cumprod", "scan", lambda x, dim: torch.cumprod(x, dim, dtype=x.dtype), _scan_spec,
       extern=aten.cumprod.default, doc="cumprod(x, dim)")
