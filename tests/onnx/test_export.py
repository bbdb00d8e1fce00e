"""Programs as ONNX files: names, dimensions, state, control flow, refusals; each run by ONNX Runtime beside eager."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from torch._higher_order_ops.scan import scan

import framesmith
from framesmith.exc import ExportError
from framesmith.export.trees import flatten
from framesmith.onnx import NoOnnxForm
from framesmith.onnx import exporter as onnx_exporter
from tests.nets.onnx_running import difference, expected, inputs_of, of_onnxruntime, of_openvino

BATCH, LENGTH = framesmith.Dim("batch"), framesmith.Dim("length")


def run_both(fn, path, *cases, dynamic_shapes=None, opset=20, engine=of_onnxruntime):
    """The ONNX model of a function, after its file has given eager's results for all cases."""
    program = framesmith.export(fn, cases[0], dynamic_shapes=dynamic_shapes, operators="onnx")
    made = framesmith.onnx.export(program, path, opset=opset)
    run = engine(path)
    for args in cases:
        with torch.no_grad():
            want = expected(program, fn(*args))
        assert not difference(want, run(inputs_of(program, flatten((args, {}))[0])), [])
    return made


class Block(nn.Module):
    """Attention, a norm, sizes among the results, an input returned, a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x):
        q = self.heads(x).view(x.shape[0], x.shape[1], 2, 4).transpose(1, 2)
        y = nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        y = self.norm(y.transpose(1, 2).reshape(x.shape))
        return {"hidden": torch.softmax(y, -1) * x.shape[0], "length": x.shape[1], "given": [x, None, 3]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


@pytest.mark.parametrize("opset", onnx_exporter.OPSETS)
def test_names_and_dimensions(path, opset):
    torch.manual_seed(0)
    cases = [(torch.randn(n, k, 8),) for n, k in ((2, 5), (1, 9), (4, 1))]
    run_both(Block().eval(), path, *cases, dynamic_shapes=({0: BATCH, 1: LENGTH},), opset=opset)
    graph = onnx.load(path).graph
    assert [o.name for o in graph.output] == ["hidden", "length", "given.0"]
    assert [d.dim_param or d.dim_value for d in graph.input[0].type.tensor_type.shape.dim] == ["batch", "length", 8]
    assert {"heads.bias", "norm.weight", "norm.bias"} <= {i.name for i in graph.initializer}
    assert "test_export.py" in str(graph.node[0].metadata_props)


def test_openvino(path):
    pytest.importorskip("openvino")
    torch.manual_seed(0)
    cases = [(torch.randn(n, k, 8),) for n, k in ((2, 5), (3, 9))]
    run_both(Block().eval(), path, *cases, dynamic_shapes=({0: BATCH, 1: LENGTH},), engine=of_openvino)


def test_a_model_is_exported_in_one_call(path):
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    made = framesmith.onnx.export(model, path, (torch.randn(2, 4),), dynamic_shapes=({0: 2 * BATCH},))
    assert [n.op_type for n in made.graph] == ["Gemm", "Relu"]
    x = torch.randn(6, 4)
    assert np.allclose(of_onnxruntime(path)({"input": x.numpy()})[0], model(x).detach(), atol=1e-6)


class Counter(nn.Module):
    """Writes a buffer and returns it, and reads another that it does not write."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("x", torch.full((), 3.0))
        self.register_buffer("step", torch.full((), 2.0), persistent=False)

    def forward(self, x):
        self.x += self.step
        return x + self.x, self.x


