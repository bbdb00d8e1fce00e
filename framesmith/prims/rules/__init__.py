"""The decompositions by family; importing this package fills the table."""

from __future__ import annotations

from framesmith.prims.rules import (
    activations,
    arithmetic,
    comparisons,
    factories,
    gradients,
    gradients_images,
    gradients_losses,
    images,
    indexing,
    linalg,
    losses,
    norms,
    reductions,
    views,
)

GRADIENTS = (gradients, gradients_images, gradients_losses)
FAMILIES = (activations, arithmetic, comparisons, factories, images, indexing, linalg, losses, norms, reductions, views,
            *GRADIENTS)
