"""Each differentiable operator of PyTorch's own database: results and gradients in float64 are eager's."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import framesmith
from tests.op_db import op_db

# the database forbids what other tests do: to set flags of torch.backends
torch.backends.disable_global_flags.__globals__["__allow_nonbracketed_mutation_flag"] = True

SAMPLES = 2
"""How many of an operator's samples are tried, spread over all of them."""
OPERATORS = [op for op in op_db
             if op.supports_autograd and torch.float64 in op.supported_dtypes("cpu")
             and not op.name.startswith("sparse.")]


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        yield from itertools.chain.from_iterable(map(tensors, value))


def outcome(fn: Any, sample: Any) -> tuple[list[torch.Tensor], list[bool], Any]:
    """Results, which of them require grad, and the gradients of all inputs for random tangents."""
    inputs = [x for x in tensors((sample.input, sample.args, tuple(sample.kwargs.values()))) if x.requires_grad]
    torch.manual_seed(0)
    out = list(tensors(fn(sample.input, *sample.args, **sample.kwargs)))
    asked = [x for x in out if x.requires_grad]
    tangents = [torch.randn_like(x) for x in asked]
    grads = torch.autograd.grad(asked, inputs, tangents, allow_unused=True) if asked and inputs else None
    return [x.detach() for x in out], [x.requires_grad for x in out], grads


def samples(op: Any) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        every = list(op.sample_inputs("cpu", torch.float64, requires_grad=True))
    return every[:: max(1, len(every) // SAMPLES)][:SAMPLES]


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: f"{op.name}-{op.variant_test_name}".strip("-"))
def test_gradients(op: Any) -> None:
    for sample in samples(op):
        def fn(*args: Any, **kwargs: Any) -> Any:
            return op.op(*args, **kwargs)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want = eager_outcome(fn, sample)
            if want is None:
                continue
            got = outcome(framesmith.compile(fn, backend="eager"), sample)
            assert got[1] == want[1]
            torch.testing.assert_close(got[0], want[0], rtol=1e-7, atol=1e-9, equal_nan=True)
            assert (got[2] is None) == (want[2] is None)
            for found, wanted in zip(got[2] or (), want[2] or (), strict=True):
                assert (found is None) == (wanted is None)
                if found is not None:
                    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-9, equal_nan=True)


def eager_outcome(fn: Any, sample: Any) -> Any:
    """None where the sample is not differentiable in eager either."""
    try:
        return outcome(fn, sample)
    except (RuntimeError, NotImplementedError):
        return None
