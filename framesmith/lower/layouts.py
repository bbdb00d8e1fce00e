"""The layouts that operators prefer for arguments, and those of their results. Rows are filled here and by
`lower.contractions`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from framesmith.fake.layout import dense_strides, in_channels_last_order
from framesmith.fake.rules_attention import choice, result
from framesmith.fake.tensor import new_fake
from framesmith.lower.geometry import row_major, same_layout, strides_in_order
from framesmith.lower.values import Lowered, Stored
from framesmith.util.precision import channels_of, on_matrix_units

aten = torch.ops.aten

# target -> (position among its tensor arguments, value, positions of constants) -> strides wanted, or None: as it is
ARGUMENT_LAYOUTS: dict[Any, Callable[[int, Lowered, frozenset[int]], tuple[Any, ...] | None]] = {}

# target -> (position, all tensor arguments) -> strides wanted on a CUDA device, or None: as it is
CUDA_ARGUMENT_LAYOUTS: dict[Any, Callable[[int, Sequence[Lowered]], tuple[Any, ...] | None]] = {}

# target -> (spec of a result, tensor arguments in memory) -> strides of the result
RESULT_LAYOUTS: dict[Any, Callable[[Any, Sequence[Stored]], tuple[Any, ...]]] = {}


# target -> (spec of a result, tensor arguments in memory) -> strides that eager gives for arguments laid out so, on a
# CUDA device; for operators whose meta kernels tell something else.
CUDA_PREDICTIONS: dict[Any, Callable[[Any, Sequence[Stored]], tuple[Any, ...]]] = {}


def channels_last(shape: Sequence[Any]) -> tuple[Any, ...]:
    """Strides with the channel dim (1) innermost."""
    rank = len(shape)
    return strides_in_order(shape, (0, *range(2, rank), 1))


def is_channels_last(value: Stored) -> bool:
    """Return whether a 4-d or 5-d window runs through channels first."""
    return len(value.shape) in (4, 5) and same_layout(value.shape, value.stride, channels_last(value.shape))


def _suggests_channels_last(value: Stored) -> bool:
    """Return whether eager takes a 4-d or 5-d window for channels-last. For shapes whose layouts are the same memory,
    as those of one place, strides decide."""
    if any(type(n) is not int for n in (*value.shape, *value.stride)):
        return is_channels_last(value)
    return len(value.shape) in (4, 5) and in_channels_last_order(value.shape, value.stride)


def _convolution_argument(position: int, value: Lowered, frozen: frozenset[int]) -> tuple[Any, ...] | None:
    """Return channels-last for images, which oneDNN prefers; a weight that is not frozen would be converted in each
    call."""
    if position == 0 and 1 in frozen and len(value.shape) == 4 and value.dtype in (torch.float32, torch.bfloat16):
        return channels_last(value.shape)
    return None


def _convolution_on_cuda(images: int) -> Callable[[int, Sequence[Lowered]], tuple[Any, ...] | None]:
    """Return channels-last for matrix units; otherwise eager's layout, on which the library's choice of precision
    depends. This applies to the first `images` arguments, the addend, and the weight, unless it has one channel: the
    kernel that computes an argument writes the layout, which the library would convert in a pass of its own."""

    def wanted(position: int, values: Sequence[Lowered]) -> tuple[Any, ...] | None:
        value, image, weight = values[position], values[images - 1], values[images]
        meant = position != images or len(weight.shape) == 4 and weight.shape[1] != 1
        if not meant or len(value.shape) != 4 or len(weight.shape) != 4:
            return None
        return channels_last(value.shape) if on_matrix_units(value.dtype, *channels_of(image, weight)) else None

    return wanted


def _convolution_result(spec: Any, values: Sequence[Stored]) -> tuple[Any, ...]:
    if len(values[0].shape) == 4 and any(map(_suggests_channels_last, values[:2])):
        return channels_last(spec.shape)
    return spec.stride if spec.stride is not None else row_major(spec.shape)


def _follow_first(spec: Any, values: Sequence[Stored]) -> tuple[Any, ...]:
    """Return channels-last for a channels-last argument, as pooling does."""
    return channels_last(spec.shape) if _suggests_channels_last(values[0]) else row_major(spec.shape)


def _row_major(spec: Any, values: Sequence[Stored]) -> tuple[Any, ...]:
    return row_major(spec.shape)


def _like_first(spec: Any, values: Sequence[Stored]) -> tuple[Any, ...]:
    """Return the strides of the first argument, of which the result is an updated copy."""
    first = values[0]
    if any(type(n) is not int for n in (*first.shape, *first.stride)):
        return row_major(spec.shape)
    if same_layout(first.shape, first.stride, row_major(first.shape)):
        return row_major(first.shape)
    return dense_strides(first.shape, first.stride)


def _attention_on_cuda(spec: Any, values: Sequence[Stored]) -> tuple[Any, ...]:
    """Return the layout of the kernel that eager chooses for queries, keys and values in these layouts."""
    given = [new_fake(x.shape, x.stride, x.dtype, spec.device) for x in values]
    query, key, value = given[:3]
    mask = given[3] if len(given) > 3 else None
    kind = choice(query, key, value, mask, 0.0, False, None, query.shape[-3] != key.shape[-3])
    return tuple(result(kind, query, tuple(spec.shape)).stride())


def _pairs(value: Lowered) -> tuple[Any, ...] | None:
    """Return the layout in which the parts of complex numbers are adjacent; None if they are."""
    fits = isinstance(value, Stored) and value.stride[-1] == 1 and all(n % 2 == 0
                                                                       for n in (value.offset, *value.stride[:-1]))
    return None if fits else row_major(value.shape)


CUDA_PREDICTIONS[aten.scaled_dot_product_attention.default] = _attention_on_cuda
for _op in (
    aten.convolution.default, aten.conv2d.default, aten.cudnn_convolution_relu.default,
    aten.cudnn_convolution_add_relu.default,
):
    ARGUMENT_LAYOUTS[_op] = _convolution_argument
    RESULT_LAYOUTS[_op] = _convolution_result
    CUDA_ARGUMENT_LAYOUTS[_op] = _convolution_on_cuda(1)
CUDA_ARGUMENT_LAYOUTS[aten.convolution_backward.default] = _convolution_on_cuda(2)
for _op in (
    aten.max_pool2d.default, aten.max_pool2d_with_indices.default, aten.avg_pool2d.default,
    aten._adaptive_avg_pool2d.default, aten.adaptive_avg_pool2d.default, aten.upsample_nearest2d.default,
    aten.upsample_bilinear2d.default,
):
    RESULT_LAYOUTS[_op] = _follow_first
for _op in (
    aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default, aten.linear.default,
    aten._addmm_activation.default, aten.cumsum.default, aten.cumprod.default,
):
    RESULT_LAYOUTS[_op] = _row_major
for _op in (
    aten._embedding_bag_forward_only.default, aten._embedding_bag.default, aten._embedding_bag_backward.default,
    aten._embedding_bag_dense_backward.default, aten._embedding_bag_per_sample_weights_backward.default,
):  # their kernels walk indices, offsets and weights of samples without looking at strides
    ARGUMENT_LAYOUTS[_op] = lambda position, value, frozen: row_major(value.shape) if len(value.shape) == 1 else None
    CUDA_ARGUMENT_LAYOUTS[_op] = lambda position, values: row_major(values[position].shape) if len(
        values[position].shape) == 1 else None
ARGUMENT_LAYOUTS[aten.view_as_complex.default] = lambda position, value, frozen: _pairs(value)
CUDA_ARGUMENT_LAYOUTS[aten.view_as_complex.default] = lambda position, values: _pairs(values[position])
RESULT_LAYOUTS[aten.index_put.default] = _like_first  # its meta kernel is Python that loads SymPy, for a second
