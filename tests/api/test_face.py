"""The functions beside `compile`."""

import pytest
import torch
from torch import fx

import framesmith
from framesmith import exc
from framesmith.testing import CompileCounter, CompileCounterWithBackend
from tests.api.nets import Net, X, assert_close

FACE = {
    "compile", "config", "disable", "exc", "explain", "graph_break", "is_compiling", "list_backends", "lookup_backend",
    "mark_dynamic",
    "mark_static", "mark_unbacked", "warm_up", "register_backend", "reset", "allow_in_graph", "disallow_in_graph",
    "assume_constant_result",
    "testing",
    "cuda_graph_memory", "register_decomposition", "register_lowering", "register_pass", "unregister", "shapes",
    "Dim", "export", "load", "install", "installed", "uninstall", "bisect", "check", "minify", "metrics", "on_event",
    "package", "plan", "prometheus", "split", "report", "memory", "cache", "wait",
}


def inner(x):
    return x.cos() + 1


@framesmith.disable
def disabled(x):
    assert not framesmith.is_compiling()
    return x.cos() + 1


@framesmith.disable(recursive=False, reason="for a test")
def alone(x):
    return x.cos() + 1


@torch.compiler.disable
def disabled_by_torch(x):
    return x.cos() + 1


@framesmith.disallow_in_graph
def disallowed(x):
    return x.cos() + 1


@framesmith.allow_in_graph
def allowed(x, n):
    return x.relu() + n


@framesmith.assume_constant_result
def setting(n):
    return n * 10


def broken(x):
    framesmith.graph_break()
    return x.cos() + 1


def broken_by_torch(x):
    torch._dynamo.graph_break()
    return x.cos() + 1


disabled_module = framesmith.disable(torch.nn.Linear(4, 4))


def test_the_face_is_complete():
    assert FACE == set(framesmith.__all__) <= set(dir(framesmith))
    assert all(getattr(framesmith, name) is not None for name in FACE)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        framesmith.nothing  # noqa: B018


BREAKS = [disabled, alone, disabled_by_torch, disallowed, broken, broken_by_torch, disabled_module]


@pytest.mark.parametrize("fn", BREAKS, ids=lambda f: getattr(f, "__name__", "module"))
def test_a_break_between_two_graphs(fn):
    def f(x):
        return fn(x.sin()) * 2

    told = framesmith.explain(f)(X)
    assert_close(told.output, f(X))
    assert told.break_count >= 1 and told.graph_count >= 2
    with pytest.raises(exc.Unsupported):
        framesmith.compile(f, fullgraph=True)(X)


def test_marked_functions_stay_in_the_graph():
    counter = CompileCounter()
    fast = framesmith.compile(lambda x: allowed(x, setting(3)), backend=counter, fullgraph=True)
    assert_close(fast(X), X.relu() + 30)
    assert counter.frame_count == 1 and counter.op_count == 2


def test_is_compiling():
    assert not framesmith.is_compiling()
    assert_close(framesmith.compile(lambda x: x + 1 if framesmith.is_compiling() else x)(X), X + 1)
    assert_close(framesmith.compile(lambda x: x + 1 if torch.compiler.is_compiling() else x)(X), X + 1)


def test_marks_on_tensors():
    x = X.clone()
    framesmith.mark_dynamic(x, 0, min=2)
    framesmith.mark_static(x)
    assert_close(framesmith.compile(inner)(x), inner(x))
    with pytest.raises(IndexError):
        framesmith.mark_dynamic(x, 5)


def test_a_users_back_end():
    given = []

    @framesmith.register_backend(name="mine")
    def back_end(gm, example_inputs):
        given.append((gm, example_inputs))
        return gm.forward

    assert "mine" in framesmith.list_backends() and framesmith.lookup_backend("mine") is back_end
    for backend in ("mine", back_end):
        framesmith.reset()
        net = Net().eval()
        assert_close(framesmith.compile(net, backend=backend)(X), net(X))
        gm, examples = given.pop()
        assert isinstance(gm, fx.GraphModule) and all(type(e) in (torch.Tensor, torch.nn.Parameter) for e in examples)
        assert len(examples) == sum(node.op == "placeholder" for node in gm.graph.nodes)


COUNTER = pytest.param(CompileCounterWithBackend("native"), id="counter")


@pytest.mark.parametrize("backend", ["native", "inductor", "eager", "aot_eager", COUNTER])
def test_back_ends(backend):
    assert_close(framesmith.compile(inner, backend=backend)(X), inner(X))


@pytest.mark.parametrize("backend", ["native", "eager", lambda gm, examples: gm.forward])
def test_results_that_are_views_may_be_written(backend):
    def transposed_sum(x):
        v = torch.eye(3).tanh().t()
        framesmith.graph_break()
        v[1] += x
        return v

    with torch.enable_grad():
        x = torch.ones(3, requires_grad=True)
        out = framesmith.compile(transposed_sum, backend=backend)(x)
        assert_close(out, transposed_sum(x))
        out.sum().backward()
    assert torch.equal(x.grad, torch.ones(3))


def test_unknown_names():
    with pytest.raises(exc.BackendError, match="unknown backend 'nope'"):
        framesmith.compile(inner, backend="nope")
    with pytest.raises(exc.BackendError):
        framesmith.lookup_backend("nope")
    with pytest.raises(exc.FramesmithError, match="unknown mode"):
        framesmith.compile(inner, mode="fast")
    with pytest.raises(exc.FramesmithError, match="unknown options"):
        framesmith.compile(inner, options={"nope": 1})


@pytest.mark.parametrize("mode", [None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes(mode):
    assert_close(framesmith.compile(inner, mode=mode)(X), inner(X))
