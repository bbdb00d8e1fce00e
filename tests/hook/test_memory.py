"""What entries and trees keep alive: constants; never a model, a callback or what they close over."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref

import torch

from framesmith import _C
from framesmith.capture.guards import compile_guards
from framesmith.capture.sources import Attr, DictAttr, Global, Guard, Item, Local, Pinned, TypeOf
from tests.hook.helpers import variant


class Thing:
    pass


def test_a_guarded_object_dies_and_takes_the_variant_with_it():
    def f(thing):
        return thing

    def residual(thing, inputs):
        return "compiled"

    residual.__name__ = "f"
    cb = variant(residual, lambda f_locals: [Guard(Local("thing"), "id", f_locals["thing"])])
    g = _C.CompiledFunction(f, cb)
    thing = Thing()
    assert g(thing) == "compiled"
    (entry,) = _C.entries(f)
    ref = weakref.ref(thing)
    del thing
    assert ref() is None and not entry.alive and not entry.tree.alive and entry.residual is None
    assert _C.entries(f) == []
    assert g(Thing()) == "compiled" and cb.calls == 2


def test_residual_code_is_freed_when_the_model_dies():
    class Graph:
        def __call__(self):
            return 1

    graph = Graph()
    space = {"graph": graph}
    exec("def f(model, inputs):\n    return 'compiled'", space)
    code = space["f"].__code__.replace(co_consts=(*space["f"].__code__.co_consts, graph))
    ref = weakref.ref(graph)

    def f(model):
        return model

    def cb(original, func, f_locals):
        tree = compile_guards([Guard(Local("model"), "id", f_locals["model"])], [])
        return _C.Entry(tree, original, holder.pop(), cb)

    holder = [code]
    del code, space, graph
    model = torch.nn.Linear(2, 2)
    assert _C.CompiledFunction(f, cb)(model) == "compiled" and ref() is not None
    del model
    gc.collect()
    assert ref() is None


def test_entries_die_with_their_callback_and_with_their_code():
    def make():
        def f(a):
            return a

        return f

    f = make()
    cb = variant(_residual, [Guard(Local("a"), "type", int)])
    cb_ref = weakref.ref(cb)
    _C.CompiledFunction(f, cb)(1)
    assert len(_C.entries(f)) == 1
    del cb
    gc.collect()
    assert cb_ref() is None and _C.entries(f) == []


def _residual(a, inputs):
    return a


_residual.__name__ = "f"


def test_no_references_leak():
    def f(a, b, *rest):
        return a

    def residual(a, b, rest, inputs):
        return b

    residual.__name__ = "f"
    cb = variant(residual, [Guard(Local("a"), "type", Thing), Guard(Attr(Local("a"), "x"), "not_none")], [Local("b")])
    g = _C.CompiledFunction(f, cb)
    a, b = Thing(), Thing()
    a.x = 1
    g(a, b, 1)
    before = [sys.getrefcount(o) for o in (a, b, f, f.__code__, residual.__code__, cb)]
    for _ in range(1000):
        g(a, b, 1)
        with contextlib.suppress(TypeError):
            g(1, 2, a, no=3)
    assert [sys.getrefcount(o) for o in (a, b, f, f.__code__, residual.__code__, cb)] == before


def test_a_tree_holds_no_model():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    layer = Item(DictAttr(Local("m"), "_modules"), "0")
    weight = Item(DictAttr(layer, "_parameters"), "weight")
    tree = compile_guards([Guard(layer, "id", model[0]), Guard(TypeOf(weight), "id", torch.nn.Parameter),
                           Guard(Pinned(model[1]), "not_none")], [weight])
    assert tree.check({"m": model}) == (model[0].weight,)
    refs = [weakref.ref(o) for o in (model, model[0], model[1], model[0].weight)]
    del model
    gc.collect()
    assert [r() for r in refs] == [None] * 4 and tree.check({"m": None}) is None
    assert "gone" in tree.explain_failure({"m": None})


def test_a_tree_in_a_cycle_is_collected():
    space = {}
    tree = compile_guards([Guard(Pinned(space), "namespace", {"x": 5})], [Global("tree")])
    space["tree"] = tree
    space["x"] = 5
    ref = weakref.ref(Thing())
    thing = space["thing"] = Thing()
    ref = weakref.ref(thing)
    del thing, space, tree
    gc.collect()
    assert ref() is None
