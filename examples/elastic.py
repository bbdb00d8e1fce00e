r"""Train with DistributedDataParallel under torchrun, which starts all processes again when one dies. Training goes on
from the last checkpoint, with the losses that it would have had.

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
    torchrun --standalone --nproc-per-node 2 --max-restarts 3 examples/elastic.py FOLDER

With `--kill-at STEP` the last process is killed once, in the backward of that step.
"""

import argparse
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from language_model import LanguageModel, loss_of, sequences
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

import framesmith

STEPS, PARTS, BATCH = 8, 2, 4
"""Steps of the optimiser, batches whose gradients each adds up, and sequences of a batch."""


def batch(step: int, part: int) -> torch.Tensor:
    """Return the tokens of this process. They follow from the numbers alone, also in a program that resumes."""
    number = (step * PARTS + part) * dist.get_world_size() + dist.get_rank()
    return sequences((number + 1) * BATCH)[-BATCH:]


def train_step(model: DistributedDataParallel, optimizer: torch.optim.Optimizer, step: int) -> float:
    """Run one step. Returns its loss, the mean of all processes."""
    total = torch.zeros(())
    for part in range(PARTS):
        tokens = batch(step, part)
        with model.no_sync() if part < PARTS - 1 else contextlib.nullcontext():
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(model(tokens), tokens) / PARTS
            loss.backward()
        total += loss.detach()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def save(path: Path, **state: Any) -> None:
    """Write a checkpoint with the random states of all processes. If one dies meanwhile, the last checkpoint stays."""
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, torch.get_rng_state())
    if dist.get_rank() == 0:
        torch.save({**state, "random": states}, path.with_suffix(".new"))
        os.replace(path.with_suffix(".new"), path)


def kill_in_backward(net: LanguageModel) -> None:
    """Kill this process in the midst of a backward, when the gradients of the blocks are there."""
    next(net.blocks.parameters()).register_hook(lambda grad: os.kill(os.getpid(), signal.SIGKILL))


def train(arguments: list[str] | None = None) -> list[float]:
    """Train from the last checkpoint on, and return the loss of each step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=2, help="steps between two checkpoints")
    parser.add_argument("--kill-at", type=int, default=-1)
    parser.add_argument("--backend", default="native", help="no: nothing is compiled")
    options = parser.parse_args(arguments)

    torch.manual_seed(dist.get_rank())  # DDP sends the parameters of rank 0 to all
    net = LanguageModel()
    call = net if options.backend == "no" else framesmith.compile(net, backend=options.backend)
    model = DistributedDataParallel(call)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    options.folder.mkdir(parents=True, exist_ok=True)
    path, first = options.folder / "last.pt", 0
    if path.exists():
        state = torch.load(path)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"][dist.get_rank()])
        first = state["step"]

    losses = []
    for step in range(first, STEPS):
        if step == options.kill_at and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and (
                dist.get_rank() == dist.get_world_size() - 1):
            kill_in_backward(net)
        losses.append(train_step(model, optimizer, step))
        if dist.get_rank() == 0:
            print(f"step {step} loss {losses[-1]!r}", flush=True)
        if (step + 1) % options.every == 0:
            save(path, step=step + 1, net=net.state_dict(), optimizer=optimizer.state_dict())
    return losses


@record
def main() -> None:
    """Train as a process of torchrun's."""
    dist.init_process_group("gloo")
    train()
    dist.barrier()  # gloo's threads release the last collective's tensors meanwhile: as Python ends they would crash
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
