"""`max` and `min` of tensors and numbers: values that a tensor's data chooses, in one graph."""

import pytest
import torch

from tests.capture.agree import agree, one_graph, reasons

NAN = float("nan")
VALUES = [[0.5, 1.0, 2.0, 0.25], [-0.5, -1.0, -2.0, 0.25], [0.5, NAN, 1.0, 2.0], [0.0, 0.0, 0.0, 0.0]]


def in_place(x):
    y = x * 1
    y += max(x.sum(), 0)
    return y


@pytest.mark.parametrize("values", VALUES, ids=str)
@pytest.mark.parametrize("fn", [
    lambda x: max(x.sum(), 0) + x,
    lambda x: x * max(0, x.sum()),
    lambda x: min(x.sum(), 0.1) / x,
    lambda x: -(max(x.sum(), 0) * 2 - 1) + x,
    lambda x: max(x.sum(), 0, x.mean()) + x,
    lambda x: max([x.sum(), x.mean()]) - x,
    lambda x: max(x.sum(), x.mean(), key=lambda y: y.abs()) + x,
    lambda x: min(x) * x,
    in_place,
    lambda x: sum([x.sin(), x.cos()], max(x.sum(), 0)) + sum(x),
])
def test_operands(fn, values):
    one_graph(fn, torch.tensor(values, requires_grad=True))
    one_graph(fn, torch.tensor(values))


@pytest.mark.parametrize("values", VALUES, ids=str)
@pytest.mark.parametrize("fn", [
    lambda x: [max(x.sum(), 1), x + 1],
    lambda x: {"least": min(x.sum(), x.mean()), "two": 2 * x},
    lambda x: (max(x[0], x[1]), x + 1),
    lambda x: max(x),
])
def test_what_is_returned_is_the_chosen_object(fn, values):
    for grad in (False, True):
        agree(fn, torch.tensor(values, requires_grad=grad), grad=grad)


@pytest.mark.parametrize("fn", [
    lambda x, y: max(y.sum(), 0) + x,  # y has no gradient where 0 is chosen
    lambda x, y: max(x.sum().sqrt(), 0) + x,  # the gradient of sqrt is infinite at 0
    lambda x, y: 1 / max(x.sum(), 0) + x,  # Python's error
    lambda x, y: max(x.sum(), 0.1).item() + x,
    lambda x, y: x + 1 if isinstance(max(x.sum(), 0), torch.Tensor) else x - 1,
    lambda x, y: x.double() * max(x.sum(), 0.1),  # 0.1 is another number in double
    lambda x, y: x.long() * max(x.sum(), 1),  # integers, where 1 is chosen
    lambda x, y: max(x, 0) + x,
], ids=range(8))
def test_what_differs_between_the_values_ends_the_graph(fn):
    for values in VALUES[0], VALUES[3]:
        x, y = torch.tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)
        try:
            fn(x, y)
            error = None
        except Exception as e:
            error = type(e)
        ledger = agree(fn, x, y, fullgraph=False, grad=True, raises=error)
        assert reasons(ledger) or error