class Cache(nn.Module):
    """Keys of the positions so far, of which each call writes one, and an argument that it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.randn(4, 3))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("last", torch.zeros(1, 3))

    def forward(self, key, seen):
        self.last.copy_(key)  # written, and not read
        self.keys.index_copy_(0, self.position, key)
        self.position += 1
        seen.add_(key[0].sum())
        mask = torch.arange(4) < self.position
        return {"found": self.keys @ key[0] * mask, "seen": seen, "at": self.position}


@pytest.mark.parametrize("engine", [of_onnxruntime, of_openvino])
@pytest.mark.parametrize("model, steps", [
    (Counter, lambda: [(torch.randn(2),) for _ in range(4)]),
    (Cache, lambda: [(torch.randn(1, 3), torch.ones(2)) for _ in range(4)]),
], ids=["counter", "cache"])
def test_state_that_is_written_goes_from_call_to_call(path, engine, model, steps):
    if engine is of_openvino:
        pytest.importorskip("openvino")
    torch.manual_seed(0)
    model, steps = model(), steps()
    program = framesmith.export(model, steps[0], operators="onnx")
    framesmith.onnx.export(program, path)
    state = {k: v.clone().numpy() for k, v in framesmith.onnx.initial_state(program).items()}
    assert set(state) == ({"x_state"} if isinstance(model, Counter) else {"keys", "position"})
    run, outputs = engine(path), [o.name for o in onnx.load(path).graph.output]
    assert outputs == (["output_0", "output_1", "new_x_state"] if isinstance(model, Counter) else
                       ["found", "seen_1", "at", "new_seen", "new_last", "new_keys", "new_position"])
    for args in steps:
        given = [x.clone().numpy() for x in args]
        names = [i.name for i in onnx.load(path).graph.input][:len(given)]
        got = dict(zip(outputs, run(dict(zip(names, given, strict=True)) | state), strict=True))
        want = flatten(model(*args))[0]
        assert not difference(want, list(got.values())[:len(want)], [])
        state = {name: got[f"new_{name}"] for name in state}
        buffers = dict(model.named_buffers())
        assert all(np.allclose(x, buffers[name.removesuffix("_state")]) for name, x in state.items())
        assert all(np.allclose(got[f"new_{name}"], x) for name, x in zip(names, args) if f"new_{name}" in got)
    assert [i.name for i in onnx.load(path).graph.initializer if i.name in state] == []


def test_weights_apart(path):
    model = nn.Linear(64, 64)
    framesmith.onnx.export(model, path, (torch.randn(2, 64),), external_data=True)
    assert path.with_name("model.onnx.data").stat().st_size >= 64 * 64 * 4 > path.stat().st_size
    x = torch.randn(2, 64)
    assert np.allclose(of_onnxruntime(path)({"input": x.numpy()})[0], model(x).detach(), atol=1e-5)


def test_what_has_no_form_is_named_with_its_line(path):
    def program(x):
        y = torch.lgamma(x)
        return torch.fft.rfft(y).real

    with pytest.raises(NoOnnxForm) as caught:
        framesmith.onnx.export(program, path, (torch.randn(4),))
    line = program.__code__.co_firstlineno
    assert [p.operator for p in caught.value.problems][:2] == ["aten.lgamma.default", "aten._fft_r2c.default"]
    assert f"aten.lgamma.default, at test_export.py:{line + 1} program" in str(caught.value)
    assert not path.exists()


def test_what_onnx_takes_in_no_such_dtype(path):
    with pytest.raises(NoOnnxForm, match="Conv takes no int64"):
        framesmith.onnx.export(torch.conv1d, path, (torch.ones(1, 1, 4).long(), torch.ones(1, 1, 2).long()))
    with pytest.raises(NoOnnxForm, match="complex64"):
        framesmith.onnx.export(torch.sin, path, (torch.randn(2, dtype=torch.complex64),))


def test_an_unknown_opset(path):
    with pytest.raises(ExportError, match="18 to"):
        framesmith.onnx.export(torch.sin, path, (torch.randn(2),), opset=9)


# --- control flow
def branch(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin() * x.shape[0], lambda x: x - 1, (x,))


def loop(x):
    while x.sum() < 100:
        x = x * 2 + 1
    return x


def scanned(x):
    return scan(lambda total, row: (torch.tanh(total + row), total * row), torch.zeros(4), x)


@pytest.mark.parametrize("fn", [branch, loop], ids=["branch", "loop"])
def test_control_flow(path, fn):
    made = run_both(fn, path, (torch.ones(3, 4),), (-torch.ones(5, 4) if fn is branch else torch.rand(5, 4),),
                    dynamic_shapes=({0: BATCH},))
    assert {"If", "Loop"} & {n.op_type for n in made.graph}


def test_a_scan(path):
    made = run_both(scanned, path, (torch.randn(200, 4),), (torch.randn(3, 4),), dynamic_shapes=({0: BATCH},))
    assert "Loop" in {n.op_type for n in made.graph}


# --- rows whose arguments decide
def recurrent(cls, **options):
    torch.manual_seed(0)
    return cls(4, 6, **options).eval()


@pytest.mark.parametrize("cls", [nn.LSTM, nn.GRU, nn.RNN], ids=["LSTM", "GRU", "RNN"])
def test_recurrent_layers(path, cls):
    model = recurrent(cls, num_layers=2, bidirectional=True, batch_first=True)
    shapes = {0: BATCH, 1: None if cls is nn.RNN else LENGTH}  # eager's RNN is recorded for one length
    cases = [(torch.randn(n, 5 if cls is nn.RNN else k, 4),) for n, k in ((2, 5), (3, 7))]
    run_both(model, path, *cases, dynamic_shapes=(shapes,))


def attend(q, k, mask):
    return nn.functional.scaled_dot_product_attention(q, k, k, attn_mask=mask)


@pytest.mark.parametrize("opset", [20, 23])
def test_a_row_of_a_mask_without_a_key_is_nothing(path, opset):
    q, k, mask = torch.randn(2, 2, 3, 4), torch.randn(2, 2, 5, 4), torch.rand(3, 5) > 0.5
    mask[1] = False
    run_both(attend, path, (q, k, mask), opset=opset)
    run_both(attend, path, (q, k, torch.where(mask, 0.0, float("-inf"))), opset=opset)


def places(x, a, b):
    return x[:, a, b], x[a, :, b], x[:, a[0]], x.index_put((a, b), x[0, 0], accumulate=True)


def test_tensors_of_places(path):
    run_both(places, path, (torch.randn(3, 4, 5), torch.tensor([[2, 0], [1, -1]]), torch.tensor([0, 2])))


def sums(x, places, rows):
    more = torch.index_put(x, (places, -places), rows[:, 0], accumulate=True)
    return x.index_add(0, places, rows), x.index_add(-1, places, rows.T), more, x.index_put((places,), rows, True)


def test_sums_at_equal_places(path):
    """Without ScatterND: with several threads, ONNX Runtime loses elements."""
    made = run_both(sums, path, (torch.randn(5, 5), torch.tensor([2, 0, 2, 2, 1, 1]), torch.randn(6, 5)))
    assert "ScatterND" not in {n.op_type for n in made.graph}


def pooled(x):
    return nn.functional.adaptive_avg_pool2d(x, (3, 2)), nn.functional.max_pool2d(x, 2, return_indices=True)


def test_windows(path):
    run_both(pooled, path, (torch.randn(2, 3, 7, 8),))


def sizes(x):
    n = x.shape[0]
    return x.reshape(-1, n), x.new_ones(n // 2 + 1), torch.arange(n, 2 * n), x.new_full((n % 3 + 1,), n)


def half(x):
    return x[::2], (x.shape[0] + 1) // 2


def test_a_size_that_is_computed_is_an_output(path):
    run_both(half, path, (torch.randn(4, 6),), (torch.randn(7, 6),), dynamic_shapes=({0: BATCH},))


def by_groups(x, weights, ends):
    return torch.ops.aten._grouped_mm(x, weights, ends), torch.histc(ends.float(), 5, 0, 4)


def test_products_of_groups(path):
    run_both(by_groups, path, (torch.randn(6, 8), torch.randn(3, 8, 4), torch.tensor([2, 2, 6], dtype=torch.int32)))


class Experts(nn.Module):
    """Rows times the matrix of their group, of weights that the file has."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.randn(3, 8, 4))

    def forward(self, x, ends):
        return torch.ops.aten._grouped_mm(x, self.weights, ends)


