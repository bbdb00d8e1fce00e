"""transformers: `Trainer` with `torch_compile=True`, and `generate` with a static cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    CompileConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

import framesmith

STEPS = 15


def trained(folder: Path, **how: Any) -> Trainer:
    generator = torch.Generator().manual_seed(1)
    rows = [{"input_ids": torch.randint(0, 200, (16,), generator=generator),
             "attention_mask": torch.ones(16, dtype=torch.long),
             "labels": torch.randint(0, 3, (), generator=generator)} for _ in range(40)]
    torch.manual_seed(0)
    config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                        vocab_size=200, num_labels=3,
                        problem_type="single_label_classification")  # or the first call writes it: a second variant
    settings = TrainingArguments(str(folder), per_device_train_batch_size=8, logging_steps=1, report_to=[], seed=0,
                                 use_cpu=True, tf32=False,  # or `torch_compile` sets it for the process
                                 disable_tqdm=True, **{"max_steps": STEPS, "save_strategy": "no", **how})
    return Trainer(BertForSequenceClassification(config), settings, train_dataset=rows, eval_dataset=rows[:8])


def losses(trainer: Trainer) -> list[float]:
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `TrainingArguments` writes into it is undone."""
    for name in ("BACKEND", "MODE"):
        monkeypatch.setenv(f"ACCELERATE_DYNAMO_{name}", {"BACKEND": "no", "MODE": "default"}[name])


def test_the_trainer(tmp_path: Path, graphs: list[int]) -> None:
    pytest.importorskip("accelerate")
    plain = trained(tmp_path)
    plain.train()
    with framesmith.installed():
        fast = trained(tmp_path, torch_compile=True)
        fast.train()
        assert fast.evaluate()["eval_loss"] == pytest.approx(plain.evaluate()["eval_loss"], rel=1e-4)
    assert len(losses(fast)) == STEPS and losses(fast) == pytest.approx(losses(plain), rel=1e-4)
    assert len(graphs) == 1, graphs  # after training the trainer evaluates the model that it was given


def test_the_trainer_saves_and_resumes(tmp_path: Path) -> None:
    """A checkpoint has the keys of the model, and is taken by a trainer that compiles and by one that does not."""
    pytest.importorskip("accelerate")
    with framesmith.installed():
        first = trained(tmp_path, torch_compile=True, max_steps=6, save_strategy="steps", save_steps=3)
        first.train()
        again = trained(tmp_path, torch_compile=True, max_steps=6)
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    plain = trained(tmp_path, max_steps=6)
    plain.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert losses(first)[:3] == losses(again)[:3] == losses(plain)[:3]
    assert losses(again) == pytest.approx(losses(first), rel=1e-4)
    assert losses(plain) == pytest.approx(losses(first), rel=1e-4)
    loaded = BertForSequenceClassification.from_pretrained(tmp_path / "checkpoint-6")
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, first.model.state_dict()[name])


@pytest.mark.parametrize("fullgraph", [False, True])
def test_generation_with_a_static_cache(graphs: list[int], fullgraph: bool) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, vocab_size=99,
                                         num_attention_heads=4, num_key_value_heads=2)).eval()
    prompt = torch.randint(0, 98, (2, 5))
    how = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    want = model.generate(prompt, **how)
    compiling = CompileConfig(fullgraph=fullgraph)
    compiling._compile_all_devices = True
    with framesmith.installed():
        got = model.generate(prompt, cache_implementation="static", compile_config=compiling, **how)
        assert torch.equal(got, want) and len(graphs) == 1, graphs
        again = model.generate(prompt + 1, cache_implementation="static", compile_config=compiling, **how)
    assert torch.equal(again, model.generate(prompt + 1, **how)) and len(graphs) == 1, graphs
