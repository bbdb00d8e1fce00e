"""Sizes padded up to a few, and results cut back."""

import pytest
import torch
from torch import nn

import framesmith


class Masked(nn.Module):
    """An encoder whose padded places change no other."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, ids, mask):
        hidden = self.layer(self.embed(ids), src_key_padding_mask=~mask)
        pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return {"tokens": self.head(hidden), "pooled": pooled, "pairs": hidden @ hidden.transpose(1, 2)}


RULES = {"ids": {1: [8, 16, 32]}, "mask": {1: ([8, 16, 32], False)}}


def call(model, batch, length, like=None):
    torch.manual_seed(length)
    return model(torch.randint(0, 20, (batch, length)), torch.ones(batch, length, dtype=torch.bool))


def test_masked_places_change_nothing(captures):
    model = Masked().eval()
    compiled = framesmith.compile(model, dynamic=False, options={"buckets": RULES})
    for length in (5, 8, 7, 12, 16, 13, 3, 9):
        got, want = call(compiled, 2, length), call(model, 2, length)
        assert {k: v.shape for k, v in got.items()} == {k: v.shape for k, v in want.items()}
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert len(captures) == 2
    assert isinstance(compiled, Masked)


def test_beyond_the_largest_nothing_is_padded():
    model = Masked().eval()
    compiled = framesmith.compile(model, options={"buckets": RULES})
    torch.testing.assert_close(call(compiled, 2, 40), call(model, 2, 40), rtol=1e-4, atol=1e-5)


def test_powers_and_sizes_that_part():
    def program(a, b, *, scale=1.0):
        return a[:, None] * b[None] * scale, torch.cat([a, a, b]), a.sum(), b.shape[0]

    compiled = framesmith.compile(program, options={"buckets": {"a": {0: "powers"}, "b": {0: ("powers", 0.0)}}})
    for m, n in ((5, 5), (3, 7), (6, 6), (4, 9), (1, 1), (8, 3)):
        a, b = torch.randn(m, 3), torch.randn(n, 3)
        got, want = compiled(a, b, scale=2.0), program(a, b, scale=2.0)
        torch.testing.assert_close(got[0], want[0])
        assert got[1].shape == want[1].shape  # what padding puts in the middle is the program's affair
        torch.testing.assert_close(got[2], want[2])


@torch.enable_grad()
def test_gradients_of_what_is_padded():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    compiled = framesmith.compile(model, options={"buckets": {"input": {0: "powers"}}})
    for n in (3, 5, 6):
        x = torch.randn(n, 4, requires_grad=True)
        got, want = (torch.autograd.grad(f(x).square().sum(), [x, *model.parameters()]) for f in (compiled, model))
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("rules,text", [
    ({"y": {0: "powers"}}, "no argument"), ({"x": {0: "sevens"}}, "a list of sizes"),
    ({"x": {0: [0, 4]}}, "a list of sizes"),
])
def test_rules_that_mean_nothing_are_refused(rules, text):
    with pytest.raises(framesmith.exc.FramesmithError, match=text):
        framesmith.compile(lambda x: x, options={"buckets": rules})
