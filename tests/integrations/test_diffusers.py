"""diffusers: pipelines with a scheduler's loop, whose networks are compiled in place or wrapped; random weights."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import framesmith

diffusers = pytest.importorskip("diffusers")


def unet() -> Any:
    torch.manual_seed(0)
    return diffusers.UNet2DModel(sample_size=16, in_channels=3, out_channels=3, layers_per_block=1, norm_num_groups=4,
                                 block_out_channels=(8, 16), down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                                 up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=4).eval()


def images(pipe: Any, seed: int, scheduler: str = "ddim") -> Any:
    pipe.set_progress_bar_config(disable=True)
    how = {"eta": 0.5} if scheduler == "ddim" else {}
    return torch.as_tensor(pipe(batch_size=2, generator=torch.Generator().manual_seed(seed), num_inference_steps=4,
                                output_type="np", **how).images)


@pytest.mark.parametrize("how", ["in place", "wrapped", "fullgraph"])
def test_a_pipeline(how: str, tmp_path: Path, graphs: list[int]) -> None:
    net = unet()
    plain = diffusers.DDIMPipeline(copy.deepcopy(net), diffusers.DDIMScheduler())
    with framesmith.installed():
        pipe = diffusers.DDIMPipeline(net, diffusers.DDIMScheduler())
        if how == "wrapped":
            pipe.unet = torch.compile(pipe.unet, mode="reduce-overhead")
        else:
            pipe.unet.compile(fullgraph=how == "fullgraph")
        for seed in (0, 1):
            torch.testing.assert_close(images(pipe, seed), images(plain, seed), rtol=1e-3, atol=1e-4)
        assert len(graphs) == 1, graphs
        pipe.save_pretrained(tmp_path)
    again = diffusers.DDIMPipeline.from_pretrained(tmp_path)
    torch.testing.assert_close(images(again, 2), images(plain, 2))


def test_repeated_blocks(graphs: list[int]) -> None:
    """`compile_repeated_blocks` of a model that names its blocks."""
    torch.manual_seed(0)
    net = diffusers.DiTTransformer2DModel(num_attention_heads=2, attention_head_dim=8, in_channels=4, num_layers=3,
                                          sample_size=8, norm_num_groups=4, num_embeds_ada_norm=10).eval()
    given = torch.randn(2, 4, 8, 8), torch.tensor([3, 7]), torch.tensor([1, 2])

    def run(model: Any) -> torch.Tensor:
        with torch.no_grad():
            return model(given[0], timestep=given[1], class_labels=given[2]).sample

    want = run(net)
    with framesmith.installed():
        if not getattr(net, "_repeated_blocks", None):
            net._repeated_blocks = ["BasicTransformerBlock"]
        net.compile_repeated_blocks(fullgraph=True)
        torch.testing.assert_close(run(net), want, rtol=1e-4, atol=1e-5)
    assert len(graphs) == 3, graphs


def test_a_loop_that_trains(graphs: list[int]) -> None:
    """The training loop of the documentation: noise is predicted."""
    def train(compiled: bool) -> list[float]:
        net, scheduler = unet().train(), diffusers.DDPMScheduler(num_train_timesteps=100)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        model = torch.compile(net) if compiled else net
        losses = []
        for step in range(4):
            torch.manual_seed(step)
            clean, noise = torch.randn(2, 3, 16, 16), torch.randn(2, 3, 16, 16)
            times = torch.randint(0, 100, (2,))
            noisy = scheduler.add_noise(clean, noise, times)
            loss = torch.nn.functional.mse_loss(model(noisy, times, return_dict=False)[0], noise)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    want = train(False)
    with framesmith.installed():
        assert train(True) == pytest.approx(want, rel=1e-4)
    assert len(graphs) == 1, graphs
