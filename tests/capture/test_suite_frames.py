"""What CPython's own tests found about functions: looks at a frame, methods found by super(), attributes of functions
just made."""

import functools
import sys
from typing import Any

import pytest

from tests.capture.suite import agree, kept


def own_names(h):
    x = h + 1
    return sorted(locals()), x


def names_below(a):
    b = [a]
    return own_names(a), b


def name_of_the_caller():
    return sys._getframe(1).f_code.co_name


def asks_for_its_name():
    return name_of_the_caller()


def evaluates(x):
    y = x + 1  # noqa: F841
    return eval("x + y")


def executes(x):
    exec("x = 5")
    return x, vars()["x"], dir()


class Stack(list):
    def append(self, x):
        push = super().append
        push(x)
        self.n = len(self)


def found_by_super(n):
    s = Stack()
    for i in range(n):
        s.append(i)
    return s, s.n


class Pair(tuple):
    def __new__(cls, first, second):
        return super().__new__(cls, (second, first))


def own_new(x):
    p = Pair(x, 1)
    return p, type(p), p[0]


def decorated(k):
    def inner(a: int, *, b: str = "x") -> float:
        "inner's doc"
        return a + k

    inner.mark = k

    @functools.wraps(inner)
    def outer(*a):
        return inner(*a)

    outer.__dict__["more"] = 1
    return outer, outer.__dict__, outer.__annotations__


def describe(k):
    fn, space, annotations = decorated(k)
    return (fn.__name__, fn.__qualname__, fn.__doc__, fn.__module__, annotations, sorted(space), fn.__dict__ is space,
            fn.__annotations__ is annotations, fn.mark, fn(2), fn.__wrapped__.__doc__, fn.__wrapped__.__kwdefaults__)


PROGRAMS: dict[str, Any] = {
    "locals()": (own_names, 3), "locals() of a callee": (names_below, 3), "sys._getframe": (asks_for_its_name,),
    "eval without a namespace": (evaluates, 2), "exec, vars and dir": (executes, 2),
    "a builtin method found by super()": (found_by_super, 3), "a subclass of tuple with its own __new__": (own_new, 4),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    fn, *args = PROGRAMS[name]
    agree(fn, lambda: args)


def test_attributes_of_a_function_made_in_the_frame():
    plain = describe(3)
    compiled = kept(decorated)
    fn, space, annotations = compiled(3)
    assert fn.__dict__ is space and fn.__annotations__ is annotations
    whole = kept(describe)
    assert whole(3) == plain
    assert (fn.__name__, fn.__doc__, annotations, fn(2)) == (plain[0], plain[2], plain[4], plain[9])
