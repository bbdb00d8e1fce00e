"""The sizes of results of operators that run as eager's kernels, from the sizes of their arguments, so that dynamic
ones stay symbolic. Dtypes and layouts are the kernel's (see `size_inference.py`), and so are errors, when it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from framesmith.fake.layout import broadcast
from framesmith.fake.tensor import FakeTensor
from framesmith.fake.windows import for_each_dim, window_count
from framesmith.prims.registry import overload
from framesmith.util.tables import entry

Sizes = tuple[Any, ...]

SIZES: dict[Any, Callable[..., Any]] = {}
"""operator -> function from its arguments to the sizes of its result, or of each of several; NotImplemented:
unknown."""


def _sizes(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return entry(SIZES, *[found for name in names if (found := overload(name)) is not None])


def _of(place: int, results: int = 1) -> Callable[..., Any]:
    """Return a rule: each result has the sizes of the argument at a place."""
    return lambda *args, **_: tuple(args[place].shape) if results == 1 else (tuple(args[place].shape),) * results


_sizes("bucketize.Tensor", "_fft_c2c", "renorm", "put", "index_reduce", "index_put", "cholesky",
       "cholesky_inverse", "linalg_matrix_exp", "_safe_softmax", "_softmax_backward_data", "_log_softmax_backward_data",
       "logcumsumexp", "mvlgamma", "isin.Tensor_Tensor", "isin.Tensor_Scalar",
       "_unsafe_masked_index_put_accumulate", "linalg_householder_product", "scatter_reduce.two")(_of(0))
_sizes("polygamma", "searchsorted.Tensor", "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward",
       "avg_pool3d_backward", "adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward",
       "multi_margin_loss_backward", "multilabel_margin_loss_backward")(_of(1))
_sizes("ormqr")(_of(2))
_sizes("cummax", "cummin")(_of(0, 2))


@_sizes("bitwise_left_shift.Tensor", "bitwise_right_shift.Tensor", "nextafter", "hypot", "igamma", "igammac",
        "heaviside", "gcd", "lcm", "special_zeta", "linalg_cross", "masked_scatter", "special_laguerre_polynomial_l",
        "special_legendre_polynomial_p", "special_hermite_polynomial_h", "special_hermite_polynomial_he",
        *[f"special_{shifted}chebyshev_polynomial_{kind}" for shifted in ("", "shifted_") for kind in "tuvw"])
def _broadcast(a: FakeTensor, b: FakeTensor, *_: Any, **__: Any) -> Any:
    return broadcast(tuple(a.shape), tuple(b.shape)) or NotImplemented


_sizes("grid_sampler_2d", "grid_sampler_3d")(lambda x, grid, *_: (*x.shape[:2], *grid.shape[1:-1]))
_sizes("linspace")(lambda start, end, steps, **_: (steps,))
_sizes("mv")(lambda a, v: (a.shape[0],))
_sizes("addmv")(lambda x, a, v, **_: (a.shape[0],))
_sizes("dot", "vdot", "trace", "median", "nanmedian", "dist", "isin.Scalar_Tensor")(lambda *_: ())
_sizes("addbmm")(lambda x, a, b, **_: (a.shape[1], b.shape[2]))
_sizes("addr")(lambda x, a, b, **_: (a.shape[0], b.shape[0]))


@_sizes("_cdist_forward")
def _distances(a: FakeTensor, b: FakeTensor, *_: Any) -> Sizes:
    return *_batch(a, b), a.shape[-2], b.shape[-2]


_sizes("linalg_solve_triangular")(lambda a, b, **_: (*_batch(a, b), *b.shape[-2:]))
_sizes("cholesky_solve")(lambda b, a, *_: (*_batch(a, b), *b.shape[-2:]))


_sizes("linalg_cholesky_ex", "linalg_inv_ex")(lambda x, **_: (tuple(x.shape), tuple(x.shape[:-2])))
_sizes("_linalg_det")(lambda x: (tuple(x.shape[:-2]), tuple(x.shape), tuple(x.shape[:-1])))
_sizes("_linalg_slogdet")(lambda x: (*[tuple(x.shape[:-2])] * 2, tuple(x.shape), tuple(x.shape[:-1])))


@_sizes("_linalg_eigh")
def _eigen(x: FakeTensor, upper: str = "L", compute_v: bool = True) -> Any:
    return (tuple(x.shape[:-1]), tuple(x.shape)) if compute_v else NotImplemented


def _batch(a: FakeTensor, b: FakeTensor) -> Sizes:
    return broadcast(tuple(a.shape[:-2]), tuple(b.shape[:-2])) or ()


@_sizes("_fft_r2c")
def _half_spectrum(x: FakeTensor, dims: Any, norm: int, onesided: bool) -> Sizes:
    last = dims[-1] % x.dim()
    return tuple([n // 2 + 1 if onesided and d == last else n for d, n in enumerate(x.shape)])


@_sizes("_fft_c2r")
def _from_half_spectrum(x: FakeTensor, dims: Any, norm: int, size: Any) -> Sizes:
    return tuple([size if d == dims[-1] % x.dim() else n for d, n in enumerate(x.shape)])


@_sizes("im2col")
def _columns(x: FakeTensor, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Sizes:
    places: Any = 1
    for n, k, d, p, s in zip(x.shape[-2:], kernel, dilation, padding, stride, strict=True):
        places = places * window_count(n, k, s, p, d)
    return *x.shape[:-3], x.shape[-3] * kernel[0] * kernel[1], places


_sizes("col2im")(lambda x, size, kernel, *_: (*x.shape[:-2], x.shape[-2] // (kernel[0] * kernel[1]), *size))


@_sizes("median.dim", "nanmedian.dim")
def _reduced(x: FakeTensor, dim: int, keepdim: bool = False) -> tuple[Sizes, Sizes]:
    at = dim % x.dim() if x.dim() else 0
    sizes = (*x.shape[:at], *((1,) if keepdim and x.dim() else ()), *x.shape[at + 1:])
    return sizes, sizes


@_sizes("mode")
def _mode(x: FakeTensor, dim: int = -1, keepdim: bool = False) -> tuple[Sizes, Sizes]:
    return _reduced(x, dim, keepdim)


@_sizes("kthvalue")
def _kth_value(x: FakeTensor, k: Any, dim: int = -1, keepdim: bool = False) -> tuple[Sizes, Sizes]:
    return _reduced(x, dim, keepdim)


@_sizes("multi_margin_loss")
def _margin_loss(x: FakeTensor, target: FakeTensor, p: Any = 1, margin: Any = 1, weight: Any = None,
                 reduction: int = 1) -> Sizes:
    return () if reduction else tuple(target.shape)


@_sizes("multilabel_margin_loss_forward")
def _label_margin_loss(x: FakeTensor, target: FakeTensor, reduction: int) -> tuple[Sizes, Sizes]:
    return () if reduction else tuple(x.shape[:-1]), tuple(target.shape)


@_sizes("diag_embed")
def _embedded(x: FakeTensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Sizes:
    side, rank = x.shape[-1] + abs(offset), x.dim() + 1
    rest = iter(x.shape[:-1])
    return tuple([side if d in (dim1 % rank, dim2 % rank) else next(rest) for d in range(rank)])


@_sizes("adaptive_max_pool2d", "adaptive_max_pool3d")
def _adaptive_pooled(x: FakeTensor, size: Any) -> tuple[Sizes, Sizes]:
    sizes = (*x.shape[:-len(size)], *size)
    return sizes, sizes


_sizes("_adaptive_avg_pool3d")(lambda x, size: (*x.shape[:-3], *size))
_sizes("max_unpool2d", "max_unpool3d")(lambda x, indices, size, *_: (*x.shape[:-len(size)], *size))


@_sizes("max_pool3d_with_indices")
def _pooled(x: FakeTensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
            ceil: bool = False) -> Any:
    sizes = _averaged(x, kernel, stride, padding, ceil, dilation=dilation)
    return sizes if sizes is NotImplemented else (sizes, sizes)


@_sizes("avg_pool3d")
def _averaged(x: FakeTensor, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False, *_: Any,
              dilation: Any = 1) -> Any:
    if ceil:
        return NotImplemented
    windows = [for_each_dim(value, 3) for value in (kernel, stride or kernel, padding, dilation)]
    return *x.shape[:-3], *[window_count(n, *how) for n, *how in zip(x.shape[-3:], *windows, strict=True)]


@_sizes("_trilinear")
def _trilinear(a: FakeTensor, b: FakeTensor, c: FakeTensor, *how: Any) -> Any:
    *expanded, summed = how[:4]
    rank = a.dim() + len(expanded[0])
    wide = []
    for x, added in zip((a, b, c), expanded, strict=True):
        given = iter(x.shape)
        wide.append(tuple([1 if d in added else next(given) for d in range(rank)]))
    common = broadcast(broadcast(wide[0], wide[1]) or (), wide[2])
    return NotImplemented if common is None else tuple([n for d, n in enumerate(common) if d not in summed])