def test_products_of_groups_with_weights_of_the_file(path):
    pytest.importorskip("openvino")
    cases = [(torch.randn(n, 8), torch.tensor([2, 2, n], dtype=torch.int32)) for n in (6, 9)]
    run_both(Experts().eval(), path, *cases, dynamic_shapes=({0: BATCH}, None), engine=of_openvino)
    run_both(Experts().eval(), path, *cases, dynamic_shapes=({0: BATCH}, None))


def test_sizes(path):
    run_both(sizes, path, (torch.randn(4, 6),), (torch.randn(7, 6),), dynamic_shapes=({0: BATCH},))


# --- scans and orders, at the edges
NAN, INF = float("nan"), float("inf")
EDGES = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0], [-INF, -INF, INF, NAN, 1.0], [NAN, 2.0, NAN, INF, INF],
                      [-INF, -INF, -INF, -INF, -INF], [0.0, -0.0, 4.0, -2.0, 0.5]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("fn", [torch.cumprod, torch.cummax, torch.cummin, torch.logcumsumexp])
def test_scans(path, fn, dim, dtype):
    if fn is torch.logcumsumexp and dtype is torch.int64:
        pytest.skip("of fractions alone")
    x = EDGES.nan_to_num(7, 100, -100).to(dtype) if dtype is torch.int64 else EDGES.to(dtype)
    run_both(lambda x: fn(x, dim), path, (x,), (x[:1, :2],), (x[:3],), dynamic_shapes=({0: BATCH, 1: LENGTH},))


