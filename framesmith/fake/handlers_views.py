"""Recording of views, and of operators that may return one: `detach`, `reshape`, `split`."""

from __future__ import annotations

import math
from typing import Any

import torch

from framesmith.fake.handlers import composite, functional, handles, positional, view
from framesmith.fake.infer import true_error
from framesmith.fake.layout import geometry, infer_size, is_of_data, may_be_viewed, meets_itself
from framesmith.fake.recording import Recording
from framesmith.fake.tensor import FakeTensor, collect_layout_assumptions, copied, is_row_major, new_fake
from framesmith.graph.traversal import ancestors, last_node
from framesmith.symbolic.layout import expected, is_dense
from framesmith.symbolic.node import env_of
from framesmith.util.errors import Unsupported

aten = torch.ops.aten


def _same_alias(fake: FakeTensor) -> FakeTensor:
    """Return another tensor object over the same alias, as `detach` does."""
    other = new_fake(tuple(fake.shape), fake.stride(), fake.dtype, fake.device, fake.storage_offset())
    other._alias = fake._alias
    return other


@handles(aten.detach.default, aten.alias.default)
def detach(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    source = args[0]
    if rec.follows_grad and (func is aten.alias.default or not _is_fresh(rec, source)):  # gradients may end here
        return view(rec, func, args, kwargs)
    return _same_alias(source if isinstance(source, FakeTensor) else rec.constant(source))


def _is_fresh(rec: Recording, x: Any) -> bool:
    """Return whether the torch call being recorded has just created the tensor: torch's factories detach their
    results."""
    if not isinstance(x, FakeTensor) or x._alias.parent is not None:
        return not isinstance(x, FakeTensor)
    node = x._alias.node
    return node.op == "call_function" and "turn" not in node.meta and node is last_node(rec.graph)


@handles(aten.detach_.default)
def detach_(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    if isinstance(args[0], FakeTensor) and args[0]._alias.parent is not None or rec.follows_grad and any(
            n.meta.get("requires_grad") for n in ancestors([rec.nodes(args[0])])):
        raise Unsupported("detach_ of a view, or where tensors require grad", hint="use detach()")
    return args[0]


@handles(aten.reshape.default)
def reshape(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record a view where the strides allow it, else one node that copies."""
    source, wanted = positional(func, args, kwargs)
    if not isinstance(source, FakeTensor):
        return composite(rec, func, args, kwargs)
    shape = infer_size(source.shape, wanted)
    if shape is None:
        return composite(rec, func, args, kwargs)
    with collect_layout_assumptions(source) as answers:
        viewed = is_row_major(source) or may_be_viewed(source, shape)
    if viewed:
        return view(rec, aten.view.default, (source, shape), {})
    return copied(source, functional(rec, func, (source, list(shape)), {}), answers)


@handles(aten.flatten.using_ints)
def flatten(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record, for dynamic sizes, a reshape: C++ would compare them with 1."""
    given = positional(func, args, kwargs)
    source, first, last = given + (0, -1)[len(given) - 1:]
    count = source.dim()
    if env_of(*source.shape) is None or not (-count <= first < count and -count <= last < count):
        return composite(rec, func, args, kwargs)
    first, last = first % count, last % count
    if first >= last:
        return source if first == last else composite(rec, func, args, kwargs)
    sizes = tuple(source.shape)
    wanted = (*sizes[:first], math.prod(sizes[first : last + 1]), *sizes[last + 1 :])
    return reshape(rec, aten.reshape.default, (source, wanted), {})


@handles(aten.narrow.default)
def narrow(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record, for a start or length that data tell, a slice: C++ would compare them with the size."""
    source, dim, start, length = positional(func, args, kwargs)
    if not any(map(is_of_data, (start, length))) or not -source.dim() <= dim < source.dim():
        return composite(rec, func, args, kwargs)
    size = source.shape[dim]
    if not all(map(expected, (start >= 0, length >= 0, start <= size, start + length <= size))):
        return composite(rec, func, args, kwargs)
    return view(rec, aten.slice.Tensor, (source, dim, start, start + length), {})


@handles(aten.as_strided.default)
def as_strided(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record a view of the storage's base, to which `as_strided` refers, detached if the source is.

    A view between them that reads the memory as another type is the base instead: strides count the source's elements.
    """
    source, size, stride, offset = (*positional(func, args, kwargs), None)[:4]
    if not isinstance(source, FakeTensor):  # asked whether a view is a leaf, autograd makes it again
        raise Unsupported("a view of memory that was written by what has no gradient")
    offset = source.storage_offset() if offset is None else offset
    base, detached = source._alias, []
    while base.parent is not None and base.parent.val.dtype is source.dtype:
        if base.func is aten.detach.default:
            detached.append(base)
        base = base.parent
    if not is_dense(base.val.shape, base.val.stride()):
        raise Unsupported("as_strided of a tensor whose storage has gaps")
    part = source.numel() != base.val.numel() or meets_itself(source)
    if part and rec.keeps_history and rec.keeps_history(source):
        # elements outside the part have no gradient
        raise Unsupported("as_strided of a part of a tensor that requires grad")
    first = base.val.storage_offset()
    last = offset + sum((n - 1) * s for n, s in zip(size, stride))
    if all(size) and not first <= offset <= last < first + base.val.numel():
        raise Unsupported("as_strided beyond the elements of an input, or of what an operator gave")
    if base.storage.input is not None:
        if first and rec.follows_grad:  # what a backward keeps of an input may begin elsewhere
            raise Unsupported("as_strided of an input that begins within its storage, with grad mode on")
        rec.placed.append(base.root.val)
    whole = base.val
    if detached and geometry(detached[0].val) == geometry(whole):
        whole = detached[0].val
    elif detached:  # of a part
        whole = view(rec, aten.detach.default, (whole,), {})
        whole._alias.uncounted = any(x.uncounted for x in detached)
    return view(rec, func, (whole, size, stride, offset), {})


@handles(aten.split.Tensor, aten.unsafe_split.Tensor)
def split(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    source, size, dim = (*positional(func, args, kwargs), 0)[:3]
    if type(size) is int and size <= 0:
        true_error(func, (source, size, dim), {})
    total = source.shape[dim]
    parts, start = [], 0
    while size != 0 and start + size < total:
        parts.append(_slice(rec, source, dim, start, start + size))
        start = start + size
    return _several(func, [*parts, _slice(rec, source, dim, start, total)])


@handles(aten.unsafe_chunk.default)
def unsafe_chunk(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record the split that C++ makes of it, which would ask for all sizes as plain integers."""
    source, chunks, dim = (*positional(func, args, kwargs), 0)[:3]
    plain = env_of(*source.shape) is None or chunks <= 0 or not -source.dim() <= dim < source.dim()
    if plain or source.shape[dim] == 0:
        return composite(rec, func, args, kwargs)
    return split(rec, aten.unsafe_split.Tensor, (source, -(-source.shape[dim] // chunks), dim), {})


@handles(aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default)
def split_with_sizes(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    source, sizes, dim = (*positional(func, args, kwargs), 0)[:3]
    if any(type(n) is not int for n in sizes) and all(expected(n >= 0) for n in sizes):
        expected(sum(sizes) == source.shape[dim])
    if any(type(n) is int and n < 0 for n in sizes):
        true_error(func, (source, sizes, dim), {})
    parts, start = [], 0
    for size in sizes:
        parts.append(_slice(rec, source, dim, start, start + size))
        start = start + size
    if start != source.shape[dim]:
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {source.shape[dim]} "
            f"(input tensor's size at dimension {dim}), but got split_sizes={list(sizes)}"
        )
    return _several(func, parts)


@handles(aten.unbind.int)
def unbind(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    source, dim = (*positional(func, args, kwargs), 0)[:2]
    return _several(func, [view(rec, aten.select.int, (source, dim, i), {}) for i in range(source.shape[dim])])


def _several(func: Any, views: list[FakeTensor]) -> list[FakeTensor]:
    """Mark views, except those of `unsafe_split`, as ones that autograd does not allow to be written."""
    for x in [] if func.name().startswith("aten::unsafe") else views:
        x._alias.several = True
        x._alias.storage.several |= x._alias.grad
    return views


def _slice(rec: Recording, source: FakeTensor, dim: int, start: Any, end: Any) -> Any:
    return view(rec, aten.slice.Tensor, (source, dim, start, end), {})
