"""The programs of docs/recipes.md, with two processes: losses are eager's, and a run that resumes from a checkpoint has
exactly the losses of one that was not interrupted."""

import importlib
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import benchmarks.models  # noqa: F401  (what torchvision declares, for libraries that look for it)
import framesmith
from framesmith.util import events

from .world import World

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def processes():
    made = World()
    made.run(prepare)
    yield made
    made.close()


def prepare():
    """Make a process as torchrun starts it for `python -m framesmith run`."""
    rank, size = str(dist.get_rank()), str(dist.get_world_size())
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=size, LOCAL_WORLD_SIZE=size, GROUP_RANK="0",
                      GROUP_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0", TORCHELASTIC_RUN_ID="test",
                      TORCHELASTIC_RESTART_COUNT="0", CUDA_VISIBLE_DEVICES="")
    sys.path.insert(0, str(EXAMPLES))
    framesmith.install()


def run(program, *arguments):
    """Call a function of a program. Returns its losses, and how many events of each kind the compiler had."""
    framesmith.reset()
    if states := sys.modules.get("accelerate.state"):
        states.AcceleratorState._reset_state(True)
        states.GradientState._reset_state()
    name, _, function = program.partition(".")
    environment, seen = dict(os.environ), []
    try:
        with events.on_event(seen.append):
            losses = getattr(importlib.import_module(name), function)([str(argument) for argument in arguments])
    finally:
        os.environ.clear()
        os.environ.update(environment)
    return losses, Counter(type(event).__name__ for event in seen)


RECIPES = {
    "torchrun": ("elastic.train", "", 8),
    "accelerate": ("accelerate_ddp.main", "step-4", 16),
    "the trainer of Lightning": ("lightning_trainer.main", "epoch=0.ckpt", 16),
    "Lightning Fabric": ("lightning_fabric.main", "half.ckpt", 16),
    "the trainer of transformers": ("transformers_trainer.main", "checkpoint-4", 8),
}
"""The program, its checkpoint after half of the training, and the number of losses of the whole."""
MINIMUM = {"transformers": "5.23"}
"""Versions of libraries: 5.17 loads checkpoints of several processes to "cpu:0", which PyTorch refuses."""


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_engine(processes, tmp_path, recipe):
    program, half, count = RECIPES[recipe]
    if recipe != "torchrun":
        library = program.split("_")[0]
        pytest.importorskip(library, MINIMUM.get(library))
    (whole, seen), (other, _) = processes.run(run, program, tmp_path)
    assert len(whole) == count and seen["GraphCompiled"] == 2, seen  # forward and backward
    assert not seen["Fallback"], seen
    if half:
        resumed = processes.run(run, program, tmp_path / "resumed", "--resume", tmp_path / half)
        assert [losses[-count // 2:] for losses, _ in resumed] == [whole[-count // 2:], other[-count // 2:]]
    eager, operators = [[losses for losses, _ in processes.run(run, program, tmp_path / name, "--backend", name)]
                        for name in ("no", "aot_eager")]
    assert operators == eager
    assert whole == pytest.approx(eager[0], rel=1e-3)  # bfloat16 has eight bits, and sums are in another order


def whole_module(compiles):
    """Train a LightningModule that is compiled itself; returns its losses, and how many events of each kind the
    compiler had by the end of each step."""
    import lightning
    from lightning_trainer import BATCH, Lesson, loss_of, sequences

    framesmith.reset()
    seen, counts, losses = [], [], []

    class Plain(Lesson):
        def training_step(self, tokens, index):
            return loss_of(self.net(tokens), tokens)

    class Counting(lightning.pytorch.callbacks.Callback):
        def on_train_batch_end(self, trainer, module, outputs, *_):
            losses.append(outputs["loss"].item())
            counts.append(Counter(type(event).__name__ for event in seen))

    torch.manual_seed(0)
    lesson = Plain()
    if compiles:
        lesson.compile()
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", logger=False,
                                callbacks=[Counting()], enable_progress_bar=False, enable_model_summary=False,
                                enable_checkpointing=False)
    with events.on_event(seen.append):
        trainer.fit(lesson, torch.utils.data.DataLoader(sequences(2 * 6 * BATCH), batch_size=BATCH))
    return losses, counts


def test_a_whole_lightning_module(processes):
    """Its `forward` is a new function in each step, of the same code."""
    pytest.importorskip("lightning")
    for (losses, counts), (eager, _) in zip(processes.run(whole_module, True), processes.run(whole_module, False)):
        assert losses == pytest.approx(eager, rel=1e-4) and len(losses) == 6
        assert counts[0]["GraphCompiled"] == 2 and counts[-1] == counts[0], counts


# --- a process that is killed ----------------------------------------------------------------------------------------
def test_the_others_raise(tmp_path):
    """What is killed in the midst of a backward is missed by the other process, in the line of the program."""
    world = World()
    try:
        world.run(prepare)
        for pipe in world.pipes:
            pipe.send((run, ("elastic.train", tmp_path, "--kill-at", "1")))
        assert world.pipes[0].poll(60), "the other process waits"
        _, problem = world.pipes[0].recv()
        world.processes[1].join(60)
    finally:
        world.close()
    assert world.processes[1].exitcode == -signal.SIGKILL
    assert "loss.backward()" in problem and "RuntimeError" in problem and "127.0.0.1" in problem


def test_torchrun_starts_again(processes, tmp_path):
    """Training goes on from the checkpoint with exactly the losses of a training that was not interrupted."""
    (whole, _), _ = processes.run(run, "elastic.train", tmp_path)
    folder = tmp_path / "killed"
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    # with the store of the agent, workers find the addresses of those that are gone (pytorch #135712)
    environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1",
                   "PYTHONPATH": os.pathsep.join([str(EXAMPLES.parent), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, *command, EXAMPLES / "elastic.py", folder, "--kill-at", "5"],
                          env=environment, capture_output=True, text=True, timeout=300)
    assert not done.returncode, done.stderr
    losses = [(int(step), float(loss)) for step, loss in re.findall(r"step (\d+) loss (\S+)", done.stdout)]
    steps = list(enumerate(whole))
    assert losses == [*steps[:5], *steps[4:]]  # step 5 ends in no loss, and the last checkpoint is behind step 3
