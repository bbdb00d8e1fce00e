"""What is known of a CUDA tensor without a device: metadata, where operators run, and which of them become kernels."""

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from framesmith import targets
from framesmith.autograd.index_dtype import narrow_places
from framesmith.autograd.joint import output_node
from framesmith.autograd.layouts import lay_out, strides_of
from framesmith.codegen.triton.emit import print_kernels
from framesmith.codegen.triton.tile_shape import form
from framesmith.codegen.triton.tuning import choose
from framesmith.config import Config
from framesmith.fake.recorder import Recorder
from framesmith.fake.tensor import contiguous_strides, new_fake
from framesmith.graph.devices import main_device
from framesmith.graph.digest import digest_text
from framesmith.graph.freeze import freeze
from framesmith.graph.interpreter import run
from framesmith.loops.ir import ARENA, Allocate, Extern, Launch, Ref, Release
from framesmith.lower.contractions.pack_linear import worth_freezing
from framesmith.passes import Context, run_passes
from framesmith.pipeline import PASSES
from framesmith.util.errors import Unsupported

from .fakes import DEVICE, FakeTarget, makes_on_cuda, recorded, rounding, scheduled  # noqa: F401

X = torch.randn(8, 64)


def externs(program):
    return [str(step.target) for step in program.steps if isinstance(step, Extern)]


@pytest.mark.usefixtures("makes_on_cuda")
def test_factories_make_on_the_device_that_is_named():
    def fn(x):
        return x + torch.arange(64, device=x.device), torch.ones(3, device="cuda"), torch.zeros_like(x), x.new_full(
            (2,), 1.0), torch.eye(2)

    graph, out = recorded(fn, X)
    assert [o.device for o in out] == [DEVICE] * 4 + [torch.device("cpu")]
    made = [n.kwargs["device"] for n in graph.nodes if n.kwargs.get("device") is not None]
    assert made and all(d.index == 0 for d in made if d.type == "cuda")


def test_the_main_device_is_a_cuda_device_if_there_is_one():
    graph, _ = recorded(lambda x: x.cpu() * 2 + 1, X)
    assert main_device(graph) == DEVICE
    graph, _ = recorded(lambda x: x, X)
    for node in graph.nodes:
        node.meta["val"] = torch.empty(3, device="meta")
    with pytest.raises(Unsupported, match="tensors on meta"):
        main_device(graph)


def test_numbers_of_the_cpu_go_into_the_kernel():
    graph, _ = recorded(lambda x: x * torch.tensor(2.0) + torch.full((), 3.0), X)
    program = scheduled(graph)
    assert externs(program) == [] and len(program.kernels) == 1


def test_what_is_computed_on_the_cpu_is_eagers_and_its_number_is_brought():
    graph, _ = recorded(lambda x: x * (torch.arange(5).sum() * 2), X)
    program = scheduled(graph)
    assert externs(program) == ["aten.arange.default", "aten.sum.default", "aten.mul.Tensor"]
    (kernel,) = program.kernels
    assert [p.host for p in kernel.params].count(True) == 1


@pytest.mark.usefixtures("makes_on_cuda")
def test_a_number_of_the_cpu_that_an_operator_wants_on_the_device_is_put_there():
    graph, _ = recorded(lambda x: x.cpu().sum().to(x.device).logcumsumexp(0), X)
    program = scheduled(graph)
    assert externs(program)[-1] == "aten.logcumsumexp.default"
    assert [(p.mode, p.host) for p in program.kernels[-1].params] == [("r", True), ("w", False)]


@pytest.mark.usefixtures("makes_on_cuda")
def test_copies_between_devices_are_operators():
    graph, out = recorded(lambda x: (x.cpu() + 1, (x * 2).to("cpu").to(DEVICE)), X)
    assert [o.device.type for o in out] == ["cpu", "cuda"]
    program = scheduled(graph)
    assert externs(program) == ["aten._to_copy.default", "aten.add.Tensor", "aten._to_copy.default",
                                "aten._to_copy.default"]


