"""The decompositions by family; importing this package fills the table."""

from __future__ import annotations

from framesmith.prims.rules import (
    activations,
    arithmetic,
    comparisons,
    factories,
    gradients,
    images,
    indexing,
    linalg,
    losses,
    norms,
    reductions,
    views,
)

FAMILIES = (activations, arithmetic, comparisons, factories, gradients, images, indexing, linalg, losses, norms, reductions, views)
