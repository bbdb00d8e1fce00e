"""The race of ways to compute contractions, with times that are given: what decides is the whole program."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from framesmith.codegen.triton import tuning
from framesmith.codegen.triton.emit import print_for, print_kernels
from framesmith.codegen.triton.kernel_dedup import shared
from framesmith.codegen.triton.tile_shape import form
from framesmith.loops.ir import Extern, Launch
from framesmith.loops.product import MatrixProduct
from framesmith.loops.text import kernel_text
from framesmith.lower.contractions.tiled import contraction_of, replaced
from framesmith.lower.lower import lower
from framesmith.prims.decompose import decompose
from framesmith.schedule.schedule import schedule
from framesmith.schedule.target import GPU
from framesmith.tuning.contractions import Library, _Race, own_contractions
from framesmith.tuning.kernels import candidates, case_of, footprint
from framesmith.tuning.roofline import PLAIN, START, Rates, least
from tests.codegen_triton.graphs import GRAPHS
from tests.codegen_triton.products import PRODUCTS, program
from tests.fake.harness import record
from tests.schedule.harness import program_of


def plainly(graph):
    return schedule(graph, target=replace(GPU, in_place=False))


class Tuner:
    """No device is asked."""

    def heed(self, program, sizes):
        assert footprint(program, sizes) >= 2 * 4 * 64 * 64


def layers(x, w1, b1, w2, b2):
    """Two layers of one shape, the second with more behind it."""
    y = F.relu(torch.addmm(b1, x, w1.t()))
    return F.layer_norm(torch.addmm(b2, y, w2.t()) + x, (64,))


@pytest.fixture
def graph():
    x, w, b = torch.randn(32, 64), torch.randn(64, 64), torch.randn(64)
    return lower(decompose(record(layers, [x, w, b, w.clone(), b.clone()])[0]))


def race(graph, monkeypatch, library, own, kernel):
    """The program that is chosen when each library's call, each kernel with a contraction and each other takes so
    long."""

    def times(self, steps):
        kinds = {step: library if isinstance(step, Library) else own if "product" in step.text else kernel
                 for step in steps}
        return {step: kind(step) if callable(kind) else kind for step, kind in kinds.items()}

    monkeypatch.setattr(_Race, "_times", times)
    monkeypatch.setattr(_Race, "_least", lambda self, step: 0.0)
    return plainly(own_contractions(graph, plainly, Tuner(), {}, False))


def counts(made):
    products = sum(type(s) is Launch and type(s.kernel.body[-1]) is MatrixProduct for s in made.steps)
    return sum(type(s) is Extern for s in made.steps), products, sum(type(s) is Launch for s in made.steps) - products


def test_slow_products_are_the_librarys(graph, monkeypatch):
    assert counts(race(graph, monkeypatch, 1.0, 9.0, 1.0)) == (2, 0, 2)


def test_a_product_that_saves_a_kernel_may_be_slower_than_the_librarys(graph, monkeypatch):
    # the first takes the activation in; the second's residual would be computed beside the norm anyway
    assert counts(race(graph, monkeypatch, 1.0, 1.5, 1.0)) == (1, 1, 1)


def test_fast_products_are_ours(graph, monkeypatch):
    assert counts(race(graph, monkeypatch, 1.0, 0.5, 1.0)) == (0, 2, 1)


def test_what_cannot_be_measured_is_not_taken(graph, monkeypatch):
    assert counts(race(graph, monkeypatch, 1.0, float("inf"), 1.0)) == (2, 0, 2)


def test_what_cannot_win_is_not_measured(graph, monkeypatch):
    asked = []
    monkeypatch.setattr(_Race, "_times", lambda self, steps: (asked.extend(steps), dict.fromkeys(steps, 1.0))[1])
    monkeypatch.setattr(_Race, "_least", lambda self, step: 3.0)
    assert counts(plainly(own_contractions(graph, plainly, Tuner(), {}, False))) == (2, 0, 2)
    assert asked and not any("product" in step.text for step in asked if not isinstance(step, Library))


def test_a_kernel_takes_at_least_what_its_bytes_and_operations_take():
    made = program_of(lambda a, b: a @ b, torch.zeros(64, 512), torch.zeros(512, 32), target=GPU, change=_tiled)
    (step,) = made.steps
    memory = case_of(step, made, {}).memory
    moved, done = 4 * (64 * 512 + 512 * 32 + 64 * 32), 2 * 64 * 512 * 32
    assert least(step.kernel, memory, {}, Rates(100.0, 1e12)) == pytest.approx(START + moved / 100.0, rel=1e-3)
    assert least(step.kernel, memory, {}, Rates(1e12, 100.0)) == pytest.approx(START + PLAIN * done / 100.0, rel=1e-3)


def test_kernels_at_other_places_in_memory_are_one():
    def steps(x, w):
        return x[1] @ w, x[3] @ w, x[1, :16] @ w

    made = program_of(steps, torch.zeros(4, 32, 64), torch.zeros(64, 16), target=GPU, change=_tiled)
    cases = [case_of(step, made, {}) for step in made.steps if type(step) is Launch]
    assert len(made.kernels) == 3 and len(set(cases)) == 2
    texts = {p.text for p in shared(print_kernels(made), [kernel_text(k, offsets=False) for k in made.kernels])}
    assert len(texts) == 2


@pytest.mark.parametrize("name", GRAPHS)
def test_candidates_print(name):
    fn, make = GRAPHS[name]
    made = program_of(fn, *make(), target=GPU)
    for step in made.steps:
        if type(step) is Launch:
            configs = candidates(step.kernel)
            assert configs[0] == tuning.choose(form(step.kernel)) and len(configs) <= 24
            sizes = dict.fromkeys(step.kernel.symbols, 64)
            assert len({_code(print_for(step.kernel, sizes, config=c)) for c in configs}) == len(configs)


def _code(p):
    """What makes the machine code: stages, which are loads ahead, stand in the text or are those of a loop over
    products."""
    return p.text.replace(p.name, "k"), p.constants, p.num_warps, p.num_stages if "tl.dot" in p.text else None


@pytest.mark.parametrize("across", [False, True])
def test_slim_tiles_have_a_left_operand_along_k(across):
    """Others make a process lose its device."""
    a = torch.zeros((64, 256) if across else (256, 64), dtype=torch.bfloat16)
    made = program_of(lambda a, b: (a.t() if across else a) @ b, a, torch.zeros(64, 16, dtype=torch.bfloat16),
                      target=GPU, change=_tiled)
    found = {(c.blocks["y"], c.blocks["x"]) for c in candidates(made.kernels[0])}
    assert found and ((64, 16) in found) is not across


def _tiled(graph):
    return replaced(graph, {k: "tile" for k, item in enumerate(graph.items) if contraction_of(item, graph.storages)},
                    False)


@pytest.mark.parametrize("name", PRODUCTS)
def test_cases_are_equal_where_launches_are(name):
    fn, make = PRODUCTS[name]
    cases = []
    for made in (program(name), program(name)):
        sizes = dict.fromkeys(made.symbols, 32)
        cases.append([case_of(step, made, sizes) for step in made.steps if type(step) is Launch])
    assert cases[0] == cases[1] and len({hash(c) for c in cases[0]}) <= len(cases[0])
    assert all(m.elements > 0 for c in cases[0] for m in c.memory)
