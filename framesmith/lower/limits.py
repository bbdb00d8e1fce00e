"""Size thresholds of lowering, by kind of device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """`two_pass`: elements of a reduction up to which a second pass over it comes from nearby, so that a variance may
    take the mean first; `columns`: the same where memory runs across them. `split`: elements from which a reduction to
    few results is done in parts; None where the scheduler does that, for its machine. `scans`: whether kernels support
    running sums and products.
    """

    two_pass: int
    columns: int
    split: int | None
    scans: bool = False


LIMITS = {
    "cpu": Limits(two_pass=1 << 17, columns=1 << 17, split=1 << 16),
    "cuda": Limits(two_pass=1 << 14, columns=1 << 6, split=None, scans=True),
}
