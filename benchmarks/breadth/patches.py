"""Pictures cut into patches before they come to the model, with the grid of each: what vision towers of the newer
families take."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.breadth.sizes import now

_SIDE = 4  # patches; a multiple of what is merged


def _side() -> int:
    return now().scaled(_SIDE)


def grid() -> Tensor:
    """[2, 3]: frames, rows and columns of patches of each picture."""
    return torch.tensor([[1, _side(), _side()]] * now().batch)


def shapes() -> Tensor:
    """[2, 2]: rows and columns."""
    return torch.tensor([[_side(), _side()]] * now().batch)


def _embedding(model: nn.Module) -> nn.Module | None:
    """The layer that takes patches."""
    for name, module in model.named_modules():
        if "patch" in name and isinstance(module, (nn.Conv2d, nn.Conv3d, nn.Linear)):
            return module
    return None


def patches(model: nn.Module, flat: bool, batched: bool = False) -> Tensor:
    """[patches of all pictures, numbers] or, not `flat`, [patches, channels, height, width]; `batched`: [2, patches of
    one, ...]."""
    layer = _embedding(model)
    if isinstance(layer, nn.Linear):
        one: tuple[int, ...] = (layer.in_features,)
    elif layer is None:
        one = (32,)
    else:
        one = (layer.in_channels, *layer.kernel_size)
    if flat:
        one = (torch.Size(one).numel(),)
    many = _side() * _side()
    count = (now().batch, many) if batched else (now().batch * many,)
    return torch.randn(*count, *one, generator=torch.Generator().manual_seed(0))
