"""Results and gradients of compiled code lie as eager's do, dimensions of size 1 and expanded ones included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import framesmith


def strides(values: Any) -> Any:
    return {name: value.stride() for name, value in values.items()}


def reduced(x: torch.Tensor) -> dict[str, torch.Tensor]:
    every = {name: getattr(x, name)(dim, keepdim=True) for name in ("sum", "prod", "argmax", "var") for dim in (0, 1)}
    return {
        **{f"{name}": value for name, value in every.items()},
        "max": x.max(1, keepdim=True)[1],
        "several": x.mean((1, 2), keepdim=True),
        "any": (x > 0).any(1, keepdim=True),
        "adaptive": F.adaptive_avg_pool2d(x, 1),
        "whole": F.max_pool2d(x, 4),
    }


@pytest.mark.parametrize("layout", [(0, 1, 2, 3), (0, 3, 1, 2), (1, 2, 0, 3)], ids=str)
@pytest.mark.parametrize("batch", [1, 2])
def test_reductions_and_pooling(batch: int, layout: tuple[int, ...]) -> None:
    shape = (batch, 3, 4, 5)
    x = torch.randn([shape[layout.index(k)] for k in range(4)]).permute(layout)
    assert strides(framesmith.compile(reduced, fullgraph=True)(x)) == strides(reduced(x))


@pytest.mark.parametrize("apart", [False, True])
def test_attention_of_one_query(apart: bool) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor) -> dict[str, torch.Tensor]:
        return {f"{causal}": F.scaled_dot_product_attention(q, k, k, is_causal=causal) for causal in (False, True)}

    q, k = (torch.randn(2, n, 3, 8).transpose(1, 2) if apart else torch.randn(2, 3, n, 8) for n in (1, 7))
    assert strides(framesmith.compile(attend, fullgraph=True)(q, k)) == strides(attend(q, k))


EXPANDED = {
    "amin": lambda x: x.real.amin(-1).unsqueeze(0).expand(3, -1, -1),
    "input": lambda x: (x.imag * 2)[..., :1].expand(2, 4, 5),
    "complex sum": lambda x: (x * 1).sum(0),
    "complex mean": lambda x: x.mean(),
}


@pytest.mark.parametrize("name", EXPANDED)
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_gradients_of_expanded_results(name: str, backend: str) -> None:
    def gradient(call: Any) -> torch.Tensor:
        x = torch.randn(2, 4, 5, dtype=torch.complex64, generator=torch.Generator().manual_seed(0)).requires_grad_()
        out = call(x)
        tangent = torch.arange(out.numel(), dtype=torch.float32).reshape(out.shape).to(out.dtype)
        return torch.autograd.grad(out, x, tangent)[0]

    with torch.enable_grad():
        got, want = gradient(framesmith.compile(EXPANDED[name], backend=backend)), gradient(EXPANDED[name])
    assert got.stride() == want.stride() and torch.allclose(got, want)


def test_what_is_drawn_has_eagers_gradient() -> None:
    def step(call: Any) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(0)
        x = torch.linspace(-1, 1, 64).requires_grad_()
        out = call(x)
        return *out, *torch.autograd.grad(out, x, [torch.ones_like(y) for y in out])

    def drawn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.rrelu(x, training=True), torch.bernoulli(x.sigmoid())

    with torch.enable_grad():
        for got, want in zip(step(framesmith.compile(drawn, fullgraph=True)), step(drawn), strict=True):
            assert got.requires_grad == want.requires_grad and torch.equal(got, want)
