"""Guards speak in the user's terms: no address of an object, no name of ours for what they check."""

import ast
import importlib
import pathlib
import threading

import pytest
import torch

import framesmith
from framesmith.capture.guard_text import Note, explain, predicate

CAPTURE = pathlib.Path(framesmith.__file__).parent / "capture"


def predicates():
    """Every function or class that the package gives to a guard as its predicate."""
    for path in sorted(CAPTURE.rglob("*.py")):
        module = "framesmith.capture." + ".".join(path.relative_to(CAPTURE).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and len(node.args) == 3 and getattr(node.args[1], "value",
                                                                              None) == "callable":
                for given in [node.args[2].body, node.args[2].orelse] if isinstance(node.args[2],
                                                                                    ast.IfExp) else [node.args[2]]:
                    name = given.func if isinstance(given, ast.Call) else given
                    if isinstance(name, ast.Name):
                        yield pytest.param(module, name.id, id=f"{module[18:]}.{name.id}")


@pytest.mark.parametrize(("module", "name"), list(predicates()))
def test_a_predicate_has_words(module, name):
    found = getattr(importlib.import_module(module), name, None)
    if found is None:
        pytest.skip("made where it is given")
    assert found.__doc__ and "0x" not in predicate(found)


def test_no_text_names_an_address():
    key, lock = object(), threading.RLock()
    table = {key: 2.0, "a": [1.0]}

    class Thing:
        kind = object()

    thing = Thing()

    def program(x, sizes):
        if sizes[0] > 2 and thing.kind is not None and "b" not in table and threading.get_ident() and thing in [thing]:
            with lock:
                x = x * table[key]
        return [x + len(table), Thing.__subclasses__(), isinstance(x, torch.Tensor)]

    explained = str(framesmith.explain(program)(torch.ones(2), torch.tensor([3, 4])))
    assert " guard " in explained and " at 0x" not in explained and "elements: [3, 4]" in explained


def test_a_miss_names_no_address():
    note = Note("callable", "L['x']", predicate(threading.Lock))
    assert "0x" not in explain(note, object()) + explain(Note("id", "<Thing at 0x7f00>",
                                                              "<a.b.Thing object at 0x7f00>"), 1)