@pytest.mark.parametrize("fn", [torch.median, torch.nanmedian])
def test_medians(path, fn):
    x = torch.cat([EDGES, torch.tensor([[NAN] * 5, [1, NAN, 0, 2, NAN]])])
    run_both(lambda x: (fn(x, 1).values, fn(x, 0, keepdim=True).values), path, (x,), (x[4:5],), (x[:2],),
             dynamic_shapes=({0: BATCH},))
    run_both(lambda x: (fn(x), fn(x.nan_to_num(0))), path, (x,), (x[4:],), dynamic_shapes=({0: BATCH},))
    if fn is torch.median:
        run_both(lambda x: fn(x, 1), path, (x[:3],))


def shared_out(x):
    return nn.functional.adaptive_max_pool2d(x, (3, 2), return_indices=True)


def test_the_greatest_of_windows_that_share_out_an_image(path):
    torch.manual_seed(0)
    run_both(shared_out, path, (torch.randn(2, 3, 7, 5),))
    run_both(shared_out, path, (torch.randn(3, 7, 2),), (torch.randn(1, 7, 2),), dynamic_shapes=({0: BATCH},))
    run_both(shared_out, path, (torch.zeros(1, 1, 4, 4),))  # of equal ones the first


def unpooled(x):
    values, places = nn.functional.max_pool2d(x, 2, return_indices=True)
    return nn.functional.max_unpool2d(values, places, 2)


def test_unpooling(path):
    run_both(unpooled, path, (torch.randn(2, 3, 4, 6),), (torch.randn(5, 3, 8, 4),),
             dynamic_shapes=({0: BATCH, 2: 2 * framesmith.Dim("rows"), 3: 2 * framesmith.Dim("columns")},))


def test_places_in_rows_of_bounds(path):
    bounds, x = torch.randn(3, 6), torch.randn(3, 4)
    order = bounds.argsort(-1)
    run_both(lambda b, x, s: (torch.searchsorted(b, x, sorter=s), torch.searchsorted(b.sort(-1).values, x, right=True),
                              torch.searchsorted(b[0].sort().values, x, side="right", out_int32=True)),
             path, (bounds, x, order))


def test_means_of_scattered_numbers(path):
    x, places = torch.randn(4, 3), torch.tensor([[0, 1, 1], [0, 2, 1], [0, 2, 3]])
    for dtype in (torch.float32, torch.int64):
        given = ((x * 9).to(dtype), places, (torch.randn(3, 3) * 9).to(dtype))
        run_both(lambda x, i, s: (x.scatter_reduce(0, i, s, "mean"), x.scatter_reduce(0, i, s, "mean",
                 include_self=False)), path, given)


def test_the_inverse_of_erf(path):
    x = torch.cat([torch.linspace(-1, 1, 101), torch.tensor([NAN, 2, -2, 1e-30, 0.9999999])])
    run_both(torch.erfinv, path, (x,))


@pytest.mark.parametrize("draw, least", [
    (lambda x: x.clone().uniform_(2, 5), 2), (lambda x: x.clone().exponential_(0.5), 0),
    (lambda x: x.clone().normal_(3, 2), -INF), (lambda x: torch.randint_like(x, 3, 9), 3),
    (lambda x: torch.normal(3.0, 2.0, (4000,)), -INF), (lambda x: torch.normal(x, x + 1), -INF),
], ids=["uniform", "exponential", "normal_", "randint_like", "normal", "normal about"])
def test_random_numbers_have_the_distribution(path, draw, least):
    torch.manual_seed(0)
    onnxruntime.set_seed(0)
    x = torch.ones(4000)
    program = framesmith.export(draw, (x,), operators="onnx")
    framesmith.onnx.export(program, path)
    got, want = torch.from_numpy(of_onnxruntime(path)(inputs_of(program, [x]))[0]), draw(x)
    assert got.shape == want.shape and got.dtype == want.dtype and got.min() >= least
    assert abs(got.mean() - want.mean()) < 0.12 * want.std() and abs(got.std() / want.std() - 1) < 0.15


