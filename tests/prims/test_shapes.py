"""Views, joins, indexing, factories, padding and matmuls against eager."""

from __future__ import annotations

import pytest
import torch

from tests.prims.harness import check, targets

aten = torch.ops.aten
X = torch.arange(120.0).reshape(2, 3, 4, 5)


def test_reshapes() -> None:
    check(aten.view.default, X, [6, -1])
    check(aten.reshape.default, X.transpose(1, 2), [8, 15])
    check(aten._unsafe_view.default, X, [120])
    check(aten.unsqueeze.default, X, -1)
    check(aten.squeeze.default, X[:1, :, :1])
    check(aten.squeeze.dim, X[:1], 0)
    check(aten.squeeze.dims, X[:1, :, :1], [0, 2, 3])
    check(aten.flatten.using_ints, X, 1, 2)
    check(aten.unflatten.int, X, 2, [2, 2])
    check(aten.expand.default, X[:, :1], [7, 2, 3, -1, -1])
    check(aten.permute.default, X, [3, -4, 2, 1])
    check(aten.transpose.int, X, -1, 1)
    check(aten.t.default, X[0, 0])
    check(aten.movedim.intlist, X, [0, 2], [-1, 0])
    check(aten.numpy_T.default, X[0])
    check(aten.mT.default, X)


def test_slices() -> None:
    for args in [(0,), (1, 1), (1, -2, -1), (2, 0, 9223372036854775807, 2), (3, 1, 5, 3), (3, 4, 2)]:
        check(aten.slice.Tensor, X, *args)
    check(aten.narrow.default, X, 1, 1, 2)
    check(aten.select.int, X, -1, -2)
    check(aten.split.Tensor, X, 2, 1)
    check(aten.split_with_sizes.default, X, [1, 4], -1)
    check(aten.chunk.default, X, 2, 2)
    check(aten.unbind.int, X, 1)
    check(aten.diagonal.default, X, 1, 0, -1)
    check(aten.unfold.default, X, 3, 3, 2)
    check(aten.as_strided.default, X, [2, 2], [3, 1], 5)
    check(aten.as_strided.default, X.transpose(0, 3), [2, 2], [3, 1], 5)


def test_order_and_repetition() -> None:
    check(aten.flip.default, X, [0, -1])
    check(aten.roll.default, X, [1, -2], [2, 3])
    check(aten.roll.default, X, [7])
    check(aten.rot90.default, X[0, 0], 3)
    check(aten.repeat.default, X[0], [2, 1, 3, 1])
    check(aten.tile.default, X[0], [2])
    check(aten.repeat_interleave.self_int, X, 3, 1)
    check(aten.repeat_interleave.self_int, X[0, 0], 2)


def test_joins() -> None:
    check(aten.cat.default, [X, X + 1, X[:, :1]], 1)
    check(aten.cat.default, [X, torch.ones(2, 3, 4, 1, dtype=torch.int64)], -1)
    check(aten.cat.default, [torch.empty(0), X[0, 0]], 0)
    check(aten.cat.default, [X], 0)
    check(aten.stack.default, [X, X], -1)
    check(aten.meshgrid.indexing, [torch.arange(3), torch.arange(4)], indexing="xy")
    check(aten.meshgrid.indexing, [torch.arange(3), torch.arange(4)], indexing="ij")
    check(aten.broadcast_tensors.default, [X, X[:, :1, :1]])


def test_reading_by_index() -> None:
    i, j = torch.tensor([[0, 2], [-1, 1]]), torch.tensor([1, 0])
    check(aten.embedding.default, torch.randn(7, 3), torch.tensor([[1, 6], [0, 3]]))
    check(aten.index_select.default, X, 2, torch.tensor([3, 0, 0]))
    check(aten.gather.default, X, 1, torch.randint(0, 3, (2, 5, 4, 5)))
    check(aten.index.Tensor, X, [None, i])
    check(aten.index.Tensor, X, [None, i, j])
    check(aten.index.Tensor, X, [j, None, i])
    check(aten.index.Tensor, X, [torch.tensor(1), i, None, i])
    check(aten.take.default, X, torch.tensor([[5, -1]]))
    check(aten.take_along_dim.default, X, torch.randint(0, 3, (1, 2, 4, 5)), 1)


@pytest.mark.parametrize("accumulate", [False, True])
def test_writing_by_index(accumulate: bool) -> None:
    i, j = torch.tensor([[0, 2], [-1, 1]]), torch.tensor([1, 0])
    check(aten.index_put.default, X, [None, i], torch.randn(2, 2, 2, 4, 5), accumulate)
    check(aten.index_put.default, X, [j, None, j], torch.randn(5), accumulate)
    check(aten.index_put.default, X, [X > 4], torch.tensor(1.5), accumulate, extern=accumulate)
    check(aten.index_put.default, X, [None, X[0, :, :, 0] > 4], torch.tensor(1.5), accumulate, extern=accumulate)


