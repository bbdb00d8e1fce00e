"""Sizes and strides as eager gives them: broadcasting, TensorIterator's output layout, memory formats, views.

Sizes may be SymInts, whose comparison adds guards, so the common (contiguous) case is always tried first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from framesmith.fake.tensor import FakeTensor, contiguous_strides, is_row_major, new_fake
from framesmith.symbolic.expr import eq, le
from framesmith.symbolic.layout import decide_layout, element_count, expected, is_dense, layout_holds, strides_in_order
from framesmith.symbolic.node import env_of, expr_of, hint_of, implied

Sizes = tuple


def same_shape(a: Any, b: Any) -> bool:
    """Return whether shapes are equal; ranks are compared first, to avoid needless guards."""
    return len(a) == len(b) and all(m is n or expr_of(m) is expr_of(n) or not _are_data(m, n) and decide_layout(m == n)
                                    for m, n in zip(a, b))


def must_match(a: Any, b: Any) -> bool:
    """Return whether shapes are equal, as the program requires: data-dependent sizes are asserted to be."""
    return len(a) == len(b) and all(
        m is n or (expected(m == n) if _are_data(m, n) else decide_layout(m == n)) for m, n in zip(a, b))


def must_equal(m: Any, n: Any) -> bool:
    """Return whether two sizes are equal, as the program requires, under guard."""
    return m is n or bool(expected(m == n) if _are_data(m, n) else m == n)


def broadcast(a: Sizes, b: Sizes) -> Sizes | None:
    """Return the common shape, or None if there is none."""
    if same_shape(a, b):
        return a
    if len(a) < len(b):
        a, b = b, a
    lead = len(a) - len(b)
    out = list(a[:lead])
    for m, n in zip(a[lead:], b):
        if m is n or type(n) is int and n == 1:
            out.append(m)
        elif type(m) is int and m == 1:
            out.append(n)
        elif _are_data(m, n):  # a size of data may be 1, too, and then plain Python runs
            expected(m == n)
            out.append(m)
        elif m == n or n == 1:
            out.append(m)
        elif m == 1:
            out.append(n)
        else:
            return None
    return tuple(out)


def is_of_data(n: Any) -> bool:
    """Return whether a size or an index is data-dependent."""
    return type(n) is torch.SymInt and (env := env_of(n)) is not None and not env.data.isdisjoint(expr_of(n).free)


def may_be_small(n: Any) -> bool:
    """Return whether a size may be 0 or 1 although its present value is neither."""
    return type(n) is torch.SymInt and (env := env_of(n)) is not None and not env.small.isdisjoint(expr_of(n).free)


def is_filled(n: Any) -> bool:
    """Return whether a size is not 0, as the called operator requires."""
    return bool(expected(n > 0) if is_of_data(n) else n > 0)


def surely_le(a: Any, b: Any) -> bool:
    """Return whether the first of two sizes is known not to be larger than the second."""
    env = env_of(a, b)
    return a <= b if env is None else env.known(le(expr_of(a), expr_of(b))) is True


def surely_same_strides(a: FakeTensor, b: FakeTensor) -> bool:
    """Return whether two tensors of one shape are known to have the same strides."""
    pairs = list(zip(a.stride(), b.stride(), strict=True))
    env = env_of(*[s for pair in pairs for s in pair])
    return a.stride() == b.stride() if env is None else all(env.known(eq(expr_of(s), expr_of(t))) is True
                                                            for s, t in pairs)


def _are_data(m: Any, n: Any) -> bool:
    """Return whether one of two sizes is data-dependent, and they are not known to be equal or different."""
    if not is_of_data(m) and not is_of_data(n):
        return False
    return env_of(m, n).known(eq(expr_of(m), expr_of(n))) is None  # type: ignore[union-attr]


def dense_order(shape: Sizes, operands: list[tuple]) -> list[int]:
    """TensorIterator's order of dimensions, outermost first, for operands given as strides over `shape`.

    An insertion sort by strides that keeps ambiguous dimensions (stride zero, or equal) in place.
    """
    order = list(range(len(shape) - 1, -1, -1))
    for i in range(1, len(order)):
        inner = i
        for outer in range(i - 1, -1, -1):
            decision = _compare(shape, operands, order[outer], order[inner])
            if decision > 0:
                order[outer], order[inner] = order[inner], order[outer]
                inner = outer
            elif decision < 0:
                break
    return order[::-1]


def _compare(shape: Sizes, operands: list[tuple], d0: int, d1: int) -> int:
    for strides in operands:
        s0, s1 = strides[d0], strides[d1]
        if decide_layout(s0 == 0) or decide_layout(s1 == 0):
            continue
        if decide_layout(s0 < s1):
            return -1
        if decide_layout(s0 > s1) or decide_layout(shape[d0] > shape[d1]):
            return 1
    return 0


def expanded_strides(fake: FakeTensor, shape: Sizes) -> tuple:
    """Strides of `fake` broadcast to `shape`."""
    sizes, strides = fake.shape, fake.stride()
    lead = len(shape) - len(sizes)
    return (0,) * lead + tuple([0 if decide_layout(n == 1) and decide_layout(m != 1) else s
                                for n, s, m in zip(sizes, strides, shape[lead:])])


def elementwise_strides(shape: Sizes, operands: list[FakeTensor], numbers: bool = False) -> tuple:
    """Strides of the result of an element-wise operator over operands that broadcast to `shape`, and perhaps over
    `numbers`.

    Operands of one shape and layout give that layout; among others, eager orders the dimensions by strides, those of
    size 1 too.
    """
    usual = contiguous_strides(shape)
    alike = not numbers and all(same_shape(t.shape, shape) for t in operands)
    full = all(t.dim() == 0 or is_row_major(t) and same_shape(t.shape, shape) for t in operands)
    if full and (alike or all(t.dim() == 0 or t.stride() == usual for t in operands)):
        return usual
    if alike and len(shape) == 4 and all(map(_fills_channels_last, operands)):
        return channels_last_strides(shape)
    layouts = [expanded_strides(t, shape) for t in operands if t.dim()]
    if alike and all(same_shape(x, layouts[0]) for x in layouts) and is_dense(shape, layouts[0]):
        return layouts[0]
    return strides_in_order(shape, dense_order(shape, layouts))


def _fills_channels_last(x: FakeTensor) -> bool:
    """Return whether an image is dense and channels-last. For sizes that may be 0 or 1, the other ones decide."""
    if env_of(*x.shape) is None:
        return x.is_contiguous(memory_format=torch.channels_last)
    return all(decide_layout(n == 1) or decide_layout(s == t)
               for n, s, t in zip(x.shape, x.stride(), channels_last_strides(tuple(x.shape)), strict=True))


def strides_like(real: torch.Tensor, shape: Sizes) -> tuple:
    """Return strides over `shape` (`real`'s, perhaps symbolic) in the order of those of `real`; its own if it is not
    dense."""
    strides = real.stride()
    if is_row_major(real):
        return contiguous_strides(shape)
    if not is_dense(tuple(real.shape), strides):
        return strides
    return strides_in_order(shape, sorted(range(len(shape)), key=lambda d: (-strides[d], real.shape[d] == 1, d)))


def preserved_strides(fake: FakeTensor) -> tuple:
    """Strides of a copy that keeps the layout: the same if dense, else dense in the same order."""
    return fake.stride() if is_row_major(fake) else dense_strides(fake.shape, fake.stride())


def dense_strides(shape: Sizes, strides: tuple) -> tuple:
    """Return the same strides if they are dense, else dense ones in the same order of dimensions."""
    return strides if is_dense(shape, strides) else strides_in_order(shape, dense_order(shape, [strides]))


def channels_last_strides(shape: Sizes) -> tuple:
    """Strides of (N, C, H, W) or (N, C, D, H, W) with channels innermost."""
    return strides_in_order(shape, (0, *range(2, len(shape)), 1))


def formatted_strides(shape: Sizes, memory_format: Any) -> tuple:
    if memory_format in (torch.channels_last, torch.channels_last_3d):
        return channels_last_strides(shape)
    return contiguous_strides(shape)


def copied_strides(fake: FakeTensor, memory_format: Any) -> tuple:
    """Strides of a copy in a memory format; for None of one that keeps the layout."""
    if memory_format is None or memory_format is torch.preserve_format:
        return preserved_strides(fake)
    return formatted_strides(fake.shape, memory_format)


def is_channels_last(fake: FakeTensor) -> bool:
    """Return whether eager's `suggest_memory_format` is channels-last."""
    return fake.dim() in (4, 5) and in_channels_last_order(tuple(fake.shape), fake.stride())


def suggested_format(fake: FakeTensor) -> torch.memory_format:
    """Return eager's `suggest_memory_format`."""
    if is_channels_last(fake):
        return torch.channels_last if fake.dim() == 4 else torch.channels_last_3d
    return torch.contiguous_format


def in_channels_last_order(shape: Sizes, strides: tuple) -> bool:
    """Return whether strides do not decrease from C over W and H to N. (N = 1 is accepted, as in eager.)"""
    least: Any = 0
    if decide_layout(strides[1] == 0):
        return False
    for d in (1, *range(len(shape) - 1, 1, -1), 0):
        if decide_layout(shape[d] == 0) or decide_layout(strides[d] < least):
            return False
        if d == 0 and decide_layout(least == strides[1]):
            return False
        least = strides[d]
        if decide_layout(shape[d] > 1):
            least = least * shape[d]
    return True


def suggested_strides(fake: FakeTensor, shape: Sizes) -> tuple:
    """Strides of a result of `shape` that keeps the memory format which `fake` suggests."""
    return channels_last_strides(shape) if is_channels_last(fake) else contiguous_strides(shape)


def suggested(fake: FakeTensor, shape: Any) -> FakeTensor:
    """Return a fake of `shape` that keeps the memory format which another suggests."""
    shape = tuple(shape)
    return new_fake(shape, suggested_strides(fake, shape), fake.dtype, fake.device)


def infer_size(shape: Sizes, wanted: Any) -> tuple | None:
    """`wanted` with its one -1 replaced, or None where the element counts disagree."""
    out, hole = tuple(wanted), -1
    for i, n in enumerate(out):
        if type(n) is int and n < 0:
            if n != -1 or hole >= 0:
                return None
            hole = i
    total, known = element_count(shape), element_count([n for i, n in enumerate(out) if i != hole])
    if hole < 0:
        return out if known is total or expected(known == total) else None
    if not expected(known != 0) or not expected(total % known == 0):
        return None
    return (*out[:hole], implied(total // known), *out[hole + 1 :])


def view_strides(shape: Sizes, strides: tuple, wanted: Sizes) -> tuple | None:
    """Strides of the view of another shape (with the same number of elements), or None if only a copy will do."""
    if any(type(n) is int and n == 0 for n in shape):
        return strides if tuple(shape) == tuple(wanted) else contiguous_strides(wanted)
    out: list[Any] = [0] * len(wanted)
    if not shape:
        return (1,) * len(wanted)
    d = len(wanted) - 1
    base = strides[-1]
    old: Any = 1
    new: Any = 1
    for i in range(len(shape) - 1, -1, -1):
        old = old * shape[i]
        if i != 0 and (decide_layout(shape[i - 1] == 1) or decide_layout(strides[i - 1] == old * base)):
            continue
        while d >= 0 and (decide_layout(wanted[d] == 1) or decide_layout(new < old)):
            out[d] = new * base
            new = new * wanted[d]
            d -= 1
        if decide_layout(new != old):
            return None
        if i:
            base = strides[i - 1]
            old, new = 1, 1
    return tuple(out) if d == -1 else None


def may_be_viewed(x: FakeTensor, wanted: Sizes) -> bool:
    """Return whether a tensor has a view of another shape, with the same number of elements. Where only sizes of 1
    give one, the environment notes that."""
    def has_view(dims: list[tuple[Any, Any]]) -> bool:
        target = wanted if len(dims) == x.dim() else tuple([hint_of(n) for n in wanted])
        return view_strides(tuple([n for n, _ in dims]), tuple([s for _, s in dims]), target) is not None

    return layout_holds(has_view, list(zip(x.shape, x.stride(), strict=True)))


Geometry = tuple[tuple, tuple, Any]
_ENUMERATED = 1 << 16


def geometry(x: Any) -> Geometry:
    """Sizes, strides and offset."""
    return tuple(x.shape), x.stride(), x.storage_offset()


def meets(a: Geometry, b: Geometry) -> bool:
    """Return whether two views of one storage have an element in common; True if deciding that takes too long."""
    spans = [(offset, offset + sum((n - 1) * s for n, s in zip(shape, strides))) for shape, strides, offset in (a, b)]
    if 0 in a[0] or 0 in b[0] or spans[0][1] < spans[1][0] or spans[1][1] < spans[0][0]:
        return False
    if _between_steps(a, b):
        return False
    a, b = _plain(a), _plain(b)
    if math.prod(a[0]) > _ENUMERATED or math.prod(b[0]) > _ENUMERATED:
        return True
    return not _elements(a).isdisjoint(_elements(b))


def _between_steps(a: Geometry, b: Geometry) -> bool:
    """Return whether two views lie apart within each step of some stride, as two blocks of a matrix's columns do.
    Guards are taken of the stride for which they do so at the present sizes."""
    dims = [[(n, s) for n, s in zip(shape, strides) if hint_of(n) > 1] for shape, strides, _ in (a, b)]

    def apart(step: Any, value: Callable[[Any], Any]) -> bool:
        first, second = (sum((value(n) - 1) * value(s) for n, s in own if value(s) % step != 0) for own in dims)
        distance = value(b[2] - a[2]) % step
        return bool(first < distance) and bool(distance + second < step)

    step = next((s for own in dims for _, s in own if hint_of(s) and apart(hint_of(s), hint_of)), None)
    if step is None or not all(n != 1 if hint_of(n) > 1 else n == 1 for n in (*a[0], *b[0])):
        return False
    return apart(step, lambda x: x)


def _plain(x: Geometry) -> Geometry:
    """Return a geometry of ints: symbols are fixed at the present sizes."""
    shape, strides, offset = x
    return tuple(map(int, shape)), tuple(map(int, strides)), int(offset)


def meets_itself(x: FakeTensor) -> bool:
    """Return whether elements share memory, as in an expanded tensor; True where the strides alone do not decide it."""
    if is_row_major(x) or any(decide_layout(n == 0) for n in x.shape):
        return False
    reach: Any = 0
    for stride, size in sorted((s, n) for n, s in zip(x.shape, x.stride()) if decide_layout(n != 1)):
        if decide_layout(stride <= reach):
            return True
        reach = reach + (size - 1) * stride
    return False


def _elements(x: Geometry) -> set[int]:
    shape, strides, offset = x
    found = {offset}
    for n, s in zip(shape, strides):
        found = {at + i * s for at in found for i in range(n)}
    return found
