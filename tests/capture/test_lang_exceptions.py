"""Exceptions: raising, matching, chaining, groups, with blocks, finally in all positions.  PYTEST_DONT_REWRITE"""
# ruff: noqa

from __future__ import annotations

import contextlib
import sys

import pytest

from tests.capture.lang import check
from tests.programs import Programs

program = Programs(check)


class Failure(Exception):
    kind = "failure"

    def __init__(self, code, detail=None):
        super().__init__(code)
        self.code = code
        self.detail = detail

    def __str__(self):
        return f"failure {self.code}"


class Plain:
    pass


class Thing:
    def method(self, a):
        return a

    @classmethod
    def klass(cls, *, k):
        return k


class Worse(Failure):
    pass


@program
def attributes(x):
    try:
        raise Failure(3, detail=x + 1)
    except Failure as e:
        return e.code, e.detail, e.args, str(e), repr(e), e.kind, type(e).__name__, f"{e} {e!r}"


@program
def builtin_attributes(x):
    out = []
    try:
        {}["k"]
    except KeyError as e:
        out.append((e.args, str(e), repr(e)))
    try:
        raise StopIteration(7)
    except StopIteration as e:
        out.append((e.value, e.args))
    try:
        raise OSError(2, "no file", "name")
    except OSError as e:
        out.append((e.errno, e.strerror, e.filename, e.args, str(e), type(e).__name__))
    try:
        raise SystemExit(3)
    except SystemExit as e:
        out.append(e.code)
    try:
        raise ValueError
    except ValueError as e:
        out.append((e.args, str(e), repr(e)))
    try:
        raise ValueError(1, "two")
    except ValueError as e:
        out.append((e.args, str(e), repr(e)))
    try:
        [].nope
    except AttributeError as e:
        out.append((e.name, e.obj, str(e)))
    try:
        undefined_name
    except NameError as e:
        out.append((e.name, str(e)))
    try:
        from math import no_such_name
    except ImportError as e:
        out.append((e.name, str(e), type(e).__name__))
    return out, x * 2


@program
def subclasses_and_order(x):
    out = []
    for cls in (Worse, Failure, ValueError, KeyError, IndexError, ZeroDivisionError):
        try:
            raise cls(1)
        except Worse:
            out.append("worse")
        except Failure:
            out.append("failure")
        except (ValueError, KeyError):
            out.append("tuple")
        except LookupError:
            out.append("lookup")
        except:
            out.append("bare")
    return out, x + 1


@program
def chaining(x):
    try:
        try:
            raise ValueError("a")
        except ValueError as e:
            raise KeyError("b") from e
    except KeyError as e:
        first = (type(e.__cause__), e.__cause__ is e.__context__, e.__suppress_context__)
    try:
        try:
            raise ValueError("a")
        except ValueError:
            raise KeyError("b")
    except KeyError as e:
        second = (e.__cause__, e.__context__.args, e.__suppress_context__)
    try:
        try:
            raise ValueError("a")
        except ValueError:
            raise KeyError("b") from None
    except KeyError as e:
        third = (e.__cause__, e.__context__.args, e.__suppress_context__)
    try:
        try:
            1 / 0
        except ZeroDivisionError:
            [][3]
    except IndexError as e:
        fourth = repr(e.__context__)
    try:
        raise KeyError("c") from ValueError
    except KeyError as e:
        fifth = repr(e.__cause__)
    try:
        raise KeyError("c") from 3
    except TypeError as e:
        sixth = str(e)
    return first, second, third, fourth, fifth, sixth, x - 1


@program
def kept(x):
    errors = []
    for i in range(3):
        try:
            raise Failure(i)
        except Failure as e:
            errors.append(e)
    errors[0].detail = x * 2
    errors[1].add_note("a note")
    errors[1].add_note("another")
    return errors, errors[1].__notes__


@program
def deletion(x):
    e = 1
    try:
        raise ValueError
    except ValueError as e:
        pass
    try:
        e
    except UnboundLocalError as u:
        return str(u), u.name, x
    return None


