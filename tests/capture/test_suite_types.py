"""What CPython's tests of typing, inspect and calls found: each program gives, captured, what plain Python gives."""

from __future__ import annotations

import abc
import collections.abc
import decimal
import gc
import inspect
import itertools
import types
import typing
from typing import Annotated, Protocol, TypeVar, runtime_checkable

import pytest

import framesmith
from tests.capture.suite import agree, kept
from tests.capture.test_suite_objects import OPTIONS, said

T = TypeVar("T")
CONFIG = ["the module's"]


def reads_global():
    return CONFIG


def arguments_named_as_globals(CONFIG, globals=None, list=None):  # noqa: A002
    framesmith.graph_break()
    return reads_global()[0], CONFIG, globals, list


def free_variables_named_as_globals():
    CONFIG, globals = "closed over", None  # noqa: A001

    def inner():
        framesmith.graph_break()
        return reads_global()[0], CONFIG, globals

    return inner


INNER = free_variables_named_as_globals()


def signatures():
    def made(a, b=10, *args, c: int = 2, **rest) -> str:
        pass

    def told():
        pass

    told.__text_signature__ = "($self, a, b=1)"
    return str(inspect.signature(made)), str(inspect.signature(told)), str(inspect.signature(signed))


def signed(x, y=1):
    pass


def signature_of(fn):
    return str(inspect.signature(fn))


def class_dicts(cls):
    space = cls.__dict__
    entries = space.items()
    framesmith.graph_break()
    assert ("a", 1) in entries
    return type(space), sorted(space)[-1], "a" in space


class HasName:
    a = 1


@runtime_checkable
class Named(Protocol):
    name: str


class Carries:
    def __init__(self, name):
        self.name = name


def protocols():
    @runtime_checkable
    class Sized(Protocol):
        size: int

    class C:
        def __init__(self):
            self.size = 1

    return isinstance(Carries("a"),
                      Named), isinstance(HasName(), Named), isinstance(C(), Sized), isinstance(HasName(), Sized)


def annotated_with_objects():
    class A(str):
        pass

    class B(str):
        pass

    return type(Annotated[str, A("X")].__metadata__[0]) is A, type(Annotated[str, B("X")].__metadata__[0]) is B


def aliases_of_classes_made_here():
    class C(collections.abc.Callable):
        def __call__(self):
            return None

    alias = C[[int], T]
    return alias().__class__ is C, typing.get_args(alias)[1] is T


def a_metaclass_that_looks():
    asked = []

    class Meta(type):
        def __getattribute__(cls, name):
            asked.append(name)
            return super().__getattribute__(name)

    class A(metaclass=Meta):
        x = 1

    return A.x, "x" in asked


class Spelled(str):
    def __eq__(self, other):
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def wrong_keywords():
    def takes(**kwargs):
        return kwargs

    return (said(min, 0, default=1, key=2, foo=3), said(itertools.product, 0, repeat=1, foo=2),
            said(ImportError, 0, name=1, path=2, foo=3),
            said(print, 1, **{Spelled("foo"): 1}), takes(**{Spelled("a"): 1}))


def kinds_of_callables():
    return inspect.isroutine([].count), inspect.isbuiltin([].count), inspect.isfunction([].count)


def the_dict_of_a_metaclass():
    class Meta(type):
        @property
        def __dict__(cls):
            raise AssertionError("asked")

    class Thing(metaclass=Meta):
        spam = 42

    return Thing.spam, Thing().spam, said(inspect.getattr_static, Thing(), "spam")


def a_subclasshook_that_looks_at_its_class():
    class Wants(Wanting):
        pass

    return abc.ABCMeta.__instancecheck__(Wants, HasName()), abc.ABCMeta.__subclasscheck__(Wants, HasName)


@classmethod
def has_all(cls, other):
    return all(name in vars(other) for name in getattr(cls, "wanted", ()))


class Wanting(abc.ABC):  # noqa: B024
    def __init_subclass__(cls):
        cls.wanted = {"size"}
        cls.__subclasshook__ = has_all


def the_base_of_attributes():
    out = []
    for o in (3, "s", None, 2.5):
        for name in ("__dict__", "real", "upper", "nope"):
            try:
                out.append(type(object.__getattribute__(o, name)))
            except AttributeError as e:
                out.append(str(e))
    return out


def a_descriptor_of_type():
    get = type.__dict__["__mro__"].__get__
    return get(HasName), get(type)[-1] is object, said(get, 3), said(get, HasName())


def static_attributes_of_an_object_made_here():
    class Thing:
        d = "class"

    thing = Thing()
    thing.d = 1
    return inspect.getattr_static(thing, "d"), inspect.getattr_static(Thing, "d")