# --- bags of a table's rows
OFFSETS = [0, 2, 2, 5, 9]


def bagged(mode, *, offsets=OFFSETS, ended=False, weighted=False, dtype=torch.int64, table=torch.float32, padding=None):
    """A model of one table, and its arguments."""
    torch.manual_seed(0)
    model = nn.EmbeddingBag(7, 3, mode=mode, include_last_offset=ended, padding_idx=padding, dtype=table)
    starts = torch.tensor(offsets, dtype=dtype)
    weights = (torch.rand(9, dtype=table),) if weighted else ()
    return model, (torch.tensor([1, 4, 2, 6, 2, 0, 2, 2, 2], dtype=dtype), starts, *weights)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("ended", [False, True], ids=["", "ended"])
@pytest.mark.parametrize("padding", [None, 2, -1])
@pytest.mark.parametrize("mode", ["sum", "mean", "max", "weighted"])
def test_bags(path, mode, padding, ended, dtype):
    model, args = bagged("sum" if mode == "weighted" else mode, ended=ended, weighted=mode == "weighted", dtype=dtype,
                         padding=padding)
    starts = torch.tensor([0, 0, 3, 3, 9], dtype=dtype)
    run_both(model, path, args, (args[0].flip(0), starts, *args[2:]))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_many_elements(path, mode):
    sizes = torch.tensor([0, 1, 70, 0, 3, 17, 4, 5, 16, 0])
    model, index = bagged(mode)[0], torch.randint(0, 7, (int(sizes.sum()),))
    run_both(model, path, (index, sizes.cumsum(0) - sizes), (index, sizes.flip(0).cumsum(0) - sizes.flip(0)))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_without_elements(path, mode):
    model, (index, starts) = bagged(mode)
    run_both(model, path, (index[:0], torch.zeros(3, dtype=torch.int64)))
    run_both(model, path, (index[:0], starts[:0]))


@pytest.mark.parametrize("table", [torch.float64, torch.float16])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_in_other_dtypes(path, mode, table):
    run_both(*[f(bagged(mode, table=table)) for f in (lambda b: b[0], lambda b: path, lambda b: b[1])])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("size", [1, 3])
def test_bags_of_one_size_are_gathered(path, mode, size):
    model, (index, _) = bagged(mode)
    for dtype in (torch.int64, torch.int32):
        rows = index.to(dtype).reshape(-1, size)
        made = run_both(model, path, (rows,), (rows[:1],), (rows[1:],), dynamic_shapes=({0: BATCH},))
        found = {n.op_type for n in made.graph} - {"Cast", "Reshape", "Shape", "Concat", "Range", "Mul"}
        assert found == ({"Gather"} if size == 1 else {"Gather", f"Reduce{mode.capitalize()}"})


def test_bags_whose_offsets_the_file_has(path):
    model, (index, _) = bagged("mean", ended=True)

    def program(index):
        return model(index, torch.tensor([0, 3, 6, 9])), model(index, torch.tensor([0, 3, 7, 9]))

    made = run_both(program, path, (index,))
    assert [n.op_type for n in made.graph].count("Loop") == 1


def test_bags_in_openvino(path):
    pytest.importorskip("openvino")
    for mode in ("sum", "mean", "max"):
        model, args = bagged(mode)
        run_both(model, path, args, engine=of_openvino)


def test_products_of_integers(path):
    a, b = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((20, 32), (32, 16)))
    a[0], b[:, 0], b[:, 1] = -128, -128, 127
    if torch.__version__ >= (2, 13):  # earlier ones take no uint8
        run_both(lambda a, b: torch._int_mm(a, b), path, ((a.int() + 128).to(torch.uint8), b))
    run_both(torch._int_mm, path, (a, b))
    made = run_both(torch._int_mm, path, (a, b), (a[:18], b), dynamic_shapes=({0: BATCH}, None))
    assert [n.op_type for n in made.graph] == ["MatMulInteger"]
