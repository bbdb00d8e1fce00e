"""Targets of a package read one copy of each weight, whatever their vectors."""

import zipfile

import pytest
import torch
from torch import nn

import framesmith
from framesmith.package.loading import Packaged
from tests.package.test_package import TARGETS, convolutions, runs_here

ALL = [target.values[0] for target in TARGETS]
WIDTHS = (1, 7, 16, 24, 40, 70, 130)
"""Columns of layers: less than a vector, one and a half, several panels, and narrower panels behind them."""


def layers():
    torch.manual_seed(0)
    sizes = (33, *WIDTHS)
    return nn.Sequential(*[nn.Linear(a, b) for a, b in zip(sizes, sizes[1:], strict=False)]).eval()


def stages():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, groups=24, padding=1), nn.Conv2d(24, 52, 1),
        nn.Conv2d(52, 104, 3, groups=2), nn.Hardswish(), nn.Conv2d(104, 104, 5, groups=104, padding=2)).eval()


MODELS = {"layers": (layers, (9, 33)), "stages": (stages, (2, 3, 17, 19)),
          "convolutions": (convolutions, (2, 3, 20, 20))}


def constants(path):
    with zipfile.ZipFile(path) as archive:
        return [i.file_size for i in archive.infolist() if i.filename.startswith("constants/")]


@pytest.mark.parametrize("model, size", MODELS.values(), ids=MODELS)
def test_each_weight_is_there_once(model, size, tmp_path):
    model, x = model(), torch.randn(size)
    for name, targets in (("one", ALL[:1]), ("all", ("x86-64-v4", "x86-64-v3", "x86-64"))):
        framesmith.package(model, (x,), path=tmp_path / name, targets=targets)
    if ALL[0] == "x86-64-v4":
        assert sorted(constants(tmp_path / "one")) == sorted(constants(tmp_path / "all"))
    for target in ALL:
        torch.testing.assert_close(Packaged(tmp_path / "all", target)(x), model(x).detach())


@pytest.mark.parametrize("target", ["x86-64-v3" if runs_here("x86-64-v3") else "x86-64"])
@pytest.mark.parametrize("rows", [1, 2, 6, 37])
def test_any_number_of_rows(target, rows, tmp_path):
    model, batch = layers(), framesmith.Dim("batch", max=64)
    framesmith.package(model, (torch.randn(4, 33),), path=tmp_path / "m", dynamic_shapes=[{0: batch}],
                       targets=["x86-64-v4", target])
    x = torch.randn(rows, 33)
    torch.testing.assert_close(Packaged(tmp_path / "m", target)(x), model(x).detach())


class Tied(nn.Module):
    """A language model whose head is its table of words."""

    def __init__(self, words):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(words, 24), nn.Linear(24, words)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(self.table(ids).tanh())


@pytest.mark.parametrize("words", [10, 16, 70])
def test_a_table_that_is_a_layer_too_is_there_once(words, tmp_path):
    model, ids = Tied(words), torch.randint(0, words, (2, 5))
    framesmith.package(model, (ids,), path=tmp_path / "m", targets=("x86-64-v4", "x86-64-v3", "x86-64"))
    assert len([size for size in constants(tmp_path / "m") if size > 4 * words]) == 1
    for target in ALL:
        loaded = Packaged(tmp_path / "m", target)
        torch.testing.assert_close(loaded(ids), model(ids).detach())
        for wrong in (words, -1):  # columns that the last panel has, too, and the one before the first
            with pytest.raises(IndexError):
                loaded(torch.full((2, 5), wrong))


def test_a_table_that_is_read_otherwise_stays(tmp_path):
    class Read(Tied):
        def forward(self, ids):
            return super().forward(ids) + self.table.weight.sum()

    model, ids = Read(20), torch.randint(0, 20, (2, 5))
    framesmith.package(model, (ids,), path=tmp_path / "m", targets=["x86-64-v3"])
    torch.testing.assert_close(Packaged(tmp_path / "m")(ids), model(ids).detach())


def test_a_layer_whose_weight_is_not_turned(tmp_path):
    torch.manual_seed(0)
    weight, x = nn.Parameter(torch.randn(20, 30)), torch.randn(4, 20)
    model = nn.Module()
    model.weight, model.forward = weight, lambda x: x @ weight
    framesmith.package(model, (x,), path=tmp_path / "m", targets=["x86-64"])
    torch.testing.assert_close(Packaged(tmp_path / "m")(x), (x @ weight).detach())
