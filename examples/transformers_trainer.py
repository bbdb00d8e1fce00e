"""Train with transformers' Trainer over several processes. Only `torch_compile_backend` asks for a compiler.

    python -m framesmith run torchrun --nproc-per-node 2 examples/transformers_trainer.py FOLDER [--resume CHECKPOINT]
"""

import argparse

import torch
from language_model import LENGTH, WORDS, sequences
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

STEPS, PARTS, BATCH = 8, 2, 4
"""Steps of the optimiser, batches whose gradients each adds up, and sequences of a batch."""


def main(arguments: list[str] | None = None) -> list[float]:
    """Train, and return the loss of each step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--resume")
    parser.add_argument("--backend", default="inductor", help="no: nothing is compiled")
    options = parser.parse_args(arguments)

    settings = TrainingArguments(
        options.folder, torch_compile_backend=None if options.backend == "no" else options.backend,
        max_steps=STEPS, per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=PARTS, bf16=True, gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False}, save_steps=STEPS // 2, logging_steps=1, seed=0,
        use_cpu=not torch.cuda.is_available(), report_to=[], disable_tqdm=True)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=WORDS, n_positions=LENGTH))
    data = [{"input_ids": tokens, "labels": tokens} for tokens in sequences(256)]
    trainer = Trainer(model, settings, train_dataset=data)
    trainer.train(resume_from_checkpoint=options.resume)
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


if __name__ == "__main__":
    main()
