"""Models for tests of the service, and their packages."""

import torch
from torch import nn

import framesmith
from framesmith import Dim


class Encoder(nn.Module):
    """Tokens that attend to those which a mask shows, and their mean."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.project, self.norm = nn.Embedding(50, 16), nn.Linear(16, 48), nn.LayerNorm(16)

    def forward(self, ids, mask):
        q, k, v = self.project(self.table(ids)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        shown = (1 - mask[:, None, None, :].float()) * -1e9
        hidden = self.norm(nn.functional.scaled_dot_product_attention(q, k, v, shown).transpose(1, 2).flatten(2))
        weights = mask.float().unsqueeze(-1)
        return {"hidden": hidden, "mean": (hidden * weights).sum(1) / weights.sum(1)}


def encoder(path, target, change=0):
    """A package of the model with one of its weights changed."""
    model = Encoder().eval()
    with torch.no_grad():
        model.project.weight[40, 3] += change
    sizes = {0: Dim("batch", max=16), 1: Dim("length", max=64)}
    args = torch.randint(50, (3, 7)), torch.ones(3, 7, dtype=torch.int64)
    framesmith.package(model, args, path=path, targets=[target], dynamic_shapes=[sizes, sizes])
    return model


def changed_encoder(path, target):
    return encoder(path, target, .1)


def mixing_rows(path, target):
    """A model whose rows depend on each other."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Softmax(0))
    framesmith.package(model, (torch.randn(3, 4),), path=path, targets=[target],
                       dynamic_shapes=[{0: Dim("batch", max=16)}])
    return model


class Counting(nn.Module):
    """A model that keeps state: the number of its calls."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        return x + self.calls.add_(1)
