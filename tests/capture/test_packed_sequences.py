"""Recurrent modules over packed sequences: their lengths are data, at which the graph ends; what is around them is
compiled."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import framesmith
from framesmith.testing import CompileCounter
from tests.capture.agree import agree, reasons


class Tagger(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.cell = cell(4, 5, batch_first=True)
        self.head = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 2))

    def forward(self, x, lengths):
        packed = pack_padded_sequence(self.embed(x).relu(), lengths, batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.cell(packed)[0], batch_first=True)
        return self.head(out)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("lengths", [torch.tensor([2, 6, 4]), [6, 4, 2]], ids=["tensor", "list"])
def test_what_is_around_a_recurrent_module_is_compiled(cell, lengths):
    torch.manual_seed(0)
    model, counter = Tagger(cell), CompileCounter()
    compiled = framesmith.compile(model, backend=counter)
    results = []
    for fn in (model, compiled, compiled):
        model.zero_grad()
        x = torch.linspace(-1, 1, 72).reshape(3, 6, 4).requires_grad_()
        out = fn(x, lengths)
        out.square().sum().backward()
        results.append([out.detach(), x.grad, *[p.grad.clone() for p in model.parameters()]])
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(results[2], results[0])
    assert counter.frame_count >= 4  # what is before and behind it, forward and backward


def test_packed_arguments():
    torch.manual_seed(0)
    cell = nn.GRU(4, 5)
    packed = pack_padded_sequence(torch.randn(6, 3, 4), [6, 4, 2])

    def program(p):
        out = cell(p)[0]
        return out.data * 2, isinstance(out, PackedSequence)

    ledger = agree(program, packed, fullgraph=False)
    assert len(ledger.records) > 1 and reasons(ledger)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
def test_numbers_of_steps_that_vary(cell):
    """The batch sizes of the second call are a tensor of a symbolic size; eager's kernel read them at no address."""
    torch.manual_seed(0)
    model = Tagger(cell).eval()
    model.cell = cell(4, 5, 2, batch_first=True, bidirectional=True)
    model.head[0] = nn.Linear(10, 5)
    compiled = framesmith.compile(model, backend="eager")
    for lengths in ([3, 5, 2], [4, 4, 1], [1, 1, 1]):
        x = torch.randn(3, 5, 4)
        torch.testing.assert_close(compiled(x, torch.tensor(lengths)), model(x, torch.tensor(lengths)), rtol=0, atol=0)
