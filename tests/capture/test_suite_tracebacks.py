"""What CPython's own tests found about exceptions that captured code raised and caught, and that live on: they have a
traceback."""

import contextlib
import re
import traceback
import unittest

import pytest

import framesmith
from tests.capture.suite import kept


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
    fast = kept(keeps)
    for _ in range(2):
        assert places(fast(3)) == places(keeps(3))


def test_the_traceback_that_a_context_manager_is_given():
    fast = kept(leaves)
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


def text_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def raised_again(x):
    """`raise e` adds an entry, `raise` does not."""
    out = []
    for again in (False, True):
        try:
            try:
                raises(x)
            except ValueError as e:
                if again:
                    raise e
                raise
        except ValueError as e:
            out.append(e)
    return out


def raised_again_after_a_break(x):
    try:
        try:
            raises(x)
        except ValueError as e:
            framesmith.graph_break()
            raise e
    except ValueError as e:
        return [e]


def below(x):
    try:
        raises(x)
    finally:
        framesmith.graph_break()


def out_of_a_frame_that_broke(x):
    try:
        below(x)
    except ValueError as e:
        return [e]


def generates(x):
    yield x
    raises(x)


def through_a_generator(x):
    try:
        for _ in generates(x):
            pass
    except ValueError as e:
        return [e]


def thrown_into_generators(x):
    out = []
    for steps in range(3):
        g = generates(x)
        try:
            for _ in range(steps):
                next(g)
        except ValueError:
            pass
        try:
            g.throw(KeyError(x))
        except KeyError as e:
            out.append(e)
    return out


def of_a_library(x):
    try:
        re.compile("(")
    except re.error as e:
        return [e]


def of_a_context_manager(x):
    @contextlib.contextmanager
    def wraps():
        try:
            yield
        except ValueError as e:
            raise KeyError(x) from e

    try:
        with wraps():
            raises(x)
    except KeyError as e:
        return [e]


def set_and_taken(x):
    try:
        raises(x)
    except ValueError as e:
        tb = e.__traceback__
        lines = tb.tb_lineno, tb.tb_next.tb_lineno, tb.tb_next.tb_next
        bare = KeyError(x).with_traceback(tb.tb_next)
        e.__traceback__ = None
        return [e, bare, ValueError(lines)]


@pytest.mark.parametrize("program", [raised_again, raised_again_after_a_break, out_of_a_frame_that_broke,
                                     through_a_generator,
                                     thrown_into_generators, of_a_library, of_a_context_manager, set_and_taken],
                         ids=lambda p: p.__name__)
def test_texts(program):
    fast = kept(program, standard_library=True)
    want = [text_of(e) for e in program(7)]
    for _ in range(3):
        assert [text_of(e) for e in fast(7)] == want


def test_locals_and_suggestions_of_frames_that_are_gone():
    k = 3

    def closed(x):
        blech = k  # noqa: F841
        return bluch  # noqa: F821

    def run(x):
        try:
            closed(x)
        except NameError as e:
            return e

    fast = kept(run)
    for _ in range(2):
        frame = fast(1).__traceback__.tb_next.tb_frame
        assert frame.f_code is closed.__code__ and "blech" in frame.f_code.co_varnames
        assert frame.f_locals == {} and frame.f_back is None
        frame.clear()


def test_where_frames_have_ended():
    def other_except():
        try:
            raise ValueError
        except TypeError as e:  # noqa: F841
            pass

    def twice():
        try:
            raise ValueError
        except ValueError as e:
            raise e

    def run():
        out = []
        for f in (other_except, twice):
            try:
                f()
            except ValueError as e:
                tb = e.__traceback__.tb_next
                while tb is not None:
                    out.append((tb.tb_lineno, tb.tb_frame))
                    tb = tb.tb_next
        return [(line, frame.f_lineno, frame.f_code.co_name) for line, frame in out], out[1][1] is out[2][1]

    want = run()
    fast = kept(run)
    assert [fast(), fast()] == [want] * 2
