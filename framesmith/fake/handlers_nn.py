"""Recording of normalisation and embeddings."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.fake.handlers import composite, functional, handles, positional, store
from framesmith.fake.infer import is_empty
from framesmith.fake.recording import Recording
from framesmith.fake.tensor import FakeTensor, is_row_major
from framesmith.fake.windows import for_each_dim
from framesmith.symbolic.node import env_of

aten = torch.ops.aten


@handles(aten.embedding_bag.padding_idx, aten.embedding_bag.default, aten._embedding_bag.default)
def embedding_bag(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record the forward-only operator: below autograd, it does not matter whether the weight requires grad."""
    given = positional(func, args, kwargs)
    if func is not aten._embedding_bag.default:
        contiguous = {"memory_format": torch.contiguous_format}
        rows = [x if is_row_major(x) else functional(rec, aten.clone.default, (x,), contiguous) for x in given[1:3]]
        given = (given[0], *rows, *given[3:])
    defaults = (False, 0, False, None, False, None)
    filled: tuple = (*given, *defaults[len(given) - 3 :])
    padding = -1 if filled[8] is None else filled[8]
    if func is aten.embedding_bag.padding_idx and filled[8] is not None:
        count = filled[0].shape[0]
        if not -count <= padding < count:
            raise RuntimeError(f"padding_idx must be within the number of embeddings, {-count} through {count - 1} but "
                               f"got {padding}")
        padding %= count
    return functional(rec, aten._embedding_bag_forward_only.default, (*filled[:8], padding), {})


@handles(aten.max_pool1d.default)
def max_pool1d(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record, for dynamic sizes, a pool over images of height 1: eager's kernel reads integers."""
    given = positional(func, args, kwargs)
    defaults: tuple = ([], 0, 1, False)
    filled: tuple = (*given, *defaults[len(given) - 2 :])
    x, kernel, stride, padding, dilation, ceil = filled
    history = x.requires_grad and torch.is_grad_enabled()
    if env_of(*x.shape) is None or history or x.device.type != "cpu":
        return composite(rec, func, args, kwargs)
    steps = for_each_dim(stride, 1) or for_each_dim(kernel, 1)
    windows = [[least, *for_each_dim(n, 1)] for least, n in ((1, kernel), (1, steps), (0, padding), (1, dilation))]
    return rec.inside(lambda: aten.max_pool2d.default(x.contiguous().unsqueeze(-2), *windows, ceil).squeeze(-2))


@handles(aten.batch_norm.default)
def batch_norm(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record the functional form, and in training the writes of the running statistics. Eager normalises nothing of an
    empty tensor, whose kernels would divide by zero, and writes nothing."""
    x, weight, bias, mean, var, training, momentum, eps, _ = positional(func, args, kwargs)
    if isinstance(x, FakeTensor) and is_empty(x):
        return composite(rec, func, args, kwargs)
    if not training or (mean is None) is not (var is None):  # one alone is eager's error
        return functional(rec, func, args, kwargs)
    if mean is None:
        form = aten._native_batch_norm_legit.no_stats
        return functional(rec, form, (x, weight, bias, True, momentum, eps), {})[0]
    return native_batch_norm(rec, func, args, kwargs)[0]


@handles(aten.native_batch_norm.default, aten._native_batch_norm_legit.default)
def native_batch_norm(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    x, weight, bias, mean, var, training, momentum, eps, *_ = positional(func, args, kwargs)
    if not training or mean is None or var is None:
        return functional(rec, aten.native_batch_norm.default, (x, weight, bias, mean, var, training, momentum, eps),
                          {})
    form = aten._native_batch_norm_legit_functional.default
    out = functional(rec, form, (x, weight, bias, mean, var, True, momentum, eps), {})
    for running, new in ((mean, out[3]), (var, out[4])):
        store(rec, running, new, func, args, kwargs)
    return out[:3]
