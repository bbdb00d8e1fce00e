"""Torch's transformer encoder under a padding mask: eager makes nested tensors of what is left, and zeroes the rest."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import framesmith


def encoder(**options: bool) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, **options).eval()


def padded(*lengths: int) -> torch.Tensor:
    return torch.arange(6) >= torch.tensor(lengths)[:, None]


@pytest.mark.parametrize("grad", ["off", "on", "frozen"])
@pytest.mark.parametrize("nested", [True, False])
def test_padded_places(grad: str, nested: bool) -> None:
    model, x = encoder(enable_nested_tensor=nested), torch.randn(3, 6, 16)
    model.requires_grad_(grad != "frozen")
    with torch.set_grad_enabled(grad != "off"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = framesmith.compile(model, fullgraph=not nested or grad == "on")
        for mask in (padded(4, 3, 6), padded(6, 6, 6)):
            want, got = model(x, src_key_padding_mask=mask), compiled(x, src_key_padding_mask=mask)
            assert got.shape == want.shape and got.requires_grad == want.requires_grad
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
            assert bool((got[mask] == 0).all()) == bool((want[mask] == 0).all())
