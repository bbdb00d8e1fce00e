"""Dtypes that an operator does not take are refused when they are recorded, with eager's words."""

import pytest
import torch
import torch.nn.functional as F

from framesmith.fake import Recorder
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