def test_what_is_copied_into_a_tensor_goes_to_its_device():
    def fn(x, y):
        back = torch.empty(64)
        back.copy_(y, non_blocking=True)
        return back.clone(), x * 2

    _, out = recorded(fn, X[0], X[0])
    assert [o.device.type for o in out] == ["cpu", "cuda"]
    with pytest.raises(Unsupported, match="pinned memory"):
        recorded(lambda x: x + torch.empty(4, pin_memory=True), X)


def test_a_tensor_of_the_cpu_beside_one_of_the_device_is_left_to_eager():
    with pytest.raises(Unsupported, match="on tensors of cpu and cuda:0"):
        recorded(lambda x: x + torch.arange(64), X)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_is_one_operator(dtype):
    q = torch.randn(2, 16, 4, 32, dtype=dtype).transpose(1, 2)
    graph, (out,) = recorded(lambda q: F.scaled_dot_product_attention(q, q, q), q)
    assert externs(scheduled(graph)) == ["aten.scaled_dot_product_attention.default"]
    assert out.stride() == q.stride()  # both fused kernels leave the heads inside


def test_attention_on_parts_of_a_matrix_is_laid_out_as_eager_lays_it_out():
    x = torch.randn(2, 16, 3 * 64, dtype=torch.bfloat16)

    def fn(x):
        x = x * 2
        parts = [part.view(2, 16, 2, 32).transpose(1, 2) for part in x.split(64, 2)]
        q, k, v = [torch.ops.aten.clone(part, memory_format=torch.contiguous_format) for part in parts]
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return attended.reshape(32, 64) @ x.select(0, 0).narrow(1, 0, 64).t()

    graph, _ = recorded(fn, x)
    program = scheduled(graph)
    assert externs(program) == ["aten.scaled_dot_product_attention.default"]
    assert len(program.kernels) == 2  # what computes the matrix, and the product


@pytest.mark.usefixtures("makes_on_cuda")
@pytest.mark.parametrize(
    ("mask", "args"),
    [
        (lambda q: torch.where(torch.arange(16).view(16, 1) >= 0, torch.zeros(1, 2, 16, 16, dtype=q.dtype), -1e30), 3),
        (lambda q: torch.zeros(16, 16, dtype=q.dtype), 3),
        (lambda q: torch.full((16, 16), -torch.inf, dtype=q.dtype).triu(1), 6),
        (lambda q: torch.full((16, 16), torch.finfo(q.dtype).min, dtype=q.dtype).triu(1), 6),
        (lambda q: torch.full((16, 16), -100.0, dtype=q.dtype).triu(1), 4),
        (lambda q: torch.full((16, 16), -torch.inf, dtype=q.dtype).triu(1) + q.amax(), 4),
    ],
)
def test_masks_of_numbers_that_are_known(mask, args):
    q = torch.randn(2, 2, 16, 16, dtype=torch.bfloat16)
    with torch.device(DEVICE):
        graph, _ = recorded(lambda q: F.scaled_dot_product_attention(q, q, q, mask(q)), q)
    (node,) = [n for n in graph.nodes if "scaled_dot_product_attention" in str(n.target)]
    assert len(node.args) == args and (args != 6 or node.args[3:] == (None, 0.0, True))


def test_statistics_of_a_norm_are_float32():
    graph, (out, mean, rstd) = recorded(lambda x: torch.native_layer_norm(x, (64,), None, None, 1e-5), X.bfloat16())
    assert (out.dtype, mean.dtype, rstd.dtype) == (torch.bfloat16, torch.float32, torch.float32)


def test_products_convolutions_and_draws_are_operators():
    image = torch.randn(2, 5, 8, 8)
    graph, _ = recorded(lambda x, w: F.conv2d(x, w).relu(), image, torch.randn(4, 5, 3, 3))
    assert externs(scheduled(graph)) == ["aten.conv2d.default"]
    graph, _ = recorded(lambda x: (x @ x.t()).relu() + torch.rand_like(x.narrow(1, 0, 8)), X)
    assert sorted(externs(scheduled(graph))) == ["aten.mm.default", "aten.rand_like.default"]


