"""A sample of PyTorch's own samples of operators and modules; `python -m tests.nets.operators` runs as many as one
likes."""

import pytest

from tests.nets.operator_cases import Subject, subjects
from tests.nets.operators import check, judge

NAMES = [
    "add", "atan2", "clamp", "where", "pow", "remainder", "lerp", "addcmul", "bitwise_and", "logical_not", "eq",
    "isnan", "to", "sum", "mean", "prod", "amax", "argmin", "cumsum", "logsumexp", "var", "std_mean", "any", "norm",
    "masked.sum", "matmul", "bmm", "addmm", "einsum", "nn.functional.linear", "cat", "stack", "split", "reshape",
    "permute", "expand", "roll", "flip", "tril", "unfold", "diagonal", "index_select", "gather", "scatter_add",
    "index_put", "masked_fill", "take_along_dim", "nn.functional.embedding", "sort", "topk", "softmax",
    "nn.functional.layer_norm", "nn.functional.batch_norm", "nn.functional.gelu", "nn.functional.conv2d",
    "nn.functional.max_pool2d", "nn.functional.avg_pool2d", "nn.functional.interpolate.bilinear",
    "nn.functional.cross_entropy", "nn.functional.mse_loss", "nn.functional.pad.constant",
    "nn.functional.scaled_dot_product_attention", "arange", "full_like", "nn.Linear", "nn.GRU",
    "nn.TransformerEncoderLayer"
]  # fmt: skip
FOUND = [
    ("native_batch_norm", "float32", "forward", 1),
    ("unsafe_chunk", "float32", "forward", 0),
    ("unsafe_split", "float32", "backward", 0),
    ("gather", "float32", "backward", 4),
    ("cat", "float32", "backward", 5),
    ("cat", "float32", "forward", 6),
    ("float", "float32", "backward", 1),
    ("nn.functional.embedding_bag", "float32", "forward", 18),
    ("nn.functional.embedding_bag", "float32", "forward", 40),
    ("nn.functional.embedding_bag", "float32", "backward", 4),
    ("linalg.eig", "float32", "backward", 4),
    ("linalg.lu_factor_ex", "complex64", "backward", 6),
    ("nn.functional.conv2d", "complex64", "forward", 20),
    ("linspace", "complex64", "forward", 20),
    ("istft", "complex64", "backward", 0),
    ("abs", "complex64", "in place", 0),
    ("fft.fft", "float32", "backward", 0),
    ("nn.functional.soft_margin_loss", "float16", "backward", 2),
    ("fft.hfft2", "float32", "forward", 4),
    ("linalg.svd", "float32", "forward", 189),
    ("nonzero_static", "float32", "forward", 22),
    ("masked_fill", "float32", "errors", 0),
    ("masked_select", "float32", "errors", 2),
    ("ormqr", "float32", "backward", 0),
    ("ormqr", "float32", "backward", 72),
    ("linalg.householder_product", "float32", "backward", 4),
    ("vdot", "complex64", "forward", 1),
    ("native_batch_norm", "float16", "forward", 5),
    ("gather", "float32", "errors", 1),
    ("amax", "float32", "errors", 1),
    ("nn.functional.softshrink", "float32", "errors", 0),
    ("nn.functional.gelu", "float32", "errors", 0),
    ("nn.functional.huber_loss", "float32", "errors", 1),
]
"""Samples that differed once."""
WHOLE = [
    ("masked.amax", "float32", "forward", 1),
    ("bernoulli", "float32", "forward", 0),
    ("polygamma.polygamma_n_1", "float32", "in place", 0),
    ("nn.functional.rrelu", "float32", "in place", 0),
    ("nn.functional.triplet_margin_with_distance_loss", "float32", "backward", 1),
    ("geqrf", "float32", "forward", 1),
    ("histogram", "float32", "forward", 1),
    ("histogramdd", "float32", "forward", 0),
]
"""Samples that were partly in eager once."""


@pytest.mark.forks
def test_sample():
    forward = subjects(NAMES, ["float32", "int64", "bfloat16"], ["forward"])
    tally = check([*forward, *subjects(NAMES, ["float32"], ["backward"])], 2)
    assert not tally.faults, tally.faults
    assert sum(c["compiled"] for c in tally.counts.values()) > 0.9 * sum(c["samples"] for c in tally.counts.values())


@pytest.mark.parametrize("name, dtype, mode, number", FOUND)
def test_found(name, dtype, mode, number):
    assert judge(((Subject(name, dtype, mode), number),)).detail == ""


@pytest.mark.parametrize("name, dtype, mode, number", WHOLE)
def test_whole(name, dtype, mode, number):
    verdict = judge(((Subject(name, dtype, mode), number),)).parts[0]
    assert (verdict.detail, verdict.captured) == ("", 1), verdict.reasons
