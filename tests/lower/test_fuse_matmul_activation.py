"""Which layers the library is asked to compute with their activation, and that they mean the same."""

import pytest
import torch
import torch.nn.functional as F

from framesmith.lower.contractions.fuse_matmul_activation import fuse_matmul_activations
from framesmith.lower.contractions.libraries import choose_library_calls
from framesmith.lower.contractions.pack_linear import worth_freezing
from tests.fake.harness import record
from tests.gpu.fakes import makes_on_cuda, recorded  # noqa: F401

BF16 = torch.bfloat16


def two(activation):
    return lambda x, w, b, v: F.linear(activation(F.linear(x, w, b)), v)


def tanh(x):
    return F.gelu(x, approximate="tanh")


@pytest.mark.parametrize(
    ("fn", "dtype", "count"),
    [
        (two(F.relu), torch.float32, 1),
        (two(F.relu), BF16, 1),
        (two(tanh), BF16, 1),
        (two(tanh), torch.float32, 0),
        (two(F.gelu), BF16, 0),
        (two(lambda x: torch.relu(x) * 2), BF16, 0),
        (lambda x, w, b, v: torch.relu(F.linear(x, w, b)), BF16, 1),
        (lambda x, w, b, v: (y := F.linear(x, w, b), torch.relu(y)), BF16, 0),
        (lambda x, w, b, v: torch.relu(torch.addmm(b, x[0], w.t())), BF16, 1),
    ],
)
def test_fuses(fn, dtype, count):
    torch.manual_seed(0)
    inputs = [torch.randn(shape, dtype=dtype) for shape in ((3, 8, 16), (32, 16), (32,), (5, 32))]
    graph, _ = record(fn, inputs)
    choose_library_calls(graph)
    fuse_matmul_activations(graph)
    graph.lint()
    assert sum(n.target is torch.ops.aten._addmm_activation.default for n in graph.nodes) == count
    got = torch.fx.Interpreter(torch.fx.GraphModule(torch.nn.Module(), graph)).run(*inputs)
    want = torch.utils._pytree.tree_leaves(fn(*inputs))
    for g, w in zip(torch.utils._pytree.tree_leaves(got), want, strict=True):
        torch.testing.assert_close(g, w, rtol=2e-2, atol=2e-2)


@pytest.mark.usefixtures("makes_on_cuda")
@pytest.mark.parametrize(("dtype", "count"), [(BF16, 2), (torch.float32, 0)])
def test_layers_without_a_bias_share_zeros_that_are_kept(dtype, count):
    x, w, v = [torch.randn(shape, dtype=dtype) for shape in ((3, 8, 32), (32, 32), (5, 32))]
    graph, _ = recorded(lambda x, w, v: F.linear(torch.relu(F.linear(torch.relu(F.linear(x, w)), w)), v), x, w, v)
    choose_library_calls(graph)
    fuse_matmul_activations(graph)
    graph.lint()
    fused = [n for n in graph.nodes if n.target is torch.ops.aten._addmm_activation.default]
    assert len(fused) == count and len({n.args[0] for n in fused}) == min(count, 1)
    if fused:
        assert worth_freezing(fused[0].args[0]) and fused[0].args[0].meta["val"].shape == (32,)
