"""Sizes that vary: one variant for all of them, with eager's values, strides, aliasing and gradients."""

import copy
import math
import warnings

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn

import framesmith
from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.expr import eq
from framesmith.testing import CompileCounter
from framesmith.util import log
from framesmith.util.errors import GuardError


@pytest.fixture(autouse=True)
def no_variants_of_other_tests():
    """Functions of one code object share variants."""
    framesmith.reset()


def alike(got, want):
    if not isinstance(want, tuple | list):
        got, want = [got], [want]
    for g, w in zip(got, want, strict=True):
        if isinstance(w, torch.Tensor):
            torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)
            assert g.stride() == w.stride()
        else:
            assert type(g) is type(w) and g == w


ROWS, WEIGHT, TABLE = torch.randn(64, 8), torch.randn(6, 8), torch.arange(512)
PROGRAMS = {
    "pointwise": lambda x: torch.relu(x * 2 + 1) - x.mean(0),
    "linear": lambda x: F.linear(x, WEIGHT).softmax(-1),
    "sizes that leave": lambda x: (x + x.shape[0], x.shape[0] * 3 - 1, x.numel(), x.shape),
    "floats that leave": lambda x: (x / x.shape[0], x.shape[0] / 2, x.shape[0] // 2),
    "floats of sizes": lambda x: (x / float(x.shape[0]), float(x.shape[0] // 2), torch.full((2,), float(x.numel()))),
    "views that leave": lambda x: ((y := x + 1)[1:], y.view(-1, 2, 4), y.t(), y.unsqueeze(0).expand(3, -1, -1)),
    "views of the input": lambda x: (x[1:], x.view(-1), x.t(), x * 2),
    "slices": lambda x: ROWS[:x.shape[0]] + x[-x.shape[0]:],
    "indices": lambda x: x[torch.arange(x.shape[0])[:, None], torch.arange(8)[None]] + TABLE[None, :x.shape[0]].sum(),
    "made": lambda x: torch.cat([torch.zeros(x.shape[0], 2), torch.arange(x.shape[0])[:, None].float(), x], 1),
    "branches": lambda x: x * 2 if x.shape[0] > 1 else x,
    "loops over a list": lambda x: sum([x[:, i] for i in range(x.shape[1])]),
    "written": lambda x: x.clone().add_(1)[1:].mul_(2),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(1, -1, 2, 4).transpose(1, 2)] * 3),
    "padded": lambda x: F.pad(x[None], (2, 1), mode="reflect"),
    "norms": lambda x: F.layer_norm(F.group_norm(x, 2, WEIGHT[0]), (8,)),
    "sorted": lambda x: (x.sort(0).values, x.cumsum(0), x.argmax(0), x.topk(2, 0).values),
    "sorted with gaps": lambda x: (*x[:, 1:4].sort(1), *x[:, ::2].sort(0, descending=True)),
    "a number into a part": lambda x: x.clone().index_fill_(0, TABLE[:1], 2)[:, :3].fill_(1) + x.cumsum(0)[:, :3],
    "a part is set": lambda x: (y := x.clone()).__setitem__((slice(None), slice(0, 3)), 0) or y,
    "a matrix by a batch": lambda x: WEIGHT @ x.view(-1, 8, 1).expand(-1, 8, 5),
    "windows put together": lambda x: F.fold(x.view(-1, 8, 1).expand(-1, -1, 4), (4, 4), 2, stride=2),
    "pooled": lambda x: (F.max_pool1d(x.t()[None], 2, 1), F.max_pool1d(x[:, None], 3, stride=2, padding=1)),
    "above and below a diagonal": lambda x: (x.tril(x.shape[0] - 4), x.triu(4 - x.shape[0])),
    "numbers of sizes": lambda x: (x.new_full((3,), float(len(x))), x.new_full((2,), len(x) / 2, dtype=torch.float64)),
    "ranges to a number": lambda x: (torch.arange(0.0, float(len(x))), torch.arange(len(x) * 1.5), torch.arange(
        -1, len(x) * 1.5, dtype=torch.float64)),
    "a product of sizes": lambda x: x.reshape(math.prod(x.shape)) * math.prod((x.shape[0], 2), start=3),
}


OTHERWISE_FOR_ONE = {"branches", "loops over a list", "attention", "sorted with gaps", "a number into a part",
                     "a part is set"}
"""These do something else for one row, or give a tensor that lies otherwise."""


def test_containers_are_written_where_sizes_are_symbols():
    def fn(x, y):
        pair, sizes = [x, y], {}
        for i in range(2):
            pair[i] = pair[i] * 2
            sizes[i] = pair[i].shape[0]
        pair[0:1] = [pair[0] + 1]
        del pair[1:1]
        pair.insert(0, x)
        pair.sort(key=lambda t: t.shape[0])
        return pair, sizes

    c = framesmith.compile(fn, dynamic=True)
    for n in (3, 5):
        x, y = torch.randn(n, 2), torch.randn(n, 2)
        got, want = c(x, y), fn(x, y)
        alike(got[0], want[0])
        assert got[1] == want[1]


@pytest.mark.parametrize("fn", [
    lambda x: x * (torch.arange(3) + x.shape[0])[-1].item(),
    lambda x: torch.arange(2 * len(x) + 0 * torch.arange(3)[1]),
])
def test_values_that_capture_computes_assume_the_sizes_in_them(fn):
    c = framesmith.compile(fn)
    for n in (5, 8, 11, 11, 6):
        x = torch.randn(n, 3)
        assert torch.equal(c(x), fn(x))


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_second_size_makes_a_variant_for_all(name, captures):
    program = PROGRAMS[name]
    compiled = framesmith.compile(program)
    for n in (5, 7, 12, 33, 3, 5):
        x = torch.randn(n, 8)
        alike(compiled(x), program(x))
    assert captures == ["<lambda>"] * 2


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_size_that_has_varied_and_is_1_makes_a_variant_for_all(name, captures):
    program = PROGRAMS[name]
    compiled = framesmith.compile(program)
    for n in (9, 1, 7, 1, 33):
        x = torch.randn(n, 8)
        try:
            want = program(x)
        except (RuntimeError, IndexError):
            continue
        alike(compiled(x), want)
    assert len(captures) == 2 + (name in OTHERWISE_FOR_ONE)


FIXING = {
    "text": lambda x: (x * 2, f"n={x.shape[0]:03d}", str(x.shape[0]), repr(x.shape), "%d" % (x.shape[0],)),  # noqa: UP031
    "containers": lambda x: (x * 2, {x.shape[0]: 1}, [0] * x.shape[0], hash(x.shape[0]), sorted([7, x.shape[0]])),
    "numbers": lambda x: (x * x.shape[0] ** 0.5, round(x.shape[0] / 3), int(x.shape[0] * 0.7), divmod(x.shape[0], 3)),
    "methods": lambda x: (x * 2, x.shape[0].bit_length(), type(x.shape[0]), float(x.shape[0])),
    "loops": lambda x: sum([x[i] for i in range(x.shape[0])]),
    "data": lambda x: x + torch.tensor([x.shape[0], 2.0])[0],
}


@pytest.mark.filterwarnings("ignore:framesmith")
@pytest.mark.parametrize("name", FIXING)
def test_what_needs_the_number_assumes_it(name):
    program = FIXING[name]
    compiled = framesmith.compile(program)
    for n in (6, 8, 9, 12, 6):
        x = torch.randn(n, 4)
        alike(compiled(x), program(x))


def test_a_dimension_of_one_element_may_lie_anywhere(captures):
    def program(x):
        return x.transpose(0, 1), x * 2

    compiled = framesmith.compile(program)
    for n in (3, 5, 9):
        for x in (torch.randn(1, n), torch.randn(n, 1).t(), torch.randn(n)[None], torch.randn(4, n)[:1]):
            alike(compiled(x), program(x))
            before = len(captures)
            alike(compiled(x), program(x))
            assert len(captures) == before


class Logged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        seen.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


seen = []


@pytest.mark.filterwarnings("ignore:framesmith")
def test_classes_of_the_programs_are_asked_as_in_eager():
    def program(x):
        return x * 2

    compiled = framesmith.compile(program)
    for n in (3, 5, 9):
        x = torch.ones(n).as_subclass(Logged)
        seen.clear()
        program(x)
        want = list(seen)
        seen.clear()
        compiled(x)
        assert seen == want


def test_all_sizes_that_changed_vary_from_then_on(captures):
    def program(a, b, c):
        return a @ b + c

    compiled = framesmith.compile(program)
    for m, n, k in ((3, 4, 5), (6, 7, 8), (9, 4, 2), (2, 30, 8)):
        args = torch.randn(m, k), torch.randn(k, n), torch.randn(n)
        alike(compiled(*args), program(*args))
    assert len(captures) == 2


def test_sizes_that_a_program_assumes_equal_are_guarded(captures):
    compiled = framesmith.compile(lambda a, b: a.shape[0] == b.shape[0])
    for m, n in ((3, 3), (4, 4), (5, 5), (6, 7), (8, 9), (3, 3)):
        assert compiled(torch.ones(m), torch.ones(n)) is (m == n)


APART = {
    "sides of a branch": (lambda x: x.sum(0) if x.shape[0] > 10 else x.amax(0), (3, 5, 8, 12, 30, 7, 11, 10), 3),
    "outcomes of an extremum": (lambda x: (x + 1, min(x.shape[0], 6), max(x.shape[0], 6)), (3, 5, 4, 9, 8, 2), 3),
    "zero and one": (lambda x: ((x * 2).sum(0), x + torch.ones(3, 4)[:1]), (5, 7, 1, 0, 9, 1, 0, 2), 4),
}


@pytest.mark.parametrize("name", APART)
def test_what_a_program_does_otherwise_is_a_variant_of_its_own(name, captures):
    program, sizes, variants = APART[name]
    compiled = framesmith.compile(program)
    for n in sizes:
        x = torch.randn(n, 4)
        alike(compiled(x), program(x))
    assert len(captures) == variants


def test_from_the_first_call_on(captures):
    compiled = framesmith.compile(lambda x: F.gelu(x).sum(-1), dynamic=True)
    for shape in ((3, 4), (5, 6), (2, 9)):
        x = torch.randn(shape)
        alike(compiled(x), F.gelu(x).sum(-1))
    assert len(captures) == 1


@pytest.mark.filterwarnings("ignore:framesmith")
def test_never(captures):
    compiled = framesmith.compile(lambda x: x * 2, dynamic=False)
    for n in range(2, 8):
        alike(compiled(torch.ones(n)), torch.ones(n) * 2)
    assert len(captures) == 6


@pytest.mark.parametrize("mark", [framesmith.mark_dynamic, lambda x, d: setattr(x, "_dynamo_dynamic_indices", {d})])
def test_marked_to_vary(mark, captures):
    compiled = framesmith.compile(lambda x: x * 2)
    for n in (3, 5, 9):
        x = torch.randn(n, 4)
        mark(x, 0)
        alike(compiled(x), x * 2)
    assert len(captures) == 1


def test_marked_not_to_vary(captures):
    compiled = framesmith.compile(lambda x: x * 2)
    for n in (3, 5, 9):
        x = torch.randn(n, 4)
        framesmith.mark_static(x, 0)
        alike(compiled(x), x * 2)
    assert len(captures) == 3


def test_layouts_are_guarded(captures):
    compiled = framesmith.compile(lambda x: x.contiguous().view(-1))
    for n in (3, 5, 9):
        for x in (torch.randn(n, 4), torch.randn(4, n).t(), torch.randn(n, 8)[:, ::2]):
            alike(compiled(x), x.contiguous().view(-1))


def test_a_users_back_end_gets_fixed_sizes():
    counter = CompileCounter()
    compiled = framesmith.compile(lambda x: x * 2, backend=counter)
    for n in (3, 5, 9):
        alike(compiled(torch.ones(n)), torch.ones(n) * 2)
    assert counter.frame_count == 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x):
        return self.down(F.gelu(self.norm(self.up(x)))).mean(1)


