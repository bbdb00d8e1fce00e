"""sentence-transformers: `SentenceTransformer.compile`, with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel, BertTokenizerFast

import framesmith

library = pytest.importorskip("sentence_transformers")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "short", "longer", "sentence", "of", "words", "and", "one"]
TEXTS = ["a sentence", "a longer sentence of words", "one short sentence and a longer one"]


def encoder(folder: Path) -> Any:
    torch.manual_seed(0)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    tokenizer = BertTokenizerFast(vocab=str(folder / "vocab.txt"), vocab_file=str(folder / "vocab.txt"))
    config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                        vocab_size=len(WORDS))
    BertModel(config).save_pretrained(folder / "bert")
    tokenizer.save_pretrained(folder / "bert")
    return library.SentenceTransformer(str(folder / "bert"), device="cpu")


def test_encoding(tmp_path: Path, graphs: list[int]) -> None:
    model = encoder(tmp_path)
    want = model.encode(TEXTS, convert_to_tensor=True)
    with framesmith.installed():
        model.compile()
        got = model.encode(TEXTS, convert_to_tensor=True)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        first = len(graphs)
        again = model.encode(TEXTS, convert_to_tensor=True)
        assert torch.equal(again, got) and len(graphs) == first
        for size in range(1, 4):  # other numbers and lengths of sentences
            torch.testing.assert_close(model.encode(TEXTS[:size], convert_to_tensor=True), want[:size], rtol=1e-4,
                                       atol=1e-5)
    assert first == 1 and len(graphs) <= 4, graphs
