"""The frame hook: entries, verdicts, exceptions, recursion, threads, other hooks."""

from __future__ import annotations

import gc
import sys
import threading
import traceback
import warnings

import pytest

from framesmith import _C
from framesmith.capture.guards import compile_guards
from framesmith.capture.sources import Cell, Guard, Local
from tests.hook.helpers import equals, type_of, variant


def test_every_kind_of_argument_reaches_the_residual_code():
    def f(a, /, b=2, *rest, k=3, **more):
        return "eager"

    def residual(a, b, k, rest, more, inputs):
        return a, b, k, rest, more, inputs

    residual.__name__ = "f"
    g = _C.CompiledFunction(f, variant(residual, [type_of("a")], [Local("b"), Local("a")]))
    for _ in range(3):
        assert g(1) == (1, 2, 3, (), {}, (2, 1))
        assert g(1, 5, 6, 7, k=8, z=9) == (1, 5, 8, (6, 7), {"z": 9}, (5, 1))


def test_entry_is_used_again_and_a_failed_guard_asks_again():
    def f(n):
        return n

    cb = variant(_named("f", lambda n, inputs: ("compiled", n)), equals("n"))
    g = _C.CompiledFunction(f, cb)
    assert [g(1), g(1), g(2), g(1), g(2)] == [("compiled", n) for n in (1, 1, 2, 1, 2)]
    assert cb.calls == 2
    assert sorted(e.hits for e in _C.entries(f)) == [1, 2]
    assert f(1) == 1, "outside a compiled call the function is as it was"
    _C.reset(f)
    assert _C.entries(f) == [] and g(1) == ("compiled", 1) and cb.calls == 3


def _named(name, function):
    function.__name__ = name
    return function


def test_the_latest_hit_comes_first():
    def f(n):
        return n

    g = _C.CompiledFunction(f, variant(_named("f", lambda n, inputs: n), equals("n")))
    for n in (1, 2, 3, 1):
        g(n)
    assert [e.hits for e in _C.entries(f)] == [1, 0, 0]


def test_closure_and_globals_are_the_frames_own():
    def outer(x):
        def f(a):
            return a + x + GLOBAL

        return f

    def residual_outer(x):
        def f(a, inputs):
            return ("compiled", a + x + GLOBAL, inputs)

        return f

    cb = variant(residual_outer(0), [type_of("a")], [Cell("x")])
    one, ten = (_C.CompiledFunction(outer(x), cb) for x in (1, 10))
    assert one(1) == ("compiled", 102, (1,)) and ten(1) == ("compiled", 111, (10,)) and one(2) == ("compiled", 103,
                                                                                                   (1,))
    assert cb.calls == 1


GLOBAL = 100
HELD = []


def test_none_runs_eager_and_callees_are_still_hooked():
    def callee(n):
        return n

    def f(n):
        return [callee(n) for _ in range(2)]

    g = _C.CompiledFunction(f, variant(_named("callee", lambda n, inputs: ("compiled", n)), [type_of("n")]))
    assert g(3) == [("compiled", 3)] * 2


@pytest.mark.parametrize("verdict, asked", [(_C.SKIP, ["f", "callee", "callee"]), (_C.SKIP_RECURSIVE, ["f"]),
                                            (_C.FULL, ["f", "callee", "callee"])])
def test_verdicts_hold_until_reset(verdict, asked):
    seen = []

    def callee():
        return 1

    def f():
        return callee()

    def cb(code, func, f_locals):
        seen.append(code.co_name)
        return verdict if code.co_name == "f" else None

    g = _C.CompiledFunction(f, cb)
    assert g() == g() == 1 and seen == asked
    _C.reset(f)
    assert g() == 1 and seen.count("f") == 2


def test_skip_code_is_for_every_callback():
    def f():
        return 1

    def cb(code, func, f_locals):
        raise AssertionError("asked")

    assert not _C.is_skipped(f)
    _C.skip_code(f)
    assert _C.is_skipped(f.__code__) and _C.CompiledFunction(f, cb)() == 1


def test_entries_belong_to_their_callback():
    def f(n):
        return n

    a = variant(_named("f", lambda n, inputs: "a"), [type_of("n")])
    b = variant(_named("f", lambda n, inputs: "b"), [type_of("n")])
    fa, fb = _C.CompiledFunction(f, a), _C.CompiledFunction(f, b)
    assert [fa(1), fb(1), fa(1), fb(1)] == ["a", "b", "a", "b"] and (a.calls, b.calls) == (1, 1)


def test_exceptions_pass_through_with_the_residual_line():
    def f(n):
        return n

    def residual(n, inputs):
        raise KeyError(n)

    residual.__name__ = "f"
    g = _C.CompiledFunction(f, variant(residual, [type_of("n")]))
    for _ in range(3):
        with pytest.raises(KeyError) as info:
            g(7)
        names = [frame.name for frame in traceback.extract_tb(info.value.__traceback__)]
        assert names[-1] == "residual" and "f" not in names
    assert _C.get_callback() is None


