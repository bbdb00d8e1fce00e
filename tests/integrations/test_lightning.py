"""Lightning: `Trainer` and Fabric take what torch.compile gives, and what is compiled in place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import framesmith

lightning = pytest.importorskip("lightning")
STEPS = 20


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    with framesmith.installed():
        yield


def network() -> nn.Module:
    """Without a bias that a norm cancels: its gradient is rounding alone, which AdamW scales up to a whole step."""
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.GELU(), nn.Flatten(),
                         nn.Dropout(0.1), nn.Linear(8 * 64, 5))


def data() -> Any:
    generator = torch.Generator().manual_seed(0)
    pairs = torch.utils.data.TensorDataset(torch.randn(160, 3, 8, 8, generator=generator),
                                           torch.randint(0, 5, (160,), generator=generator))
    return torch.utils.data.DataLoader(pairs, batch_size=4)


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()
        self.seen: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("loss", loss)
        self.seen.append(loss.item())
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        x, y = batch
        self.log("valid", F.cross_entropy(self(x), y))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def in_place(model: Any) -> Any:
    model.compile()
    return model


def trained(folder: Path, compiled: Any) -> tuple[list[float], float]:
    lightning.seed_everything(0, verbose=False)
    model = Classifier()
    trainer = lightning.Trainer(max_steps=STEPS, accelerator="cpu", accumulate_grad_batches=2, gradient_clip_val=1.0,
                                logger=False, enable_progress_bar=False, enable_model_summary=False,
                                default_root_dir=str(folder), limit_val_batches=4)
    trainer.fit(compiled(model), data(), data())
    trainer.save_checkpoint(folder / "last.ckpt")
    again = Classifier.load_from_checkpoint(folder / "last.ckpt")
    assert all(torch.equal(v, again.state_dict()[k]) for k, v in model.state_dict().items())
    return model.seen, float(trainer.callback_metrics["valid"])


def test_the_trainer(tmp_path: Path, graphs: list[int]) -> None:
    want, valid = trained(tmp_path, lambda model: model)
    got, metric = trained(tmp_path, in_place)
    assert len(got) == 2 * STEPS and got == pytest.approx(want, rel=1e-4) and metric == pytest.approx(valid, rel=1e-4)
    assert len(graphs) == 2, graphs  # training and validation
    got, metric = trained(tmp_path, torch.compile)  # with the methods that the trainer calls, such as optimiser steps
    assert len(got) == 2 * STEPS and got == pytest.approx(want, rel=1e-4) and metric == pytest.approx(valid, rel=1e-4)
    assert 4 <= len(graphs) <= 12, graphs


@pytest.mark.parametrize("how", ["before", "in place", "after"])
def test_fabric(how: str, tmp_path: Path, graphs: list[int]) -> None:
    def run(compiled: bool) -> tuple[list[float], Any]:
        lightning.seed_everything(0, verbose=False)
        fabric = lightning.Fabric(accelerator="cpu", devices=1)
        net = network()
        if compiled and how != "after":
            net = torch.compile(net, mode="reduce-overhead") if how == "before" else in_place(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
        model, optimizer = fabric.setup(net, optimizer)
        if compiled and how == "after":
            model = torch.compile(model)
        losses = []
        for _, (x, y) in zip(range(STEPS), fabric.setup_dataloaders(data())):
            loss = F.cross_entropy(model(x), y)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        fabric.save(tmp_path / "state", {"model": model, "optimizer": optimizer})
        return losses, model

    want, plain = run(False)
    keys = list(torch.load(tmp_path / "state", weights_only=False)["model"])
    got, fast = run(True)
    assert got == pytest.approx(want, rel=1e-4) and len(graphs) == 1, graphs
    state = torch.load(tmp_path / "state", weights_only=False)
    assert list(state["model"]) == keys
    plain.load_state_dict(state["model"])
    x = torch.ones(2, 3, 8, 8)
    torch.testing.assert_close(plain.eval()(x), fast.eval()(x))