def numbers_of_decimals():
    with decimal.localcontext() as context:
        context.prec = 50
        root = (decimal.Decimal(2) * decimal.Decimal("1.5")).sqrt()
        return float(root), int(root), float(decimal.Decimal("2.5"))


PROGRAMS = {
    static_attributes_of_an_object_made_here: lambda: (), numbers_of_decimals: lambda: (),
    a_descriptor_of_type: lambda: (),
    a_subclasshook_that_looks_at_its_class: lambda: (), the_base_of_attributes: lambda: (),
    arguments_named_as_globals: lambda: ("given",), INNER: lambda: (), signatures: lambda: (),
    class_dicts: lambda: (HasName,),
    protocols: lambda: (), annotated_with_objects: lambda: (), aliases_of_classes_made_here: lambda: (),
    a_metaclass_that_looks: lambda: (),
    wrong_keywords: lambda: (), kinds_of_callables: lambda: (), the_dict_of_a_metaclass: lambda: (),
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
def test_program(program):
    agree(program, PROGRAMS[program], **OPTIONS)


def test_a_signature_follows_the_function():
    def fn(a, b=1):
        pass

    compiled = kept(signature_of, **OPTIONS)
    assert compiled(fn) == "(a, b=1)"
    fn.__defaults__ = (2,)
    assert compiled(fn) == "(a, b=2)"
    fn.__annotations__["a"] = int
    assert compiled(fn) == "(a: int, b=2)"
    fn.__wrapped__ = signed
    assert compiled(fn) == "(x, y=1)"
    assert compiled(types.MethodType(signed, 1)) == "(y=1)"


class Virtual(type):
    def __getattr__(cls, name):
        if name == "eggs":
            return "scrambled"
        raise AttributeError(name)


class Eggs(metaclass=Virtual):
    @types.DynamicClassAttribute
    def eggs(self):
        return "spam"


class Broken:
    def __get__(self, obj, owner):
        raise AttributeError("broken")


class HasBroken:
    md = Broken()


def attributes_that_only_instances_have():
    return Eggs.eggs, Eggs().eggs, said(getattr, Eggs,
                                        "ham"), inspect.isroutine(vars(HasBroken)["md"]), inspect.isroutine(Eggs())


def generator_seen_from_outside():
    def each(lst, a=None):
        b = (1, 2, 3)
        yield from lst
        return b

    made = each([1, 2, 3])
    framesmith.graph_break()
    return inspect.getgeneratorlocals(made)


def abstract_while_it_is_made():
    checks = []

    class Checker(metaclass=abc.ABCMeta):  # noqa: B024
        def __init_subclass__(cls):
            checks.append(inspect.isabstract(cls))

    class Abstract(Checker):
        @abc.abstractmethod
        def foo(self):
            pass

    class Whole(Abstract):
        def foo(self):
            pass

    return checks, inspect.isabstract(Abstract), inspect.isabstract(Whole)


@pytest.mark.parametrize("program", [abstract_while_it_is_made, attributes_that_only_instances_have,
                                     generator_seen_from_outside])
def test_looked_at(program):
    agree(program, **OPTIONS)


class Hint:
    def __get__(self, obj, owner):
        owner.asked += 1
        return lambda: 0


class Hinted:
    asked = 0
    __length_hint__ = Hint()

    def __iter__(self):
        return iter(())


class Key:
    def __hash__(self):
        return hash("a")

    def __eq__(self, other):
        Evil.a = "changed"
        return False


class Evil:
    a = Hint()


def hints_by_a_descriptor():
    Hinted.asked = 0
    return list(Hinted()), Hinted.asked


def keys_with_effects():
    x = Evil()
    vars(x)[Key()] = 0
    framesmith.graph_break()
    Evil.a = "before"
    return x.a, Evil.a


def classes_held_by_locals():
    class Parent:
        pass

    class Child(Parent):
        pass

    framesmith.graph_break()
    gc.collect()
    framesmith.graph_break()
    return len(Parent.__subclasses__())


@pytest.mark.parametrize("program", [hints_by_a_descriptor, keys_with_effects, classes_held_by_locals])
def test_effects_of_lookups(program):
    agree(program, **OPTIONS)


def test_attributes_of_an_alias():
    def change(alias, meta):
        object.__setattr__(alias, "kept", meta)
        typing._GenericAlias.__setattr__(alias, "__told__", meta)  # type: ignore[attr-defined]
        object.__delattr__(alias, "kept")
        return said(int.__setattr__, 3, "real", 4), said(str.__delattr__, "a", "nope")

    alias, fast = typing.List[int], kept(change, **OPTIONS)  # noqa: UP006
    for _ in range(3):
        meta = (Spelled("X"),)
        assert fast(alias, meta) == change(typing.List[str], meta)  # noqa: UP006
        assert alias.__told__ is meta and "kept" not in vars(alias)
