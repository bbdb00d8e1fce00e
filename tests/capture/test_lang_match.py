"""match statements.  PYTEST_DONT_REWRITE"""
# ruff: noqa
from __future__ import annotations

import collections
import dataclasses
import enum

import torch

from tests.capture.lang import check
from tests.programs import Programs

program = Programs(check)


@dataclasses.dataclass
class Point:
    a: object
    b: object = 0


class Named:
    __match_args__ = ("first", "second")

    def __init__(self, first, second, third=None):
        self.first = first
        self.second = second
        self.third = third


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Bad:
    __match_args__ = 3


Pair = collections.namedtuple("Pair", "left right")


@program
def sequences(x):
    out = []
    for v in ([], [1], [1, 2], (1, 2, 3), [1, [2, 3]], "ab", b"ab", range(3), {1, 2}, {"a": 1}, None, 5, Pair(1, 2),
              x.shape, [1, 2, 3, 4]):
        match v:
            case []:
                out.append("empty")
            case [a]:
                out.append(("one", a))
            case [1, [b, c]]:
                out.append(("nested", b, c))
            case [a, b]:
                out.append(("two", a, b))
            case [first, *rest, 4]:
                out.append(("star", first, rest))
            case (first, *_):
                out.append(("tail", first))
            case _:
                out.append("other")
    return out, x + 1


@program
def mappings(x):
    out = []
    for v in ({}, {"a": 1}, {"a": 1, "b": 2}, {"t": x}, {"k": {"z": 3}}, [1], collections.OrderedDict(a=2, c=3),
              collections.defaultdict(int)):
        match v:
            case {"a": 1, **rest}:
                out.append(("a", rest))
            case {"t": t}:
                out.append(t * 2)
            case {"k": {"z": z}}:
                out.append(z)
            case {"a": n, "c": m}:
                out.append(("ac", n, m))
            case {}:
                out.append("mapping")
            case _:
                out.append("none")
    return out


@program
def classes(x):
    out = []
    for v in (Point(1, 2), Point(x), Named(1, 2, 3), Named("s", 4), 3, 3.5, "text", True, None, [1], {"a": 1}, (1, 2),
              Color.RED, Pair(1, 2)):
        match v:
            case Point(a=torch.Tensor() as t, b=0):
                out.append(t + 1)
            case Point(1, b):
                out.append(("point", b))
            case Named(1, second, third=n):
                out.append((second, n))
            case Named(str(s), int(i)):
                out.append((s, i))
            case bool():
                out.append("bool")
            case int(n) | float(n):
                out.append(("number", n))
            case str() as s:
                out.append(s)
            case list([q]):
                out.append(("list", q))
            case Color.RED:
                out.append("red")
            case Pair(left=l):
                out.append(("pair", l))
            case tuple(tt):
                out.append(tt)
            case None:
                out.append("None")
            case dict(d):
                out.append(d)
    return out


@program
def values_and_guards(x):
    out = []

    def kind(v):
        match v:
            case 1 | 2 | 3 if v > 2:
                return "three"
            case 1 | 2:
                return "small"
            case -1 | 1.5 | "s" | b"b" | 2 + 3j:
                return "literal"
            case True:
                return "true"
            case torch.float32:
                return "dtype"
            case y if isinstance(y, list) and (n := len(y)) > 1:
                return n
            case y:
                return ("any", type(y).__name__)

    for v in (1, 2, 3, -1, 1.5, "s", b"b", 2 + 3j, True, x.dtype, [1, 2], [1], None):
        out.append(kind(v))
    return out, x


@program
def errors(x):
    out = []

    def positional(v):
        match v:
            case Point(1, 2, 3):
                return 1

    def bad(v):
        match v:
            case Bad(1):
                return 1

    def builtin(v):
        match v:
            case int(1, 2):
                return 1

    def twice(v):
        match v:
            case Point(1, a=2):
                return 1

    def no_class(v):
        k = 3
        match v:
            case k(): 
                return 1

    for f, v in ((positional, Point(1)), (bad, Bad()), (builtin, 1), (twice, Point(1)), (no_class, 1)):
        try:
            out.append(f(v))
        except TypeError as e:
            out.append(str(e))
    return out, x


@program
def tensor_shapes(x):
    match x.shape:
        case (a, b) if a < b:
            y = x.transpose(0, 1)
        case _:
            y = x
    match (y.dim(), y):
        case 2, torch.Tensor(shape=(n, m)):
            return y * n + m
    return None


test_programs = program.test()
