"""Images in other sizes, and read at points of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from framesmith.onnx.emitter import Emitter, NoForm, Value, dtype_of, rank, shape_of
from framesmith.onnx.table import aten, row

image = partial(row, "images")


def _resize(m: Emitter, x: Value, size: Sequence[Any] | None, scales: Sequence[float] | None, **how: Any) -> Value:
    """Return an image by a size or by factors for its last dimensions."""
    count = rank(x) - 2
    if size is None:
        assert scales is not None
        factors = m.constant([1.0, 1.0, *map(float, scales)], torch.float32)
        return m("Resize", x, None, factors, **how)
    return m("Resize", x, None, None, m.ints(size), axes=list(range(2, 2 + count)), **how)


def _nearest(m: Emitter, x: Value, size: Any, scales: Any = None) -> Value:
    return _resize(m, x, size, scales, mode="nearest", coordinate_transformation_mode="asymmetric",
                   nearest_mode="floor")


def _smooth(mode: str, **more: Any) -> Any:
    def emit(m: Emitter, x: Value, size: Any, align_corners: bool, scales: Any = None) -> Value:
        where = "align_corners" if align_corners else "half_pixel" if mode == "cubic" else "pytorch_half_pixel"
        return _resize(m, x, size, scales, mode=mode, coordinate_transformation_mode=where, **more)

    return emit


image(aten.upsample_nearest1d.vec, aten.upsample_nearest2d.vec, aten.upsample_nearest3d.vec)(_nearest)
image(aten.upsample_linear1d.vec, aten.upsample_bilinear2d.vec, aten.upsample_trilinear3d.vec)(_smooth("linear"))
image(aten.upsample_bicubic2d.vec)(_smooth("cubic", cubic_coeff_a=-0.75))


def _antialiased(operator: Any, mode: str, **more: Any) -> Any:
    """Of sizes that are known, a product with a matrix for each dimension: engines differ in their own filters."""
    smooth = _smooth(mode, antialias=1, exclude_outside=1, **more)

    def emit(m: Emitter, x: Value, size: Any, align_corners: bool, *scales: Any) -> Value:
        if align_corners:
            raise NoForm("an antialiased image with aligned corners")
        given = (scales[0] if len(scales) == 1 else scales) or (None, None)
        have, wanted = shape_of(x)[2:], tuple(m.out.shape)[2:]
        if not all(isinstance(n, int) for n in (*have, *wanted)):
            return smooth(m, x, size, False, None if None in given else given)  # type: ignore[no-any-return]
        rows, columns = (m.constant(taps(*sizes), dtype_of(x)) for sizes in zip(have, wanted, given, strict=True))
        return m("MatMul", m("MatMul", m.transpose(rows, [1, 0]), x), columns)  # type: ignore[no-any-return]

    def taps(size: int, wanted: int, scale: float | None) -> Any:
        """Return the weights of each element in those of the result: the filter's response to each unit vector."""
        units = torch.eye(size, dtype=torch.float64)[None, None]
        return operator(units, [size, wanted], False, None, scale)[0, 0].tolist()

    return emit


_LINEAR, _CUBIC = aten._upsample_bilinear2d_aa, aten._upsample_bicubic2d_aa
image(_LINEAR.vec, _LINEAR.default)(_antialiased(_LINEAR.default, "linear"))
image(_CUBIC.vec, _CUBIC.default)(_antialiased(_CUBIC.default, "cubic", cubic_coeff_a=-0.5))


@image(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def _grid_sampler(m: Emitter, x: Value, grid: Value, mode: int, padding: int, align_corners: bool) -> Value:
    names = ("linear", "nearest", "cubic") if m.opset >= 20 else ("bilinear", "nearest", "bicubic")
    return m("GridSample", x, grid, mode=names[mode], padding_mode=("zeros", "border", "reflection")[padding],
             align_corners=int(align_corners))