def test_exception_of_the_callback_is_raised_at_the_call():
    def f():
        return 1

    def cb(code, func, f_locals):
        raise RuntimeError("cannot capture")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="cannot capture"):
            _C.CompiledFunction(f, cb)()
    assert f() == 1


def test_bad_answers_are_refused():
    def f(a):
        return a

    with pytest.raises(TypeError, match="returns an Entry"):
        _C.CompiledFunction(f, lambda *a: 5)(1)
    tree = compile_guards([], [])
    with pytest.raises(ValueError, match="2 positional"):
        _C.Entry(tree, f.__code__, (lambda: 0).__code__, f)
    with pytest.raises(ValueError, match="no argument"):
        _C.Entry(compile_guards([type_of("zz")], []), f.__code__, (lambda a, i: 0).__code__, f)


def test_entry_that_fails_at_once_warns_and_stays_eager():
    def f(a):
        return a

    cb = variant(_named("f", lambda a, inputs: "compiled"), [Guard(Local("a"), "none")])
    g = _C.CompiledFunction(f, cb)
    with pytest.warns(RuntimeWarning, match="stays in eager: L.'a'.: expected None, got a int"):
        assert g(1) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert g(1) == 1 and cb.calls == 2  # asked once again: what it saw may have changed meanwhile


def test_entry_whose_guards_something_changed_meanwhile_is_made_again():
    def f(a):
        return a

    late = variant(_named("f", lambda a, inputs: "compiled"), [Guard(Local("a"), "none")])
    right = variant(_named("f", lambda a, inputs: "compiled"), [Guard(Local("a"), "equals", 1)])
    callbacks = [late, right]
    g = _C.CompiledFunction(f, lambda *frame: callbacks.pop(0)(*frame))
    assert g(1) == "compiled" and callbacks == []


@pytest.mark.parametrize("forget", [_C.reset, lambda code: [entry.drop() for entry in _C.entries(code)]])
def test_entry_that_another_thread_forgets_before_its_first_call(forget):
    def f(a):
        return a

    made = variant(_named("f", lambda a, inputs: "compiled"), [type_of("a")])

    def callback(code, func, f_locals):
        entry = made(code, func, f_locals)
        entry.add()
        forget(code)
        return entry

    g = _C.CompiledFunction(f, callback)
    assert g(1) == ("compiled" if forget is _C.reset else 1) and not _C.entries(f)
    g = _C.CompiledFunction(f, made)
    assert g(1) == "compiled" and len(_C.entries(f)) == 1


def test_generators_coroutines_and_class_bodies_are_untouched():
    seen = []

    def numbers(n):
        yield from range(n)

    async def wait(n):
        return n

    def f(n):
        class Body:
            value = n

        try:
            wait(n).send(None)
        except StopIteration as stop:
            return [*numbers(n), stop.value, Body.value]

    def cb(code, func, f_locals):
        seen.append(code.co_name)

    assert _C.CompiledFunction(f, cb)(2) == [0, 1, 2, 2] and seen == ["f"]


def test_recursion_through_compiled_code_ends_in_recursion_error():
    def f(n):
        return f(n + 1)

    g = _C.CompiledFunction(f, variant(_named("f", lambda n, inputs: f(n + 1)), [type_of("n")]))
    for _ in range(2):
        with pytest.raises(RecursionError):
            g(0)
    assert _C.get_callback() is None


def test_deep_recursion_grows_and_frees_the_data_stack():
    def f(n):
        return 0 if n == 0 else 1 + f(n - 1)

    g = _C.CompiledFunction(f, variant(_named("f", lambda n, inputs: 0 if n == 0 else 1 + f(n - 1)), [type_of("n")]))
    assert [g(300) for _ in range(20)] == [300] * 20


def test_the_callback_is_of_its_thread():
    def f():
        return _C.get_callback() is not None

    seen = []

    def cb(code, func, f_locals):
        seen.append(threading.get_ident())

    inside, out = threading.Event(), threading.Event()

    def hold():
        inside.set()
        out.wait()

    thread = threading.Thread(target=_C.CompiledFunction(hold, cb))
    thread.start()
    inside.wait()
    before = len(seen)
    assert f() is False and _C.hook_installed() and len(seen) == before
    out.set()
    thread.join()
    assert not _C.hook_installed() and threading.get_ident() not in seen


