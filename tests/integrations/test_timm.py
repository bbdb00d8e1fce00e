"""timm: the compile path of its train script (a task, its evaluator and average of weights), and its whole recipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import framesmith

timm = pytest.importorskip("timm")
STEPS = 15
BATCH, ACCUMULATED, EPOCH = 4, 2, 5


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


@pytest.fixture
def installed() -> Iterator[None]:
    with framesmith.installed():
        yield


def test_the_recipe(installed: None, graphs: list[int]) -> None:
    assert train_timm(True) == pytest.approx(train_timm(False), rel=1e-4)
    assert len(graphs) == 1, graphs


def test_the_recipe_in_bfloat16(installed: None) -> None:
    """As far from float32 as eager in bfloat16 is, by what its runs differ in that compute the same: inputs an ulp
    away."""
    exact = train_timm(False)

    def distance(**how: Any) -> float:
        return max(abs(a - b) / b for a, b in zip(train_timm(bf16=True, **how), exact, strict=True))

    spread = [distance(compiled=False, disturbed=k) for k in (0, 1, 2)]
    assert distance(compiled=True) <= max(spread), spread


def run_task(folder: Path, compiled: bool) -> tuple[list[float], Any]:
    """The steps of `train.py --torchcompile`: task, compile, average, updates, evaluation, checkpoint."""
    from timm.task import ClassificationTask

    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=10, img_size=32, depth=2)
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    task = ClassificationTask(model, criterion, device=torch.device("cpu"), verbose=False)
    if compiled:
        task.compile(backend="inductor", mode=None)
    task.setup_ema(decay=0.9)
    if compiled:
        task.compile_ema(backend="inductor")
    optimizer = torch.optim.AdamW(task.parameters(), lr=1e-3)
    losses, loader = [], pictures(0)
    for step in range(8):
        result = task(*next(loader))
        result["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        task.update_ema(step)
        losses.append(result["loss"].item())
    x, _ = next(loader)
    with torch.no_grad():
        for average in (False, True):
            model = task.get_eval_model(ema=average)
            losses.append(float(model.eval()(x).square().mean()))
    torch.save(task.get_checkpoint_state(), folder)
    return losses, task


def test_the_task(installed: None, tmp_path: Path, graphs: list[int]) -> None:
    want, plain = run_task(tmp_path / "plain", False)
    got, fast = run_task(tmp_path / "fast", True)
    assert got == pytest.approx(want, rel=1e-4) and len(graphs) == 3, graphs  # training, evaluation, average
    states = [torch.load(tmp_path / name, weights_only=True) for name in ("plain", "fast")]
    assert [list(state) for state in states[0].values()] == [list(state) for state in states[1].values()]
    plain.load_checkpoint_state(states[1]["state_dict"])
    torch.testing.assert_close(plain.get_eval_model()(torch.ones(1, 3, 32, 32)),
                               fast.get_eval_model()(torch.ones(1, 3, 32, 32)), rtol=1e-4, atol=1e-5)
