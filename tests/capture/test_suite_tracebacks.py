"""What CPython's own tests found about exceptions that captured code raised and caught, and that live on: they have a traceback."""

import traceback
import unittest
from typing import Any

import framesmith


def compiled(fn: Any) -> Any:
    return framesmith.compile(fn, backend="eager", options={"keep_graphless": True, "warn": False})


def raises(x):
    raise ValueError(x)


def keeps(x):
    try:
        raises(x)
    except ValueError as e:
        saved = e
    return saved


class Manager:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, tb):
        self.seen = [(f.name, f.lineno) for f in traceback.extract_tb(tb)]
        return True


def leaves(x):
    m = Manager()
    with m:
        raises(x)
    return m.seen


def places(error: BaseException) -> list[tuple[str, int | None]]:
    return [(f.name, f.lineno) for f in traceback.extract_tb(error.__traceback__)]


def test_a_caught_exception_that_is_returned():
    fast = compiled(keeps)
    for _ in range(2):
        assert places(fast(3)) == places(keeps(3))


def test_the_traceback_that_a_context_manager_is_given():
    fast = compiled(leaves)
    for _ in range(2):
        assert fast(1) == leaves(1)


class Case(unittest.TestCase):
    def runTest(self):
        self.assertRaises(TypeError, len, 3)
        with self.assertRaisesRegex(ValueError, "no") as caught:
            raises("no")
        self.caught = str(caught.exception)


def test_assertions_of_unittest():
    def run():
        case = Case()
        case.runTest()
        return case.caught

    config = {"keep_graphless": True, "warn": False, "standard_library": True}
    fast = framesmith.compile(run, backend="eager", options=config)
    assert [fast(), fast()] == ["no", "no"]
