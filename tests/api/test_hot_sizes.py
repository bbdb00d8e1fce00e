"""Kernels of their own for sizes that dominate: which sizes have them, and that calls are right with and without."""

import gc
import threading
import warnings
import weakref

import pytest
import torch
from torch import nn

import framesmith
from framesmith import compiler, hot_sizes

W = 16


class Seen(hot_sizes.HotSizes):
    def __init__(self, *args):
        super().__init__(*args)
        made.append(self)


made = []


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Windows of eight calls, and code for sizes of their own that is twice as fast."""
    made.clear()
    monkeypatch.setattr(compiler, "HotSizes", Seen)
    monkeypatch.setattr(hot_sizes, "WINDOW", 8)
    measure(monkeypatch, 2e-3, 1e-3)


def measure(monkeypatch, varying, fixed):
    monkeypatch.setattr(hot_sizes, "measured", lambda *args: (varying, fixed))


def program(x):
    return (x.softmax(-1) @ x.t()).sum(1) + x.shape[0]


def calls(compiled, fn, sizes):
    for n in sizes:
        x = torch.randn(n, 6)
        torch.testing.assert_close(compiled(x), fn(x), rtol=1e-4, atol=1e-5)
    hot_sizes.wait()


def compiled_for(fn=program, most=2, **options):
    return framesmith.compile(fn, options={"hot_sizes": most}, dynamic=True, **options)


def test_a_size_that_dominates_has_a_kernel_of_its_own():
    compiled = compiled_for()
    calls(compiled, program, [5] * W + [7, 5, 9])
    assert list(made[0]._static) == [(5, 6)]
    calls(compiled, program, [5, 7, 5, 0, 1, 5])


def test_sizes_of_which_none_dominates_have_none():
    calls(compiled_for(), program, list(range(2, 10)) * 20)
    assert not made[0]._static


def test_code_that_is_not_faster_is_not_taken(monkeypatch):
    measure(monkeypatch, 1e-3, 0.99e-3)
    compiled = compiled_for()
    calls(compiled, program, [5] * 4 * W)
    assert not made[0]._static


def test_short_calls_are_not_counted(monkeypatch):
    measure(monkeypatch, 1e-6, 0.5e-6)
    compiled = compiled_for()
    calls(compiled, program, [5] * 4 * W)
    assert not made[0]._static and made[0]._worthwhile is False


def test_the_least_used_goes_with_one_message():
    compiled = compiled_for()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        calls(compiled, program, [5] * 6 * W)
        for n, windows in ((6, 4), (7, 5), (8, 6)):
            calls(compiled, program, [n] * windows * W)
    assert list(made[0]._static) == [(5, 6), (8, 6)]
    messages = [str(w.message) for w in told if "hot_sizes" in str(w.message)]
    assert len(messages) == 1 and "2 variants" in messages[0] and "size 0 of L['x'] = 6" in messages[0]


def test_off_unless_asked_for():
    calls(framesmith.compile(program, dynamic=True), program, [5] * W)
    assert not made


@pytest.mark.parametrize("fn", [
    lambda x: x.add_(1), lambda x: torch.nn.functional.dropout(x, 0.5) * 0, lambda x: x[x > 9].sum(),
], ids=["writes", "draws", "of data"])
def test_calls_that_cannot_be_made_twice_are_not_counted(fn):
    calls(compiled_for(fn), fn, [5] * W)
    assert not made


def test_a_module_with_packed_weights_and_a_weight_that_is_written():
    model = nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Linear(32, 4)).eval()
    compiled = framesmith.compile(model, options={"hot_sizes": 1}, dynamic=True)
    calls(compiled, model, [5] * W)
    assert list(made[0]._static) == [(5,)]
    model[0].weight.mul_(2)
    calls(compiled, model, [5, 7, 5])


def test_an_int_that_is_a_size():
    def rows(x, n):
        return x[:n].exp().sum(0)

    compiled, x = compiled_for(rows), torch.randn(12, 3)
    for n in (4, 5, *[6] * 4 * W, 7):
        torch.testing.assert_close(compiled(x, n), rows(x, n))
    hot_sizes.wait()
    assert any(made_one._static for made_one in made)


def test_threads_call_while_the_code_changes():
    compiled = compiled_for()
    calls(compiled, program, [5, 6])
    faults = []

    def run():
        with torch.no_grad():
            try:
                calls(compiled, program, [5] * 60 + [6, 7] * 10)
            except BaseException as error:
                faults.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not faults and (5, 6) in made[0]._static


def test_what_fails_in_the_thread_leaves_the_code_for_all_sizes(monkeypatch):
    def fails(*args):
        raise RuntimeError("no")

    monkeypatch.setattr(hot_sizes, "measured", fails)
    calls(compiled_for(), program, [5] * 3 * W)
    assert not made[0]._static


def test_nothing_keeps_a_model_alive():
    model = nn.Linear(6, 6).eval()
    compiled = framesmith.compile(model, options={"hot_sizes": 1}, dynamic=True)
    calls(compiled, model, [5] * W)
    gone = weakref.ref(model.weight)
    made.clear()
    del model, compiled
    gc.collect()
    assert gone() is None
