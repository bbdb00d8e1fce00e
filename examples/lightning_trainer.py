"""Train with Lightning's Trainer over several processes. Only `net.compile` asks for a compiler.

    python -m framesmith run torchrun --nproc-per-node 2 examples/lightning_trainer.py FOLDER [--resume CHECKPOINT]
"""

import os

import lightning
import torch
from language_model import LanguageModel, loss_of, parsed, sequences
from torch.utils.data import DataLoader

STEPS, PARTS, BATCH = 4, 2, 4
"""Steps of the optimiser in an epoch, batches whose gradients each adds up, and sequences of a batch."""


class Lesson(lightning.LightningModule):
    """Trains a language model, without dropout: Lightning's checkpoints have no random states."""

    def __init__(self) -> None:
        super().__init__()
        self.net = LanguageModel(dropout=0.0)
        self.losses: list[float] = []

    def training_step(self, tokens: torch.Tensor, index: int) -> torch.Tensor:
        loss = loss_of(self.net(tokens), tokens)
        self.losses.append(loss.item())
        self.print(f"batch {index} loss {self.losses[-1]!r}")
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main(arguments: list[str] | None = None) -> list[float]:
    """Train two epochs, and return the loss of each batch of this process."""
    options = parsed(arguments)

    world = int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    lesson = Lesson()
    if options.backend != "no":
        lesson.net.compile(backend=options.backend)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="auto", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp",
        precision="bf16-mixed", accumulate_grad_batches=PARTS, gradient_clip_val=1.0,
        callbacks=[lightning.pytorch.callbacks.ModelCheckpoint(options.folder, "{epoch}", save_top_k=-1)],
        logger=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=options.folder)
    loader = DataLoader(sequences(STEPS * PARTS * BATCH * world), batch_size=BATCH, shuffle=True)
    trainer.fit(lesson, loader, ckpt_path=options.resume)
    return lesson.losses


if __name__ == "__main__":
    main()
