"""What is not compiled runs in eager, and the user is told once."""

import copy
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import framesmith
from framesmith import exc
from framesmith.testing import CompileCounter
from tests.api.nets import Net, X, assert_close, assert_same


def messages_of(call, *args):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = call(*args)
    return result, [str(w.message) for w in seen if "framesmith" in str(w.message)], seen


async def coroutine(x):
    return x


WAYS = []


def data_dependent(x):
    y = x + 1
    if y.sum() > 0:  # HERE
        WAYS.append("positive")
        return y.sin()
    return y.cos()


def uncapturable(x):
    total = x * 2
    for i in range(60):
        total = total + i  # TOO LONG
    return total


def line_of(fn, mark):
    lines = Path(fn.__code__.co_filename).read_text().splitlines()
    return next(n for n, text in enumerate(lines, 1) if n >= fn.__code__.co_firstlineno and mark in text)


def test_one_warning_with_line_and_reason():
    fast = framesmith.compile(uncapturable, options={"max_instructions": 100})
    first, told, seen = messages_of(fast, X)
    assert_close(first, uncapturable(X))
    assert len(told) == 1
    assert "uncapturable runs in eager: " in told[0] and f"{__file__}:{line_of(uncapturable, 'TOO LONG')}" in told[0]
    assert seen[0].filename == __file__
    _, again, _ = messages_of(fast, X)
    assert not again


def test_a_break_is_no_reason_to_warn():
    result, told, _ = messages_of(framesmith.compile(data_dependent), X)
    assert_close(result, data_dependent(X))
    assert not told


def test_fullgraph_raises_with_file_and_line():
    with pytest.raises(exc.Unsupported) as caught:
        framesmith.compile(data_dependent, fullgraph=True)(X)
    at = (__file__, line_of(data_dependent, "HERE"))
    assert caught.value.at == at and f"{at[0]}:{at[1]}" in str(caught.value) and caught.value.reason


def test_fullgraph_takes_what_has_no_break():
    assert_close(framesmith.compile(product, fullgraph=True)(X), product(X))


def product(x):
    return (x @ x.t()).relu()


def test_training_and_inference_are_compiled_apart():
    counter = CompileCounter()
    net = Net().eval()
    twin = copy.deepcopy(net)
    fast = framesmith.compile(net, backend=counter)
    with torch.enable_grad():
        for _ in range(2):
            fast(X).square().sum().backward()
            twin(X).square().sum().backward()
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        assert_close(p.grad, q.grad)
    assert counter.frame_count == 2  # a forward and a backward graph
    assert_same(net, fast)
    assert counter.frame_count == 3
    with torch.enable_grad():
        assert fast(X).requires_grad
    assert counter.frame_count == 3


def test_what_autograd_refuses_is_refused():
    def f(w):
        return w.add_(1)

    for fn in (f, framesmith.compile(f)):
        with torch.enable_grad(), pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            fn(torch.ones(4, requires_grad=True))


def test_an_input_that_requires_grad():
    def f(x):
        return (x * 3).sin()

    fast = framesmith.compile(f)
    assert_close(fast(X), f(X))
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = X.clone().requires_grad_()
        fast(x).sum().backward()
    assert_close(x.grad, 3 * (X * 3).cos())


def test_a_tensor_read_without_grad_and_used_with_it():
    def f(x, w):
        with torch.no_grad():
            a = w * 2
        return a + w * x

    w = torch.ones(4, requires_grad=True)
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        framesmith.compile(f)(X, w).sum().backward()
    assert_close(w.grad, X.sum(0))


def test_no_grad_inside_is_compiled():
    net, counter = nn.Linear(4, 2), CompileCounter()

    @framesmith.compile(backend=counter)
    def step(x):
        with torch.no_grad():
            return net(x).relu()

    with torch.enable_grad():
        got, told, _ = messages_of(step, X)
    assert not told and not got.requires_grad and counter.frame_count == 1


def test_a_failing_back_end_leaves_eager():
    def broken(gm, example_inputs):
        raise ValueError("broken back end")

    result, told, _ = messages_of(framesmith.compile(product, backend=broken), X)
    assert_close(result, product(X))
    assert len(told) == 1 and "broken back end" in told[0]


def test_more_variants_than_allowed():
    fast = framesmith.compile(product, options={"max_variants": 2}, backend="eager")
    _, told, _ = messages_of(lambda: [assert_close(fast(torch.ones(n, 3)), product(torch.ones(n, 3)))
                                      for n in (2, 3, 4, 5)])
    assert len(told) == 1 and "2 variants" in told[0] and "size of dimension 0" in told[0]


class Stack(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4, bias=False) for _ in range(3)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x


@pytest.mark.parametrize("kind", ["meta", "nested", "sparse"])
def test_one_message_for_a_kind_of_tensor_and_others_are_compiled_later(kind):
    framesmith.util.log.forget_warnings()
    model = Stack().eval()
    x = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)]) if kind == "nested" else torch.randn(2, 4)
    if kind == "meta":
        model, x = model.to("meta"), x.to("meta")
    if kind == "sparse":
        x = x.to_sparse()
    counter = CompileCounter()
    compiled = framesmith.compile(model)
    with torch.no_grad(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            found = compiled(x)
    assert [type(w.message) for w in told if "framesmith" in str(w.message)] == [UserWarning]
    with torch.no_grad():
        expected = model(x)
    assert found.layout is expected.layout and found.is_nested is expected.is_nested and found.device == expected.device
    if kind == "meta":
        return
    compiled = framesmith.compile(model, backend=counter)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled(x)
        assert torch.equal(compiled(torch.ones(2, 4)), model(torch.ones(2, 4)))
    assert counter.frame_count


def test_a_fault_of_ours_says_so(monkeypatch):
    def fails(*args):
        raise IndexError("list index out of range")

    monkeypatch.setattr("framesmith.compiler.convert_frame", fails)
    framesmith.util.log.forget_warnings()
    found, messages, _ = messages_of(framesmith.compile(lambda x: x + 1), torch.ones(2))
    assert torch.equal(found, torch.full((2,), 2.0))
    assert len(messages) == 1 and "an internal fault of framesmith, not of your program: IndexError" in messages[0]
    assert "Please report it" in messages[0]
    explained = str(framesmith.explain(lambda x: x + 2)(torch.ones(2)))
    assert "internal fault" in explained and "move it out" not in explained


def test_constants_that_an_operator_refuses(recwarn):
    """They are computed while the graph is compiled; the error is the program's, and no fault of ours is told."""
    fast = framesmith.compile(lambda x: x + torch.ones(2).scatter(0, torch.tensor([5]), 1.0))
    with pytest.raises(RuntimeError, match="index 5 is out of bounds"):
        fast(torch.ones(2))
    assert not any("fault" in str(w.message) for w in recwarn)


@pytest.mark.parametrize("last", [lambda x: x.uniform_(3, 1), lambda x: x.random_(5, 2), lambda x: x.exponential_(-1),
                                  lambda x: torch.normal(x, -x), lambda x: torch.randperm(300, dtype=torch.uint8)],
                         ids=["uniform", "random", "exponential", "normal", "randperm"])
def test_numbers_drawn_before_a_draw_that_raises_are_drawn_once(last):
    def program():
        return torch.rand(2), last(torch.ones(2))

    after = []
    for fn in (program, framesmith.compile(program)):
        torch.manual_seed(0)
        with pytest.raises(RuntimeError):
            fn()
        after.append(torch.rand(1).item())
    assert after[0] == after[1]
