"""`generate` of transformers, three ways to compile it, token for token what eager gives; sizes that grow at each token
stay bounded."""

from __future__ import annotations  # noqa: I001 - the benchmark's models keep transformers off the network

import functools
import contextlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import benchmarks.models  # noqa: F401
import transformers
import framesmith
from framesmith.ledger import Ledger

VOCABULARY = 99
TOKENS = 14
MODELS: dict[str, Callable[[], nn.Module]] = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2)),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2)),
    "t5": lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0)),
}
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "top_k": 20, "temperature": 1.3},
    "beam search": {"do_sample": False, "num_beams": 3},
}


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]().eval()


def tokens(generate: Callable[..., Tensor], mode: str) -> Tensor:
    """What a prompt of [2, 7] is continued with, from the same random state each time."""
    prompt = torch.randint(5, VOCABULARY, (2, 7), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(3)
    with torch.no_grad():
        return generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=TOKENS, pad_token_id=0,
                        **MODES[mode])


compile_eagerly = functools.partial(framesmith.compile, backend="eager")


def compiled_model(model: nn.Module) -> tuple[Callable[..., Tensor], Any]:
    compiled = compile_eagerly(model)
    return compiled.generate, compiled._framesmith_call.callback


def compiled_forward(model: nn.Module) -> tuple[Callable[..., Tensor], Any]:
    forward = model.forward = compile_eagerly(model.forward)
    return model.generate, forward.callback


def compiled_generate(model: nn.Module) -> tuple[Callable[..., Tensor], Any]:
    compiled = compile_eagerly(model.generate)
    return compiled, compiled.callback


@pytest.mark.filterwarnings("ignore:framesmith")
@pytest.mark.parametrize("way", [compiled_model, compiled_forward, compiled_generate])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_generate(name: str, mode: str, way: Callable[[nn.Module], tuple[Callable[..., Tensor], Any]]) -> None:
    expected = tokens(build(name).generate, mode)
    generate, callback = way(build(name))
    callback.ledger = Ledger()
    for _ in range(2):
        assert torch.equal(tokens(generate, mode), expected)
    assert sum(bool(r.operators) for r in callback.ledger.records) > 0


@pytest.mark.parametrize("way", [compiled_forward])
@pytest.mark.parametrize("name", MODELS)
def test_sizes_that_grow_at_each_token_are_bounded(name: str, way: Callable[[nn.Module],
                                                                            tuple[Callable[..., Tensor], Any]]) -> None:
    """So many variants as are allowed, then eager with one warning: what the model calls does not fill up in its
    turn."""
    generate, callback = way(build(name))
    callback.ledger = Ledger()
    config = sys.modules.get("torch._dynamo.config")  # libraries change its limit, which ours follows
    limit = config.patch(recompile_limit=8) if config else contextlib.nullcontext()
    with limit, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tokens(generate, "greedy")
        tokens(generate, "greedy")
    assert len(callback.ledger.records) == callback.config.max_variants
    told = [str(w.message) for w in caught if str(w.message).startswith("framesmith")]
    assert len(told) == 1 and "8 variants" in told[0] and "size of dimension" in told[0]


def test_native_code_generates_the_same() -> None:
    expected = tokens(build("gpt2").generate, "greedy")
    model = framesmith.compile(build("gpt2"), options={"max_variants": 2})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(tokens(model.generate, "greedy"), expected)
