"""Generators: lazily consumed, sent to, thrown into, closed, delegated to.  PYTEST_DONT_REWRITE"""
# ruff: noqa
from __future__ import annotations

import itertools
import sys

from tests.capture.lang import check
from tests.programs import Programs

program = Programs(check)


class Numbers:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        i = 0
        while i < self.n:
            yield i
            i += 1


class Iterator:
    def __init__(self, n):
        self.n = n
        self.sent = []

    def __iter__(self):
        return self

    def __next__(self):
        if self.n == 0:
            raise StopIteration("done")
        self.n -= 1
        return self.n

    def send(self, v):
        self.sent.append(v)
        return next(self)

    def throw(self, *e):
        self.sent.append(("thrown", type(e[0])))
        return -1

    def close(self):
        self.sent.append("closed")


@program(make=list)
def lazily(x, log):
    def gen():
        log.append("start")
        for i in range(10):
            log.append(i)
            yield x * i
        log.append("end")

    g = gen()
    a = next(g)
    b = next(g)
    for v in g:
        if len(log) > 4:
            break
    return a, b, v, len(log)


@program
def sending(x):
    def gen():
        total = x
        count = 0
        while True:
            got = yield total
            if got is None:
                return count
            total = total + got
            count += 1

    g = gen()
    first = next(g)
    second = g.send(2)
    third = g.send(x)
    try:
        g.send(None)
    except StopIteration as e:
        out = e.value
    try:
        next(g)
    except StopIteration as e:
        again = e.value
    h = gen()
    try:
        h.send(1)
    except TypeError as e:
        early = str(e)
    return first, second, third, out, again, early


@program(make=list)
def throwing(x, log):
    def gen():
        while True:
            try:
                yield x
            except ValueError as e:
                log.append(("value", e.args))
            except KeyError:
                log.append("key")
                yield "handled"
            finally:
                log.append("finally")

    g = gen()
    next(g)
    a = g.throw(ValueError("one"))
    b = g.throw(KeyError)
    try:
        g.throw(IndexError("lost"))
    except IndexError as e:
        c = e.args
    try:
        next(g)
    except StopIteration:
        d = "over"
    h = gen()
    try:
        h.throw(ValueError("before"))
    except ValueError as e:
        f = str(e)
    return a, b, c, d, f


@program(make=list)
def closing(x, log):
    def gen():
        try:
            yield 1
            yield 2
        except GeneratorExit:
            log.append("exit")
            raise
        finally:
            log.append("finally")

    def stubborn():
        try:
            yield 1
        except GeneratorExit:
            yield 2

    def returning():
        try:
            yield 1
        except GeneratorExit:
            return 5

    g = gen()
    g.close()
    next(g, None)
    g = gen()
    next(g)
    g.close()
    g.close()
    s = stubborn()
    next(s)
    try:
        s.close()
    except RuntimeError as e:
        out = str(e)
    r = returning()
    next(r)
    return out, r.close(), x


@program(make=list)
def delegating(x, log):
    def inner(n):
        try:
            for i in range(n):
                got = yield x + i
                log.append(("got", got))
        except ValueError as e:
            log.append(("inner", str(e)))
            yield "from handler"
        finally:
            log.append("inner over")
        return n

    def outer():
        a = yield from inner(2)
        b = yield from [10, 20]
        c = yield from Numbers(2)
        d = yield from (i * 2 for i in range(2))
        log.append((a, b, c, d))
        e = yield from Iterator(1)
        return a, b, e

    g = outer()
    out = [next(g), g.send("s"), *g]
    h = outer()
    next(h)
    out.append(h.throw(ValueError("v")))
    out.append(next(h))
    k = outer()
    next(k)
    k.close()

    def result():
        r = yield from outer()
        yield ("result", r)

    out.extend(result())
    return out


@program
def protocol_delegation(x):
    it = Iterator(5)

    def outer():
        r = yield from it
        return r

    g = outer()
    out = [next(g), g.send("a"), next(g)]
    out.append(g.throw(ValueError()))
    g.close()
    return out, it.sent, x


@program
def expressions(x):
    k = 2
    g = (x * i + k for i in range(4) if i % 2)
    k = 5
    nested = ((i, j) for i in range(3) for j in range(i) if (i + j) % 2)
    return list(g), list(nested), sum(i for i in range(4)), max((i for i in [3, 1]),
                                                                default=0), any(i > 2 for i in range(9)), \
        dict((i, i) for i in range(2)), tuple(i for i in "ab"), set(i % 2 for i in range(4)), ",".join(
            str(i) for i in range(3))


@program
def stop_inside(x):
    def gen():
        yield 1
        raise StopIteration("bad")

    def indirect():
        yield next(iter([]))

    out = []
    for f in (gen, indirect):
        try:
            list(f())
        except RuntimeError as e:
            out.append((str(e), type(e.__cause__), e.__cause__ is e.__context__))
    return out, x


@program
def recursion(x):
    def tree(n):
        if n:
            yield from tree(n - 1)
            yield n
            yield from tree(n - 1)

    def fib():
        a, b = 0, 1
        while True:
            yield a
            a, b = b, a + b

    def running():
        yield from g

    g = running()
    try:
        next(g)
    except ValueError as e:
        out = str(e)
    return list(tree(3)), list(itertools.islice(fib(), 8)), [v for v, _ in zip(fib(), range(4))], out, x


@program
def attributes(x):
    def gen():
        yield 1

    g = gen()
    return g.__name__, g.__qualname__, iter(g) is g, type(g).__name__, next(g), next(g, "end"), x


@program
def state_across(x):
    def gen():
        try:
            raise ValueError("in")
        except ValueError as e:
            yield sys.exc_info()[0], str(e)
            yield sys.exc_info()[0]
            try:
                raise
            except ValueError:
                yield "again"

    out = []
    try:
        raise KeyError("out")
    except KeyError:
        g = gen()
        out.append(next(g))
        out.append(sys.exc_info()[0])
    out.append(sys.exc_info()[0])
    out.append(next(g))
    out.append(sys.exc_info()[0])
    out.append(next(g))
    return out, x


@program
def unfinished(x):
    def gen():
        for i in range(4):
            yield x + i

    g = gen()
    next(g)
    a, b, *c = g
    (p, q) = (i for i in range(2))
    return a, b, c, p, q, next(g, "done")


@program
def in_containers(x):
    def gen(n):
        yield from range(n)

    return [*gen(3), *gen(2)], {*gen(2)}, (*gen(1), x), {**{str(k): k for k in gen(2)}}, max(*gen(3)), sorted(
        gen(3), reverse=True), 2 in gen(3)


@program(make=lambda: (Numbers(3), Iterator(2)))
def from_outside(x, given):
    numbers, iterator = given
    return list(numbers), x * next(iterator), list(iterator)


@program
def pipeline(x):
    def source():
        for i in range(5):
            yield x + i

    def double(it):
        for v in it:
            yield v * 2

    def batch(it, n):
        out = []
        for v in it:
            out.append(v)
            if len(out) == n:
                yield out
                out = []
        if out:
            yield out

    return [sum(b) for b in batch(double(source()), 2)]


test_programs = program.test()