def test_scatters() -> None:
    index = torch.stack([torch.randperm(3)[:2] for _ in range(40)], 1).reshape(2, 2, 4, 5)
    check(aten.scatter.src, X, 1, index, torch.randn(2, 3, 4, 5))
    check(aten.scatter.value, X, 1, index, 2)
    check(aten.scatter_add.default, X, 1, index, torch.randn(2, 3, 4, 5))
    for kind in ("sum", "prod", "amax", "amin"):
        check(aten.scatter_reduce.two, X, 1, index, torch.randn(2, 3, 4, 5), kind)
    check(aten.index_add.default, X, 2, torch.tensor([1, 3, 1]), torch.randn(2, 3, 3, 5), alpha=2)
    check(aten.index_copy.default, X, 2, torch.tensor([1, 3]), torch.randn(2, 3, 2, 5))
    check(aten.index_fill.int_Scalar, X, 2, torch.tensor([1, 3]), 7)
    check(aten.slice_scatter.default, X, torch.randn(2, 3, 2, 5), 2, 1, 4, 2)
    check(aten.select_scatter.default, X, torch.randn(2, 4, 5), 1, -1)
    for offset in (0, 1, -1):
        check(aten.diagonal_scatter.default, X, torch.randn(X.diagonal(offset, 1, 3).shape), offset, 1, 3)


def test_factories() -> None:
    check(aten.full.default, [2, 3], 1.5)
    check(aten.full_like.default, X, 3)
    check(aten.zeros_like.default, X, dtype=torch.int64)
    check(aten.ones.default, [2], dtype=torch.bool)
    check(aten.new_full.default, X, [2, 2], 7)
    check(aten.new_zeros.default, X, [2, 2])
    check(aten.scalar_tensor.default, 2.5)
    check(aten.arange.default, 7)
    check(aten.arange.start, 2, 7, dtype=torch.float32)
    check(aten.arange.start_step, 1.0, 2.0, 0.1)
    check(aten.arange.start_step, 9, 1, -3)
    check(aten.linspace.default, -1.0, 1.0, 11)
    check(aten.linspace.default, -1.0, 1.0, 1, extern=True)
    check(aten.eye.m, 3, 5)
    check(aten.tril.default, X, 1)
    check(aten.triu.default, X, -1)
    check(aten.one_hot.default, torch.tensor([[1, 0], [4, 2]]), 5)


def test_padding_and_pixels() -> None:
    check(aten.constant_pad_nd.default, X, [1, 2, -1, 3], 1.5)
    for mode in ("reflect", "replicate", "circular"):
        check(aten.pad.default, X, [2, 1, 3, 2], mode)
    check(aten.pad.default, X, [2, 1], "constant", 2.0)
    check(aten.reflection_pad1d.default, X[0], [2, 3])
    check(aten.replication_pad2d.default, X, [2, 3, 9, 0])
    y = torch.randn(2, 8, 6, 4)
    check(aten.pixel_shuffle.default, y, 2)
    check(aten.pixel_unshuffle.default, y, 2)
    check(aten.channel_shuffle.default, y, 4)
    check(aten.upsample_nearest2d.default, y, [12, 12])
    check(aten.upsample_nearest2d.vec, y, None, [2.0, 2.0])
    check(aten.upsample_nearest2d.default, y, [3, 2])
    check(aten._upsample_nearest_exact2d.default, y, [3, 2])

    check(aten.adaptive_avg_pool2d.default, y, [1, 1])
    check(aten.adaptive_avg_pool2d.default, y, [3, 2], extern=True)


SHAPES = [((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 5)), ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)),
          ((6, 1, 3, 4), (2, 4, 5)), ((2, 3, 4), (4,)), ((4,), (2, 4, 5)), ((1, 3, 4), (7, 4, 5))]  # fmt: skip


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_matmul(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    graph = check(aten.matmul.default, torch.randn(shapes[0]), torch.randn(shapes[1]), extern=True)
    assert aten.matmul.default not in targets(graph)


EQUATIONS = ["ij,jk->ik", "bij,bjk->bik", "bhqd,bhkd->bhqk", "bhwc,hkc->bhwk", "i,j->ij", "ij,ij->", "ij->ji", "ijk->k",
             "bij,jk",
             "...ij,...jk->...ik", "bqhd,bkhd->bhqk", "bn,anm,bm->ba", "ii->i", "bl,bd->bld", "ijk,j->ik"]  # fmt: skip


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation: str) -> None:
    sizes = {letter: 2 + place % 4 for place, letter in enumerate("abcdhijklmnqw")}
    terms = equation.split("->")[0].split(",")
    operands = [torch.randn([2] * term.count("...") + [sizes[letter] for letter in term.replace("...", "")])
                for term in terms]
    check(aten.einsum.default, equation, operands, extern=True)


def test_products() -> None:
    check(aten.outer.default, torch.randn(3), torch.randn(4))
    check(aten.linalg_cross.default, torch.randn(5, 3), torch.randn(5, 3))
    check(aten.trace.default, torch.randn(3, 5))


def test_resizing_by_a_fraction() -> None:
    y = torch.randn(1, 2, 5, 7)
    check(aten.upsample_nearest2d.default, y, [7, 5])
    check(aten.upsample_nearest2d.default, y, [8, 10], 1.7, 1.5)
    check(aten.upsample_nearest2d.vec, y, None, [1.7, 0.6])
    check(aten._upsample_nearest_exact2d.default, y, [8, 3])


@pytest.mark.parametrize("arguments", [(0,), (1,), (-2,), (1, 0, 2), (-1, 2, 0)], ids=str)
def test_diag_embed(arguments: tuple[int, ...]) -> None:
    check(aten.diag_embed.default, X[0, :, 0], *arguments)
