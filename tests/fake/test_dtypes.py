"""Dtypes that an operator does not take are refused when they are recorded, with eager's words."""

import pytest
import torch
import torch.nn.functional as F

from framesmith.fake import Recorder
from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.node import symint
from tests.fake.harness import check

X, N, B = torch.randn(3, 3), torch.arange(3), torch.tensor([True, False, True])

REFUSED = [
    lambda x, n, b: x.double().index_put((n,), x),
    lambda x, n, b: x.index_copy(0, n, x.double()),
    lambda x, n, b: x.index_add(0, n, x.double()),
    lambda x, n, b: x @ x.double(),
    lambda x, n, b: F.linear(x, x.double()),
    lambda x, n, b: torch.dot(b, b),
    lambda x, n, b: F.gelu(n),
    lambda x, n, b: x.bitwise_and(x.double()),
    lambda x, n, b: n.std(),
    lambda x, n, b: b.argmax(),
    lambda x, n, b: torch.softmax(n, 0),
    lambda x, n, b: F.layer_norm(x, [3], x[0].double(), x[0].double()),
    lambda x, n, b: b.topk(1),
]


@pytest.mark.parametrize("i", range(len(REFUSED)))
def test_refused(i):
    errors = []
    for record in (False, True):
        rec = Recorder()
        inputs = [rec.input(t, "x") for t in (X, N, B)] if record else [X, N, B]
        with pytest.raises(RuntimeError) as caught:
            if record:
                with rec:
                    REFUSED[i](*inputs)
            else:
                REFUSED[i](*inputs)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


TOO_LARGE = [
    lambda x: x.clamp(max=1e30),
    lambda x: x.clone().fill_(1e30),
    lambda x: x.masked_fill(x > 1, -1e30),
    lambda x: torch.where(x > 1, 1e30, x),
    lambda x: torch.full_like(x, 1e30),
    lambda x: torch.full((2,), 1e30, dtype=x.dtype),
    lambda x: x.index_fill(0, torch.tensor([0]), 1e30),
    lambda x: torch.add(x, x, alpha=1e30),
    lambda x: F.pad(x, (1, 1), value=1e30),
    lambda x: x + 1e30,
    lambda x: x > 1e30,
]


def outcome(call, x):
    try:
        return call(x)
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("i", range(len(TOO_LARGE)))
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16])
@pytest.mark.parametrize("dynamic", [False, True])
def test_numbers_beyond_the_range_of_a_dtype(i, dtype, dynamic):
    x = torch.arange(3).to(dtype)
    expected = outcome(TOO_LARGE[i], x)
    env = ShapeEnv()
    shape = (symint(env.new_symbol(3, "n"), env),) if dynamic else None
    with Recorder() as rec:
        found = outcome(TOO_LARGE[i], rec.input(x, "x", shape=shape))
    assert found == expected if isinstance(expected, str) else found.dtype is expected.dtype


def test_infinity_does_not_fit_an_integer():
    x = torch.arange(3, dtype=torch.int8)
    assert outcome(TOO_LARGE[2], x).startswith("value cannot be converted")
    with Recorder() as rec:
        assert outcome(lambda x: x.masked_fill(x > 1, float("-inf")), rec.input(x, "x")).startswith("value cannot be")


def test_what_zeros_would_refuse_is_taken():
    check(lambda n: (100 // n, 7 % n, n.eq(2) & n.bool(), n.clamp(2), torch.where(n > 2, n, 0.5)), N + 1)


def test_a_loss_of_the_dtype_of_its_input():
    check(lambda x: (F.huber_loss(x.bfloat16(), x.double()), F.smooth_l1_loss(x.bfloat16(), x.double())), X)


def test_trying_an_operator_draws_no_numbers():
    state = torch.get_rng_state()
    with Recorder() as rec:
        x = rec.input(N, "n")
        torch.randint_like(x, 9)
        x + x.double()
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("rest", [(), (False,), (True,), (False, True)])
def test_a_cast_whose_further_arguments_are_given(rest):
    graph = check(lambda x: x.to(torch.float64, *rest), X)
    formats = [n.kwargs["memory_format"] for n in graph.nodes if "memory_format" in n.kwargs]
    assert all(isinstance(f, torch.memory_format) for f in formats)
