"""The prims that move elements without computing on them: views, joins, gathers, scatters and factories."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.prims.core import ExternCall, Size, Spec, define, numel, size_of
from framesmith.prims.philox import uniform
from framesmith.util.errors import VerifyError

aten = torch.ops.aten


def _with_shape(x: Any, shape: tuple[Size, ...]) -> Spec:
    return Spec(shape, x.dtype, x.device)


def _replaced(shape: tuple[Size, ...], dim: int, size: Size) -> tuple[Size, ...]:
    return (*shape[:dim], size, *shape[dim + 1 :])


# -- views ------------------------------------------------------------------------------------------------------------


def _reshape_spec(x: Any, shape: tuple[Size, ...]) -> Spec:
    if x.shape != shape and type(n := numel(x.shape)) is type(after := numel(shape)) is int and n != after:
        raise VerifyError(f"reshape of {x.shape} to {shape}")
    return _with_shape(x, shape)


def _permute_spec(x: Any, dims: tuple[int, ...]) -> Spec:
    return _with_shape(x, tuple([x.shape[dim] for dim in dims]))


def slice_length(start: Size, stop: Size, step: int) -> Size:
    """Return the number of elements of a slice with 0 <= start <= stop."""
    return size_of((stop - start + (step - 1)) // step) if step != 1 else size_of(stop - start)


def _slice_spec(x: Any, dim: int, start: Size, stop: Size, step: int) -> Spec:
    return _with_shape(x, _replaced(x.shape, dim, slice_length(start, stop, step)))


def _slice(x: torch.Tensor, dim: int, start: int, stop: int, step: int) -> torch.Tensor:
    return aten.slice.Tensor(x, dim, start, stop, step)


def _same_spec(x: Any, *_: Any) -> Spec:
    return _with_shape(x, x.shape)


def _diagonal_spec(x: Any, offset: int, dim1: int, dim2: int) -> Spec:
    rows, columns = x.shape[dim1], x.shape[dim2]
    if type(rows) is not int or type(columns) is not int:
        raise VerifyError("diagonal of symbolic sizes")
    length = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    return _with_shape(x, (*(s for d, s in enumerate(x.shape) if d not in (dim1, dim2)), length))


def _unfold_spec(x: Any, dim: int, size: int, step: int) -> Spec:
    return _with_shape(x, (*_replaced(x.shape, dim, size_of((x.shape[dim] - size) // step + 1)), size))


def _as_strided(x: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> torch.Tensor:
    return torch.as_strided(x.contiguous().clone(), size, stride, offset)


def _expand_spec(x: Any, shape: tuple[Size, ...]) -> Spec:
    lead = len(shape) - len(x.shape)
    if lead < 0 or any(old != 1 and old != new for old, new in zip(x.shape, shape[lead:])):
        raise VerifyError(f"expand of {x.shape} to {shape}")
    return _with_shape(x, shape)


define("reshape", "view", torch.reshape, _reshape_spec, extern=aten.reshape.default,
       doc="reshape(x, shape): row-major order of elements kept")
define("permute", "view", torch.permute, _permute_spec, extern=aten.permute.default,
       doc="permute(x, dims): result dim i is dim dims[i] of x")
define("expand", "view", lambda x, shape: x.expand(shape), _expand_spec, extern=aten.expand.default,
       doc="expand(x, shape): broadcast, aligned at the right; new leading dims allowed")
define("slice", "view", _slice, _slice_spec, extern=aten.slice.Tensor,
       doc="slice(x, dim, start, stop, step): 0 <= start <= stop <= size, step >= 1")
define("select", "view", torch.select, lambda x, dim, index: _with_shape(x, (*x.shape[:dim], *x.shape[dim + 1 :])),
       extern=aten.select.int, doc="select(x, dim, index): the dim is dropped; 0 <= index < size")
define("flip", "view", torch.flip, _same_spec, extern=aten.flip.default, doc="flip(x, dims)")
define("roll", "view", torch.roll, _same_spec, extern=aten.roll.default,
       doc="roll(x, shifts, dims): y[i] = x[(i - shift) mod size] in each dim; 0 <= shift < size")
define("diagonal", "view", torch.diagonal, _diagonal_spec, extern=aten.diagonal.default,
       doc="diagonal(x, offset, dim1, dim2): the two dims drop out, the diagonal is the last dim")
define("unfold", "view", lambda x, dim, size, step: x.unfold(dim, size, step), _unfold_spec,
       extern=aten.unfold.default,
       doc="unfold(x, dim, size, step): windows; dim counts them, a new last dim runs inside one")
define("as_strided", "view", _as_strided, lambda x, size, stride, offset: _with_shape(x, size),
       doc="as_strided(x, size, stride, offset): strides and offset count elements of x in row-major order")


# -- joins ------------------------------------------------------------------------------------------------------------


def _cat_spec(tensors: tuple[Any, ...], dim: int) -> Spec:
    first = tensors[0]
    total: Any = 0
    for tensor in tensors:
        if tensor.dtype is not first.dtype:
            raise VerifyError(f"cat of {first.dtype} and {tensor.dtype}")
        total = tensor.shape[dim] + total
    return _with_shape(first, _replaced(first.shape, dim, size_of(total)))


def _pad_spec(x: Any, pads: tuple[tuple[Size, Size], ...], value: Any) -> Spec:
    return _with_shape(x, tuple([size_of(low + size + high) for size, (low, high) in zip(x.shape, pads)]))


def _torch_pads(pads: tuple[tuple[int, int], ...]) -> list[int]:
    return [amount for pair in reversed(pads) for amount in pair]


def _pad(x: torch.Tensor, pads: tuple[tuple[int, int], ...], value: Any) -> torch.Tensor:
    return aten.constant_pad_nd.default(x, _torch_pads(pads), value)


define("cat", "view", torch.cat, _cat_spec, extern=aten.cat.default,
       doc="cat((x, ...), dim): equal dtypes and ranks; one or more tensors")
define("pad", "view", _pad, _pad_spec,
       extern=lambda x, pads, value: (aten.constant_pad_nd.default, (x, _torch_pads(pads), value)),
       doc="pad(x, ((low, high), ...) one pair a dim, value): constant; negative amounts crop")
define("slice_scatter", "view", aten.slice_scatter.default, _same_spec, extern=aten.slice_scatter.default,
       doc="slice_scatter(x, src, dim, start, stop, step): x with the slice replaced by src")
define("select_scatter", "view", aten.select_scatter.default, _same_spec, extern=aten.select_scatter.default,
       doc="select_scatter(x, src, dim, index): x with one index of dim replaced by src")


def _uniform_spec(state: Any, shape: tuple[Size, ...], *_: Any) -> Spec:
    return Spec(shape, torch.float32, state.device)


define("uniform", "index", uniform, _uniform_spec,
       doc="uniform(state: int64[2], shape, shift, vector, threads, steps): numbers above 0 and up to 1 by a "
           "generator's seed and offset, the same each time (see prims.philox)")


# -- indexing by tensors ----------------------------------------------------------------------------------------------


def _index_shape(x: Any, indices: tuple[Any, ...], dim: int) -> tuple[Size, ...]:
    return (*x.shape[:dim], *indices[0].shape, *x.shape[dim + len(indices) :])


def _index(x: torch.Tensor, indices: tuple[torch.Tensor, ...], dim: int) -> torch.Tensor:
    return aten.index.Tensor(x, [None] * dim + list(indices))


def _index_put(x: torch.Tensor, values: Any, indices: tuple[torch.Tensor, ...], dim: int,
               accumulate: bool) -> torch.Tensor:
    if not isinstance(values, torch.Tensor):
        values = torch.tensor(values, dtype=x.dtype, device=x.device)
    return aten.index_put.default(x, [None] * dim + list(indices), values, accumulate)


def _index_put_extern(x: Any, values: Any, indices: tuple[Any, ...], dim: int, accumulate: bool) -> ExternCall | None:
    if not hasattr(values, "shape"):
        return None
    return aten.index_put.default, (x, [None] * dim + list(indices), values, accumulate)


def _scatter(x: torch.Tensor, index: torch.Tensor, src: Any, dim: int) -> torch.Tensor:
    return torch.scatter(x, dim, index, src)


def _scatter_extern(x: Any, index: Any, src: Any, dim: int) -> ExternCall:
    return aten.scatter.src if hasattr(src, "shape") else aten.scatter.value, (x, dim, index, src)


_REDUCE_NAMES = {"add": "sum", "mul": "prod", "maximum": "amax", "minimum": "amin"}


def _scatter_reduce(x: torch.Tensor, index: torch.Tensor, src: torch.Tensor, dim: int, reduce: str) -> torch.Tensor:
    return torch.scatter_reduce(x, dim, index, src, _REDUCE_NAMES[reduce])


define("gather", "index", lambda x, index, dim: torch.gather(x, dim, index),
       lambda x, index, dim: _with_shape(x, index.shape),
       extern=lambda x, index, dim: (aten.gather.default, (x, dim, index)),
       doc="gather(x, index, dim): int64 index of x's rank, 0 <= index < size")
define("index_select", "index", lambda x, index, dim: torch.index_select(x, dim, index),
       lambda x, index, dim: _with_shape(x, _replaced(x.shape, dim, index.shape[0])),
       extern=lambda x, index, dim: (aten.index_select.default, (x, dim, index)),
       doc="index_select(x, index, dim): 1-d int32 or int64 index, 0 <= index < size")
define("embedding", "index", lambda weight, index: aten.embedding.default(weight, index),
       lambda weight, index: _with_shape(weight, (*index.shape, weight.shape[1])), extern=aten.embedding.default,
       doc="embedding(weight, index): rows of a matrix; int32 or int64 index of any rank, 0 <= index < rows")
define("index", "index", _index, lambda x, indices, dim: _with_shape(x, _index_shape(x, indices, dim)),
       extern=lambda x, indices, dim: (aten.index.Tensor, (x, [None] * dim + list(indices))),
       doc="index(x, (i0, i1, ...), dim): int64 tensors of one shape take the place of dims dim, dim+1, ...; -size "
           "<= index < size")
define("index_put", "index", _index_put, _same_spec, extern=_index_put_extern,
       doc="index_put(x, values, (i0, ...), dim, accumulate): values broadcast to the shape that index gives, or a "
           "scalar")
define("scatter", "index", _scatter, _same_spec, extern=_scatter_extern,
       doc="scatter(x, index, src, dim): y[.., index[p], ..] = src[p]; src may be a scalar; 0 <= index < size")
define("scatter_reduce", "index", _scatter_reduce, _same_spec,
       extern=lambda x, index, src, dim, reduce: (aten.scatter_reduce.two,
                                                  (x, dim, index, src, _REDUCE_NAMES[reduce])),
       doc="scatter_reduce(x, index, src, dim, reduce): reduce is add, mul, maximum or minimum; x takes part")


# -- factories --------------------------------------------------------------------------------------------------------


def _iota(length: int, start: Any, step: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    exact = torch.float64 if isinstance(start, float) or isinstance(step, float) else torch.int64
    return (torch.arange(length, dtype=exact, device=device) * step + start).to(dtype)


define("iota", "factory", _iota, lambda length, start, step, dtype, device: Spec((size_of(length),), dtype, device),
       doc="iota(length, start, step, dtype, device): start + step * i, computed in double or int64, then "
           "converted")
define("full", "factory", lambda shape, value, dtype, device: torch.full(shape, value, dtype=dtype, device=device),
       lambda shape, value, dtype, device: Spec(tuple(map(size_of, shape)), dtype, device),
       extern=lambda shape, value, dtype, device: (aten.full.default, (shape, value, dtype, None, device)),
       doc="full(shape, value, dtype, device)")