def images():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.Upsample(scale_factor=2),
                         nn.Conv2d(8, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@pytest.mark.parametrize("model,shapes", [
    (Net, [(3, 7, 8), (5, 9, 8), (2, 33, 8), (4, 2, 8)]),
    (images, [(2, 3, 8, 8), (3, 3, 12, 10), (4, 3, 6, 20)]),
])
def test_training(model, shapes, captures):
    plain = model()
    fast = copy.deepcopy(plain)
    compiled = framesmith.compile(fast, dynamic=True)
    for shape in shapes:
        x = torch.randn(shape)
        for net, call in ((plain, plain), (fast, compiled)):
            net.zero_grad()
            call(x).square().sum().backward()
        for p, q in zip(plain.parameters(), fast.parameters()):
            torch.testing.assert_close(q.grad, p.grad, rtol=1e-3, atol=1e-4)
            assert q.grad.stride() == p.grad.stride()
    assert len(captures) == 1


@pytest.mark.parametrize("dynamic,trains,most", [(None, False, 2), (True, False, 1), (None, True, 4), (True, True, 1)])
def test_images_of_convolutions_have_symbols_where_kernels_take_them(dynamic, trains, most, captures):
    plain = images().train(trains)
    compiled = framesmith.compile(copy.deepcopy(plain), dynamic=dynamic)
    for shape in ((2, 3, 8, 8), (3, 3, 12, 10), (4, 3, 6, 20)):
        x = torch.randn(shape)
        with torch.set_grad_enabled(trains):
            alike(compiled(x), plain(x))
    assert len(captures) == most


def test_some_gradients_and_gradients_of_gradients(captures):
    def program(x, y):
        return (x.tanh() * y).sum(0), (y * 2).cumsum(0)

    compiled = framesmith.compile(program)
    for n in (3, 5, 8):
        x, y = (torch.randn(n, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
        for k in (0, 1):
            got, want = (torch.autograd.grad(f(x, y)[k].sum(), y)[0] for f in (compiled, program))
            torch.testing.assert_close(got, want)
        twice = []
        for f in (compiled, program):
            grad, = torch.autograd.grad(f(x, y)[0].square().sum(), x, create_graph=True)
            twice.append(torch.autograd.grad(grad.square().sum(), (x, y)))
        torch.testing.assert_close(*twice)
    assert len(captures) == 2


def test_what_breaks_for_any_size_is_captured_for_one():
    def program(x):
        y = x * 2
        return y + len("a" * x.shape[0])

    compiled = framesmith.compile(program)
    for n in (3, 5, 9):
        alike(compiled(torch.ones(n)), program(torch.ones(n)))


def test_a_break_stays_one_at_any_size(captures):
    def program(x):
        y = x * 2
        framesmith.graph_break()
        return y + x.shape[0]

    compiled = framesmith.compile(program)
    for n in (3, 5, 9, 20):
        alike(compiled(torch.ones(n)), program(torch.ones(n)))
    assert len(captures) == 4


def test_an_error_of_the_programs_is_eagers():
    compiled = framesmith.compile(lambda x: x.view(4, -1))
    for n in (4, 8, 12):
        alike(compiled(torch.ones(n)), torch.ones(n).view(4, -1))
    with pytest.raises(RuntimeError, match="shape"):
        compiled(torch.ones(7))


def test_code_for_all_sizes_may_assume_nothing_more():
    env = ShapeEnv()
    s = env.new_symbol(5, "x")
    env.closed = True
    with pytest.raises(GuardError, match="do not decide"):
        env.guard(eq(s, 5))


def test_a_kernel_in_the_cache_answers_for_other_sizes(tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMESMITH_CACHE_DIR", str(tmp_path))
    for sizes in ((5, 6), (40, 3)):
        compiled = framesmith.compile(lambda x: x.softmax(0) @ x.t(), dynamic=True)
        for n in sizes:
            x = torch.randn(n, n + 1)
            alike(compiled(x), x.softmax(0) @ x.t())
        framesmith.reset()


def test_the_log_says_what_is_assumed(capfd):
    log.configure("guards")
    try:
        framesmith.compile(lambda x: x * 2 if x.shape[0] < 9 else x, dynamic=True)(torch.ones(5, 1))
    finally:
        log.configure("")
    shown = capfd.readouterr().err
    assert "[any, 1]" in shown and "s0 >= 2" in shown and "s0 <= 8" in shown


def marked(*shape, mark=framesmith.mark_dynamic, **bounds):
    x = torch.randn(shape)
    mark(x, 0, **bounds)
    return x


def on_five(x):
    return x * 2 if x.shape[0] == 5 else x


CONTRADICTIONS = {
    "a branch": (on_five, "assumes that it is 5", "return x * 2 if x.shape[0] == 5 else x"),
    "a loop": (lambda x: sum([x[i] for i in range(x.shape[0])]), "assumes that it is 5", "range(x.shape[0])"),
    "another size": (lambda x: x + torch.ones(5, 1), "assumes that it is 5", "torch.ones(5, 1)"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
@pytest.mark.parametrize("mark", [framesmith.mark_dynamic, torch._dynamo.mark_dynamic])
def test_what_contradicts_a_mark_is_named(mark, name):
    program, how, line = CONTRADICTIONS[name]
    with pytest.raises(framesmith.exc.ContradictedMark) as error:
        framesmith.compile(program)(marked(5, 2, mark=mark))
    first, source, hint = str(error.value).splitlines()
    assert how in first and f"{__file__}:" in first and line in source and "mark_static" in hint


def test_a_mark_that_is_not_strict_may_be_contradicted():
    alike(framesmith.compile(on_five)(x := marked(5, 2, mark=torch._dynamo.maybe_mark_dynamic)), on_five(x))


@pytest.mark.parametrize("mark", [framesmith.mark_dynamic, torch._dynamo.mark_dynamic])
def test_the_range_of_a_mark_is_known_and_guarded(mark, captures):
    def program(x):
        return x * 2 if x.shape[0] <= 9 else x

    compiled = framesmith.compile(program)
    for n in (4, 5, 9):
        alike(compiled(x := marked(n, 2, mark=mark, min=4, max=9)), program(x))
    assert len(captures) == 1
    for n in (3, 12):
        with pytest.raises(framesmith.exc.ContradictedMark, match="range from 4 to 9"):
            compiled(marked(n, 2, mark=mark, min=4, max=9))
        alike(compiled(x := torch.randn(n, 2)), program(x))


def test_some_gradients_of_a_written_image_ask_for_no_guard():
    def program(a, b):
        b.div_(a)
        return b.logsumexp(0).chunk(2, -1)[0].amax(1)

    compiled = framesmith.compile(program, dynamic=True)
    for shape in ((2, 3, 4, 4), (3, 2, 6, 4)):
        a, b = torch.rand(shape) + 1, torch.randn(shape).contiguous(memory_format=torch.channels_last)
        grads = []
        for fn in (compiled, program):
            x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
            fn(x * 1, y * 1).sum().backward()
            grads.append((x.grad, y.grad))
        alike(*grads)


@pytest.mark.parametrize("fn", [
    lambda x, y: (x.sum((0, -1)), y.sum()),
    lambda x, y: ((x[None, ..., 0].max(y).sigmoid()), (y * 2).sum()),
    lambda x, y: (y.view(-1).cumsum(0), x.mean()),
])
@pytest.mark.parametrize("asked", [(0,), (1,), (0, 1)], ids=str)
def test_a_backward_knows_sizes_of_nothing_that_it_reads(fn, asked, captures):
    c = framesmith.compile(fn, dynamic=True, fullgraph=True)
    for n, m in ((3, 4), (5, 6), (7, 2)):
        grads = []
        for f in (fn, c):
            torch.manual_seed(0)
            x, y = torch.randn(m, n, 4, requires_grad=True), torch.randn(m, n, requires_grad=True)
            sum(f(x, y)[k].sin().sum() for k in asked).backward()
            grads.append((x.grad, y.grad))
        for got, want in zip(*grads, strict=True):
            assert got is want is None or torch.allclose(got, want, atol=1e-5) and got.stride() == want.stride()
    assert len(captures) == 1


@pytest.mark.parametrize("norm", [
    lambda x: F.layer_norm(x, x.shape[-1:]), lambda x: F.layer_norm(x, x.shape[1:]), lambda x: F.instance_norm(x),
    lambda x: F.batch_norm(x, None, None, training=True), lambda x: F.group_norm(x[:, :4], 2),
    lambda x: F.rms_norm(x, x.shape[-1:]),
])
def test_gradients_of_norms_over_sizes_that_vary(norm):
    c = framesmith.compile(norm, dynamic=True, fullgraph=True)
    for shape in ((3, 4, 5), (2, 6, 7), (5, 8, 3)):
        x, grads = torch.randn(shape), []
        for f in (norm, c):
            leaf = x.clone().requires_grad_()
            f(leaf).pow(3).sum().backward()
            grads.append(leaf.grad)
        torch.testing.assert_close(grads[1], grads[0], rtol=1e-3, atol=1e-4)


def test_a_backward_that_cannot_be_compiled_runs_by_operators(monkeypatch):
    from framesmith.prims import registry

    def broken(*args, **kwargs):
        raise IndexError("seeded")

    monkeypatch.setitem(registry.rules, torch.ops.aten.native_layer_norm_backward.default, broken)
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)
    c = framesmith.compile(lambda x: F.layer_norm(x, (4,)) * w, dynamic=True)
    with pytest.warns(UserWarning, match="a backward runs operator by operator.*seeded"):
        c(x).sum().backward()
    (want,) = torch.autograd.grad((F.layer_norm(x, (4,)) * w).sum(), x)
    torch.testing.assert_close(x.grad, want)


def test_what_varied_at_another_rank_is_not_looked_for():
    def fn(x):
        return x.squeeze() * 2

    c = framesmith.compile(fn)
    for shape in ((3, 4, 5), (3, 4, 6), (7,), (), (2, 3)):
        x = torch.randn(shape)
        assert torch.equal(c(x), fn(x))


def test_values_put_must_broadcast():
    def put(x):
        y = x.clamp(-1, 1)
        y[torch.tensor([0, 0])] = x
        return y

    for dynamic in (False, True, None):
        c = framesmith.compile(put, dynamic=dynamic)
        assert torch.equal(c(torch.ones(2, 3)), put(torch.ones(2, 3)))
        with pytest.raises(RuntimeError, match="shape mismatch"):
            c(torch.ones(4, 3))


def test_text_of_sizes_is_made_in_each_call(captures):
    def program(x):
        count = (x > 0).sum()
        return x * 2, f"{count} of {x.shape[0] * x.shape[1]:>5}, {x.shape[0]!s}", str(x.shape[1])

    compiled = framesmith.compile(program, dynamic=True, fullgraph=True)
    for n in (2, 3, 5):
        x = torch.randn(n, n + 4)
        assert compiled(x)[1:] == program(x)[1:]
    assert len(captures) == 1


def test_text_of_a_size_that_decides_assumes_it():
    scales = {"of 2": 2.0, "of 3": 3.0}

    def program(x):
        return x * scales[f"of {x.shape[0]}"]

    compiled = framesmith.compile(program, dynamic=True)
    for n in (2, 3):
        torch.testing.assert_close(compiled(torch.ones(n)), program(torch.ones(n)))


ROUNDED = {
    "int": lambda x: x.new_zeros(int(x.shape[0] / 2), int(x.shape[1] * 1.5), int(x.shape[0])),
    "ceil": lambda x: x.new_zeros(math.ceil((x.shape[0] - 1) / 2) + 1),
    "floor": lambda x: x.new_zeros(math.floor(x.shape[0] * 0.5) + math.trunc(x.shape[1] / 3)),
    "remainder": lambda x: x.new_zeros(int(x.shape[0] % 1.5 * 2), int(x.shape[1] // 0.5), 1 + (x.shape[0] % 0.5 != 0)),
    "root": lambda x: x.new_zeros(int((x.shape[0] * x.shape[0]) ** 0.5), int(math.sqrt(4 * x.shape[1] ** 2) / 2)),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_sizes_are_rounded_as_floats(name, captures):
    compiled = framesmith.compile(ROUNDED[name], dynamic=True, fullgraph=True)
    for n in (4, 7, 9):
        x = torch.randn(n, n + 4)
        assert compiled(x).shape == ROUNDED[name](x).shape
    assert len(captures) == 1


def test_a_root_assumes_equal_sizes(captures):
    """As in DPT: tokens back to a picture that is a square."""
    def program(x):
        side = int((x.shape[1] // 2 * (x.shape[2] // 2)) ** 0.5)
        return F.avg_pool2d(x, 2).flatten(1).view(x.shape[0], side, -1)

    compiled = framesmith.compile(program, dynamic=True, fullgraph=True)
    for shape, variants in (((3, 4, 5), 1), ((3, 8, 8), 1), ((5, 11, 10), 1), ((3, 4, 16), 2)):
        x = torch.randn(shape)
        try:
            want = program(x)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                compiled(x)
        else:
            alike(compiled(x), want)
        assert len(captures) == variants


FLOATS_OF_SIZES = {
    "negative root": lambda x: x * x.shape[0] ** -0.5 + x.sum() * x.shape[1] ** -1.5,
    "reciprocal": lambda x: x.clamp(max=x.shape[0] ** -1),
    "decay": lambda x: x * 0.9 ** x.shape[0],
    "logarithms": lambda x: x * math.log(x.shape[0]) - math.log2(3 * x.shape[0]),
    "exponential": lambda x: (x * math.exp(-x.shape[0]), x.shape[0] ** -0.5),
    "gradient": lambda x: (x * x.shape[0] ** -0.5).square().sum(),
    "view": lambda x: (y := x * x.shape[0] ** -0.5, y.flatten()),
}


@pytest.mark.parametrize("name", FLOATS_OF_SIZES)
def test_floats_of_sizes_need_no_variants(name, captures):
    fn = FLOATS_OF_SIZES[name]
    compiled = framesmith.compile(fn, dynamic=True, fullgraph=True)
    for n in (6, 7, 9, 12):
        x = torch.linspace(-2, 3, 5 * n).reshape(n, 5).requires_grad_(name == "gradient")
        found, wanted = compiled(x), fn(x)
        torch.testing.assert_close(found, wanted)
        if name == "gradient":
            grads = [torch.autograd.grad(y, x)[0] for y in (found, wanted)]
            torch.testing.assert_close(*grads)
    assert len(captures) == 1


def test_a_float_of_a_size_that_fails_is_eagers_error():
    def fn(x):
        return x.sum() * x.shape[0] ** -0.5

    compiled = framesmith.compile(fn, dynamic=True)
    compiled(torch.ones(3, 4))
    framesmith.mark_dynamic(empty := torch.empty(0, 4), 0, min=0)
    with pytest.raises(ZeroDivisionError):
        compiled(empty)


def equal_at_three_sizes(program):
    compiled = framesmith.compile(program, dynamic=True, fullgraph=True)
    for n in (4, 7, 9):
        x = torch.randn(n, n + 4)
        torch.testing.assert_close(compiled(x), program(x))


ELEMENTS_OF_SIZES = {
    "product": lambda x: x.new_zeros(int(torch.as_tensor(7) * x.shape[0])) + x.shape[1],
    "sum": lambda x: torch.arange(
        (torch.tensor([x.shape[0], 2]) + torch.tensor([[1], [3]]) - x.shape[1])[1, 0].abs() + 1),
    "of scaled operands": lambda x: x[:int(torch.sub(torch.tensor(x.shape[0]), torch.tensor(1), alpha=2))] * 2,
}


@pytest.mark.parametrize("name", ELEMENTS_OF_SIZES)
def test_integers_that_tensors_compute_of_sizes(name, captures):
    program = ELEMENTS_OF_SIZES[name]
    compiled = framesmith.compile(program, dynamic=True)
    for size in ((4, 6), (5, 3), (9, 4), (2, 2), (1, 3), (0, 2)):
        alike(compiled(torch.ones(size)), program(torch.ones(size)))
    if name == "product":
        assert len(captures) == 3  # 0 and 1 have their own


NUMBERS = {
    "a size": lambda x: torch.tensor(x.shape[0], device=x.device) + x,
    "sizes": lambda x: torch.as_tensor([(x.shape[0], 3), (4, x.shape[1])], dtype=torch.long, device="cpu"),
    "a shape": lambda x: torch.prod(torch.tensor(list(x.shape))) + torch.tensor(x.shape),
    "halves": lambda x: torch.asarray([x.shape[0] / 2, 1]) + x.sum(),
    "comparisons": lambda x: torch.tensor([x.shape[0] > 3, False]),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_tensors_of_sizes(name, captures):
    equal_at_three_sizes(NUMBERS[name])
    assert len(captures) == 1


def written(x):
    sizes = torch.tensor([x.shape[0], x.shape[1]])
    sizes[0] = 2
    return x.new_zeros(int(sizes[0]), sizes[1].item())


ELEMENTS = {
    "a count": lambda x: torch.arange(0, torch.tensor([[x.shape[0], x.shape[1]], [3, 4]])[0, 1]) + x.sum(),
    "item": lambda x: x.new_zeros(torch.as_tensor((x.shape[0], x.shape[1]))[-1].item()),
    "int": lambda x: x.new_zeros([int(n) for n in torch.tensor([[x.shape[0]], [x.shape[1]]])[:, 0].unbind()]),
    "constant": lambda x: x.new_zeros(torch.tensor([x.shape[0], 5])[1].item()) + x.sum(),
    "written": written,
}


@pytest.mark.parametrize("name", ELEMENTS)
def test_elements_of_tensors_of_sizes_are_symbols(name, captures):
    """As in SAM 3: counts that an operator reads from a tensor of sizes."""
    equal_at_three_sizes(ELEMENTS[name])
    assert len(captures) == (3 if name == "written" else 1)


QUOTIENTS = {
    "operand": lambda x: x * (x.shape[0] / 3) + (x.shape[1] - 0.5),
    "full": lambda x: torch.full((2,), x.shape[0] / 2 - 0.5) + torch.scalar_tensor(x.shape[1] * 0.5),
    "ends of linspace": lambda x: torch.linspace(0.5, x.shape[0] - 0.5, 5) + torch.linspace(0, x.shape[1], 5),
    "steps of linspace": lambda x: torch.linspace(0.5, x.shape[0] - 0.5, x.shape[0], dtype=torch.float64),
}


@pytest.mark.parametrize("name", QUOTIENTS)
def test_operators_take_quotients_of_sizes(name, captures):
    equal_at_three_sizes(QUOTIENTS[name])
    assert len(captures) == 1


def test_a_count_of_even_steps_may_be_one(captures):
    def program(x):
        found = torch.linspace(0.5, x.shape[0] - 0.5, x.shape[0] // 4), torch.linspace(2.5, 3, x.shape[0] // 4)
        return [(y * y).sum() for y in found]

    compiled = framesmith.compile(program, dynamic=True, fullgraph=True)
    for n in (7, 8, 4, 35):
        torch.testing.assert_close(compiled(torch.ones(n)), program(torch.ones(n)))
    assert len(captures) == 1


def test_comparisons_of_sizes_are_data():
    """Without torch.fx's warning of symbolic arguments."""
    def program(x):
        return torch.full((2,), x.shape[0] >= 6), x + 1

    compiled = framesmith.compile(program, dynamic=True, fullgraph=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Raw")
        for n in (5, 7):
            assert all(map(torch.equal, compiled(torch.ones(n)), program(torch.ones(n))))


@pytest.mark.parametrize("fn", [lambda a: a.reshape(-1), lambda a: a.flatten(0, 1).narrow(-1, 0, 1)])
def test_what_a_size_of_one_makes_a_view_is_one(fn):
    compiled = framesmith.compile(fn, dynamic=True)
    for shape in ((3, 4), (5, 6), (1, 4), (3, 1), (4, 1), (1, 1), (2, 2)):
        x = torch.randn(shape).repeat(2, 1)[::2]
        got, expected = compiled(x), fn(x)
        assert (got.data_ptr() == x.data_ptr()) == (expected.data_ptr() == x.data_ptr())
        assert got.stride() == expected.stride()


@pytest.mark.parametrize("fn", [
    lambda x: x.new_zeros(8, len(x) // 2, 4)[:, :, 2:].copy_(x.t().repeat(1, 2)[:, :len(x) // 2 * 4].view(
        8, -1, 4)[:, :, 2:]).sum((1, 2)),  # the strides are equal for an even number of rows
    lambda x: x.abs() ** float(len(x)) + (x.abs() + 1) ** (1 / len(x)),
    lambda x: (x[torch.ones(len(x), dtype=torch.bool)] + 1, torch.ones(len(x)).nonzero()),
], ids=["a copy into another layout", "powers", "known masks"])
def test_one_capture_is_for_all_sizes(fn, captures):
    compiled = framesmith.compile(fn, dynamic=True)
    for n in (7, 12, 4, 33):
        x = torch.randn(n, 8)
        alike(compiled(x), fn(x))
    assert len(captures) == 1


def test_an_exponent_of_eagers_own_product_makes_a_variant(captures):
    compiled = framesmith.compile(lambda x: x ** float(len(x)), dynamic=True)
    for n in (5, 2, 3, 7):
        x = torch.randn(n, 64)
        got = compiled(x)
        assert torch.equal(got, x ** float(n)) if n < 5 else torch.allclose(got, x ** float(n))
    assert len(captures) == 3


def _first_from_last(x):
    x[..., -1] = x[..., 0]
    return x * 2


def _last_from_first(x):
    x.select(-1, 0).copy_(x.select(-1, -1))
    return x + 1


def _every_third(x):
    x[..., 0:3:3] = x[..., 1:3:3]
    return x * 1


@pytest.mark.parametrize("program", [_first_from_last, _last_from_first, _every_third])
def test_columns_are_copied_to_others_of_any_size(program, captures):
    compiled = framesmith.compile(program, dynamic=True)
    for size in ((2, 6), (4, 9), (7, 3), (8, 12)):
        x = torch.randn(size)
        written, expected = x.clone(), x.clone()
        assert torch.equal(compiled(written), program(expected)) and torch.equal(written, expected)
    assert len(captures) == 1


def test_products_of_sizes_that_broadcast_are_one_size_for_all_stages():
    def program(x, y):
        return (x.flatten(0, 1).exp() - y.flatten(0, 1).sin()).view(y.shape) + torch.where(x.sum() > 9, y, 0.5)

    def fixed(x):
        return (x.flatten() * torch.arange(12.0)).view(x.shape).cos()

    compiled, of_one = framesmith.compile(program, dynamic=True), framesmith.compile(fixed, dynamic=True)
    with warnings.catch_warnings(record=True) as told:
        for sizes in (2, 6), (3, 4), (4, 3):
            x, y = torch.randn(*sizes, 5, requires_grad=True), torch.randn(sizes[1], sizes[0], 5, requires_grad=True)
            grads = [torch.autograd.grad(f(x, y).square().sum(), (x, y)) for f in (compiled, program)]
            alike(*grads)
            alike(of_one(x[..., 0]), fixed(x[..., 0]))
    assert not told