@program
def bare_raise(x):
    out = []

    def again():
        raise

    for f in (lambda: 1 / 0, lambda: [][1], lambda: {}["k"]):
        try:
            try:
                f()
            except ArithmeticError:
                raise
            except LookupError:
                again()
        except Exception as e:
            out.append((type(e), str(e)))
    try:
        again()
    except RuntimeError as e:
        out.append(str(e))
    return out, x + 1


@program
def exc_info(x):
    before = sys.exc_info()
    try:
        raise Failure(1)
    except Failure as e:
        kind, value, _ = sys.exc_info()
        same = value is e
        try:
            raise ValueError
        except ValueError:
            inner = sys.exc_info()[0]
        outer = sys.exc_info()[0]
    return before, kind, same, inner, outer, sys.exc_info()[0], x


@program
def exception_function(x):
    out = [sys.exc_info() == (None, None, None)]
    try:
        raise Failure(1)
    except Failure as e:
        out.append(sys.exception() is e)
    out.append(sys.exception())
    return out, x


def positions(x, how):
    log = []
    for i in range(3):
        try:
            log.append(("try", i))
            if how == "return":
                return log
            if how == "break":
                break
            if how == "continue":
                continue
            if how == "raise":
                raise ValueError(i)
        except ValueError as e:
            log.append(("except", e.args))
            if i == 1:
                return log
        else:
            log.append(("else", i))
        finally:
            log.append(("finally", i))
    return log


@program
def finally_positions(x):
    return [positions(x, how) for how in ("return", "break", "continue", "raise", "")], x.sum()


@program
def finally_overrides(x):
    def swallow():
        try:
            raise ValueError
        finally:
            return 1

    def override():
        try:
            return 1
        finally:
            return 2

    def loop():
        for i in range(5):
            try:
                raise ValueError
            finally:
                if i < 3:
                    continue
                break
        return i

    def nested():
        log = []
        try:
            try:
                log.append(1)
                raise KeyError("in")
            finally:
                log.append(2)
                try:
                    raise ValueError("in finally")
                except ValueError:
                    log.append(3)
        except KeyError as e:
            log.append((e.args, e.__context__))
        return log

    def value(v):
        try:
            return v
        finally:
            v = v + 1

    return swallow(), override(), loop(), nested(), value(x)


class Manager:
    def __init__(self, log, name, suppress=False):
        self.log = log
        self.name = name
        self.suppress = suppress

    def __enter__(self):
        self.log.append(("enter", self.name))
        return self

    def __exit__(self, kind, value, tb):
        self.log.append(("exit", self.name, kind, None if value is None else str(value)))
        return self.suppress


class Broken(Manager):
    def __exit__(self, kind, value, tb):
        super().__exit__(kind, value, tb)
        raise KeyError("from exit")


@program(make=list)
def with_blocks(x, log):
    with Manager(log, "a") as a, Manager(log, "b", True) as b:
        log.append((a.name, b.name))
        raise ValueError("one")
    with Manager(log, "c", True):
        with Manager(log, "d"):
            raise ValueError("two")
        log.append("not reached")
    try:
        with Manager(log, "e"), Manager(log, "f"):
            raise ValueError("three")
    except ValueError as e:
        log.append(str(e))
    try:
        with Broken(log, "g"):
            raise ValueError("four")
    except KeyError as e:
        log.append((str(e), str(e.__context__)))

    def leaves():
        for i in range(3):
            with Manager(log, i):
                if i == 0:
                    continue
                if i == 1:
                    return x + i
        return None

    with (Manager(log, "p") as p, Manager(log, "q") as q):
        log.append(p.name + q.name)
    return leaves(), len(log)


@contextlib.contextmanager
def scope(log, swallow):
    log.append("in")
    try:
        yield "value"
    except swallow as e:
        log.append(("swallowed", str(e)))
    finally:
        log.append("out")


