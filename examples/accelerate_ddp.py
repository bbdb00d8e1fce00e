"""Train with Hugging Face accelerate over several processes. Only `dynamo_backend` asks for a compiler.

    python -m framesmith run torchrun --nproc-per-node 2 examples/accelerate_ddp.py FOLDER [--resume FOLDER/step-4]
"""


import torch
from accelerate import Accelerator
from language_model import LanguageModel, loss_of, parsed, sequences
from torch.utils.data import DataLoader

STEPS, PARTS, BATCH = 8, 2, 4
"""Steps of the optimiser, batches whose gradients each adds up, and sequences of a batch."""


def main(arguments: list[str] | None = None) -> list[float]:
    """Train, and return the loss of each batch of this process."""
    options = parsed(arguments)

    accelerator = Accelerator(cpu=not torch.cuda.is_available(), mixed_precision="bf16",
                              gradient_accumulation_steps=PARTS, dynamo_backend=options.backend)
    torch.manual_seed(accelerator.process_index)
    model = LanguageModel()
    # with a generator of its own, the loader does not take numbers from dropout's
    loader = DataLoader(sequences(STEPS * PARTS * BATCH * accelerator.num_processes), batch_size=BATCH,
                        generator=torch.Generator())
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2), loader)
    first = 0
    if options.resume:
        accelerator.load_state(str(options.resume))
        first = int(options.resume.name.removeprefix("step-"))

    losses = []
    for number, tokens in enumerate(accelerator.skip_first_batches(loader, first * PARTS), first * PARTS + 1):
        with accelerator.accumulate(model):
            with accelerator.autocast():
                loss = loss_of(model(tokens), tokens)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        accelerator.print(f"batch {number} loss {losses[-1]!r}")
        if number == STEPS * PARTS // 2:
            accelerator.save_state(str(options.folder / f"step-{number // PARTS}"))
    return losses


if __name__ == "__main__":
    main()
