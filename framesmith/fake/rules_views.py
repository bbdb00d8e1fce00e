"""Metadata rows of views, copies, and operators that join or select parts of tensors."""

from __future__ import annotations

from itertools import dropwhile
from typing import Any

import torch

from framesmith.fake.decomposed import by_decomposition
from framesmith.fake.infer import DOUBTED, RULES, rule
from framesmith.fake.layout import (
    broadcast,
    copied_strides,
    dense_order,
    expanded_strides,
    infer_size,
    is_channels_last,
    is_filled,
    is_of_data,
    may_be_small,
    must_match,
    preserved_strides,
    same_shape,
    suggested,
    suggested_strides,
    surely_le,
    view_strides,
)
from framesmith.fake.tensor import (
    FakeTensor,
    contiguous_strides,
    dense,
    has_row_major_strides,
    is_row_major,
    new_fake,
)
from framesmith.prims.promotion import result_dtype
from framesmith.symbolic.layout import decide_layout, expected, strides_in_order
from framesmith.symbolic.node import env_of

aten = torch.ops.aten


def _like(x: FakeTensor, shape: Any, stride: tuple, offset: Any = None) -> FakeTensor:
    return new_fake(shape, stride, x.dtype, x.device, x.storage_offset() if offset is None else offset)


def _dim(dim: int, count: int) -> int:
    """Return a wrapped dimension, or -1 if out of range."""
    if -count <= dim < count:
        return dim % count
    return -1


@rule(aten.view.default, aten._unsafe_view.default)
def view(x: FakeTensor, wanted: Any) -> Any:
    shape = infer_size(x.shape, wanted)
    if shape is None:
        return NotImplemented
    last = x.stride()[-1] if x.dim() else 1  # not 1 where that dimension has one element: those beside it take it over
    plain = is_row_major(x) and (type(last) is not int or last == 1)
    stride = contiguous_strides(shape) if plain else view_strides(x.shape, x.stride(), shape)
    return NotImplemented if stride is None else _like(x, shape, stride)


@rule(aten.reshape.default)
def reshape(x: FakeTensor, wanted: Any) -> Any:
    """reshape; a copy if the tensor cannot be viewed so."""
    shape = infer_size(x.shape, wanted)
    return NotImplemented if shape is None else dense(x, shape)


@rule(aten.transpose.int)
def transpose(x: FakeTensor, dim0: int, dim1: int) -> Any:
    count = x.dim()
    a, b = _dim(dim0, count), _dim(dim1, count)
    if a < 0 or b < 0:
        return NotImplemented
    shape, stride = list(x.shape), list(x.stride())
    shape[a], shape[b] = shape[b], shape[a]
    stride[a], stride[b] = stride[b], stride[a]
    return _like(x, tuple(shape), tuple(stride))


@rule(aten.t.default)
def t(x: FakeTensor) -> Any:
    return _like(x, x.shape[::-1], x.stride()[::-1]) if x.dim() <= 2 else NotImplemented


@rule(aten.permute.default)
def permute(x: FakeTensor, dims: Any) -> Any:
    count = x.dim()
    order = [_dim(d, count) for d in dims]
    if sorted(order) != list(range(count)):
        return NotImplemented
    shape, stride = x.shape, x.stride()
    return _like(x, tuple([shape[d] for d in order]), tuple([stride[d] for d in order]))


@rule(aten.expand.default)
def expand(x: FakeTensor, wanted: Any, *, implicit: bool = False) -> Any:
    lead = len(wanted) - x.dim()
    if lead < 0:
        return NotImplemented
    shape, stride = list(wanted), [0] * lead
    for i, (size, step) in enumerate(zip(x.shape, x.stride()), lead):
        want = wanted[i]
        if type(want) is int and want == -1:
            shape[i] = size
        elif not (want is size or decide_layout(want == size)):
            if size != 1:
                return NotImplemented
            step = 0
        stride.append(step)
    if any(type(n) is int and n < 0 for n in shape):
        return NotImplemented
    # a new leading dimension of size one takes the stride of a row, as it would in a contiguous tensor
    for i in range(lead - 1, -1, -1):
        if decide_layout(shape[i] == 1):
            stride[i] = shape[i + 1] * stride[i + 1] if i + 1 < len(shape) else 1
    return _like(x, tuple(shape), tuple(stride))