def test_dropout_is_drawn_in_kernels_in_turn_with_operators():
    graph, _ = recorded(lambda x: F.dropout(F.dropout(F.dropout(x * 2, 0.5) + 1, 0.1) + torch.rand_like(x), 0.3), X)
    program = scheduled(graph)
    assert externs(program) == ["framesmith.draw_state.default", "aten.rand_like.default",
                                "framesmith.draw_state.default"]
    moved = [step.args[1] for step in program.steps if isinstance(step, Extern) and "draw" in str(step.target)]
    assert moved == [8, 4] and len(program.kernels) == 1

    def attention(x):
        q = F.dropout(x, 0.2).view(1, 2, -1, 16)
        return F.dropout(F.scaled_dot_product_attention(q, q, q, dropout_p=0.25), 0.1), F.dropout(x, 0.3)

    graph, _ = recorded(attention, X)
    state, attention = "framesmith.draw_state.default", "aten.scaled_dot_product_attention.default"
    assert externs(scheduled(graph)) == [state, attention, state]


def test_dropout_of_nothing_draws_nothing():
    graph, _ = recorded(lambda x: torch.native_dropout(x, 0.5, True)[0] + 1, torch.empty(0, 4))
    assert "framesmith.draw_state.default" not in externs(scheduled(graph))


def test_an_input_of_the_cpu_is_written_by_an_operator():
    rec = Recorder()
    x = rec.input_like(new_fake((4,), (1,), torch.float32, DEVICE), "x")
    count = rec.input_like(new_fake((), (), torch.float32, torch.device("cpu")), "count")
    with torch.no_grad(), rec:
        count.add_(1)
        out = x * count
    program = scheduled(rec.finish([out]))
    assert externs(program) == ["aten.add.Tensor", "aten.copy_.default"]


@pytest.mark.parametrize(
    ("dtype", "rounded", "results", "last"),
    [(torch.bfloat16, False, 8, True), (torch.float32, True, 4, True), (torch.float32, False, 4, False),
     (torch.float32, True, 8, False)],
)
def test_convolutions_on_matrix_units_run_channels_last(dtype, rounded, results, last):
    """Where eager computes exactly, as of eight channels, layouts are eager's."""
    image, weight, tangent = (torch.randn(s, dtype=dtype)
                              for s in ((2, 16, 8, 8), (results, 16, 3, 3), (2, results, 6, 6)))
    window = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)

    def fn(x, w, g):
        return F.conv2d(x * 2, w).relu(), *torch.ops.aten.convolution_backward(g * 2, x * 2, w, None, *window,
                                                                               [True, True, False])[:2]

    graph, _ = recorded(fn, image, weight, tangent)
    with rounding(products=True, convolutions=rounded):
        program = scheduled(graph)
    calls = [step for step in program.steps if isinstance(step, Extern)]
    strides = [[s.const for s in program.buffers[a.name].stride] for call in calls
               for a in call.args if isinstance(a, Ref)]
    image = [1024, 1, 128, 16] if last else [1024, 64, 8, 1]
    weight = [144, 1, 48, 16] if last else [144, 9, 3, 1]
    tangent = [36 * results, 1, 6 * results, results] if last else [36 * results, 36, 6, 1]
    assert sorted(strides) == sorted([image, weight, tangent, image, weight])


def test_frozen_weights_of_convolutions_are_laid_out_once():
    graph, _ = recorded(lambda x, w: F.conv2d(x, w), torch.randn(2, 16, 8, 8).half(), torch.randn(4, 16, 3, 3).half())
    list(graph.nodes)[1].meta["param"] = True
    run_passes(PASSES, "aten", graph, Context(Config(), FakeTarget(Config(), None, None, DEVICE)))
    frozen = freeze(graph, worth_freezing)
    (made,) = run(frozen.constants, [torch.randn(4, 16, 3, 3).half()])
    assert frozen.parameters == (1,) and made.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.usefixtures("makes_on_cuda")
