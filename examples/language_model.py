"""A small language model, its data, and the command line, for the programs of this folder."""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

WORDS, WIDTH, LENGTH = 64, 32, 16


class Block(nn.Module):
    """A feed-forward block. Its activations are not saved but recomputed in the backward."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
                                    nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(dropout))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + checkpoint(self.layers, x, use_reentrant=False)


class LanguageModel(nn.Module):
    """Scores of each next word."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.blocks = nn.Sequential(Block(dropout), Block(dropout))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embedding(tokens)))


def loss_of(scores: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of each next word."""
    return F.cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def sequences(count: int) -> torch.Tensor:
    """Return `count` sequences of random words, always the same."""
    return torch.randint(0, WORDS, (count, LENGTH), generator=torch.Generator().manual_seed(0))


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the folder of checkpoints, the checkpoint to resume from, and the compiler's name. None: of the process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--backend", default="inductor", help="no: nothing is compiled")
    return parser.parse_args(arguments)
