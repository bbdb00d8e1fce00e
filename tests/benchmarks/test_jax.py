"""The models that are written in JAX give what the torch models give."""

import pytest
import torch

pytest.importorskip("jax")

import timm  # noqa: E402

from benchmarks import jax_models, models, peers, run  # noqa: E402


def residual(name):
    model = timm.create_model(name, pretrained=False).eval()
    for norm in (m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)):
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
        torch.nn.init.uniform_(norm.running_var, 0.5, 2.0)
        torch.nn.init.normal_(norm.running_mean)
        torch.nn.init.normal_(norm.bias)
    return model, (torch.randn(1, 3, 64, 64),)


@pytest.mark.parametrize("build", [*(models.named()[n] for n in ("pointwise", "bert", "gpt2")),
                                   lambda: residual("resnet18"), lambda: residual("resnet50")],
                         ids=["pointwise", "bert", "gpt2", "resnet18", "resnet50"])
def test_equal_to_torch(build):
    model, args = build()
    assert peers.installed("jax") and peers.takes("jax", model)
    with torch.inference_mode():
        assert run.error_against(model(*args), jax_models.call_of(model, args, {})()) < 1e-5


def test_what_is_not_written_in_jax_is_left_out():
    assert not peers.takes("jax", torch.nn.Linear(1, 1))
