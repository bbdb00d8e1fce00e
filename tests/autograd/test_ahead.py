"""Where another process compiles kernels, a backward is begun beside its forward, if it is known what will be asked of
it."""

import pytest
import torch

import framesmith
from framesmith import graph_compiler, targets


@pytest.fixture
def begun(monkeypatch):
    """Of each graph that is begun ahead, whether it is."""
    found = []

    def begin(graph, config):
        found.append((made := begin_ahead(graph, config)) is not None)
        return made

    begin_ahead = graph_compiler.begin_ahead
    monkeypatch.setattr(graph_compiler, "begin_ahead", begin)
    monkeypatch.setattr(targets.Target, "aside", True)
    return found


def gradients(fn, x, *names):
    x = x.clone().requires_grad_()
    out = fn(x)
    sum(out[k].square().sum() for k in names).backward() if names else out.square().sum().backward()
    return x.grad


X = torch.randn(8, 8)


def test_a_backward_is_begun_with_its_forward(begun):
    def fn(x):
        return x.sin() * x.exp() + torch.eye(8)

    compiled = framesmith.compile(fn, fullgraph=True, options={"cache": False})
    for _ in range(2):
        torch.testing.assert_close(gradients(compiled, X), gradients(fn, X))
    assert begun == [True]


def test_a_backward_of_some_of_several_results_is_not(begun):
    def fn(x):
        return x.sin() * 3, x.exp() * 2

    compiled = framesmith.compile(fn, fullgraph=True, options={"cache": False})
    for names in ((0,), (1,), (0, 1)):
        torch.testing.assert_close(gradients(compiled, X, *names), gradients(fn, X, *names))
    assert not begun


def test_what_the_cache_knows_is_not_begun(begun, tmp_path):
    def fn(x):
        return (x * 7).sin()

    for _ in range(2):
        framesmith.reset()
        compiled = framesmith.compile(fn, fullgraph=True, options={"cache_dir": str(tmp_path)})
        torch.testing.assert_close(gradients(compiled, X), gradients(fn, X))
    assert begun == [True]
