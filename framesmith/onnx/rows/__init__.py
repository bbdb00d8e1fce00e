"""The rows, a file for each family; importing a file enters its rows in the table."""

from framesmith.onnx.rows import (
    attention,
    bags,
    contractions,
    control,
    draws,
    images,
    indexing,
    norms,
    pointwise,
    recurrent,
    reductions,
    scans,
    sizes,
    sorting,
    views,
    windows,
)
