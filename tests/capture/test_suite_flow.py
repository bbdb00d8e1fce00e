"""What CPython's own tests found about statements, generators, text and folded calls: each function is a program."""

import contextlib
import io
import json
import operator
import re
import warnings
import weakref
from typing import Any

import pytest

import framesmith
from tests.capture.suite import kept


def compiled(fn: Any) -> Any:
    return kept(fn, standard_library=True)


class Annotated:
    a: int


class Plain(Annotated):
    pass


def annotations_of_classes():
    class A:
        attr: int

    class B(A):
        pass

    B.__annotations__["z"] = 1
    return A.__annotations__, B.__annotations__, Annotated.__annotations__, Plain.__annotations__


def keywords_that_are_no_text():
    try:
        str("x", **{b"foo": 1})
    except TypeError as e:
        return str(e)


def index_of_a_float():
    try:
        return operator.index(10.0)
    except TypeError as e:
        return str(e)


def what_builtin_objects_are_not():
    things = [[], (), {}, set(), {}.keys(), iter([]), lambda: 0]
    return [[getattr(x, name, None) is None for x in things] for name in ("__call__", "mro", "__name__", "__len__")]


class NotMade(Exception):
    def __new__(cls, *args):
        return cls


def thrown_classes_that_make_no_exception():
    def wait():
        try:
            yield 1
        except TypeError as e:
            yield str(e)

    g = wait()
    next(g)
    out = [g.throw(NotMade)]
    for wrong in ((ValueError("x"), 3), (ValueError, None, 5), (3,)):
        try:
            wait().throw(*wrong)
        except TypeError as e:
            out.append(str(e))
    return out


class Base:
    def go(self, x):
        return "base", x


class Derived(Base):
    def breaks(self, x):
        framesmith.graph_break()
        a = super().go(x)
        framesmith.graph_break()
        return a, super().go(x + 1)

    def first_in_a_cell(self, x):
        def me():
            return self

        framesmith.graph_break()
        return [x, framesmith.graph_break(), super().go(me() is self)]

    def generator(self):
        yield 5
        framesmith.graph_break()
        yield super().go(1)

    def raises(self, x):
        framesmith.graph_break()
        if x > 2:
            raise ValueError(super().go(x))
        return super().go(x)


def super_after_breaks():
    d = Derived()
    g = d.generator()
    out = [next(g), d.breaks(1), d.first_in_a_cell(2), *g]
    for x in (1, 3, 3, 3, 3):
        try:
            out.append(d.raises(x))
        except ValueError as e:
            out.append(str(e))
    return out


def fields_of_an_error_from_a_library():
    try:
        re.compile("(")
    except re.error as e:
        return e.msg, e.pos, e.pattern, str(e)


def warnings_of_calls_on_constants():
    with warnings.catch_warnings(record=True) as got:
        warnings.simplefilter("always")
        re.purge()
        re.compile("[[a]")
    return [(w.filename, w.lineno, str(w.message)) for w in got]


def a_pattern_that_prints():
    with contextlib.redirect_stdout(io.StringIO()) as out:
        re.compile("a", re.DEBUG)
    return out.getvalue()


class Owner:
    def method(self):
        return 4


OWNERS = [Owner(), Owner()]


def weak_methods():
    first, other = OWNERS
    a, b, c = weakref.WeakMethod(first.method), weakref.WeakMethod(other.method), weakref.WeakMethod(first.method)
    refs = [weakref.ref.__eq__(a, b), weakref.ref.__eq__(a, c), weakref.ref.__ne__(a, c),
            weakref.ref.__call__(a) is first]
    return a() == first.method, a()(), a == b, a == c, a != b, a != c, refs


def instances_of_classes_of_c():
    scanner = json.scanner.make_scanner(json.JSONDecoder())
    try:
        type(scanner)(3)
    except AttributeError as e:
        return str(e)


PROGRAMS = [instances_of_classes_of_c, weak_methods, annotations_of_classes, keywords_that_are_no_text,
            index_of_a_float,
            what_builtin_objects_are_not, thrown_classes_that_make_no_exception, super_after_breaks,
            fields_of_an_error_from_a_library,
            warnings_of_calls_on_constants, a_pattern_that_prints]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_same_as_plain(program):
    want = program()
    fast = compiled(program)
    assert [fast(), fast(), fast()] == [want] * 3


class Vague:
    def __getattr__(self, name):
        raise AttributeError(name) if name != "said" else AttributeError("x", name="n")

    @property
    def prop(self):
        raise AttributeError


def test_an_attribute_error_is_told_of_what():
    v = Vague()

    def run():
        out = []
        for read in (lambda: v.a, lambda: v.b(), lambda: v.said, lambda: v.prop, lambda: getattr(v, "c")):  # noqa: B009
            try:
                read()
            except AttributeError as e:
                out.append((e.name, e.obj is v, e.args))
        return out

    want = run()
    fast = compiled(run)
    assert [fast(), fast()] == [want] * 2


def test_fields_of_a_syntax_error():
    def run():
        try:
            raise SyntaxError("bad", ("f.py", 1, 2, "abcdefg", 1, 7))
        except SyntaxError as e:
            return e

    e = compiled(run)()
    assert (e.end_lineno, e.end_offset, e.text) == (1, 7, "abcdefg")
