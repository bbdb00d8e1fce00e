"""A difference from eager is excused only where eager itself is as unstable, and where float64 is equal."""

import pytest
import torch
from torch import nn

from benchmarks.breadth.exactness import Rounding


class Chooses(nn.Module):
    """The rows of the largest scores, of which two are equal but for rounding."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[1.0, 2.0], [1.0, 2.0 + 2e-7], [-1.0, 0.0]]))
        self.rows = nn.Parameter(torch.tensor([[1.0, 0.0], [0.0, 5.0], [2.0, 2.0]]))

    def forward(self, x):
        chosen = (self.weight @ x).topk(2).indices
        return self.rows[chosen], self.rows.sum()


def _inputs():
    return {"x": torch.ones(2)}


def _rounding(compiled=lambda model: model):
    return Rounding(Chooses(), compiled, lambda model, inputs: model(**inputs))


def _values():
    with torch.no_grad():
        return Chooses()(**_inputs())


def test_a_choice_among_nearly_equal_values_is_rounding():
    rows, total = _values()
    assert "equal in float64" in _rounding().excuses((rows.flip(0), total), (rows, total), _inputs)


@pytest.mark.parametrize("wrong", [lambda rows, total: (rows, total + 1e-3), lambda rows, total: (rows + 5, total),
                                   lambda rows, total: (rows * float("nan"), total),
                                   lambda rows, total: (rows.T.contiguous().T, total)])
def test_what_eager_never_gives_is_none(wrong):
    rows, total = _values()
    assert _rounding().excuses(wrong(rows, total), (rows, total), _inputs) is None


def test_another_value_in_float64_is_none():
    class Wrong(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x):
            rows, total = self.model(x)
            return rows.flip(0), total

    rows, total = _values()
    with pytest.raises(AssertionError):
        _rounding(Wrong).excuses((rows.flip(0), total), (rows, total), _inputs)