def test_what_is_made_on_the_cpu_and_copied_is_kept():
    graph, _ = recorded(lambda x: x @ (1 - torch.eye(64)).to(x.device), X)
    frozen = freeze(graph, worth_freezing)
    assert all(n.meta["val"].device == DEVICE for n in frozen.main.nodes if n.op != "output")
    graph, _ = recorded(lambda x: x @ (1 - torch.eye(64, device=DEVICE)), X)
    assert freeze(graph, worth_freezing) is None


def test_copies_of_weights_of_float32_have_the_room_that_images_had():
    """Two of three weights, each larger than a third of the largest result; one that is computed needs none."""

    def fn(x, a, b, c, d):
        return F.conv2d(F.conv2d(F.conv2d(F.conv2d(x, a), b), c), d * 2)

    shapes = [(1, 16, 20, 20), *[(16, 16, 3, 3)] * 4]
    graph, _ = recorded(fn, *[torch.randn(s) for s in shapes])
    for node in list(graph.nodes)[1:5]:
        node.meta["param"] = True
    for rounded in (False, True):
        with rounding(products=True, convolutions=rounded):
            run_passes(PASSES, "aten", graph, Context(Config(), FakeTarget(Config(), None, None, DEVICE)))
        calls = [n for n in graph.nodes if n.target is torch.ops.aten.conv2d.default]
        laid = [n.args[1].target is torch.ops.aten._to_copy.default for n in calls]
        assert laid == [rounded, rounded, False, rounded]


def test_contractions_are_called_as_suits_the_libraries():
    def fn(x, w, b, image, filters, c):
        return F.linear(x, w, b), F.linear(x, w), x @ w.t(), F.conv2d(image, filters, c).relu()

    shapes = ((4, 6, 8), (5, 8), (5,), (2, 5, 8, 8), (4, 5, 3, 3), (4,))
    inputs = [torch.randn(s) for s in shapes]
    graph, _ = recorded(fn, *inputs)
    run_passes(PASSES, "aten", graph, Context(Config(), FakeTarget(Config(), None, None, DEVICE)))
    assert sorted(externs(scheduled(graph))) == ["aten.addmm.default", "aten.conv2d.default", "aten.mm.default",
                                                 "aten.mm.default"]
    for got, expected in zip(run(graph, inputs), fn(*inputs)):
        torch.testing.assert_close(got, expected)


