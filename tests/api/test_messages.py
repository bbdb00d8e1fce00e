"""print, logging and warnings in captured code: no break, in order, with the values and places of plain Python."""

import contextlib
import functools
import io
import logging
import warnings

import pytest
import torch

import framesmith
from framesmith.testing import CompileCounter

X = torch.arange(4.0)
LOG = logging.getLogger("framesmith.tests.messages")
KEEP = []


class Named:
    def __init__(self, name):
        self.name = name

    def __str__(self):
        return f"<{self.name}>"


class Handler(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append((record.levelname, record.getMessage(), record.filename, record.lineno, record.funcName))


def told(fn, *args):
    """(result, what was printed, log records, warnings) of a call."""
    out, handler = io.StringIO(), Handler()
    LOG.addHandler(handler)
    try:
        with contextlib.redirect_stdout(out), warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            result = fn(*args)
    finally:
        LOG.removeHandler(handler)
    return result, out.getvalue(), handler.lines, [(str(w.message), w.category, w.filename, w.lineno) for w in seen]


def agrees(fn, *args, graphs=1):
    counter = CompileCounter()
    compiled = framesmith.compile(fn, backend=counter)
    expected = told(fn, *args)
    for _ in range(3):
        found = told(compiled, *args)
        assert torch.equal(found[0], expected[0])
        assert found[1:] == expected[1:]
    assert counter.frame_count == graphs
    return expected


def printing(x):
    y = x + 1
    print("first", 3, 2.5, None, (1, "a"), sep="|", end="!\n", flush=True)
    print(y)
    y.mul_(2)
    print("then", y, [y, 1], {"k": y * 0})
    names = ["a"]
    print(names)
    names.append("b")
    print(names, Named("n"), Named, ValueError("bad"))
    print()
    return y


def logs(x):
    LOG.warning("values %s and %d", x.sum(), 3)
    y = x * 2
    LOG.error("y is %s", y)
    LOG.debug("dropped %s", y)
    y.add_(1)
    deeper(y)
    LOG.log(logging.WARNING, "at the end %s", [1, 2])
    return y


def deeper(y):
    LOG.warning("from within: %s", y)
    LOG.warning("of the caller", stacklevel=2)


def warns(x):
    warnings.warn("plain")  # noqa: B028 - the default level is what is tested
    y = x + 1
    warnings.warn("typed", DeprecationWarning, stacklevel=1)
    warn_within()
    return y


def warn_within():
    warnings.warn("of the caller", RuntimeWarning, stacklevel=2)
    warnings.warn("beyond", RuntimeWarning, stacklevel=3)


def across(x):
    print("one", x)
    y = x + 1
    framesmith.graph_break()
    print("two", y)
    y = y * 2
    LOG.warning("three")
    framesmith.graph_break()
    print("four")
    return y + 1


def loop(x):
    for i in range(3):
        x = x + i
        print(i, x)
    return x


def test_print():
    assert "then tensor([2., 4., 6., 8.])" in agrees(printing, X)[1]


def test_logging_with_places():
    lines = agrees(logs, X)[2]
    assert [line[0] for line in lines] == ["WARNING", "ERROR", "WARNING", "WARNING", "WARNING"]
    assert lines[3][4] == "logs"


def test_a_level_that_changes():
    compiled = framesmith.compile(logs, backend="eager")
    told(compiled, X)
    LOG.setLevel(logging.DEBUG)
    try:
        assert told(compiled, X)[2] == told(logs, X)[2] != []
    finally:
        LOG.setLevel(logging.NOTSET)


def test_warnings_with_places():
    assert len(agrees(warns, X)[3]) == 4


def test_warnings_as_errors_stop_where_they_stand():
    compiled = framesmith.compile(warns, backend="eager")
    compiled(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        with pytest.raises(DeprecationWarning, match="typed"):
            compiled(X)


def test_a_warning_is_shown_once_a_place():
    def show(fn):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("default")
            for _ in range(3):
                fn(X)
        return [str(w.message) for w in seen]

    globals().pop("__warningregistry__", None)
    compiled = framesmith.compile(warns, backend="eager")
    assert show(compiled) == ["plain", "typed", "of the caller", "beyond"]


def test_order_across_breaks():
    agrees(across, X, graphs=3)


def test_in_loops():
    agrees(loop, X)


def test_files():
    buffer = io.StringIO()

    def fn(x):
        print("into", x, file=buffer)
        return x + 1

    compiled = framesmith.compile(fn, backend="eager", fullgraph=True)
    compiled(X)
    compiled(X + 1)
    assert buffer.getvalue() == f"into {X}\ninto {X + 1}\n"


class Tee:
    def __init__(self):
        self.lines = []

    def write(self, text):
        self.lines.append(text)


def test_a_file_written_in_python_is_written_where_it_stands():
    def fn(x, tee):
        print("a", end="", file=tee)
        return x + len(tee.lines)

    assert torch.equal(framesmith.compile(fn, backend="eager")(X, Tee()), fn(X, Tee()))


def test_once_is_once(monkeypatch):
    @functools.lru_cache(None)
    def warning_once(self, *args, **kwargs):
        self.warning(*args, **kwargs)

    monkeypatch.setattr(logging.Logger, "warning_once", warning_once, raising=False)

    def fn(x):
        LOG.warning_once("only once")
        return x + 1

    compiled = framesmith.compile(fn, backend="eager", fullgraph=True)
    assert [line[1] for _ in range(3) for line in told(compiled, X)[2]] == ["only once"]


def test_module_functions_of_logging(caplog):
    def fn(x):
        logging.warning("root %s", x.sum())
        return x + 1

    compiled = framesmith.compile(fn, backend="eager", fullgraph=True)
    with caplog.at_level(logging.WARNING):
        compiled(X)
        compiled(X + 1)
    assert [r.getMessage() for r in caplog.records] == ["root tensor(6.)", "root tensor(10.)"]
    assert {r.funcName for r in caplog.records} == {"fn"}
