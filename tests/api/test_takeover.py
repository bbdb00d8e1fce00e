"""`framesmith.install`: torch.compile and torch.compiler mean framesmith for the rest of a program."""

import copy
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import framesmith
from framesmith import _C
from framesmith.drop_in import FUNCTIONS
from framesmith.testing import CompileCounter
from tests.paths import python_path

X = torch.arange(12.0).reshape(3, 4)
ROOT = Path(framesmith.__file__).parents[1]


def double(x):
    return x.sin() * 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        return self.b(self.a(x)).relu()


@pytest.fixture
def installed():
    with framesmith.installed():
        yield


def functions():
    return {(path, name): getattr(sys.modules[path], name) for path, names in FUNCTIONS.items() for name in names
            if hasattr(sys.modules[path], name)}


def test_install_and_uninstall():
    before = functions()
    framesmith.install()
    framesmith.install()
    try:
        during = functions()
        assert all(during[key] is not fn and during[key].__name__ == fn.__name__ for key, fn in before.items())
        fast = torch.compile(double)
        assert isinstance(fast, _C.CompiledFunction)
    finally:
        framesmith.uninstall()
    assert functions() == before
    framesmith.uninstall()
    assert torch.equal(fast(X), double(X))


def test_the_with_form_keeps_what_an_outer_install_made():
    before = functions()
    with framesmith.installed():
        during = functions()
        with framesmith.installed():
            pass
        assert functions() == during
    assert functions() == before


def test_a_wrapper_that_the_program_puts_around_it(monkeypatch):
    """The program's stays, and calls the original after `uninstall`, ours again after another `install`."""
    seen = []
    monkeypatch.setattr(torch, "compile", lambda *args, **how: seen.append("original") or args[0])
    framesmith.install()
    inner = torch.compile
    torch.compile = lambda *args, **how: seen.append("wrapper") or inner(*args, **how)
    assert isinstance(torch.compile(double), _C.CompiledFunction) and seen == ["wrapper"]
    framesmith.uninstall()
    assert torch.compile(double) is double and seen == ["wrapper", "wrapper", "original"]
    with framesmith.installed():
        assert isinstance(torch.compile(double), _C.CompiledFunction)
    assert torch.compile(double) is double


def test_arguments(installed):
    with pytest.warns(UserWarning, match="change nothing here: guard_filter_fn"):
        fast = torch.compile(double, fullgraph=True, dynamic=None, backend="inductor", name="region",
                             isolate_recompiles=True, recompile_limit=4, options={"guard_filter_fn": len})
    assert torch.allclose(fast(X), double(X))
    assert torch.compile(double, disable=True) is double
    assert torch.allclose(torch.compile(backend="eager", mode="max-autotune")(double)(X), double(X))
    with pytest.raises(TypeError):
        torch.compile(double, fullgrap=True)
    with pytest.raises(framesmith.exc.BackendError, match="unknown backend 'nope'.*inductor"):
        torch.compile(double, backend="nope")


def test_isolated_recompiles():
    counter = CompileCounter()
    shared, again = framesmith.compile(double, backend=counter), framesmith.compile(double, backend=counter)
    own = framesmith.compile(double, backend=counter, isolate_recompiles=True)
    for fast, count in ((shared, 1), (again, 1), (own, 2)):
        fast(X)
        assert counter.frame_count == count


def test_a_back_end_takes_its_own_options(installed):
    given = []

    def backend(gm, inputs, **how):
        given.append(how)
        return gm.forward

    torch.compile(double, backend=backend, options={"level": 3})(X)
    torch.compile(double, backend=backend, mode="reduce-overhead")(X)
    torch.compile(double, backend=backend, mode="default")(X)
    assert given == [{"options": {"level": 3}}, {"mode": "reduce-overhead"}, {}]


