"""How often code is compiled, what is told of it, and what is given up after how many tries."""

import contextlib
import gc
import sys
import warnings
import weakref

import pytest
import torch
from torch import nn

import framesmith
from framesmith import _C
from framesmith.testing import CompileCounter
from framesmith.util import log

X = torch.randn(2, 4)


def scaled(x, options):
    y = x + 1
    return y ** options["by"]


@pytest.fixture(autouse=True)
def limit():
    """torch.compile's limit, which ours follows, is its default: libraries change it when they are imported."""
    config = sys.modules.get("torch._dynamo.config")
    with config.patch(recompile_limit=8) if config else contextlib.nullcontext():
        yield


def warned(call):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in seen if "framesmith" in str(w.message)]


def test_the_log_names_guard_line_and_expression(capfd):
    compiled = framesmith.compile(scaled, backend="eager")
    log.configure("recompiles")
    try:
        compiled(X, {"by": 2.0})
        compiled(X, {"by": 3.0})
    finally:
        log.configure("")
    line = scaled.__code__.co_firstlineno + 2
    (text,) = capfd.readouterr().err.splitlines()
    assert text == (f"[recompiles] scaled ({__file__}:{line - 2}): L['options']['by']: expected 2.0, got 3.0 "
                    f"(assumed at {__file__}:{line} in scaled: return y ** options[\"by\"])")


def test_so_many_variants_then_one_warning_with_the_guards_that_failed():
    counter = CompileCounter()
    compiled = framesmith.compile(scaled, backend=counter)
    results = []

    def call():
        for i in range(20):
            results.append(torch.equal(compiled(X, {"by": float(i)}), scaled(X, {"by": float(i)})))

    (text,) = warned(call)
    assert all(results) and counter.frame_count == 8
    assert ("has 8 variants" in text and "L['options']['by']: expected" in text and "times" in text
            and 'return y ** options["by"]' in text)
    assert not warned(call) and counter.frame_count == 8
    assert torch.equal(compiled(X, {"by": 3.0}), scaled(X, {"by": 3.0}))


def test_max_variants_is_an_option():
    counter = CompileCounter()
    compiled = framesmith.compile(scaled, backend=counter, options={"max_variants": 2})
    warned(lambda: [compiled(X, {"by": float(i)}) for i in range(5)])
    assert counter.frame_count == 2


class Scale(nn.Module):
    def __init__(self, by):
        super().__init__()
        self.by = by

    def forward(self, x):
        framesmith.graph_break()
        return x ** self.by


