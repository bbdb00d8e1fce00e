"""Programs against eager, fused and unfused, by the slow evaluator."""

import pytest
import torch
import torch.nn.functional as F

from framesmith.loops.evaluate import run_program
from framesmith.loops.ir import Extern, Launch, Loop, walk
from framesmith.loops.text import kernel_text
from framesmith.schedule.target import CPU, GPU
from tests.schedule.harness import check, program_of


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def launches(program):
    return sum(type(s) is Launch for s in program.steps)


def externs(program):
    return [str(s.target) for s in program.steps if type(s) is Extern]


def x(*shape, dtype=torch.float32):
    return torch.randn(shape).to(dtype)


def test_pointwise_chain_is_one_flat_kernel():
    program = check(lambda a, b: torch.sigmoid(torch.relu(a * 2 + b) - 1), x(16, 32), x(16, 32))
    assert launches(program) == 1
    assert not program.kernels[0].outer


@pytest.mark.parametrize("shape", [(4, 33), (2, 3, 5, 17), (1, 1), (7,)])
def test_softmax_is_one_kernel(shape):
    assert launches(check(lambda a: F.softmax(a * 3, -1), x(*shape))) == 1


def test_softmax_over_a_strided_dim():
    assert launches(check(lambda a: F.softmax(a, 1), x(3, 5, 33))) == 1


def test_log_softmax_and_loss():
    check(lambda a, t: F.cross_entropy(a, t), x(12, 10), torch.randint(0, 10, (12,)))


def test_layer_norm_with_residual_is_one_kernel():
    program = check(lambda a, r, w, b: F.layer_norm(a + r, (48,), w, b), x(2, 8, 48), x(2, 8, 48), x(48), x(48))
    assert launches(program) == 1


def test_layer_norm_whose_sum_is_returned():
    def f(a, r, w, b):
        h = a + r
        return F.layer_norm(h, (48,), w, b), h

    assert launches(check(f, x(2, 8, 48), x(2, 8, 48), x(48), x(48))) == 1


def test_rms_norm():
    def f(a, w):
        return w * (a * torch.rsqrt(a.pow(2).mean(-1, keepdim=True) + 1e-6))

    assert launches(check(f, x(4, 6, 40), x(40))) == 1


def test_group_norm():
    check(lambda a, w, b: F.group_norm(a, 4, w, b), x(2, 8, 6, 5), x(8), x(8))


def test_group_norm_in_channels_last_reads_whole_vectors():
    """Groups of two channels side by side: the loops over all of the channels are not cut up to share one with the
    groups."""
    image = x(3, 64, 12, 15).contiguous(memory_format=torch.channels_last)
    program = check(lambda a, w, b: F.group_norm(a, 32, w, b), image, x(64), x(64))
    heavy = [k for k in program.kernels if k.work.const >= image.numel()]
    axes = [axis for k in heavy for axis in (*k.outer, *(n.axis for n in walk(k.body) if type(n) is Loop))]
    assert heavy and all(axis.extent.const != 2 for axis in axes)


def test_batch_norm_training_writes_its_statistics():
    def f(a, w, b, m, v):
        return F.relu(F.batch_norm(a, m, v, w, b, training=True))

    check(f, x(4, 6, 5, 5), x(6), x(6), torch.zeros(6), torch.ones(6))


def test_transposed_and_broadcast_reads():
    program = check(lambda a, b: a.t() + b, x(20, 30), x(30, 20))
    assert launches(program) == 1
    assert program.kernels[0].tile is not None


def test_rotary_embedding_has_no_conditions():
    def rotate(q, cos, sin):
        a, b = q.chunk(2, -1)
        return q * cos + torch.cat((-b, a), -1) * sin

    program = check(rotate, x(2, 3, 8, 16), x(8, 16), x(8, 16))
    assert launches(program) == 1
    assert "pred" not in kernel_text(program.kernels[0])