def test_many_threads_share_entries():
    def f(n):
        return n

    g = _C.CompiledFunction(f, variant(_named("f", lambda n, inputs: ("compiled", n)), equals("n")))
    wrong = []

    def work(k):
        for i in range(3000):
            n = (i * k) % 5
            if g(n) != ("compiled", n):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(k,)) for k in (1, 2, 3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong and len(_C.entries(f)) >= 5


def test_the_hook_is_off_while_the_callback_runs_and_nested_calls_restore_it():
    seen = []

    def helper():
        return 1

    def cb(code, func, f_locals):
        seen.append(code.co_name)
        assert _C.get_callback() is None and not _C.hook_installed()
        helper()

    def inner():
        return 2

    def f():
        off = _C.CompiledFunction(inner, None)()
        return off + helper()

    assert _C.CompiledFunction(f, cb)() == 3 and seen == ["f", "helper"]


def test_tracing_sees_the_residual_code_and_results_stay_right():
    def f(n):
        return n

    g = _C.CompiledFunction(f, variant(_named("f", lambda n, inputs: n + 1), [type_of("n")]))
    events = []
    old = sys.gettrace()
    sys.settrace(lambda frame, event, arg: events.append((event, frame.f_code.co_name)))
    try:
        values = [g(1), g(2), g(3)]
    finally:
        sys.settrace(old)
    assert values == [2, 3, 4] and ("call", "<lambda>") in events


def test_compiled_function_is_a_function_to_its_users():
    import pickle
    import weakref

    def f(a, b=1):
        "doc"
        return a, b

    g = _C.CompiledFunction(f, None)
    assert (g.__name__, g.__doc__, g.__wrapped__, g.function) == ("f", "doc", f, f)
    assert g(1, b=2) == (1, 2) and weakref.ref(g)() is g
    g.mark = 1
    assert g.mark == 1

    class Owner:
        method = _C.CompiledFunction(f, None)

    owner = Owner()
    assert owner.method(b=3) == (owner, 3)

    class Sub(_C.CompiledFunction):
        def __reduce__(self):
            return Sub, (self.function, None)

    assert pickle.loads(pickle.dumps(_C.CompiledFunction.__mro__)) and Sub(len, None)([1]) == 1
    with pytest.raises(TypeError):
        _C.CompiledFunction(3, None)


def test_a_residual_function_held_by_a_traceback_keeps_its_globals():
    """The hook keeps a residual function for the next call only when nothing else holds it."""
    HELD.clear()

    def f(n):
        return n

    def residual(n, inputs):
        try:
            raise ValueError(n)
        except ValueError as error:
            HELD.append(error.__traceback__.tb_frame)
        return sys._getframe().f_globals["__name__"]

    residual.__name__ = "f"
    g = _C.CompiledFunction(f, variant(residual, [type_of("n")]))
    for n in range(3):
        assert g(n) == __name__
    names = [frame.f_globals["__name__"] for frame in HELD]
    assert names == [__name__] * 3 and [frame.f_locals["n"] for frame in HELD] == [0, 1, 2]


def test_no_frame_is_captured_while_a_collection_runs():
    """A collection may begin within C code that is not re-entrant, as the parser's trees: `ast.parse` fails if what a
    finalizer or a collector's callback runs parses, too, with another depth of recursion."""

    def watched(phase, info):
        seen.append(phase)

    def f():
        gc.collect()
        return watched("called", {})

    seen, asked = [], []
    gc.callbacks.append(watched)
    try:
        _C.CompiledFunction(f, lambda code, function, arguments: asked.append(code.co_name))()
    finally:
        gc.callbacks.remove(watched)
    assert seen == ["start", "stop", "called"]
    assert asked == ["f", "watched"], "asked once: for the call outside of the collection"


def test_frames_are_captured_while_a_collection_waits_in_another_thread():
    class Waits:
        def __del__(self):
            begun.set()
            go_on.wait(60)

    def f():
        return 1

    begun, go_on, asked = threading.Event(), threading.Event(), []
    garbage = Waits()
    garbage.itself = garbage
    del garbage
    collects = threading.Thread(target=gc.collect)
    collects.start()
    try:
        assert begun.wait(60)
        _C.CompiledFunction(f, lambda code, function, arguments: asked.append(code.co_name))()
    finally:
        go_on.set()
        collects.join()
    assert asked == ["f"]


@pytest.mark.parametrize("hook", ["audit", "profile"])
def test_no_frame_of_an_audit_hook_or_a_profile_function_is_captured(hook):
    """The interpreter calls them in the midst of other frames, whose capture would count theirs as the program's."""

    def watched(*args):
        if args[0] == "framesmith.test" or hook == "profile":
            seen.append(args[0])

    def f():
        sys.audit("framesmith.test")
        return watched("called")

    seen, asked = [], []
    compiled = _C.CompiledFunction(f, lambda code, function, arguments: asked.append(code.co_name))
    if hook == "audit":
        sys.addaudithook(lambda *args: watched(*args) if live else None)
    live = True
    sys.setprofile(watched if hook == "profile" else None)
    try:
        compiled()
    finally:
        live = False
        sys.setprofile(None)
    assert seen and asked == ["f", "watched"], "asked once: for the call that the program makes"
