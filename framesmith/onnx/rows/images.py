"""Images in other sizes, and read at points of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from framesmith.onnx.emitter import Emitter, NoForm, Value, rank
from framesmith.onnx.table import aten, row

image = partial(row, "images")


def _resize(m: Emitter, x: Value, size: Sequence[Any] | None, scales: Sequence[float] | None, **how: Any) -> Value:
    """An image by a size or by factors for its last dimensions."""
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


def _antialiased(mode: str, **more: Any) -> Any:
    smooth = _smooth(mode, antialias=1, exclude_outside=1, **more)

    def emit(m: Emitter, x: Value, size: Any, align_corners: bool, *scales: Any) -> Value:
        if align_corners:
            raise NoForm("an antialiased image with aligned corners")
        return smooth(m, x, size, False, scales[0] if len(scales) == 1 else None)  # type: ignore[no-any-return]

    return emit


image(aten._upsample_bilinear2d_aa.vec, aten._upsample_bilinear2d_aa.default)(_antialiased("linear"))
image(aten._upsample_bicubic2d_aa.vec, aten._upsample_bicubic2d_aa.default)(_antialiased("cubic", cubic_coeff_a=-0.5))


@image(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def _grid_sampler(m: Emitter, x: Value, grid: Value, mode: int, padding: int, align_corners: bool) -> Value:
    names = ("linear", "nearest", "cubic") if m.opset >= 20 else ("bilinear", "nearest", "bicubic")
    return m("GridSample", x, grid, mode=names[mode], padding_mode=("zeros", "border", "reflection")[padding],
             align_corners=int(align_corners))
