"""What CPython's own tests of the object model found: each program gives, captured, what plain Python gives."""

from __future__ import annotations

import copy
import dataclasses
import gc
import sys
import types
import typing

import pytest

from tests.capture.suite import agree, kept

OPTIONS = {"standard_library": True, "suppress_errors": False}


def said(fn, *args, **kwargs):
    """The exception of a call: its class, its text, what it is about."""
    try:
        fn(*args, **kwargs)
    except Exception as e:
        return type(e).__name__, str(e), getattr(e, "name", None)
    return None


class Plain:
    pass


class Slotted:
    y = 0
    __slots__ = ("z",)


def changes_without_a_dict():
    return [said(fn, obj(), *args) for obj in (Plain, Slotted) for fn, args in (
        (getattr, ("x",)), (delattr, ("x",)), (delattr, ("y",)), (setattr, ("y", 1)), (delattr, ("z",)))]


class Both:
    def __new__(cls, *args, **kwargs):
        return super().__new__(cls, *args, **kwargs)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


class OnlyInit:
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


def arguments_that_object_refuses():
    return [said(Plain, 42), said(Plain.__new__, Plain, 42), said(Plain().__init__, 42),
            said(object.__init__, Plain(), 42), said(Both, 1),
            said(OnlyInit, 1), said(object, 1), said(Plain)]


def properties_without_functions():
    class Named:
        foo = property()

    class Unnamed:
        pass

    Unnamed.foo = property()
    return [said(fn, obj(), "foo", *args)[1] for obj in (Named, Unnamed) for fn,
            args in ((getattr, ()), (setattr, (1,)), (delattr, ()))]


class Proxy:
    def __init__(self, obj):
        self._obj = obj

    def __getattribute__(self, name):
        return object.__getattribute__(self, name) if name == "_obj" else getattr(self._obj, name)


def a_class_that_an_object_claims():
    return isinstance(Proxy(Plain()), Plain), isinstance(Proxy(1), Plain)


class OnlySet:
    def __set__(self, obj, value):
        obj.__dict__["a"] = value


class Holder:
    a = OnlySet()


def a_dict_behind_a_descriptor(holder):
    holder.a = 42
    fresh = Holder()
    fresh.a = 1
    return vars(holder), vars(fresh), holder.a


class Number(int):
    def __new__(cls, foo):
        self = int.__new__(cls)
        self.foo = foo
        return self

    def __getnewargs__(self):
        return (self.foo,)


def a_copy_that_asks_for_arguments(x):
    y = copy.copy(x)
    return type(y) is type(x), y.foo, y is x


def a_slice_is_itself(s):
    return copy.copy(s) is s, [s][0] is s


class Remembering(tuple):
    last = None

    def reverse(self):
        if self.last is None:
            self.last = type(self)(self[::-1])
        return self.last


def an_attribute_of_a_tuple(x):
    return tuple(x.reverse()), x.reverse() is x.reverse(), x.last is not None


class Eager(str):
    def __eq__(self, other):
        raise AssertionError("a guard ran the program's code")

    __hash__ = str.__hash__


def text_with_an_equality_of_its_own(x):
    return len(x)


def looks_after_a_break(w):
    out = memoryview(w)[0]
    del w
    return locals()


def not_a_cell():
    def with_cell(cell):
        class Meta(type):
            def __new__(cls, name, bases, namespace):
                namespace["__classcell__"] = cell
                return super().__new__(cls, name, bases, namespace)

        class A(metaclass=Meta):
            pass

    return [said(with_cell, cell) for cell in (None, 0)]


def errors_of_super():
    def nothing():
        super()

    def deleted(x):
        del x
        super()

    class Emptied:
        def f(x):
            nonlocal __class__
            del __class__
            super()

        def g(self):
            super()

    return [said(nothing), said(deleted, 1), said(Emptied.g, 1), said(Emptied().f)]


class Base:
    @property
    def value(self):
        return 1


class Derived(Base):
    @property
    def value(self):
        return super().value + 1

    def kinds(self):
        return super().__class__, super().__thisclass__, super().__self__ is self


def attributes_by_super():
    return Derived().value, Derived().kinds()


def a_module_of_a_class_that_listens():
    log = []

    class Listens(types.ModuleType):
        def __getattribute__(self, name):
            log.append(name)
            return super().__getattribute__(name)

    m = Listens("m")
    m.foo = 12
    return m.foo, [name for name in log if not name.startswith("__")]


def a_namespace_as_a_dict():
    m = types.ModuleType("m")
    m.foo = 1
    return m.__dict__["foo"]


class Bound:
    def __get__(self, obj, owner):
        return lambda *args: (obj.word, len(args))


class Manager:
    word = "w"
    __enter__ = Bound()
    __exit__ = Bound()


def special_methods_that_are_descriptors():
    with Manager() as entered:
        return entered


def slots_in_a_list():
    class A:
        __slots__ = ["x", "__dict__"]

    a = A()
    a.x, a.y = 1, 2
    return a.x, vars(a), sorted(vars(A))[-1]


def wrong_init():
    class A:
        def __init__(self):
            return 1

    return said(A)


class Octets(str):
    def __str__(self):
        return self.encode().hex()


def text_of_text(x):
    return str(x), str.__str__(x), x.__str__(), len(x)


