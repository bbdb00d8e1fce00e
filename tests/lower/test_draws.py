"""Random draws: elements get their numbers in the order of memory, so what a draw takes is laid out as in eager."""

import pytest
import torch

import framesmith

F = torch.nn.functional
CONV = torch.nn.Conv1d(16, 64, 7)


def like_a_convolution(x):
    return torch.randn_like(CONV(x).permute(0, 2, 1))


def like_a_sum(x):
    return torch.rand_like((x + 1).permute(0, 2, 1))


def like_a_copy(x):
    return torch.randn_like((x.transpose(1, 2) * 2).contiguous())


def like_another_format(x):
    return torch.rand_like(x.transpose(1, 2), memory_format=torch.contiguous_format)


def by_probabilities(x):
    return torch.bernoulli((x.permute(1, 2, 0) * 3).sigmoid())


def by_means(x):
    return torch.normal((x * 3).transpose(0, 2), x.transpose(0, 2).abs() + 1)


def dropped(x):
    return F.dropout(CONV(x).permute(1, 2, 0), 0.5, True)


PROGRAMS = [like_a_convolution, like_a_sum, like_a_copy, like_another_format, by_probabilities, by_means, dropped]


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_same_as_eager(fn):
    x = torch.linspace(-2, 2, 2 * 16 * 20).reshape(2, 16, 20)
    with torch.no_grad():
        torch.manual_seed(5)
        plain = fn(x), torch.rand(1)
        torch.manual_seed(5)
        ours = framesmith.compile(fn, fullgraph=True)(x), torch.rand(1)
    torch.testing.assert_close(ours, plain)
    assert ours[0].stride() == plain[0].stride()


def test_results_that_nobody_reads():
    """They are drawn all the same, and checks raise."""
    lstm = torch.nn.LSTM(4, 4, 2, dropout=0.3)

    def fn(x, ok):
        torch._assert_async(ok)
        lstm(x)
        return x + torch.rand(4)

    compiled, x = framesmith.compile(fn), torch.randn(5, 2, 4)
    torch.manual_seed(3)
    expected = fn(x, torch.tensor(True))
    torch.manual_seed(3)
    torch.testing.assert_close(compiled(x, torch.tensor(True)), expected, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="nonzero value"):
        compiled(x, torch.tensor(False))