@rule(aten.alias.default, aten.detach.default)
def alias(x: FakeTensor) -> Any:
    return _like(x, x.shape, x.stride())


@rule(aten.unsqueeze.default)
def unsqueeze(x: FakeTensor, dim: int) -> Any:
    at = _dim(dim, x.dim() + 1)
    if at < 0:
        return NotImplemented
    shape, stride = x.shape, x.stride()
    step = shape[at] * stride[at] if at < len(shape) else 1
    return _like(x, (*shape[:at], 1, *shape[at:]), (*stride[:at], step, *stride[at:]))


@rule(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def squeeze(x: FakeTensor, dims: Any = None) -> Any:
    count = x.dim()
    gone = range(count) if dims is None else {_dim(d, count) for d in ((dims,) if isinstance(dims, int) else dims)}
    if -1 in gone:
        return NotImplemented
    kept = [i for i, n in enumerate(x.shape) if i not in gone or n != 1]
    return _like(x, tuple([x.shape[i] for i in kept]), tuple([x.stride(i) for i in kept]))


@rule(aten.select.int)
def select(x: FakeTensor, dim: int, index: Any) -> Any:
    at = _dim(dim, x.dim())
    if at < 0:
        return NotImplemented
    shape, stride = x.shape, x.stride()
    size = shape[at]
    if is_of_data(index):
        expected(index >= 0)
    if is_of_data(index) or is_of_data(size):
        env = env_of(size, index)
        if env is None or not env.closed:  # else it was asked, on a path of a branch that may have known the answer
            expected(index < size if is_of_data(index) or index >= 0 else size >= -index)
    elif index < -size or index >= size:
        return NotImplemented
    offset = x.storage_offset() + (index if index >= 0 else index + size) * stride[at]
    return _like(x, (*shape[:at], *shape[at + 1 :]), (*stride[:at], *stride[at + 1 :]), offset)


def _clamped(value: Any, size: Any, missing: Any) -> Any:
    if value is None:
        return missing
    if type(value) is int and value >= 2**62:
        return size
    if is_of_data(value) or may_be_small(size):
        if type(value) is int and value < 0:
            return torch.sym_max(value + size, 0)
        if type(value) is not int and not expected(value >= 0):
            value = torch.sym_max(value + size, 0)
        return value if surely_le(value, size) else torch.sym_min(value, size)
    if value < 0:
        value = value + size
        return 0 if value < 0 else value
    return size if value > size else value


@rule(aten.slice.Tensor)
def slice_(x: FakeTensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    at = _dim(dim, x.dim())
    if at < 0 or step <= 0:
        return NotImplemented
    shape, stride = x.shape, x.stride()
    size = shape[at]
    first = _clamped(start, size, 0)
    last = _clamped(end, size, size)
    if is_of_data(last) or is_of_data(first) or may_be_small(size):
        last = last if last is size or surely_le(first, last) else torch.sym_max(last, first)
    elif last is not size and last < first:
        last = first
    count = last - first if step == 1 else (last - first + step - 1) // step
    offset = x.storage_offset() + first * stride[at]
    return _like(x, (*shape[:at], count, *shape[at + 1 :]), (*stride[:at], stride[at] * step, *stride[at + 1 :]),
                 offset)


@rule(aten.unfold.default)
def unfold(x: FakeTensor, dim: int, size: int, step: int) -> Any:
    at = _dim(dim, x.dim())
    if at < 0 or size < 0 or step <= 0 or size > x.shape[at]:
        return NotImplemented
    shape, stride = x.shape, x.stride()
    count = (x.shape[at] - size) // step + 1
    return _like(x, (*shape[:at], count, *shape[at + 1:], size),
                 (*stride[:at], stride[at] * step, *stride[at + 1:], stride[at]))


@rule(aten.diagonal.default)
def diagonal(x: FakeTensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    a, b = _dim(dim1, x.dim()), _dim(dim2, x.dim())
    if a < 0 or b < 0 or a == b:
        return NotImplemented
    rows, columns = x.shape[a], x.shape[b]
    count = torch.sym_min(rows, columns - offset) if offset >= 0 else torch.sym_min(rows + offset, columns)
    if count <= 0:
        return NotImplemented
    others = [d for d in range(x.dim()) if d not in (a, b)]
    step = x.stride(b) if offset >= 0 else x.stride(a)
    return _like(x, (*[x.shape[d] for d in others], count), (*[x.stride(d) for d in others], x.stride(a) + x.stride(b)),
                 x.storage_offset() + abs(offset) * step)


@rule(aten.view_as_real.default)
def view_as_real(x: FakeTensor) -> Any:
    if not x.is_complex() or x.is_conj():
        return NotImplemented
    return new_fake((*x.shape, 2), (*[2 * s for s in x.stride()], 1), x.dtype.to_real(), x.device,
                    2 * x.storage_offset())


@rule(aten.view_as_complex.default)
def view_as_complex(x: FakeTensor) -> Any:
    shape, stride = x.shape, x.stride()
    if not x.dim() or x.dtype not in (torch.float32, torch.float64) or shape[-1] != 2 or stride[-1] != 1:
        return NotImplemented
    if any(s % 2 != 0 for s in (*stride[:-1], x.storage_offset())):
        return NotImplemented
    return new_fake(shape[:-1], tuple([s // 2 for s in stride[:-1]]), x.dtype.to_complex(), x.device,
                    x.storage_offset() // 2)


@rule(aten.as_strided.default)
def as_strided(x: FakeTensor, size: Any, stride: Any, offset: Any = None) -> Any:
    return _like(x, tuple(size), tuple(stride), offset)


@rule(aten.as_strided_scatter.default)
def as_strided_scatter(x: FakeTensor, *args: Any) -> Any:
    return _like(x, x.shape, _scattered_strides(x), x.storage_offset())


@rule(aten.slice_scatter.default, aten.select_scatter.default, aten.diagonal_scatter.default)
def scattered(x: FakeTensor, src: FakeTensor, *args: Any, **kwargs: Any) -> Any:
    if src.dtype is not x.dtype:
        return NotImplemented
    return new_fake(x.shape, _scattered_strides(x), x.dtype, x.device)


def _scattered_strides(x: FakeTensor) -> tuple:
    """Return the strides of the copy that eager writes a part of: those of `x`, unless elements share memory. (Before
    PyTorch 2.12 meta kernels keep these, too.)"""
    shared = any(type(s) is int and s == 0 and decide_layout(n != 1) for n, s in zip(x.shape, x.stride()))
    return preserved_strides(x) if shared else x.stride()


@rule(aten.split_with_sizes.default)
def split_with_sizes(x: FakeTensor, sizes: Any, dim: int = 0) -> Any:
    d = _dim(dim, x.dim())
    if sum(sizes) != x.shape[d]:
        return DOUBTED
    shapes = [(*x.shape[:d], n, *x.shape[d + 1:]) for n in sizes]
    return tuple([new_fake(shape, x.stride(), x.dtype, x.device) for shape in shapes])


@rule(aten.clone.default)
def clone(x: FakeTensor, *, memory_format: Any = None) -> Any:
    return _like(x, x.shape, copied_strides(x, memory_format), 0)


@rule(aten.copy.default)
def copy(x: FakeTensor, source: FakeTensor, non_blocking: bool = False) -> Any:
    """`source` in the shape, layout and dtype of `x`."""
    wide = broadcast(tuple(x.shape), tuple(source.shape))
    if wide is None or not same_shape(wide, x.shape):
        return NotImplemented
    return _like(x, x.shape, preserved_strides(x), 0)


@rule(aten.scatter.src, aten.scatter.value, aten.scatter_add.default)
def scatter(x: FakeTensor, dim: int, index: FakeTensor, source: Any, **kwargs: Any) -> Any:
    at = _dim(dim, x.dim())
    if kwargs or at < 0 or index.dim() != x.dim() or index.dtype is not torch.int64 or not is_row_major(x):
        return NotImplemented
    if any(m > n for i, (m, n) in enumerate(zip(index.shape, x.shape)) if i != at):
        return NotImplemented
    if type(source) is FakeTensor and (source.dtype is not x.dtype or not same_shape(source.shape, index.shape)):
        return NotImplemented
    return dense(x, x.shape)


@rule(aten.index_copy.default, aten.index_add.default, aten.index_fill.int_Scalar)
def index_written(x: FakeTensor, dim: int, index: FakeTensor, source: Any, **kwargs: Any) -> Any:
    at = _dim(dim, x.dim())
    if at < 0 or index.dim() != 1 or index.dtype is not torch.int64:
        return NotImplemented
    if type(source) is not FakeTensor:
        return _like(x, x.shape, preserved_strides(x), 0)
    wanted = (*x.shape[:at], index.shape[0], *x.shape[at + 1 :])
    if not is_row_major(x) or source.dtype is not x.dtype or not must_match(source.shape, wanted):
        return NotImplemented
    return dense(x, x.shape)


@rule(aten.cat.default)
def cat(tensors: Any, dim: int = 0) -> Any:
    first = tensors[0]
    at = _dim(dim, first.dim())
    if at < 0:
        return NotImplemented
    shape = first.shape
    total: Any = 0
    in_rows = True
    for x in tensors:
        other = x.shape
        if len(other) != len(shape):
            return NotImplemented
        if not (same_shape(other[:at], shape[:at]) and same_shape(other[at + 1 :], shape[at + 1 :])):
            return NotImplemented
        in_rows = in_rows and has_row_major_strides(x)
        total = total + other[at]
    out = (*shape[:at], total, *shape[at + 1 :])
    if in_rows or not all(is_channels_last(x) for x in tensors):
        stride = contiguous_strides(out)
    else:
        stride = suggested_strides(first, out)
    dtype = first.dtype
    if any(x.dtype is not dtype for x in tensors):
        dtype = result_dtype(*tensors)
    return new_fake(out, stride, dtype, first.device)


@rule(aten.stack.default)
def stack(tensors: Any, dim: int = 0) -> Any:
    first = tensors[0]
    at = _dim(dim, first.dim() + 1)
    if at < 0 or any(not same_shape(x.shape, first.shape) for x in tensors):
        return NotImplemented
    if at == first.dim():
        return cat([unsqueeze(x, at) for x in tensors], at)
    joined = cat(tensors, at)
    return joined if joined is NotImplemented else view(joined, (*first.shape[:at], len(tensors), *first.shape[at:]))


@rule(aten.gather.default)
def gather(x: FakeTensor, dim: int, index: FakeTensor, *, sparse_grad: bool = False) -> Any:
    count = x.dim()
    at = _dim(dim, count)
    if at < 0 or index.dim() != count or index.dtype is not torch.int64:
        return NotImplemented
    if any(m > n for i, (m, n) in enumerate(zip(index.shape, x.shape)) if i != at):
        return NotImplemented
    return dense(x, index.shape)


by_decomposition("index_select", lambda x, dim, index: index.dim() < 2 and index.dtype in (torch.int64, torch.int32))


@rule(aten.repeat.default)
def repeat(x: FakeTensor, repeats: Any) -> Any:
    lead = len(repeats) - x.dim()
    if lead < 0 or not all(expected(r >= 0) for r in repeats):
        return NotImplemented
    shape = (*repeats[:lead], *[n * r for n, r in zip(x.shape, repeats[lead:])])
    return dense(x, shape)


_PADS = {"reflect": "reflection", "replicate": "replication"}


@rule(aten.constant_pad_nd.default, aten.pad.default)
def pad(x: FakeTensor, widths: Any, *args: Any, **kwargs: Any) -> Any:
    count = len(widths) // 2
    mode = args[0] if args and isinstance(args[0], str) else kwargs.get("mode", "constant")
    varies = any(type(n) is not int for n in (*x.shape, *widths)) and count in (x.dim() - 1, x.dim() - 2)
    if mode in _PADS and not varies and (row := RULES.get(getattr(aten, f"{_PADS[mode]}_pad{count}d").default)):
        return row(x, widths)
    if len(widths) % 2 or count > x.dim() or mode != "constant" and not varies:
        return NotImplemented
    if mode in _PADS and not all(map(is_filled, x.shape[-1 - count:])):
        return NotImplemented
    shape = list(x.shape)
    # a reflection is of existing elements, except the border
    most = {"reflect": [n - 1 for n in shape], "circular": shape}.get(mode)
    if most is not None and any(w > most[-1 - i // 2] for i, w in enumerate(widths)):
        return NotImplemented
    for i in range(count):
        shape[-1 - i] = shape[-1 - i] + widths[2 * i] + widths[2 * i + 1]
        if shape[-1 - i] < 0:
            return NotImplemented
    if all(type(width) is int and width <= 0 for width in widths):  # a copy of a part
        part = new_fake(tuple(shape), x.stride(), x.dtype, x.device)
        return new_fake(part.shape, preserved_strides(part), x.dtype, x.device)
    return suggested(x, shape)


@rule(aten.flip.default)
def flip(x: FakeTensor, dims: Any) -> Any:
    return _like(x, x.shape, preserved_strides(x), 0) if all(_dim(d, x.dim()) >= 0 for d in dims) else NotImplemented


@rule(aten.roll.default)
def roll(x: FakeTensor, shifts: Any, dims: Any = ()) -> Any:
    if any(_dim(d, x.dim()) < 0 for d in dims) or len(shifts) != max(len(dims), 1):
        return NotImplemented
    # eager concatenates two parts, and an empty one has the contiguous format
    whole = is_channels_last(x) and any(k % x.shape[d] == 0 for k, d in zip(shifts, dims))
    return dense(x, tuple(x.shape)) if whole else suggested(x, x.shape)


def _indexed(x: FakeTensor, indices: Any) -> tuple[list[int], Any, list[int], list[int], tuple] | None:
    """Return the dimensions indexed by integers, the common shape of the indices, the dimensions of `x` before and
    after it in the result, and the result's shape: the common shape replaces adjacent indexed dimensions, and otherwise
    comes first."""
    places = [i for i, ix in enumerate(indices) if ix is not None]
    if len(indices) > x.dim() or not places or any(indices[i].dtype is not torch.int64 for i in places):
        return None
    spread = tuple(indices[places[0]].shape)
    for i in places[1:]:
        if (found := broadcast(spread, tuple(indices[i].shape))) is None:
            return None
        spread = found
    left = [d for d in range(x.dim()) if d not in places]
    first = places[0] if places == list(range(places[0], places[-1] + 1)) else 0
    before, behind = left[:first], left[first:]
    return places, spread, before, behind, (*[x.shape[d] for d in before], *spread, *[x.shape[d] for d in behind])


@rule(aten.index.Tensor)
def index(x: FakeTensor, indices: Any) -> Any:
    if (found := _indexed(x, indices)) is None:
        return NotImplemented
    places, spread, before, behind, shape = found
    left = before + behind
    operands = [x, *[indices[i] for i in places]]
    tidy = [has_row_major_strides(t) for t in operands]
    tidy[0] = tidy[0] or not left  # wherever its elements lie, one is read for each result
    if all(tidy) and all(same_shape(t.shape, spread) for t in operands[1:]):
        return dense(x, shape)
    if not all(tidy) and any(type(n) is int and n == 1 for n in (*shape, *x.shape)) or not all(tidy[1:]):
        return NotImplemented
    # as TensorIterator orders the source, with stride 0 in indexed dimensions, and the indices
    still = (0,) * len(spread)
    layouts = [(*[x.stride(d) for d in before], *still, *[x.stride(d) for d in behind])]
    layouts += [((0,) * len(before) + expanded_strides(indices[i], spread) + (0,) * len(behind)) for i in places]
    return new_fake(shape, strides_in_order(shape, dense_order(shape, layouts)), x.dtype, x.device)


@rule(aten.index_put.default)
def index_put(x: FakeTensor, indices: Any, values: FakeTensor, accumulate: bool = False) -> Any:
    """index_put: a copy of `x`, with one number, or as many as are indexed, written. Raises eager's error for values
    that do not broadcast to the indexed shape."""
    if (found := _indexed(x, indices)) is None:
        return NotImplemented
    taken = found[-1]
    if values.dim() and not must_match(values.shape, taken):
        given = list(dropwhile(lambda n: n == 1, values.shape))
        if len(given) > len(taken) or not all(m == n or m == 1 for m, n in zip(reversed(given), reversed(taken))):
            raise RuntimeError(f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to "
                               f"indexing result of shape {list(taken)}")
        return NotImplemented
    return clone(x) if values.dtype is x.dtype else NotImplemented
