"""Whatever the user changes on a compiled model, the next call is right."""

import warnings

import pytest
import torch
from torch import nn

import framesmith
from tests.api.nets import Net, X, assert_close, assert_same, compiled_net


def triple(module, inputs, output):
    return output * 3


def write_in_place(net):
    net.a.weight.mul_(2)


def write_data(net):
    net.a.weight.data.mul_(3)


def assign_data(net):
    net.a.weight.data = torch.randn(8, 4)


def replace_parameter(net):
    net.a.weight = nn.Parameter(torch.randn(8, 4))


def load_state(net):
    net.load_state_dict(Net().state_dict())


def load_state_by_assignment(net):
    net.load_state_dict({k: v + 1 for k, v in Net().state_dict().items()}, assign=True)


def write_running_statistics(net):
    net.norm.running_mean.add_(1)


def train(net):
    net.train()


def train_one_layer(net):
    net.drop.train()


def other_dropout(net):
    net.train()
    net.drop.p = 0.9


def replace_submodule(net):
    net.drop = nn.Tanh()


def replace_by_sequence(net):
    net.b = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))


def forward_hook(net):
    net.a.register_forward_hook(triple)


def root_hook(net):
    net.register_forward_hook(triple)


def pre_hook(net):
    net.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))


def freeze_parameters(net):
    net.requires_grad_(False)


def drop_bias(net):
    net.a.bias = None


def weight_norm(net):
    nn.utils.parametrizations.weight_norm(net.a)


def other_epsilon(net):
    net.norm.eps = 0.5


CHANGES = [
    write_in_place, write_data, assign_data, replace_parameter, load_state, load_state_by_assignment,
    write_running_statistics, train,
    train_one_layer, other_dropout, replace_submodule, replace_by_sequence, forward_hook, root_hook, pre_hook,
    freeze_parameters, drop_bias,
    weight_norm, other_epsilon,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.__name__)
def test_the_next_call_is_right(change):
    net, fast = compiled_net()
    change(net)
    for _ in range(2):
        assert_same(net, fast)


def test_there_and_back():
    net, fast = compiled_net()
    for mode in (True, False, True, False):
        fast.train(mode)
        assert net.training is mode
        assert_same(net, fast)
    handle = net.a.register_forward_hook(triple)
    assert_same(net, fast)
    handle.remove()
    assert_same(net, fast)


@pytest.mark.parametrize("x", [X[:1], X[:3], X[:0], X.t().contiguous().t(), torch.cat([X, X])[1::2],
                               X.clone().requires_grad_()],
                         ids=["one row", "three rows", "none", "columns", "strided", "requires grad"])
def test_other_inputs(x):
    net, fast = compiled_net()
    assert_same(net, fast, x)
    assert_same(net, fast)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-9), (torch.bfloat16, 0.05), (torch.float32, 1e-6)],
                         ids=str)
def test_another_dtype(dtype, tolerance):
    net, fast = compiled_net()
    net.to(dtype)
    got, want = fast(X.to(dtype)), net(X.to(dtype))
    assert got.dtype is dtype
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def test_requires_grad_flips():
    net, fast = compiled_net()
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for wanted in (False, True, False):
            net.requires_grad_(wanted)
            y = fast(X)
            assert y.requires_grad is wanted
            assert_close(y, net(X))


def test_global_hooks():
    net, fast = compiled_net()
    handle = nn.modules.module.register_module_forward_hook(lambda module, inputs, output: output + 1)
    try:
        assert_same(net, fast)
    finally:
        handle.remove()
    assert_same(net, fast)


def test_thread_state():
    net, fast = compiled_net()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, want = fast(X), net(X)
    assert got.dtype is want.dtype is torch.bfloat16
    torch.testing.assert_close(got, want, rtol=0.05, atol=0.05)
    with torch.inference_mode():
        assert fast(X).is_inference()
        assert_same(net, fast)
    assert_same(net, fast)


def test_globals_and_closures():
    space = {"scale": 2}
    exec("def f(x): return x * scale", space)
    fast = framesmith.compile(space["f"])
    assert_close(fast(X), X * 2)
    space["scale"] = 5
    assert_close(fast(X), X * 5)
    offset = 1

    def g(x):
        return x + offset

    fast = framesmith.compile(g)
    assert_close(fast(X), X + 1)
    offset = 4
    assert_close(fast(X), X + 4)


@pytest.mark.parametrize("program", [
    lambda x: x.T,
    lambda x: (x[0].add_(1), x[1:]),
    lambda x: (x.storage_offset(), x + 1),
    lambda x: torch.as_strided(x, (2,), (1,), 1) + 1,
])
def test_a_view_that_begins_elsewhere(program):
    fast = framesmith.compile(program, backend="eager")
    for start in (0, 1, 2):
        ours, plain = (torch.arange(12.0).reshape(3, 4)[:, start:start + 2] for _ in range(2))
        assert_close(fast(ours), program(plain))
        assert_close(ours, plain)


class OfTheClass:
    """A descriptor that gives the same for the class and its instances."""

    def __init__(self, get):
        self.get = get

    def __get__(self, owner, cls):
        return self.get(cls)


class Holder:
    described = OfTheClass(lambda cls: {"factor": cls.factor})
    factor = 3


def test_a_descriptor_of_the_users():
    holder = Holder()
    fast = framesmith.compile(lambda x: x * holder.described["factor"], backend="eager", fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_close(fast(X), X * 3)


@torch.library.custom_op("framesmith_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return plainly(x)


@doubled.register_fake
def _(x):
    return torch.empty_like(x)


def plainly(x):
    return x * 2


def test_python_beneath_a_graph_is_not_captured():
    fast = framesmith.compile(lambda x: doubled(x) + 1, backend="eager")
    assert_close(fast(X), X * 2 + 1)
    assert not framesmith._C.entries(plainly.__code__)


def test_a_conversion_that_converts_nothing():
    layer = nn.Linear(4, 3)
    fast = framesmith.compile(lambda x: layer.to(torch.float32)(x), fullgraph=True, backend="eager")
    with torch.no_grad():
        assert_close(fast(X), layer(X))


class Guarded:
    """Reads its own attributes through a hook that reads them."""

    def __getattribute__(self, name):
        return super().__getattribute__("__dict__") if name == "__dict__" else super().__getattribute__(name)


def test_a_hook_of_attributes_is_captured_itself():
    value = Guarded()
    value.factor = 2

    def program(x):
        framesmith.graph_break()
        return x * value.__dict__["factor"]

    assert_close(framesmith.compile(program, backend="eager")(X), X * 2)
    assert framesmith.compile(Guarded.__getattribute__, backend="eager")(value, "__dict__") == {"factor": 2}