@pytest.mark.skipif(not hasattr(torch.compiler, "set_default_backend"), reason="this PyTorch has no default back end")
def test_back_ends_by_name(installed):
    counter = CompileCounter()
    torch._dynamo.register_backend(counter, name="registered_there")
    torch.compile(double, backend="registered_there")(X)
    assert counter.frame_count == 1 and "framesmith" in torch.compiler.list_backends()
    assert torch.equal(torch.compile(double, backend="eager_noexcept")(X), double(X))
    torch.compiler.set_default_backend(counter)
    try:
        torch.compile(lambda x: x + 3)(X)
        assert counter.frame_count == 2 and torch.compiler.get_default_backend() is counter
    finally:
        torch.compiler.set_default_backend(None)
    assert torch.compiler.get_default_backend() == "inductor"


def test_marks(installed):
    @torch.compiler.disable
    def plain(x):
        return x + 1

    @torch.compiler.disable(recursive=False, reason="why")
    def shallow(x):
        return x + 1

    @torch.compiler.assume_constant_result
    def width():
        return int("3")

    @torch.compiler.allow_in_graph
    def whole(x):
        return x * 2

    @torch.compiler.nested_compile_region
    def region(x):
        return x.cos()

    def program(x):
        torch.compiler.cudagraph_mark_step_begin()
        return region(whole(x.sin())) * width() + torch.compiler.is_compiling()

    def counted(f):
        counter = CompileCounter()
        got = torch.compile(f, backend=counter)(X)
        return got, counter.frame_count

    got, graphs = counted(program)
    assert graphs == 1 and torch.allclose(got, (X.sin() * 2).cos() * 3 + 1)
    assert counted(lambda x: plain(x.sin()).cos())[1] == counted(lambda x: shallow(x.sin()).cos())[1] == 2


def test_a_disabled_class(installed):
    @torch.compiler.disable
    class Plain(Net):
        pass

    net, counter = Plain().eval(), CompileCounter()
    assert torch.equal(torch.compile(lambda x: net(x + 1) + 1, backend=counter)(X), net(X + 1) + 1)
    assert counter.frame_count == 2 and isinstance(net, Plain)


def test_a_region_that_torch_marked_is_captured_with_its_caller():
    region = torch.compiler.nested_compile_region(lambda x: x.cos())
    counter = CompileCounter()
    got = framesmith.compile(lambda x: region(x) + region(x + 1), backend=counter, fullgraph=True)(X)
    assert counter.frame_count == 1 and torch.equal(got, X.cos() + (X + 1).cos())


def test_substitutes(installed):
    from colorsys import rgb_to_yiq as original

    fast = torch.compile(lambda x: original(x, x, x)[0], fullgraph=True)
    replaced = torch.compiler.substitute_in_graph(original)(lambda r, g, b: (r + g + b, r, g))
    try:
        assert torch.equal(fast(X), 3 * X) and replaced(1.0, 1.0, 1.0) == original(1.0, 1.0, 1.0)
    finally:
        framesmith.capture.functions.marks.forget(original)


def test_wrapped_numpy(installed):
    fast = torch.compile(torch.compiler.wrap_numpy(lambda x: np.square(x) + 1))
    assert torch.equal(fast(X), X.square() + 1)


def test_stances(installed):
    counter = CompileCounter()
    fast = torch.compile(lambda x: x.cos() * 3, backend=counter)

    @torch.compiler.set_stance("force_eager")
    def plainly(x):
        return fast(x)

    plainly(X)
    assert counter.frame_count == 0
    with torch.compiler.set_stance("eager_then_compile"):
        fast(X)
        assert counter.frame_count == 0
        fast(X)
    assert counter.frame_count == 1
    with torch.compiler.set_stance(force_backend="eager"):
        before = _C.hits()
        fast(X)
        assert _C.hits() == before
    torch.compiler.set_stance("fail_on_recompile")
    try:
        with pytest.raises(RuntimeError, match="detected a recompile"):
            fast(X[1:])
    finally:
        torch.compiler.set_stance("default")
    with pytest.raises(RuntimeError, match="invalid torch.compile stance"):
        torch.compiler.set_stance("eagerly")
    fast(X)
    assert counter.frame_count == 1


def test_reset(installed):
    counter = CompileCounter()
    fast = torch.compile(double, backend=counter)
    fast(X)
    torch.compiler.reset()
    fast(X)
    assert counter.frame_count == 2