@program(make=list)
def context_functions(x, log):
    with scope(log, ValueError) as v:
        log.append(v)
        raise ValueError("inside")
    try:
        with scope(log, KeyError):
            raise ValueError("passes")
    except ValueError as e:
        log.append(str(e))
    with contextlib.suppress(KeyError, IndexError):
        [][1]
    return x + len(log)


@program
def not_a_manager(x):
    out = []
    for v in (3, [], object()):
        try:
            with v:
                pass
        except TypeError as e:
            out.append(str(e))
    return out, x


@program
def raise_wrong(x):
    out = []
    for v in (3, int, "text", None):
        try:
            raise v
        except TypeError as e:
            out.append(str(e))
    try:
        try:
            raise ValueError
        except 3:
            pass
    except TypeError as e:
        out.append(str(e))
    return out, x


@program
def nested_handlers(x):
    out = []

    def f(n):
        try:
            if n == 0:
                raise ValueError(n)
            f(n - 1)
        except ValueError as e:
            if n < 2:
                raise KeyError(n) from e
            raise
        finally:
            out.append(n)

    try:
        f(3)
    except Exception as e:
        out.append((type(e), e.args))
    return out, x


@program
def asserting(x):
    out = []
    for message in ("wrong", ("a", 1), None):
        try:
            assert x.dim() == 3, message
        except AssertionError as e:
            out.append(e.args)
    try:
        assert not x.shape
    except AssertionError as e:
        out.append(e.args)
    return out


@program
def groups(x):
    out = []
    try:
        raise ExceptionGroup("g", [ValueError(1), KeyError("k"), ExceptionGroup("h", [TypeError(2), ValueError(3)])])
    except* ValueError as e:
        out.append(("value", e.message, len(e.exceptions), repr(e)))
    except* (KeyError, TypeError) as e:
        out.append(("other", [type(v) for v in e.exceptions]))
    try:
        raise ValueError("naked")
    except* ValueError as e:
        out.append((type(e), e.exceptions[0].args))
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), KeyError("k")])
        except* ValueError:
            out.append("matched")
    except ExceptionGroup as rest:
        out.append((rest.message, repr(rest.exceptions)))
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), KeyError("k")])
        except* ValueError:
            raise IndexError("new")
    except ExceptionGroup as both:
        out.append([type(v) for v in both.exceptions])
    for n in range(3):
        try:
            if n:
                raise ExceptionGroup("n", [OSError(n)])
        except* OSError:
            out.append(n)
        else:
            out.append("else")
        finally:
            out.append("finally")
    return out, x + 1


@program
def group_methods(x):
    g = ExceptionGroup("g", [ValueError(1), ExceptionGroup("h", [TypeError(2), ValueError(3)])])
    match, rest = g.split(ValueError)
    sub = g.subgroup(lambda e: isinstance(e, TypeError))
    return repr(match), repr(rest), repr(sub), g.subgroup(KeyError), str(g), g.derive([ValueError()]).message, x


@program
def from_calls(x):
    out = []

    def f(a, /, b, *, c):
        return a

    def g():
        pass

    def h(a, b, c, d=1):
        pass

    def k(*, a, b, c):
        pass

    calls = [lambda: f(), lambda: f(1), lambda: f(1, 2), lambda: f(1, 2, 3, c=1), lambda: f(1, 2, c=1, d=2),
             lambda: f(a=1, b=2, c=3),
             lambda: g(1), lambda: g(1, 2), lambda: g(a=1), lambda: h(), lambda: h(1), lambda: h(1, 2, 3, 4, 5),
             lambda: h(1, a=2),
             lambda: k(), lambda: k(a=1), lambda: k(1, a=1), lambda: h(*[1, 2], **{"b": 3}), lambda: h(**{"d": 1}),
             lambda: (lambda q: q)(),
             lambda: f(1, 2, 3, 4), lambda: h(1, 2, 3, 4, 5, d=3), lambda: h(1, 2, 3, **{"d": 1}, **{"d": 2}),
             lambda: g(*3), lambda: g(**3), lambda: Thing().method(), lambda: Thing.method(1, 2, 3),
             lambda: Thing.klass(1),
             lambda: h(*[1], *3), lambda: g(**{1: 2}), lambda: Plain(1), lambda: len(), lambda: len(1, 2),
             lambda: Thing().method(a=1, b=2)]
    for call in calls:
        try:
            call()
        except TypeError as e:
            out.append(str(e))
    return out, x


