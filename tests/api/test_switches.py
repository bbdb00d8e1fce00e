"""torch.compile's switches mean the same here: stances, reset, limits, options and back ends by its names."""

import warnings

import pytest
import torch

import framesmith
from framesmith import _C
from framesmith.config import Config
from framesmith.exc import FramesmithError
from framesmith.testing import CompileCounter

X = torch.arange(4.0)


def double(x):
    return x.sin() * 2


@pytest.fixture
def counted():
    counter = CompileCounter()
    fast = framesmith.compile(double, backend=counter)
    fast(X)
    return fast, counter


def hits(fast, x=X):
    before = _C.hits()
    assert torch.equal(fast(x), double(x))
    return _C.hits() - before


def test_force_eager(counted):
    fast, counter = counted
    assert hits(fast) == 1
    with torch.compiler.set_stance("force_eager"):
        assert hits(fast) == hits(fast, X[1:]) == 0
    assert hits(fast) == 1 and counter.frame_count == 1


def test_eager_on_recompile(counted):
    fast, counter = counted
    with torch.compiler.set_stance("eager_on_recompile", skip_guard_eval_unsafe=True):
        assert hits(fast) == 1 and hits(fast, X[1:]) == 0
    assert counter.frame_count == 1


def test_fail_on_recompile(counted):
    fast, _ = counted
    with torch.compiler.set_stance("fail_on_recompile"):
        assert hits(fast) == 1
        with pytest.raises(RuntimeError, match="detected a recompile .* expected 4, got 3"):
            fast(X[1:])


def test_eager_then_compile():
    counter = CompileCounter()
    fast = framesmith.compile(lambda x: x.cos() + 1, backend=counter)
    with torch.compiler.set_stance("eager_then_compile"):
        for count in (0, 1, 1):
            fast(X)
            assert counter.frame_count == count


def test_reset_of_torch(counted):
    fast, counter = counted
    torch.compiler.reset()
    fast(X)
    assert counter.frame_count == 2


@pytest.mark.parametrize("options", [{"recompile_limit": 3}, {"options": {"recompile_limit": 3}}])
def test_recompile_limit(options):
    counter = CompileCounter()
    fast = framesmith.compile(lambda x: x + 1, backend=counter, dynamic=False, **options)
    with pytest.warns(UserWarning, match="has 3 variants.*max_variants"):
        for n in range(2, 9):
            fast(torch.ones(n))
    assert counter.frame_count == 3


def test_the_limit_of_dynamo():
    counter = CompileCounter()
    fast = framesmith.compile(lambda x: x + 1, backend=counter, dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=2), pytest.warns(UserWarning, match="has 2 variants"):
        for n in range(2, 9):
            fast(torch.ones(n))
    assert counter.frame_count == 2


@pytest.mark.parametrize(("options", "mode"), [
    ({"max_autotune": True}, "max-autotune-no-cudagraphs"), ({"triton.cudagraphs": True}, "reduce-overhead"),
    ({"triton.cudagraphs": True, "max_autotune": True}, "max-autotune"),
    ({"epilogue_fusion": True, "fallback_random": True}, "default"),
])
def test_options_by_the_names_of_inductor(options, mode):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Config.asked(options).mode == mode


def test_options_without_a_counterpart_are_named_once():
    framesmith.reset()
    with pytest.warns(UserWarning, match="change nothing here: shape_padding, trace.enabled") as caught:
        for _ in range(2):
            framesmith.compile(double, options={"shape-padding": True, "trace.enabled": True})
    assert len(caught) == 1


def test_misspelt_options():
    with pytest.raises(FramesmithError, match="unknown options .*did you mean.* max_autotune"):
        framesmith.compile(double, options={"max_autotun": True})


def test_back_ends_of_torch_compile():
    assert Config.asked({}, backend="cudagraphs").mode == "reduce-overhead"
    for name in ("inductor", "cudagraphs"):
        assert torch.allclose(framesmith.compile(double, backend=name)(X), double(X))