class Stack(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.layers = nn.ModuleList([Scale(float(i)) for i in range(count)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_modules_have_budgets_of_their_own():
    counter = CompileCounter()
    one, two = Scale(2.0), Scale(3.0)
    fast_one, fast_two = framesmith.compile(one, backend=counter), framesmith.compile(two, backend=counter)

    def fill():
        for i in range(12):
            one.by = float(i)
            assert torch.equal(fast_one(X), one(X))

    assert len(warned(fill)) == 1
    full = counter.frame_count
    two.by = 77.0
    assert torch.equal(fast_two(X), two(X)) and counter.frame_count > full


def test_layers_of_one_class_do_not_share_a_budget():
    def run(module, x):
        framesmith.graph_break()
        return module(x)

    model = Stack(12).eval()
    counter = CompileCounter()
    compiled = framesmith.compile(run, backend=counter)
    told = warned(lambda: [compiled(model, X) for _ in range(3)])
    assert torch.equal(compiled(model, X), model(X))
    assert not told
    before = counter.frame_count
    compiled(model, X)
    assert counter.frame_count == before


def raising(x, n):
    y = x + 1
    if n > 0:
        raise ValueError(n)
    return y


def test_a_program_that_raises_is_not_captured_at_each_call(captures):
    compiled = framesmith.compile(raising, backend="eager")
    for _ in range(100):
        with pytest.raises(ValueError, match="1"):
            compiled(X, 1)
    assert 0 < captures.count("raising") <= 8
    for _ in range(200):
        assert torch.equal(compiled(X, 0), X + 1)
    assert len(_C.entries(raising)) >= 1


def plain(n):
    return n * 2 + 1


def test_code_without_tensors_is_given_up_silently(captures):
    compiled = framesmith.compile(plain, backend="eager")
    told = warned(lambda: [compiled(n) for n in range(50)])
    assert not told and captures == ["plain", "plain"] and len(_C.entries(plain)) <= 1
    assert compiled(5) == 11


def test_code_without_tensors_can_be_kept(captures):
    compiled = framesmith.compile(plain, backend="eager", options={"keep_graphless": True})
    assert [compiled(n) for n in (1, 2, 3, 1, 2, 3)] == [3, 5, 7, 3, 5, 7]
    assert captures == ["plain"] * 3 and len(_C.entries(plain)) == 3


def test_state_of_torch_recompiles_and_comes_back():
    counter = CompileCounter()
    compiled = framesmith.compile(lambda x: torch.ones(2, device=None).to(x.dtype) + x[0, 0], backend=counter)
    default = torch.get_default_dtype()
    try:
        compiled(X)
        torch.set_default_dtype(torch.float64)
        compiled(X)
        assert counter.frame_count == 2
    finally:
        torch.set_default_dtype(default)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        compiled(X)
    with torch.inference_mode():
        compiled(X)
    assert counter.frame_count == 4
    compiled(X)
    assert counter.frame_count == 4


def test_default_device():
    def make(x):
        return torch.ones(2, 4) + x

    counter = CompileCounter()
    compiled = framesmith.compile(make, backend=counter)
    assert compiled(X).device.type == "cpu"
    for _ in range(2):
        with torch.device("cpu"):
            assert torch.equal(compiled(X), make(X))
    assert counter.frame_count == 2
    with torch.device("meta"):
        assert compiled(torch.empty(2, 4)).device.type == "meta"


def test_a_users_mode_sees_every_operator():
    class Mode(torch.overrides.TorchFunctionMode):
        def __init__(self):
            super().__init__()
            self.seen = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.seen += 1
            return func(*args, **(kwargs or {}))

    compiled = framesmith.compile(scaled, backend="eager")
    compiled(X, {"by": 2.0})
    for _ in range(2):
        with Mode() as mode:
            assert torch.equal(compiled(X, {"by": 2.0}), scaled(X, {"by": 2.0}))
        assert mode.seen >= 2
    assert len(_C.entries(scaled)) == 1


def test_aliasing_of_inputs():
    def write(x, y):
        x.add_(1)
        return x + y

    counter = CompileCounter()
    compiled = framesmith.compile(write, backend=counter)
    a, b = torch.zeros(4), torch.zeros(4)
    assert torch.equal(compiled(a, b), torch.ones(4))
    assert torch.equal(compiled(a, a), torch.full((4,), 4.0))
    base = torch.zeros(6)
    assert torch.equal(compiled(base[:4], base[2:]), write(*(lambda z: (z[:4], z[2:]))(torch.zeros(6))))
    c = torch.zeros(4)
    assert torch.equal(compiled(c, b), torch.ones(4))


def test_a_function_of_breaks_alone_says_that_it_runs_in_eager():
    def many(x):
        framesmith.graph_break()
        framesmith.graph_break()
        framesmith.graph_break()
        framesmith.graph_break()
        framesmith.graph_break()
        framesmith.graph_break()
        framesmith.graph_break()
        framesmith.graph_break()
        framesmith.graph_break()
        framesmith.graph_break()
        framesmith.graph_break()
        framesmith.graph_break()
        framesmith.graph_break()
        framesmith.graph_break()
        return x

    compiled = framesmith.compile(many)
    said = "many .* eager: 13 breaks in a row had no tensor operation .* The last: graph_break"
    with pytest.warns(UserWarning, match=said) as caught:
        for _ in range(3):
            compiled(X)
    assert len(caught) == 1


def increased(x):
    return x.sin() + 1


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_functions_of_one_code_object_share_variants(captures, backend):
    together = [framesmith.compile(increased, backend=backend) for _ in range(6)]
    for fast in together:
        torch.testing.assert_close(fast(X), increased(X))
    del together, fast
    gc.collect()
    for _ in range(3):
        framesmith.compile(increased, backend=backend)(X)
    assert captures == ["increased"]
    framesmith.compile(increased, backend=backend, fullgraph=True)(X)
    framesmith.compile(increased, backend=backend, options={"max_variants": 3})(X)
    assert len(captures) == 3


def test_a_decorator_within_a_function_compiles_once(captures):
    def run(x, by):
        @framesmith.compile
        def inner(y):
            return y * by + 1

        return inner(x)

    for _ in range(5):
        torch.testing.assert_close(run(X, 2), X * 2 + 1)
    assert len(captures) == 1
    for by in range(30):
        torch.testing.assert_close(run(X, by), X * by + 1)
    assert len(captures) <= 4


def closed_over(value):
    return framesmith.compile(lambda x: value(x) if callable(value) else x * len(value) if isinstance(value, str)
                              else x + value)


def test_closures_over_other_objects_do_not_share(captures):
    nets = [nn.Linear(4, 4) for _ in range(2)]
    for _ in range(2):
        closures = [closed_over(net) for net in nets]
        for _ in range(2):
            for fast, net in zip(closures, nets, strict=True):
                torch.testing.assert_close(fast(X), net(X))
    assert len(captures) == 2
    assert torch.equal(closed_over("abc")(X), X * 3) and torch.equal(closed_over(X)(X), X + X)


def test_shared_variants_keep_no_module_alive():
    net = nn.Linear(4, 4)
    watched = weakref.ref(net), weakref.ref(net.weight)
    closed_over(net)(X)
    del net
    gc.collect()
    assert [w() for w in watched] == [None, None]


def test_each_living_wrapper_has_a_budget():
    counter = CompileCounter()
    first = framesmith.compile(scaled, backend=counter, options={"max_variants": 2})
    assert len(warned(lambda: [first(X, {"by": float(i)}) for i in range(5)])) == 1
    assert counter.frame_count == 2
    second = framesmith.compile(scaled, backend=counter, options={"max_variants": 2})
    warned(lambda: [second(X[:n], {"by": 2.5}) for n in (1, 2, 1, 2)])
    assert counter.frame_count == 4
    for k in range(20):
        warned(lambda k=k: framesmith.compile(scaled, backend=counter, options={"max_variants": 2})(torch.randn(k + 3),
                                                                                                    {"by": 2.5}))
    assert counter.frame_count <= 6


class Pair(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.one = nn.Linear(4, width)
        self.two = nn.Sequential(nn.Linear(width, 4), nn.ReLU())


WALKS = {
    "first": lambda net, x: x * next(net.parameters())[0, 0],
    "parameters": lambda net, x: x + sum(p.sum() for p in net.parameters()),
    "modules": lambda net, x: x + len(list(net.modules())),
    "names": lambda net,
    x: x + sum(m.weight.sum() for n, m in net.named_modules() if n.endswith("0")) + len(list(net.named_buffers())),
    "set": lambda net, x: x + len({net.one, net.two, net.one[0] if isinstance(net.one, nn.Sequential) else net.two[0]}),
}


@pytest.mark.parametrize("name", WALKS)
def test_modules_of_one_class_are_one_graph(captures, name):
    run = WALKS[name]
    compiled = framesmith.compile(run, backend="eager")
    for net in (Pair() for _ in range(30)):
        torch.testing.assert_close(compiled(net, X), run(net, X))
    assert len(captures) == 1
    tied = Pair()
    tied.two[0] = tied.one
    torch.testing.assert_close(compiled(tied, X), run(tied, X))
    tied.one = tied.two
    torch.testing.assert_close(compiled(tied, X), run(tied, X))


def test_compiling_often_is_told_once():
    compiled = framesmith.compile(lambda net, x: x + net.one(x)[..., 0].sum(), backend="eager")
    (text,) = warned(lambda: [compiled(Pair(n + 1), X) for n in range(80)])
    assert "was compiled 64 times" in text and "max_variants" in text


def test_variants_of_training_do_not_keep_their_compiler_alive():
    net = nn.Linear(4, 4)
    fast = closed_over(net)
    with torch.enable_grad():
        fast(X).sum().backward()
    watched = weakref.ref(fast.callback)
    del fast, net
    gc.collect()
    assert watched() is None
