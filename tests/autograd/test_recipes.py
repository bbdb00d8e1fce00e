"""Other people's training loops, with `torch.compile = framesmith.compile` before them: losses are eager's over fifty
steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import benchmarks.models  # noqa: F401  (what torchvision declares, for timm)
import framesmith

STEPS = 50


@pytest.fixture
def routed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The one line."""
    monkeypatch.setattr(torch, "compile", framesmith.compile)
    with torch.enable_grad():
        yield


# -- timm -------------------------------------------------------------------------------------------------------------

BATCH, ACCUMULATED, EPOCH = 4, 2, 10


def pictures(disturbed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches; `disturbed`: each number of theirs is moved to a next one, by that seed."""
    generator, other = torch.Generator().manual_seed(0), torch.Generator().manual_seed(disturbed)
    while True:
        x, y = torch.randn(BATCH, 3, 32, 32, generator=generator), torch.randint(0, 10, (BATCH,), generator=generator)
        if disturbed:
            x = torch.nextafter(x, torch.where(torch.rand(x.shape, generator=other) < 0.5, -10.0, 10.0))
        yield x, y


def train_timm(compiled: bool, bf16: bool = False, disturbed: int = 0) -> list[float]:
    """`train.py` of timm: its model, optimiser, schedule, mixup, clipping and average of weights, in the order of its
    `train_one_epoch`."""
    import timm
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.scheduler import create_scheduler_v2
    from timm.utils import ModelEmaV3, dispatch_clip_grad

    torch.manual_seed(0)
    np.random.seed(0)
    model: Any = timm.create_model("test_vit", num_classes=10, drop_path_rate=0.1, img_size=32, depth=2)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    average = ModelEmaV3(model, decay=0.99, use_warmup=True)
    if compiled:
        model = torch.compile(model, backend="inductor")  # --torchcompile
    schedule, _ = create_scheduler_v2(optimizer, sched="cosine", num_epochs=STEPS // EPOCH, warmup_epochs=1,
                                      warmup_lr=1e-5,
                                      step_on_epochs=False, updates_per_epoch=EPOCH)
    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=10)
    criterion = SoftTargetCrossEntropy()
    cast: Any = partial(torch.autocast, "cpu", torch.bfloat16) if bf16 else nullcontext
    loader, losses = pictures(disturbed), []
    for step in range(1, STEPS + 1):
        total = 0.0
        for _ in range(ACCUMULATED):
            x, y = mixup(*next(loader))
            with cast():
                loss = criterion(model(x), y) / ACCUMULATED
            loss.backward()
            total += loss.item()
        dispatch_clip_grad(model.parameters(), 1.0, mode="norm")
        optimizer.step()
        optimizer.zero_grad()
        average.update(model, step=step)
        schedule.step_update(num_updates=step)
        losses.append(total)
    with torch.no_grad():
        model.eval()
        average.module.eval()
        losses.append(float(average.module(next(pictures(0))[0]).square().mean()))
    return losses


def test_the_recipe_of_timm(routed: None) -> None:
    assert train_timm(True) == pytest.approx(train_timm(False), rel=1e-4)


def test_the_recipe_of_timm_in_bfloat16(routed: None) -> None:
    """As far from float32 as eager in bfloat16 is, by what its runs differ in that compute the same: inputs an ulp
    away."""
    exact = train_timm(False)

    def distance(**how: Any) -> float:
        return max(abs(a - b) / b for a, b in zip(train_timm(bf16=True, **how), exact, strict=True))

    spread = [distance(compiled=False, disturbed=k) for k in (0, 1, 2)]
    assert distance(compiled=True) <= max(spread), spread


# -- Lightning --------------------------------------------------------------------------------------------------------


def test_the_trainer_of_lightning(routed: None, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.GELU(), nn.Flatten(),
                                     nn.Dropout(0.1),
                                     nn.Linear(8 * 64, 5))
            self.seen: list[float] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            x, y = batch
            loss = F.cross_entropy(self(x), y)
            self.log("loss", loss)
            self.seen.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    generator = torch.Generator().manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(400, 3, 8, 8, generator=generator),
                                          torch.randint(0, 5, (400,), generator=generator))

    def trained(compiled: bool) -> list[float]:
        lightning.seed_everything(0, verbose=False)
        model = Classifier()
        trainer = lightning.Trainer(max_steps=STEPS, accelerator="cpu", accumulate_grad_batches=2,
                                    gradient_clip_val=1.0, logger=False,
                                    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                                    default_root_dir=str(tmp_path))
        trainer.fit(torch.compile(model) if compiled else model, torch.utils.data.DataLoader(data, batch_size=4))
        return model.seen

    want, got = trained(False), trained(True)
    assert len(got) == 2 * STEPS and got == pytest.approx(want, rel=1e-4)