def test_a_module_compiled_in_place(installed):
    net, counter = Net(), CompileCounter()
    plain = copy.deepcopy(net)
    net.compile(backend=counter, fullgraph=True)
    assert torch.allclose(net(X), plain(X)) and counter.frame_count == 1 and list(net.state_dict()) == list(
        plain.state_dict())
    called = []
    hook = net.register_forward_hook(lambda module, args, out: called.append(1) or out * 2)
    assert torch.allclose(net(X), plain(X) * 2) and called
    hook.remove()
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert other._compiled_call_impl is None and torch.allclose(other.eval()(X), plain.eval()(X))
    around = CompileCounter()
    assert torch.allclose(torch.compile(lambda x: net(x) + 1, backend=around)(X), plain.eval()(X) + 1, atol=10)
    assert around.frame_count == 1


@pytest.mark.parametrize("nested", [False, True])
def test_checkpoints_of_torch_compile_are_loaded(installed, nested):
    """Their keys begin with `_orig_mod.`; ours do not."""
    def made(compiled):
        net = nn.Sequential(Net(), nn.ReLU()) if nested else Net()
        if nested:
            net[0] = compiled(net[0])
        return net if nested else compiled(net)

    saved = made(lambda net: net).state_dict()
    theirs = {("0._orig_mod." + k[2:] if nested else "_orig_mod." + k): v + 1 for k, v in saved.items()}
    fast = made(torch.compile)
    assert list(fast.state_dict()) == list(saved)
    assert str(fast.load_state_dict(theirs)) == "<All keys matched successfully>"
    assert all(torch.equal(v, saved[k] + 1) for k, v in fast.state_dict().items())
    with pytest.raises(RuntimeError, match="Missing key"):
        fast.load_state_dict({k: v for k, v in theirs.items() if not k.endswith("weight")})


def test_the_back_end_of_torch_compile(monkeypatch):
    """Without `install`: TorchDynamo captures, and we compile its graphs."""
    net = Net().eval()
    fast = torch.compile(net, backend="framesmith", fullgraph=True)
    before = _C.hits()
    with torch.enable_grad():
        for rows in (3, 5, 7):
            x = torch.randn(rows, 4)
            assert torch.allclose(fast(x), net(x), atol=1e-6)
        fast(X).sum().backward()
    want = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    with torch.enable_grad():
        net(X).sum().backward()
    assert all(torch.allclose(a, p.grad, atol=1e-5) for a, p in zip(want, net.parameters(), strict=True))
    assert _C.hits() > before or framesmith.explain(net)(X).graph_count == 1


PROGRAM = """
import sys, torch
def f(x): return x.sin() * 2
fast = torch.compile(f, fullgraph=True)
x = torch.ones(3)
assert torch.equal(fast(x), f(x))
torch.compiler.reset()
torch.compiler.set_stance("default")
print(type(fast).__module__, __name__, *sys.argv[1:], sorted({"torch._dynamo", "torch._inductor"} & {*sys.modules}))
"""


def started(*command, cwd, **env):
    done = subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=300,
                          env={**os.environ, **env})
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def test_a_script_that_is_run(tmp_path):
    """Its children are told, too; TorchDynamo is never loaded."""
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM) + textwrap.dedent("""
        import subprocess
        if len(sys.argv) == 3:
            print(subprocess.run([sys.executable, __file__, "child"], capture_output=True, text=True).stdout.strip())
    """))
    lines = started("-m", "framesmith", "run", str(script), "a", "--b=1", cwd=ROOT).splitlines()
    assert lines == ["framesmith._C __main__ a --b=1 []", "framesmith._C __main__ child []"]


def test_the_environment_alone(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('the next one')")
    (tmp_path / "program.py").write_text(PROGRAM)
    path = started("-m", "framesmith", "site", cwd=ROOT)
    env = {"PYTHONPATH": python_path(path, tmp_path)}
    assert started("-m", "program", cwd=tmp_path, **env) == "the next one\nframesmith._C __main__ []"
    code = "import torch; before = torch.compile; print(hasattr(before, '__wrapped__'))"
    assert started("-c", code, cwd=tmp_path, FRAMESMITH_INSTALL="0", **env) == "the next one\nFalse"


def test_commands():
    assert "run a program" in started("-m", "framesmith", "help", cwd=ROOT)
