"""Tools that record a model record the original of a compiled one."""

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import framesmith


def net():
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).eval()


class Scaled(nn.Module):
    """With an argument that has a default, and a buffer."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x, times: int = 2):
        return self.inner(x) * times + self.shift


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) + 1


MODELS = {"sequence": net, "scaled": Scaled, "compiled part": lambda: Around(framesmith.compile(Scaled()))}
TOOLS = {
    "script": lambda model, x: torch.jit.script(model),
    "export": lambda model, x: torch.export.export(model, (x,), strict=False).module(),
    "trace": torch.jit.trace,
    "symbolic_trace": lambda model, x: torch.fx.symbolic_trace(model),
    "make_fx": lambda model, x: make_fx(model)(x),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("tool", TOOLS)
def test_a_compiled_module_is_recorded_as_its_original(tool, warm, grad):
    model, x = net(), torch.randn(2, 4)
    compiled = framesmith.compile(model)
    with torch.set_grad_enabled(grad):
        if warm:
            compiled(x)
        recorded = TOOLS[tool](compiled, x)
        other = torch.randn(2, 4)
        assert torch.equal(recorded(other), TOOLS[tool](model, x)(other))
        torch.testing.assert_close(compiled(other), model(other))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("tool", ["script", "export"])
def test_tools_that_read_the_text_of_a_model_read_the_originals(tool, make):
    model, x = make(), torch.randn(2, 4)
    compiled = framesmith.compile(model)
    recorded = TOOLS[tool](compiled, x)
    torch.testing.assert_close(recorded(x), model(x))
    assert recorded.state_dict().keys() == model.state_dict().keys()
    torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_function_has_the_text_of_its_original():
    def f(x, times: int = 2):
        return x.sin() * times

    compiled, x = framesmith.compile(f), torch.randn(3)
    assert (compiled.__code__, compiled.__defaults__, compiled.__globals__) == (f.__code__, f.__defaults__,
                                                                                f.__globals__)
    scripted = torch.jit.script(compiled)
    assert isinstance(scripted, torch.jit.ScriptFunction) and torch.equal(scripted(x, 3), f(x, 3))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("warm", [False, True])
def test_a_compiled_function_is_traced_as_its_original(warm):
    def f(x):
        return (x.sin() * 2).sum(0)

    compiled, x = framesmith.compile(f), torch.randn(3, 4)
    if warm:
        compiled(x)
    traced = torch.jit.trace(lambda x: compiled(x) + 1, x)
    assert "aten::sin" in str(traced.graph) and torch.equal(traced(x + 1), f(x + 1) + 1)
    torch.testing.assert_close(compiled(x), f(x))


@pytest.mark.filterwarnings("ignore")
def test_a_trace_within_compiled_code_sees_its_operators():
    def inner(x):
        return x.cos() + 1

    def f(x):
        return torch.jit.trace(inner, x)(x + 1) * 2

    x = torch.randn(3)
    for _ in range(3):
        torch.testing.assert_close(framesmith.compile(f)(x), f(x))
