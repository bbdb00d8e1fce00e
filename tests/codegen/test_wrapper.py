"""From a recorded function to a callable: kernels, operators, views, written inputs and symbolic sizes in one call."""

import pickle
import re

import pytest
import torch

from framesmith.codegen.cpp import VectorTarget, emit_kernels
from framesmith.codegen.wrapper import wrap
from framesmith.fake.schema import out_variant
from framesmith.runtime.cache import Cache
from framesmith.runtime.load import load
from framesmith.runtime.plan import Kind
from framesmith.runtime.toolchain import find
from framesmith.util.errors import BuildError
from tests.codegen.kernels import WIDTH
from tests.schedule.harness import program_of

aten = torch.ops.aten


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return Cache(tmp_path_factory.mktemp("cache"))


def wrapped_of(program, **how):
    return wrap(program, emit_kernels(program, VectorTarget(WIDTH)), **how)


def compiled(cache, fn, inputs, dynamic=(), jobs=1):
    wrapped = wrapped_of(program_of(fn, *inputs, dynamic=dynamic), jobs=jobs)
    plan = pickle.loads(pickle.dumps(wrapped.plan))
    assert plan == wrapped.plan
    return load(plan, cache.library(wrapped.units, find()), wrapped.constants, checked=True), wrapped


def same(graph, fn, inputs):
    with torch.no_grad():
        mine, theirs = [x.clone() for x in inputs], [x.clone() for x in inputs]
        got, expected = graph(tuple(mine)), fn(*theirs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for a, b in zip((*got, *mine), (*expected, *theirs)):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride() and a.dtype == b.dtype


def norm_block(x, w):
    h = torch.nn.functional.layer_norm(x, (x.shape[-1],))
    return torch.nn.functional.gelu(h @ w) + x, torch.softmax(h, -1).sum()


@pytest.mark.parametrize("fn", [
    lambda x, w: x.sin() * 2,
    norm_block,
    lambda x, w: (x.t(), x[:, 3:5], x.view(4, 4, 16), x + 1),
    lambda x, w: torch.topk(x @ w, 3),
    lambda x, w: torch.sort(x, dim=0),
    lambda x, w: (x @ w).t().contiguous(),
    lambda x, w: torch.cat([x, w]) @ w,
    lambda x, w: (torch.linalg.inv(w + torch.eye(16)), torch.nn.functional.embedding(torch.arange(3), x)),
    lambda x, w: (),
], ids=range(9))  # fmt: skip
def test_same_as_eager(cache, fn):
    inputs = (torch.randn(16, 16), torch.randn(16, 16) / 4)
    graph, _ = compiled(cache, fn, inputs)
    for _ in range(2):
        same(graph, fn, inputs)


def layers(x, w, i):
    for k in range(40):
        x = torch.softmax((x @ w).tanh(), -1) + x[i]
        if k % 7 == 3:
            x = x.sort(0)[0]
    return x


def test_steps_of_equal_layers_are_rows_of_a_table(cache):
    inputs = (torch.randn(16, 16), torch.randn(16, 16) / 4, torch.randint(-16, 16, (16,)))
    graph, wrapped = compiled(cache, layers, inputs)
    same(graph, layers, inputs)
    with pytest.raises(IndexError):
        graph((*inputs[:2], torch.full((16,), 16)))
    text = wrapped.units[-1]
    entry = text[text.index("FS_ENTRY int"):]
    assert entry.count("fs_steps(a, p, n, h, steps") == 1 and not re.search(r"\bk\d+\(|h->call", entry)
    assert len(wrapped.plan.steps) > 80


def test_launches_on_memory_that_sizes_decide_stand_among_tables(cache):
    def fn(x, w):
        return layers(x, w, slice(None))

    w = torch.randn(16, 16) / 4
    graph, wrapped = compiled(cache, fn, (torch.randn(16, 16), w), dynamic={(0, 0)})
    assert wrapped.plan.table > 0 and "fs_steps(a, p, n, h, steps" in wrapped.units[-1]
    for rows in (16, 5):
        same(graph, fn, (torch.randn(rows, 16), w))


def test_written_inputs(cache):
    def fn(x, y):
        x.add_(y)
        y[0] = 3
        return x * 2

    inputs = (torch.randn(8, 4), torch.randn(8, 4))
    graph, wrapped = compiled(cache, fn, inputs)
    same(graph, fn, inputs)
    assert wrapped.plan.bumped == (0, 1)
    graph(inputs)
    assert inputs[0]._version == inputs[1]._version == 1


@pytest.mark.parametrize("rows", [5, 16, 33, 2])
def test_symbolic_sizes(cache, rows):
    inputs = (torch.randn(16, 32), torch.randn(32, 32) / 4)
    graph, wrapped = compiled(cache, norm_block, inputs, dynamic={(0, 0)})
    assert wrapped.plan.table > 0
    same(graph, norm_block, (torch.randn(rows, 32), inputs[1]))


def test_positions_in_a_longer_tuple(cache):
    wrapped = wrapped_of(program_of(lambda a, b: a - b, torch.ones(4), torch.ones(4)), positions=(3, 1), inputs=5)
    graph = load(wrapped.plan, cache.library(wrapped.units, find()))
    a, b = torch.randn(4), torch.randn(4)
    assert torch.equal(graph((None, b, None, a, None))[0], a - b)


def test_kernels_in_several_units(cache):
    def fn(x):
        return tuple(torch.softmax(x.narrow(0, 0, n + 2).sin() * n, -1).cumsum(0).tanh() for n in range(24))

    inputs = (torch.randn(26, 43),)
    graph, wrapped = compiled(cache, fn, inputs, jobs=2)
    assert len(wrapped.units) == 2
    same(graph, fn, inputs)


def test_kernels_for_vectors_of_another_width_do_not_compile(cache):
    program = program_of(torch.sin, torch.ones(12))
    wrapped = wrap(program, emit_kernels(program, VectorTarget(24 - WIDTH)))
    with pytest.raises(BuildError, match="vectors that kernels are not printed for"):
        cache.library(wrapped.units, find())


def test_an_index_out_of_range_is_eagers_error(cache):
    def fn(x, i):
        return x[i] + 1

    x, i = torch.randn(5, 4), torch.tensor([0, -1, 4])
    graph, _ = compiled(cache, fn, (x, i))
    same(graph, fn, (x, i))
    with pytest.raises(IndexError):
        graph((x, torch.tensor([0, 5, 1])))


def test_out_forms_that_write_are_used(cache):
    assert out_variant(aten.mm.default) == ("out", ("out",))
    assert out_variant(aten.topk.default) == ("values", ("values", "indices"))
    assert out_variant(aten.convolution.default) is None
    _, wrapped = compiled(cache, lambda x, w: (x @ w) @ w, (torch.randn(16, 16), torch.randn(16, 16)))
    assert [c.overload for c in wrapped.plan.externs] == ["out", "out"]
    assert Kind.RESULT not in {v.kind for v in wrapped.plan.values}
