"""Batch-norm folded into a convolution of half precision, whose norm has parameters in float32: as autocast makes
them."""

import pytest
import torch
import torch.nn.functional as F

from framesmith.fake.recorder import Recorder
from framesmith.graph.interpreter import run
from framesmith.lower.contractions.fold_batch_norm import fold_batch_norm


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_folded_weight_is_in_the_dtype_of_the_convolution(dtype):
    def fn(x, w, mean, var, gamma, beta):
        return F.batch_norm(F.conv2d(x.to(dtype), w.to(dtype)), mean, var, gamma, beta)

    norm = torch.randn(4), torch.rand(4) + 0.5, torch.randn(4), torch.randn(4)
    inputs = [torch.randn(2, 6, 8, 8), torch.randn(4, 6, 3, 3), *norm]
    recorder = Recorder()
    with torch.no_grad(), recorder:
        fakes = [recorder.input(t, f"i{n}") for n, t in enumerate(inputs)]
        for fake in fakes[1:]:
            fake._alias.node.meta["param"] = True
        result = fn(*fakes)
    graph = fold_batch_norm(recorder.finish([result]))
    assert not any("batch_norm" in str(node.target) for node in graph.nodes)
    (got,), expected, true = run(graph, inputs), fn(*inputs), fn_in_double(inputs)
    assert got.dtype is expected.dtype is dtype
    assert (got - true).norm() <= 1.5 * (expected - true).norm() + 1e-6 * true.norm()


def fn_in_double(inputs):
    x, w, mean, var, gamma, beta = [t.double() for t in inputs]
    return F.batch_norm(F.conv2d(x, w), mean, var, gamma, beta)
