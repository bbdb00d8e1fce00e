"""Contexts, time, randomness, the environment, serialised forms: what is pure folds, what varies is read at each
call."""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import logging
import math
import os
import pathlib
import pprint
import random
import re
import struct
import sys
import time
import uuid
import warnings
from functools import partial

import numpy as np
import pytest
import torch

import framesmith
from tests.capture.values.harness import X, agree
from tests.programs import Programs

taken = Programs(agree)
broken = partial(taken, whole=False)


@contextlib.contextmanager
def noted(log, name):
    log.append("in " + name)
    try:
        yield name
    except ValueError as e:
        log.append(str(e))
    finally:
        log.append("out " + name)


class Closes:
    def __init__(self, log):
        self.log = log

    def close(self):
        self.log.append("closed")


class Decorates(contextlib.ContextDecorator):
    def __enter__(self):
        LOG.append("enter")
        return self

    def __exit__(self, *exc):
        LOG.append(exc[0])
        return False


LOG: list = []


@Decorates()
def decorated(x):
    return x * 2


@taken(make=lambda: ([], LOG.clear()))
def contexts(x, log, _):
    with noted(log, "a") as a, contextlib.nullcontext(5) as five, contextlib.suppress(KeyError, IndexError):
        log.append(a)
        {}["z"]
    with contextlib.closing(Closes(log)) as c:
        x = x + 1
    with noted(log, "b"):
        raise ValueError("inside")
    with contextlib.ExitStack() as stack:
        got = stack.enter_context(noted(log, "c"))
        stack.callback(log.append, "called")
        stack.push(lambda *e: log.append(len(e)))
        kept = stack.pop_all()
    kept.close()
    with contextlib.nullcontext():
        pass
    return decorated(x), log, five, got, c.log is log, LOG


@noted([], "d")
def decorated_twice(x):
    return x + 1


@taken
def context_as_decorator(x):
    return decorated_twice(decorated_twice(x))


@broken
def redirected(x):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        print("a", x.shape[0])
    return x + 1, out.getvalue()


@taken
def printed(x):
    print("a", 1, sep="-", end="!\n")
    print(f"shape {x.shape}", [1, 2], None, flush=True)
    return x + 1


@taken
def serialised(x):
    text = json.dumps({"a": [1, 2.5, None, True], "b": "é"})
    back = json.loads('{"q": [1, {"r": null}]}')
    return x + 1, text, back, json.dumps([1], indent=2), struct.pack("<if", 1, 2.5), struct.unpack(
        "<i", b"\x01\x00\x00\x00"), \
        struct.calcsize("3i"), json.dumps({1: (1, 2)}, sort_keys=True)


@taken(make=lambda: ("b12 c3",), others=[lambda: ("zz",)])
def patterns(x, s):
    p = re.compile(r"([a-z])(\d+)")
    m = p.search(s)
    return x + 1, p.findall(s), m and m.group(1), m and m.groups(), m and m.span(), re.sub(r"\d", "#", s), re.split(
        r"\s", s), \
        re.match("b", s) is None, p.sub(lambda g: g[1] * 2, s), re.escape("a.b"), \
        [g.group() for g in p.finditer(s)], p.pattern, re.fullmatch(".*", s)[0], re.I, bool(m), \
        re.search("(?P<n>b)", s).groupdict() if m else None


@taken
def paths(x):
    return x + 1, os.path.join("a", "b"), os.path.splitext("a.py"), os.path.basename("/a/b"), pathlib.PurePosixPath(
        "a") / "b", os.sep, \
        sys.version_info >= (3, 11), sys.maxsize, sys.platform, math.tau


@taken
def dates(x):
    d = datetime.date(2020, 1, 31) + datetime.timedelta(days=1)
    return x + 1, d.isoformat(), datetime.datetime(2020, 1, 1).year, datetime.timedelta(
        hours=1).total_seconds(), d.strftime("%Y")


def moving(fn):
    """A program whose result must differ from call to call."""
    MOVING.append(fn)
    return fn


MOVING: list = []


@moving
def clock(x):
    return x + 1, time.time_ns()


@moving
def counter_clock(x):
    return x + 1, time.perf_counter(), time.monotonic()


@moving
def now(x):
    return x + 1, datetime.datetime.now()


@moving
def unique(x):
    return x + 1, uuid.uuid4()


@moving
def urandom(x):
    return x + 1, os.urandom(8)


@moving
def drawn(x):
    return x * random.random(), random.randint(0, 10**9)


@moving
def drawn_numpy(x):
    return x, np.random.rand()


@moving
def drawn_of_object(x):
    return x + 1, RNG.random()


@moving
def drawn_in_list(x):
    return x + 1, random.choices(range(10**6), k=3), random.sample(range(10**6),
                                                                   3), random.uniform(0, 1), random.gauss(0, 1)


RNG = random.Random(1)


@pytest.mark.parametrize("fn", MOVING, ids=lambda fn: fn.__name__)
def test_nothing_that_moves_is_frozen(fn):
    framesmith.reset()
    with torch.no_grad():
        compiled = framesmith.compile(fn, backend="eager", options={"suppress_errors": False})
        found = [repr(compiled(X)[1:]) for _ in range(4)]
        first = [repr(compiled(X)[0]) for _ in range(2)]
    assert len(set(found)) == 4
    assert len(set(first)) == (2 if fn is drawn else 1)


@broken(make=lambda: (random.seed(3), random.Random(5)))
def seeded(x, _, r):
    a = [1, 2, 3, 4, 5]
    random.shuffle(a)
    s = random.getstate()[1][:3]
    own = random.Random(7)
    return x + 1, random.random(), random.choice(a), a, r.randint(0, 100), r.choice(
        "abc"), own.random(), s, random.randrange(5), r.random()


@taken(make=lambda: (os.environ.__setitem__("FS_TEST", "1"),),
    others=[lambda: (os.environ.__setitem__("FS_TEST", "2"),), lambda: (os.environ.pop("FS_TEST", None) and None,)])
def environment(x, _):
    n = int(os.environ.get("FS_TEST", "0"))
    defaults = os.getenv("FS_NOT", 3), os.getenv("FS_NOT", default=4), os.environ.get("FS_NOT")
    return x * n, os.getenv("FS_TEST"), "FS_TEST" in os.environ, defaults


@taken(make=lambda: (os.environ.__setitem__("FS_TEST", "1"),),
       others=[lambda: (os.environ.__setitem__("FS_TEST", "2"),)])
def environment_subscript(x, _):
    return x + 1, os.environ["FS_TEST"]


@broken
def environment_written(x):
    os.environ["FS_TEST"] = "9"
    return x + 1, os.environ["FS_TEST"]


@broken
def pretty(x):
    return x + 1, pprint.pformat({"a": [1, 2]})


@broken
def files(x):
    with io.StringIO("a\nb") as f:
        lines = [line.strip() for line in f]
    return x + 1, lines


@broken
def warned(x):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("careful", stacklevel=1)
    return x + 1, len(caught)


@taken
def logged(x):
    logging.getLogger("framesmith.test").debug("nothing %s", x.shape)
    return x + 1


test_program = taken.test()