def what_a_dataclass_makes():
    @dataclasses.dataclass(frozen=True)
    class C:
        x: int
        y: int = dataclasses.field(init=False, default=10)

    return (hash(C(1)) == hash((1, 10)), C.__init__ is C.__init__, repr(C(2)), said(dataclasses.replace, C(1), y=2)[:2],
            dataclasses.replace(C(1), x=3).x)


def many_fields(n):
    made = dataclasses.make_dataclass("Made", [(f"a{i}", int) for i in range(n)])
    return [f.name for f in dataclasses.fields(made)], made(*range(n)).a0


def fields_of_their_own():
    return dataclasses.field() is dataclasses.field()


def a_mutable_default():
    def make(default):
        @dataclasses.dataclass
        class C:
            x: list = default

    class Mine(list):
        pass

    return said(make, [])[:2], said(make, Mine())[0]


def text_of_circles():
    @dataclasses.dataclass
    class C:
        f: object

    @dataclasses.dataclass
    class D:
        f: object

    c = C(None)
    c.f = D(c)
    return repr(c), repr(c.f)


def tuples_made_anew(x):
    first, second = (1, x), (1, x)
    return first is second, second


def the_bases_of_a_class(cls):
    try:
        return cls.__bases__, cls.__mro__[1], cls.__name__
    finally:
        cls.__bases__ = (Slotless,)
        cls.__name__ = "Renamed"


class Slotless:
    pass


def a_class_nobody_holds():
    class Parent:
        pass

    class Child(Parent):
        pass

    del Child
    gc.collect()  # a class is part of a cycle
    return len(Parent.__subclasses__())


def reversed_by_a_descriptor():
    class Gives:
        def __get__(self, obj, owner):
            return lambda: [owner.__name__]

    class A:
        __reversed__ = Gives()

    class B:
        __reversed__ = None

    return reversed(A()), said(reversed, B())[:2]


def methods_of_object_on_classes():
    return said(object.__setattr__, Plain, "x", 1)[0], object.__getattribute__(Plain, "__name__")


def types_of_their_own():
    return typing.TypeVar("T") is typing.TypeVar("T"), typing.TypeVar("T").__module__


def a_name_that_is_no_text():
    class Key:
        def __hash__(self):
            return hash("a")

        def __eq__(self, other):
            return False

    class A:
        a = 1

    x = A()
    vars(x)[Key()] = 2
    return x.a, len(vars(x))


def abstract_methods():
    class A:
        pass

    return said(getattr, A, "__abstractmethods__"), said(delattr, A, "__qualname__")[0]


PROGRAMS = {
    text_of_text: lambda: (Octets("A"),), what_a_dataclass_makes: lambda: (), many_fields: lambda: (25,),
    fields_of_their_own: lambda: (),
    a_mutable_default: lambda: (), text_of_circles: lambda: (), tuples_made_anew: lambda: (2,),
    the_bases_of_a_class: lambda: (type("Named", (Plain,), {}),), a_class_nobody_holds: lambda: (),
    reversed_by_a_descriptor: lambda: (),
    methods_of_object_on_classes: lambda: (), types_of_their_own: lambda: (), a_name_that_is_no_text: lambda: (),
    abstract_methods: lambda: (),
    changes_without_a_dict: lambda: (), arguments_that_object_refuses: lambda: (),
    properties_without_functions: lambda: (),
    a_class_that_an_object_claims: lambda: (), a_dict_behind_a_descriptor: lambda: (Holder(),),
    a_copy_that_asks_for_arguments: lambda: (Number(42),), a_slice_is_itself: lambda: (slice(1, 10, 2),),
    an_attribute_of_a_tuple: lambda: (Remembering((1, 2, 3)),),
    text_with_an_equality_of_its_own: lambda: (Eager("abc"),),
    looks_after_a_break: lambda: (b"abc",), not_a_cell: lambda: (), errors_of_super: lambda: (),
    attributes_by_super: lambda: (),
    a_module_of_a_class_that_listens: lambda: (), a_namespace_as_a_dict: lambda: (),
    special_methods_that_are_descriptors: lambda: (),
    slots_in_a_list: lambda: (), wrong_init: lambda: (),
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
def test_program(program):
    agree(program, PROGRAMS[program], **OPTIONS)


def test_a_tracer_sees_the_lines_of_code_without_a_graph():
    def work(x):
        if x > 1:
            return x
        return -x

    compiled = kept(work, **OPTIONS)
    compiled(2)
    lines = []

    def trace(frame, event, arg):
        if frame.f_code.co_name == "work" and event == "line":
            lines.append(frame.f_lineno - work.__code__.co_firstlineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        results = compiled(2), compiled(0)
    finally:
        sys.settrace(before)
    assert results == (2, 0) and lines == [1, 2, 1, 3]


def test_a_list_that_holds_itself_in_a_message():
    def program(x):
        return len(x)

    x = ([],)
    x[0].append(x)
    compiled = kept(program, **OPTIONS)
    assert compiled(x) == 1 and compiled((1, 2)) == 2 and compiled(x) == 1


def test_a_tuple_is_another_in_each_call():
    def program(x):
        return (x, 2)

    def constant(x):
        return (1, 2)

    compiled, constants = [kept(fn, **OPTIONS) for fn in (program, constant)]
    assert compiled(1) is not compiled(1) and constants(1) is constants(1)
