"""Products of tensors of symbolic sizes: `linear`, and `matmul` before PyTorch 2.13, accept only integers."""

from __future__ import annotations

import math
from typing import Any

import torch

from framesmith.fake.handlers import classify, handles
from framesmith.fake.layout import broadcast
from framesmith.fake.recording import Recording

aten = torch.ops.aten


def product(a: Any, b: Any) -> Any:
    """Compute the parts of eager's matmul; return NotImplemented where they depend on more than sizes: for a vector, or
    a matrix with a gradient, times a batch."""
    if a.dim() <= 2 and b.dim() <= 2:
        return _of_matrices(a, b)
    if b.dim() <= 2:  # one product of all rows
        return _of_matrices(a.reshape(-1, a.shape[-1]), b).view(*a.shape[:-1], *b.shape[1:])
    batch = None if a.dim() < 2 else broadcast(tuple(a.shape[:-2]), tuple(b.shape[:-2]))
    if batch is None or a.dim() == 2 and a.requires_grad:
        return NotImplemented
    x, y = (t.expand(*batch, *t.shape[-2:]).reshape(math.prod(batch), *t.shape[-2:]) for t in (a, b))
    return torch.bmm(x, y).view(*batch, a.shape[-2], b.shape[-1])


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """Compute the parts of eager's linear on rows [..., k] of `x` by `weight` [n, k] or [k]; for static sizes, linear
    itself."""
    if x.dim() < 3 or not _varies(x, weight):
        return aten.linear.default(x, weight, bias)
    if bias is None:
        return product(x, weight.t())
    return torch.addmm(bias, x.reshape(-1, x.shape[-1]), weight.t()).view(*x.shape[:-1], weight.shape[0])


def _varies(*tensors: Any) -> bool:
    return any(type(n) is not int for x in tensors for n in x.shape)


def _of_matrices(a: Any, b: Any) -> Any:
    if a.dim() == 1:
        return torch.dot(a, b) if b.dim() == 1 else torch.mm(a.unsqueeze(0), b).squeeze(0)
    return torch.mv(a, b) if b.dim() == 1 else torch.mm(a, b)


if torch.__version__ < "2.13":
    @handles(aten.matmul.default)
    def matmul(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
        found = rec.inside(product, *args) if _varies(*args) else NotImplemented
        return classify(func)(rec, func, args, kwargs) if found is NotImplemented else found
