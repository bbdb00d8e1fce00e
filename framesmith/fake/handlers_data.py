"""Recording of operators whose result, or the size of it, depends on a tensor's data: known for constants alone."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.fake.handlers import WITHOUT_SIZES, functional, handles, known, positional, with_values
from framesmith.fake.recording import Recording
from framesmith.util.errors import DataDependent, Unsupported

aten = torch.ops.aten


@handles(aten.item.default, aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default)
def needs_value(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Compute the value of what depends on constants alone."""
    return with_values(rec, func, args, kwargs, "the value is known at run time only")


@handles(aten.index.Tensor)
def index(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    source, indices = args
    if any(t is not None and t.dtype in _MASKS for t in indices):
        indices = _numbered(rec, source, indices)
    return functional(rec, func, (source, indices), kwargs)


_MASKS = (torch.bool, torch.uint8)


def _numbered(rec: Recording, source: Any, indices: Any) -> list:
    """Replace known masks among the indices by the numbers of their elements, one tensor a dimension, as eager does."""
    out: list = []
    for t in indices:
        if t is None or t.dtype not in _MASKS:
            out.append(t)
            continue
        mask = known(rec, t)
        if mask is None or mask.shape != tuple(source.shape[len(out): len(out) + mask.dim()]):
            raise DataDependent("indexing by a mask gives a size that is known at run time only", hint=WITHOUT_SIZES)
        out.extend(rec.constant(n.contiguous()) for n in mask.nonzero().unbind(1))
    return out


@handles(aten.one_hot.default)
def one_hot(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    index, classes = (*positional(func, args, kwargs), -1)[:2]
    if classes <= 0:
        raise DataDependent("one_hot without a number of classes needs the tensor's data")

    def scattered() -> Any:
        zeros = torch.zeros((*index.shape, classes), dtype=index.dtype, device=index.device)
        return zeros.scatter(-1, index.unsqueeze(-1), 1)

    return rec.inside(scattered)


@handles(aten.repeat_interleave.self_Tensor)
def repeat_interleave(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    if kwargs.get("output_size") is not None:
        return functional(rec, func, args, kwargs)
    source, repeats, dim = (*args, None)[:3]
    repeats = known(rec, repeats)
    if repeats is None:
        raise DataDependent("repeat_interleave by a tensor without output_size needs the tensor's data")

    def selected() -> Any:
        x, at = (source.flatten(), 0) if dim is None else (source, dim)
        return torch.index_select(x, at, indices)

    count = source.numel() if dim is None else source.shape[dim]
    if repeats.numel() not in (1, count):
        raise Unsupported("repeat_interleave by repeats of another size")
    with torch._C._DisableTorchDispatch():
        indices = rec.constant(torch.repeat_interleave(repeats.expand(count)))
    return rec.inside(selected)


@handles(aten.is_pinned.default)
def is_pinned(rec: Recording, func: Any, args: tuple, kwargs: dict) -> bool:
    if torch.cuda.is_available():
        raise Unsupported("whether memory is pinned")
    return False
