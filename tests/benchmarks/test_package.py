"""How the benchmark of packages compares samples of times."""

from __future__ import annotations

from benchmarks.package import speed

BASE = [1.0 + k / 64 for k in range(40)]


def test_a_contender_is_compared_by_the_lower_deciles_of_its_rounds():
    assert speed(BASE, BASE) == [1.0, 1.0, 1.0]
    assert speed(BASE, [2 * seconds for seconds in BASE]) == [0.5, 0.5, 0.5]
    late = [seconds * (10 if k >= 10 else 1) for k, seconds in enumerate(BASE)]  # what neighbours take
    assert speed(BASE, late)[1] == 1.0


def test_an_interval_holds_its_ratio():
    low, ratio, high = speed(BASE, BASE[::-1])
    assert low < ratio == 1.0 < high
