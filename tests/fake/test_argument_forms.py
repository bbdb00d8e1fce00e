"""Lists of one number for several dimensions, and tensors without elements: recorded in full, refused where eager
refuses."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import framesmith
from framesmith.fake import Recorder, infer
from framesmith.fake.tensor import new_fake

aten = torch.ops.aten
CONVOLUTIONS = (
    {"padding": [1]}, {"stride": (2,)}, {"dilation": [2]}, {"padding": "valid"}, {"padding": "same"},
    {"padding": (1,), "groups": 4},
)  # fmt: skip


def outcome(fn, *tensors):
    """Result, gradients and what is left in the tensors; or the error."""
    tensors = [x.clone().requires_grad_(x.requires_grad) for x in tensors]
    try:
        out = fn(*tensors)
        asked = [x for x in tensors if x.requires_grad]
        return [out.detach(), *(torch.autograd.grad(out.square().sum(), asked) if asked else ()),
                *[x.detach() for x in tensors]]
    except Exception as error:
        return type(error), str(error)


def check(fn, *tensors):
    want, got = outcome(fn, *tensors), outcome(framesmith.compile(fn), *tensors)
    if isinstance(want, tuple):
        assert got == want
        return
    for a, b in zip(got, want, strict=True):
        # sums in another order: rounding of the largest term
        largest = float(b.detach().nan_to_num().abs().max()) if b.numel() else 0
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6 * max(largest, 10), equal_nan=True)
    assert [x.stride() for x in got] == [x.stride() for x in want]


@pytest.mark.parametrize("grad", (False, True), ids=("forward", "backward"))
@pytest.mark.parametrize("how", CONVOLUTIONS, ids=str)
def test_convolutions_take_lists_of_one_and_names(how, grad):
    torch.manual_seed(0)
    x, w = torch.randn(2, 4, 8, 9, requires_grad=grad), torch.randn(4, 4 // how.get("groups", 1), 3, 3,
                                                                    requires_grad=grad)
    check(lambda x, w: F.conv2d(x, w, **how), x, w)


def test_nodes_have_lists_in_full_length():
    recorder = Recorder()
    x, w = recorder.input(torch.randn(2, 4, 8, 8), "x"), recorder.input(torch.randn(4, 4, 3, 3), "w")
    with recorder:
        y = F.max_pool2d(torch.convolution(x, w, None, [1], [1], (1,), False, [0], 1), (2,), padding=[1])
    convolution, pool = [n for n in recorder.finish([y]).nodes if n.op == "call_function"]
    assert convolution.args[3:] == ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    assert pool.args[1:] == ([2, 2], [], [1, 1]) and aten.max_pool2d.default is pool.target


@pytest.mark.parametrize("how", ({"padding": [1, 1, 1]}, {"stride": 0}, {"padding": -1}, {"dilation": [1, 1, 1]}),
                         ids=str)
def test_what_eager_refuses_is_refused(how):
    check(lambda x, w: F.conv2d(x, w, **how), torch.randn(2, 4, 8, 8), torch.randn(4, 4, 3, 3))


@pytest.mark.parametrize("grad", (False, True), ids=("forward", "backward"))
@pytest.mark.parametrize("shape", ((0, 5, 2, 2), (2, 5, 0, 2), (0, 5)), ids=str)
def test_norms_of_nothing(shape, grad):
    x, scale, mean, var = torch.randn(shape, requires_grad=grad), torch.randn(5, requires_grad=grad), torch.randn(
        5), torch.rand(5)
    check(lambda x, w, m, v: F.batch_norm(x, m, v, w, w, True), x, scale, mean, var)
    check(lambda x, w: F.batch_norm(x, None, None, w, None, True), x, scale)
    check(lambda x, w: F.instance_norm(x, weight=w), x, scale)
    check(lambda x, w: F.group_norm(x, 5, w, w), x, scale)


REDUCTIONS = {
    "max along": lambda x: x.max(0).values, "min along": lambda x: x.min(-1).values, "max": torch.max,
    "amin": torch.amin,
    "amax": lambda x: x.amax([]), "argmax": torch.argmax, "median": lambda x: x.median(0).values,
    "norm": lambda x: torch.linalg.vector_norm(x, float("inf"), 0),
    "sum": torch.sum, "mean": lambda x: x.mean(0),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x[None, None], 2),
}  # fmt: skip


@pytest.mark.parametrize("grad", (False, True), ids=("forward", "backward"))
@pytest.mark.parametrize("shape", ((0, 3), (3, 0)), ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_nothing(name, shape, grad):
    check(REDUCTIONS[name], torch.randn(shape, requires_grad=grad))


def test_complex_norms_of_one_element():
    for order in (0, 1, 2, 3, math.inf):
        check(lambda x, order=order: torch.linalg.vector_norm(x, order, -1), torch.randn(3, 1, dtype=torch.complex64))


def test_the_core_checks_lengths():
    x, w = torch.randn(1, 2, 4, 4), torch.randn(2, 2, 3, 3)
    convolution = torch.ops.framesmith.convolution
    for window in (([1], [0, 0], [1, 1]), ([1, 1], [0], [1, 1]), ([1, 1], [0, 0], []), ([0, 1], [0, 0], [1, 1])):
        with pytest.raises(RuntimeError, match="framesmith: a convolution"):
            convolution(x, w, None, *window, 1)
    with pytest.raises(RuntimeError, match="results"):
        torch.ops.framesmith.convolution_images(torch.randn(1, 2, 4, 4), w, [1, 2, 4, 4], [1, 1], [0, 0], [1, 1], 1)


def test_dimensions_out_of_range_are_refused_as_in_eager():
    for fn in (lambda x: torch.softmax(x, 4), lambda x: torch.logsumexp(x, ()), lambda x: torch.cumsum(x, 4),
               lambda x: x.topk(9).values):
        check(fn, torch.randn(3, 4))
    check(lambda x: x.amin([-1, 0]), torch.tensor(1.0))


def test_indices_into_nothing_are_refused():
    index = torch.tensor([0])
    check(lambda x, y: x.index_add(0, index, y), torch.randn(0, 3), torch.randn(1, 3))
    check(lambda x, y: F.cross_entropy(x, y.softmax(1)), torch.randn(3, 0), torch.randn(3, 0))
    check(lambda x, y: F.cross_entropy(x, y.softmax(1), reduction="none"), torch.randn(0, 0, requires_grad=True),
          torch.randn(0, 0))


@pytest.mark.parametrize("name", ["linalg_ldl_solve", "linalg_lu_solve"])
def test_kernels_that_trust_pivots_do_not_run_on_zeros(name, monkeypatch):
    """Rows are exchanged by the numbers that are given, which are not looked at: zeros would write anywhere."""
    ran = []
    func = getattr(torch.ops.aten, name).default
    monkeypatch.setattr("framesmith.fake.infer._to_real", lambda value, budget: ran.append(value) or value)
    fakes = [new_fake((3, 3), (3, 1), torch.float32), new_fake((3,), (1,), torch.int32),
             new_fake((3, 2), (2, 1), torch.float32)]
    infer.true_error(func, tuple(fakes), {})
    assert not ran