@program
def messages(x):
    out = []
    d, t, s, n = {}, (1, 2), "text", None

    p = Plain()
    fails = [lambda: d[1], lambda: t[5], lambda: s[9], lambda: n[0], lambda: n.name, lambda: t.name, lambda: s + 1,
             lambda: 1 + s,
             lambda: t + [1], lambda: n + 1, lambda: -s, lambda: ~1.5, lambda: t < 1, lambda: p < p, lambda: p + 1,
             lambda: 1 - p,
             lambda: p[0], lambda: p(), lambda: len(p), lambda: iter(p), lambda: next(p), lambda: p.missing,
             lambda: 1 in p,
             lambda: int("z"), lambda: hash([]), lambda: {[]: 1}, lambda: {[]}, lambda: "a" in 3, lambda: 3(),
             lambda: 1 // 0, lambda: 1 % 0, lambda: 1.0 / 0, lambda: [1, 2][None], lambda: [1, 2]["a"],
             lambda: (1, 2)["a"],
             lambda: s["a"], lambda: n(), lambda: [][:"a"], lambda: abs(s), lambda: len(3), lambda: sum(3),
             lambda: max([]),
             lambda: sorted([1, "a"]), lambda: not_there, lambda: list(3),
             lambda: d.pop("k"), lambda: [].pop(), lambda: [1].remove(2), lambda: {1}.remove(2),
             lambda: "%d" % "a", lambda: "{}".format(), lambda: f"{s:d}", lambda: chr(-1), lambda: d.nope,
             lambda: [].nope,
             lambda: p @ p, lambda: p ** 2, lambda: divmod(p, 1), lambda: isinstance(1, 2), lambda: issubclass(1, int),
             lambda: Plain(1), lambda: Plain(a=1), lambda: getattr(p, "q"), lambda: float("q"), lambda: range(1.5),
             lambda: t.append(1)]
    for f in fails:
        try:
            f()
        except Exception as e:
            out.append((type(e), str(e)))
        else:
            out.append("fine")
    return out, x


@program
def statements(x):
    out = []
    d, t, p = {}, (1, 2), object()

    def s1():
        t[0] = 1

    def s2():
        del t[0]

    def s3():
        del d["k"]

    def s4():
        p.a = 1

    def s5():
        del p.a

    def s6():
        a, b = t, 1
        (c, e, f) = a
        return b, c, e, f

    def s7():
        a, *b, c = (1,)
        return a, b, c

    def s8():
        a, b = 3
        return a, b

    def s9():
        a, b = {1, 2, 3}
        return a, b

    def s10():
        del later
        return later

    def s11():
        for i in range(0):
            pass
        return i

    def s12():
        "abc"[0] = 1

    def s13():
        t.a = 1

    def s14():
        a = None
        a += 1

    def s15():
        a = (1,)
        a -= 1

    def s16():
        def inner():
            return free
        r = inner()
        free = 1
        return r, free

    def s17():
        free = 1
        del free
        return (lambda: free)()

    def s18():
        global nowhere_global
        del nowhere_global

    def s19():
        free = 1

        def inner():
            nonlocal free
            del free
        inner()
        inner()

    def s20():
        [a, b] = x
        return a, b

    later = 1
    for f in (s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15, s16, s17, s18, s19):
        try:
            f()
        except Exception as e:
            out.append((type(e), str(e)))
        else:
            out.append("fine")
    return out, later, x


test_programs = program.test()


__all__ = ["pytest"]
