"""Train with Lightning Fabric over several processes. Only `torch.compile` asks for a compiler.

    python -m framesmith run torchrun --nproc-per-node 2 examples/lightning_fabric.py FOLDER [--resume CHECKPOINT]
"""

import os
from typing import Any

import lightning
import torch
from language_model import LanguageModel, loss_of, parsed, sequences

STEPS, PARTS, BATCH = 8, 2, 4
"""Steps of the optimiser, batches whose gradients each adds up, and sequences of a batch."""


def main(arguments: list[str] | None = None) -> list[float]:
    """Train, and return the loss of each batch of this process."""
    options = parsed(arguments)

    fabric = lightning.Fabric(accelerator="auto", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp",
                              precision="bf16-mixed")
    fabric.launch()
    torch.manual_seed(0)
    net: Any = LanguageModel()
    if options.backend != "no":
        net = torch.compile(net, backend=options.backend)
    net, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=1e-2))
    torch.manual_seed(fabric.global_rank)
    # each process has its own random state in the checkpoint
    state: dict[str, Any] = {"net": net, "optimizer": optimizer, "step": 0, "random": []}
    if options.resume:
        fabric.load(options.resume, state)
        torch.set_rng_state(state["random"][fabric.global_rank])

    data = sequences(STEPS * PARTS * BATCH * fabric.world_size)
    batches = data.view(STEPS, PARTS, fabric.world_size, BATCH, -1)[:, :, fabric.global_rank]
    losses = []
    for step in range(state["step"], STEPS):
        for part, tokens in enumerate(batches[step].to(fabric.device)):
            with fabric.no_backward_sync(net, enabled=part < PARTS - 1):
                loss = loss_of(net(tokens), tokens)
                fabric.backward(loss / PARTS)
            losses.append(loss.item())
            fabric.print(f"step {step} loss {losses[-1]!r}")
        fabric.clip_gradients(net, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step + 1 == STEPS // 2:
            states = fabric.all_gather(torch.get_rng_state())
            state |= {"step": step + 1, "random": [state.clone() for state in states.cpu()]}
            fabric.save(options.folder / "half.ckpt", state)
    return losses


if __name__ == "__main__":
    main()