def test_cat_split_pad_roll_flip():
    check(lambda a, b: torch.cat((a, b * 2, a - 1), 1), x(3, 4, 5), x(3, 2, 5))
    check(lambda a: F.pad(a * 2, (1, 2, 3, 0), value=1.5), x(2, 5, 7))
    check(lambda a: torch.roll(a + 1, (2, -1), (1, 2)), x(2, 5, 7))
    check(lambda a: torch.flip(a, (0, 2)) * 2, x(2, 5, 7))
    check(lambda a: [p + 1 for p in a.split(2, 1)], x(3, 6))


def test_window_partition():
    def f(a):
        b, h, w, c = a.shape
        windows = (a + 1).view(b, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
        back = (windows * 2).view(b, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return windows, back

    check(f, x(2, 8, 8, 6))


def test_gather_family():
    index = torch.tensor([[0, 2], [3, 1]])
    check(lambda w, i: F.embedding(i, w) * 2, x(10, 8), index)
    check(lambda a, i: torch.gather(a, 1, i), x(2, 4), index)
    check(lambda a, i: a.index_select(1, i), x(3, 4), torch.tensor([1, 3, 0]))
    check(lambda a, i: a[:, i] + 1, x(3, 4), torch.tensor([-1, 2]))


def test_scatter_family():
    index = torch.tensor([[0, 2], [3, 1]])
    check(lambda a, i, s: a.scatter(1, i, s), x(2, 4), index, x(2, 2))
    check(lambda a, i, s: a.scatter_add(1, i, s), x(2, 4), index, x(2, 2))
    check(lambda a, s: torch.slice_scatter(a, s, 1, 1, 7, 2), x(2, 8), x(2, 3))


def test_index_out_of_range_raises_as_eager():
    inputs = (x(10, 8), torch.tensor([3]))
    program = program_of(lambda w, i: F.embedding(i, w), *inputs)
    with pytest.raises(IndexError):
        run_program(program, (inputs[0], torch.tensor([10])))


@pytest.mark.parametrize("op", ["sum", "mean", "amax", "amin", "prod", "argmax", "argmin"])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_reductions(op, dim):
    check(lambda a: getattr(torch, op)(a, dim=dim), x(3, 5, 7))
    check(lambda a: getattr(torch, op)(a * 2 + 1, dim=dim, keepdim=True), x(3, 5, 7))


def test_large_full_reduction_is_done_in_parts():
    program = check(lambda a: (a * 2).mean(), x(512, 300))
    assert launches(program) == 2


def test_reductions_of_one_element_and_of_none():
    check(lambda a: (a.sum(1), a.argmax(1), torch.var_mean(a, 1, correction=0)), x(4, 1))
    check(lambda a: a.sum(0), x(0, 3))


def test_var_of_a_long_row():
    check(lambda a: torch.var_mean(a, (0, 2, 3)), x(8, 2, 128, 100), rtol=1e-4)


def test_global_average_pool_in_channels_last_vectorises_channels():
    a = x(2, 32, 7, 7).to(memory_format=torch.channels_last)
    program = check(lambda a: F.silu(a).mean((2, 3)), a)
    assert launches(program) == 1


def test_writes_into_inputs():
    def f(a, b):
        a.mul_(2).add_(b)
        b.copy_(a.t())
        return a.sum()

    check(f, x(4, 4), x(4, 4))


def test_externs_take_strided_windows():
    def f(q, k):
        q, k = (t.view(2, 6, 3, 4).transpose(1, 2) for t in (q * 2, k + 1))
        return torch.matmul(q, k.transpose(-1, -2)).softmax(-1)

    program = check(f, x(2, 6, 12), x(2, 6, 12))
    assert externs(program) == ["aten.bmm.default"]


def test_linear_and_attention():
    def f(a, w, b):
        h = F.gelu(F.linear(a, w, b))
        h = h.view(2, 6, 3, 4).transpose(1, 2)
        return F.scaled_dot_product_attention(h, h, h)

    check(f, x(2, 6, 12), x(12, 12), x(12), atol=1e-5)


def test_a_convolution_with_a_weight_that_changes_takes_its_image_as_it_lies():
    program = check(lambda a, w: F.conv2d(a, w), x(2, 3, 8, 8), x(4, 3, 3, 3))
    assert launches(program) == 0 and len(externs(program)) == 1


def test_convolution_block():
    def f(a, w, m, v, s, b):
        h = F.relu(F.batch_norm(F.conv2d(a, w, None, 1, 1), m, v, s, b))
        return h + F.max_pool2d(h, 3, 1, 1)

    check(f, x(2, 3, 9, 9), x(8, 3, 3, 3), x(8), x(8).abs(), x(8), x(8), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half(dtype):
    check(lambda a, w: F.rms_norm(a * 2, (16,), w), x(4, 16, dtype=dtype), x(16, dtype=dtype), rtol=2e-2, atol=2e-2)


def test_integers_and_bools():
    a = torch.randint(-9, 9, (5, 6))
    check(lambda a: (a // 4, a % 4, (a > 2) & (a < 5), a.clamp(-3, 3), (a > 0).any(1), a.to(torch.uint8)), a)
    check(lambda a: torch.where(a > 0, a, -a).float().sqrt(), a)


def test_factories_and_masks():
    def f(a):
        n = a.shape[-1]
        mask = torch.arange(n)[None] > torch.arange(n)[:, None]
        return a.masked_fill(mask, float("-inf")).softmax(-1)

    check(f, x(2, 6, 6))


def test_empty_and_scalar():
    check(lambda a: a + 1, x(0, 4))
    check(lambda a: a * 2 + a.sum(), torch.tensor(3.0))


def test_views_of_inputs_and_aliases_are_returned():
    check(lambda a: (a.t(), a[1:], a + 0), x(4, 5))


@pytest.mark.parametrize("size", [1, 3])
def test_what_a_scatter_wrote_is_read_after_it(size):
    """Along a dimension of one element the store by index falls together with the copy that it writes over."""
    index = torch.zeros(8, 1, dtype=torch.int64)
    check(lambda a, at: torch.zeros_like(a).scatter(1, at, 1.0) + 1, x(8, size), index)
    check(lambda a, at: (a + 1).scatter_add(1, at, a[:, :1]) * 2, x(8, size), index)


@pytest.mark.parametrize("target", [CPU, GPU])
def test_what_can_be_computed_early_is_not_computed_until_it_is_its_turn(target):
    """Each round has a part that waits for the round before, and one that does not, whose results would lie about."""
    def f(t, w, *rounds):
        for x in rounds:
            normal = F.layer_norm(x @ w, (64,))
            t = t + (normal * t).sum(-1, keepdim=True) * normal
            t = t + (t * normal) @ w
        return t

    few, many = (program_of(f, x(32, 64), x(64, 64), *[x(32, 64) for _ in range(n)], target=target).arena_bytes
                 for n in (3, 9))
    assert many == few


def test_what_several_products_read_is_computed_when_it_is_needed():
    def fn(x, h, w):
        for t in range(x.shape[0]):
            h = torch.mm(h, w) + torch.mm(x[t].bfloat16(), w)
        return h

    given = torch.randn(4, 64, 256), torch.randn(64, 256).bfloat16(), torch.randn(256, 256).bfloat16() / 16
    program = check(fn, *given, rtol=2e-2, atol=5e-2, target=GPU)
    assert max(sum(p.mode == "w" for p in k.params) for k in program.kernels) == 1
    assert program.arena_bytes <= 4 * 64 * 256 * 2


@pytest.mark.parametrize("target", (CPU, GPU), ids=("cpu", "gpu"))
@pytest.mark.parametrize("kind", ("sum", "prod", "mean", "var"))
def test_reductions_of_what_does_not_vary_differ_by_their_extents(kind, target):
    check(lambda a: tuple(getattr(a.expand(3, 4)[:, :k], kind)(1) for k in (2, 3, 4)), x(3, 1), target=target)