def test_pooling_in_half_precision_is_a_kernel():
    image = torch.randn(2, 16, 8, 8, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    graph, _ = recorded(lambda x: F.max_pool2d(x * 2, 3, 2, 1), image)
    assert externs(scheduled(graph)) == []


def test_a_product_of_a_column_and_a_row_is_a_kernel():
    def fn(a, b, x, y):
        return a @ b, (x @ y).cos()

    inputs = [torch.randn(s) for s in ((3, 5, 1), (3, 1, 6), (4, 1), (1, 7))]
    graph, _ = recorded(fn, *inputs)
    run_passes(PASSES, "aten", graph, Context(Config(), FakeTarget(Config(), None, None, DEVICE)))
    assert externs(scheduled(graph)) == []
    for got, expected in zip(run(graph, inputs), fn(*inputs)):
        torch.testing.assert_close(got, expected)


def test_large_values_live_from_first_write_to_last_use():
    def fn(x):
        y = x.softmax(-1) @ x
        return (y.softmax(-1) @ x).sum()

    for size, late in ((64, 0), (1024, 3)):  # one softmax lies where its scores were
        graph, _ = recorded(fn, torch.randn(size, size))
        program = scheduled(graph)
        allocated = [name for step in program.steps if isinstance(step, Allocate)
                     for name in step.names if name != ARENA]
        released = [name for step in program.steps if isinstance(step, Release) for name in step.names]
        assert len(allocated) == late and set(allocated) <= set(released)


def test_weights_are_cast_into_the_layout_that_convolutions_want():
    image, weight, tangent = torch.randn(2, 16, 8, 8), torch.randn(4, 16, 3, 3), torch.randn(2, 4, 6, 6)

    def gradients(g, x, w):
        x, w = x.bfloat16(), w.bfloat16()
        window = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        return torch.ops.aten.convolution_backward(g.bfloat16(), x, w, [4], *window, [True, True, False])[:2]

    results = {lambda x, w: F.conv2d(x.bfloat16(), w.bfloat16()): ((image, weight), 1),
               gradients: ((tangent, image, weight), 2)}
    for fn, (inputs, count) in results.items():
        program = scheduled(recorded(fn, *inputs)[0])
        (call,) = [step for step in program.steps if isinstance(step, Extern)]
        strides = [[s.const for s in program.buffers[a.name].stride] for a in call.args[: len(inputs)]]
        assert strides[-1] == [144, 1, 48, 16]
        assert len(program.kernels) == len(inputs) + count  # a cast each, and results as eager lays them out


@pytest.mark.parametrize("fn", [lambda x: x / 3.0, F.hardswish, F.hardsigmoid, lambda x: x.mean(1)])
def test_a_number_divides_by_its_reciprocal(fn):
    """As in eager's kernels of GPUs."""
    (kernel,) = print_kernels(scheduled(recorded(fn, X)[0]))
    assert "tl.div_rn" not in kernel.text


def test_the_gradient_of_a_bias_is_a_part_of_what_computes_the_tangent():
    def fn(y, g, x, w):
        window = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        return torch.ops.aten.convolution_backward(g * y.sigmoid(), x, w, [64], *window, [True, True, True])

    image = torch.randn(2, 64, 64, 64, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    weight = torch.randn(64, 64, 3, 3, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    graph, _ = recorded(fn, image, image, image, weight)
    run_passes(PASSES, "aten", graph, Context(Config(), FakeTarget(Config(), None, None, DEVICE)))
    program = scheduled(graph)
    (call,) = [step for step in program.steps if isinstance(step, Extern)]
    assert list(call.args[-1]) == [True, True, False] and len(program.outputs) == 3
    assert len(program.kernels) == 2  # the tangent with sums of its pieces, and their sum
    got, want = run(graph, [t.float() for t in (image, image, image,
                                                weight)]), fn(*(t.float() for t in (image, image, image, weight)))
    torch.testing.assert_close(got, list(want), rtol=1e-4, atol=1e-3)


def test_what_a_forward_keeps_of_convolutions_stays_channels_last():
    def forward(x, w):
        c = w.bfloat16()
        return F.conv2d(x, c), F.conv2d(x, c).relu(), c, w.relu()

    graph, _ = recorded(forward, torch.randn(2, 16, 8, 8, dtype=torch.bfloat16), torch.randn(16, 16, 3, 3))
    kept = output_node(graph).all_input_nodes
    lay_out(list(graph.nodes), kept)
    program = scheduled(graph)
    strides = [[s.const for s in program.buffers[out.name].stride] for out in program.outputs]
    assert strides == [[576, 1, 96, 16], [576, 1, 96, 16], [144, 1, 48, 16], [144, 9, 3, 1]]
    assert len(program.kernels) == 3  # the image, the cast, and both relus: no copy of what the library has given
    backward = fx.Graph()
    place = backward.placeholder("kept")
    place.meta = {k: v for k, v in kept[1].meta.items() if k in ("val", "layout")}
    out = backward.call_function(torch.ops.aten.neg.default, (place,))
    out.meta = {"val": place.meta["val"]}
    backward.output((out,)).meta = {"val": (place.meta["val"],)}
    program = scheduled(backward)
    assert [s.const for s in program.buffers["in0"].stride] == strides[1]
    assert strides_of(place) == tuple(strides[1]) and digest_text(backward) != digest_text(graph)


def test_a_wider_copy_of_many_uses_is_kept_narrow():
    def fn(x):
        wide = (x * 2).tanh().float()
        return wide.sum(0), wide.square().sum(1)

    graph, _ = recorded(fn, torch.randn(256, 256, dtype=torch.bfloat16))
    program = scheduled(graph)
    stored = [b.dtype for b in program.buffers.values() if b.kind in ("arena", "scratch") and len(b.size) == 2
              and b.size[0].const == 256]
    assert stored == [torch.bfloat16]


def test_a_cache_is_written_where_it_is():
    def fn(keys, position, x):
        keys.index_copy_(2, position, x)
        return keys @ keys.transpose(2, 3)

    graph, _ = recorded(fn, torch.zeros(1, 2, 8, 4), torch.tensor([3]), torch.ones(1, 2, 1, 4))
    program = scheduled(graph)
    assert len(program.kernels) == 1 and {b.kind for b in program.buffers.values()} == {"input", "output", "view"}


def test_a_recurrent_layer_without_gradients_is_one_operator():
    """Parameters require grad, the program does not ask for it."""
    rec = Recorder()
    rec.follows_grad = True
    shapes = ((4, 12, 16), (1, 4, 32), (1, 4, 32), (128, 16), (128, 32), (128,), (128,))
    x, h, c, *weights = [rec.input_like(new_fake(s, contiguous_strides(s), torch.float32, DEVICE), f"x{i}") for i,
                         s in enumerate(shapes)]
    with torch.no_grad(), rec:
        out, *_ = torch.ops.aten.lstm.input(x, [h, c], weights, True, 1, 0.0, False, False, True)
    assert out.shape == (4, 12, 32) and externs(scheduled(rec.finish([out]))) == ["aten.lstm.input"]
    with torch.enable_grad(), Recorder() as other, pytest.raises(Unsupported, match="gradients are asked for"):
        other.follows_grad = True
        torch.ops.aten.lstm.input(x, [h, c], weights, True, 1, 0.0, False, False, True)


def test_triton_is_started_ahead_for_code_that_the_cache_has_not_met(monkeypatch, tmp_path):
    started = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(targets.triton, "is_prepared", lambda: False)
    monkeypatch.setattr(targets.triton, "prepare", started.append)
    config = Config(cache_dir=str(tmp_path))
    for place in ("a", "a", "b"):
        targets.expect(config, place)
    assert started == [90, 90]
    targets.expect(config.with_(backend="eager"), "c")
    assert len(started) == 2


def test_places_of_maxima_go_from_kernel_to_kernel_in_two_bytes():
    how, last = ([3, 3], [2, 2], [1, 1], [1, 1], False), torch.channels_last
    image, pooled = (torch.empty(2, 16, *size).bfloat16().to(memory_format=last) for size in ((12, 16), (6, 8)))
    aten = torch.ops.aten

    def both(g, x):
        out, places = aten.max_pool2d_with_indices(x, 3, 2, 1)
        return out, aten.max_pool2d_with_indices_backward(g, x, *how, places)

    graph, _ = recorded(both, pooled, image)
    narrow_places(graph)
    assert [n.kwargs["dtype"] for n in graph.nodes if n.target is aten._to_copy.default] == [torch.int16, torch.int64]

    def forward(x):
        out, places = aten.max_pool2d_with_indices(x, 3, 2, 1)
        return out, places.to(torch.int16)

    def backward(g, x, near):
        return aten.max_pool2d_with_indices_backward(g, x, *how, near.to(torch.int64))

    for fn, inputs in ((forward, [image]), (backward, [pooled, image, pooled.to(torch.int16)])):
        program = scheduled(recorded(fn, *inputs)[0])
        (kernel,) = program.kernels
        assert not externs(program)
        assert sorted(str(p.dtype) for p in kernel.params) == ["torch.bfloat16", "torch.bfloat16", "torch.int16"]


def test_a_group_norm_of_an_image_in_order_is_one_kernel():
    """In other layouts, moments are taken channel by channel: what computes them, what puts them together, what uses
    them."""
    x, w = torch.empty(8, 320, 64, 64, dtype=torch.bfloat16, device="meta"), torch.empty(320).bfloat16()
    graph, _ = recorded(lambda x, w: F.silu(F.group_norm(x, 32, w, w)), x, w)
    assert len(scheduled(graph).kernels) == 1
    graph, _ = recorded(lambda x, w: F.silu(F.group_norm(x, 32, w, w)), x.to(memory_format=torch.channels_last), w)
    assert len(scheduled(graph).kernels) >= 3
    graph, _ = recorded(lambda x, w: F.silu(F.group_norm(x * 2, 32, w, w)), x, w)
    assert len(scheduled(graph).kernels) >= 3


def _activation_and_bias(g, x):
    y = torch.ops.aten.gelu_backward(g, x, approximate="tanh")
    return y, y.float().sum(0)


def _two_sums(g, x):
    return (g * x).float().sum((0, 2, 3)), g.float().sum((0, 2, 3))


MEASURED = {
    "sums of what is stored": (_activation_and_bias, [(8192, 3072)] * 2, torch.bfloat16, {"x": 64, "r": 64}, 8),
    "two sums": (_two_sums, [(64, 256, 56, 56)] * 2, torch.bfloat16, {"x": 64, "r": 32}, 8),
    "two sums of float32": (_two_sums, [(64, 256, 56, 56)] * 2, torch.float32, {"x": 32, "r": 64}, 8),
    "a sum of float32": (lambda g: g.sum(0), [(16384, 3072)], torch.float32, {"x": 32, "r": 64}, 8),
    "light vectors": (lambda x: F.max_pool2d(x, 3, 2, 1), [(64, 64, 112, 112)], torch.bfloat16, {"y": 128, "x": 4}, 2),
    "positions beside": (
        lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), [(64, 64, 112, 112)], torch.bfloat16,
        {"y": 128, "x": 4}, 4),
}  # fmt: skip


@pytest.mark.parametrize("name", MEASURED)
def test_tiles_are_those_that_were_measured_to_be_fast(name):
    """On an H200, of some seventy each; see `benchmarks/gpu/kernels.py` for what most of them are part of."""
    fn, sizes, dtype, blocks, warps = MEASURED[name]
    like = [torch.empty(size, dtype=dtype, device="meta") for size in sizes]
    like = [t.to(memory_format=torch.channels_last) if t.dim() == 4 else t for t in like]
    config = choose(form(scheduled(recorded(fn, *like)[0]).kernels[0]))
    assert (dict(config.blocks), config.warps) == (blocks, warps)


@pytest.mark.parametrize("rows, columns, tile, warps, stages",
                         [(16384, 768, 2, 1, 3), (65536, 256, 4, 1, 4), (8192, 4096, 1, 4, 3)])
def test_the_gradient_of_a_layer_norm_is_two_kernels(rows, columns, tile, warps, stages):
    """One goes over the rows and sums up over those of a part, the other combines the parts."""
    like = [((rows, columns), torch.bfloat16)] * 2 + [((rows, 1), torch.float32)] * 2 + [((columns,), torch.bfloat16)]
    g, x, mean, rstd, w = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in like]

    def fn(g, x, mean, rstd, w):
        return torch.ops.aten.native_layer_norm_backward(g, x, [columns], mean, rstd, w, w, [True, True, True])

    program = scheduled(recorded(fn, g, x, mean, rstd, w)[0])
    over, combined = program.kernels
    assert [step.kernel for step in program.steps if type(step) is Launch] == [over, combined]
    assert over.parts == (512 if columns < 4096 else 256) and not combined.parts
    config = choose(form(over))
    assert (config.blocks["x"], config.warps, config.stages) == (tile, warps, stages)
    # sectors of what it reads, in float32, whatever it writes
    assert choose(form(combined)).blocks["x"] == (8 if columns < 4096 else 16)
