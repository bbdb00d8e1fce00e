"""Real models, small: one graph, no break, eager's results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from benchmarks import models
from tests.capture.driver import Compiled

SIZES = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 64,
         "max_position_embeddings": 64}
TINY = {
    "BertForMaskedLM": ("BertConfig", SIZES),
    "GPT2LMHeadModel": ("GPT2Config", {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "LlamaForCausalLM": ("LlamaConfig", {**SIZES, "num_key_value_heads": 2}),
    "T5ForConditionalGeneration": ("T5Config", {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64,
                                                "num_layers": 2, "num_heads": 4}),
}


def tensors(value: Any) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(value.to_tuple() if hasattr(value, "to_tuple") else value)
    return [x for x in leaves if isinstance(x, torch.Tensor)]


def check(model: Any, *args: Any, **kwargs: Any) -> Compiled:
    with torch.no_grad():
        want = model(*args, **kwargs)
        compiled = Compiled(model.forward)
        got = compiled(*args, **kwargs)
    assert type(got) is type(want)
    mine, eager = tensors(got), tensors(want)
    assert len(mine) == len(eager)
    for a, b in zip(mine, eager, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    return compiled


@pytest.mark.parametrize("name", TINY)
def test_transformers(name: str) -> None:
    config, sizes = TINY[name]
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, config)(**sizes)).eval()
    ids = torch.randint(3, 90, (2, 16))
    more = {"decoder_input_ids": ids[:, :8]} if name.startswith("T5") else {}
    compiled = check(model, input_ids=ids, **more)
    assert (compiled.graphs, compiled.breaks) == (1, [])


@pytest.mark.parametrize("name", ["branchy", "dlrm", "lstm", "mobilenetv3_small_100", "resnet18"])
def test_named(name: str) -> None:
    model, inputs = models.named()[name]()
    compiled = check(model, *inputs)
    assert len(compiled.breaks) == (name == "branchy")
    assert compiled.graphs == 1 + (name == "branchy")
