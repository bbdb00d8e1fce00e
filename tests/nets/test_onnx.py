"""A sample of the nets of ONNX; `python -m tests.nets.onnx_models` and `tests.nets.onnx_operators` run the rest."""

import importlib.util

import pytest

from tests.nets.onnx_models import judge as judge_model
from tests.nets.onnx_operators import judge as judge_sample
from tests.nets.operator_cases import Subject

OPERATORS = [
    "add", "atan2", "clamp", "where", "pow", "remainder", "bitwise_and", "eq", "sum", "amax", "argmin", "cumsum",
    "any", "matmul", "cat", "split", "permute", "roll", "flip", "tril", "diagonal", "index_select", "gather",
    "scatter_add", "index_put", "masked_fill", "topk", "sort", "index_add", "scatter_reduce.amax",
    "cumprod", "cummax", "cummin", "scatter_reduce.mean", "index_fill", "put", "searchsorted", "median", "nanmedian",
    "nn.functional.bilinear", "angle", "block_diag", "logspace",
]  # fmt: skip
OF_FLOATS = [
    "expm1", "log1p", "round", "var", "softmax", "nn.functional.gelu", "nn.functional.layer_norm",
    "nn.functional.group_norm",
    "nn.functional.batch_norm", "nn.functional.conv2d", "nn.functional.conv_transpose2d", "nn.functional.max_pool2d",
    "nn.functional.avg_pool1d", "nn.functional.adaptive_avg_pool2d", "nn.functional.interpolate.bilinear",
    "nn.functional.grid_sample", "nn.functional.pad.reflect", "nn.functional.unfold",
    "nn.functional.scaled_dot_product_attention", "linalg.vector_norm",
    "logcumsumexp", "std", "std_mean", "erfinv", "nn.functional.pdist", "nn.functional.embedding_bag",
    "nn.functional.adaptive_max_pool1d", "nn.functional.adaptive_max_pool2d", "nn.functional.adaptive_max_pool3d",
    "nn.functional.max_unpool2d", "nn.functional.max_unpool3d", "masked.median",
]  # fmt: skip
FOUND = [  # sizes of 0, small epsilons, negative widths, equal elements, windows beyond the image
    ("nn.functional.poisson_nll_loss", "int64", 14), ("nn.functional.cosine_embedding_loss", "bool", 0),
    ("roll", "float32", 12), ("gather", "float32", 4), ("var_mean.unbiased", "float32", 2),
    ("nn.functional.pad.replicate_negative", "float32", 0), ("nn.functional.dropout2d", "float32", 8),
    ("arange", "int64", 18), ("nn.functional.conv_transpose3d", "float32", 3),
    ("_upsample_bilinear2d_aa", "float32", 5),
    ("nn.functional.unfold", "bool", 0), ("nn.functional.group_norm", "float32", 14), ("where", "bool", 0),
]  # fmt: skip
CASES = [*FOUND, *((name, dtype, 0) for name in OPERATORS for dtype in ("float32", "int64")),
         *((name, "float32", 0) for name in OF_FLOATS)]  # fmt: skip
INTEGERS_ALONE = ("bitwise_and",)


@pytest.mark.parametrize("name, dtype, number", CASES, ids=lambda x: str(x))
def test_operator(name, dtype, number):
    if dtype == "float32" and name in INTEGERS_ALONE:
        pytest.skip("of integers alone")
    try:
        verdict = judge_sample((Subject(name, dtype, "forward"), number))
    except IndexError:
        pytest.skip("no sample of this PyTorch's")
    assert verdict.kind == "equal", verdict


@pytest.mark.parametrize("suite, name", [("transformers", "bert"), ("timm", "resnet18")])
def test_model(suite, name):
    row = judge_model((suite, name)).row
    engines = [engine for engine in ("onnxruntime", "openvino") if importlib.util.find_spec(engine)]
    assert "batch" in row["dimensions"] and all(row[engine] == "equal" for engine in engines), row
