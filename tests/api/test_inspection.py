"""What `explain` and `FRAMESMITH_LOG` tell."""

import io
import re
import warnings

import pytest
import rich.console

import framesmith
from framesmith.util import log
from tests.api.nets import X


def branchy(x):
    y = x.sin() + 1
    y = y.softmax(-1)
    if y.mean() > 2:  # BREAK
        return y.sum()
    return y.relu()


FIRST = branchy.__code__.co_firstlineno
HINT = ("torch.where chooses between tensors without a branch; both ways could be one graph, but the ways give tensors "
        "of different layouts: torch.float32 [6, 4], strides [4, 1] and torch.float32 [], strides []")
TEXT = f"""\
2 graphs, 1 breaks, 2 kernels
1 x truth of a tensor's data -> {HINT}
branchy (FILE:{FIRST}): 5 operators, N instructions, N guards
  operators: aten.sin.default, aten.add.Tensor, aten.softmax.int, aten.mean.default, aten.gt.Scalar
  1 kernels; 0 frozen constants; library calls: none
  kernel 0: aten.sin.default, aten.add.Tensor (FILE:{FIRST + 1} in branchy)
  kernel 0: aten.softmax.int (FILE:{FIRST + 2} in branchy)
  kernel 0: aten.mean.default, aten.gt.Scalar (FILE:{FIRST + 3} in branchy)
  break at FILE:{FIRST + 3} in branchy: truth of a tensor's data -> {HINT}
  guard grad mode is off, inference mode is off, the default dtype is torch.float32
  guard L['x'] is a Tensor of float32 [6, 4], strides [4, 1], on cpu
  guard Tensor binds as before sin, __add__, __radd__, softmax, mean, __gt__, __lt__
branchy (FILE:{FIRST}): 1 operators, N instructions, N guards
  operators: aten.relu.default
  1 kernels; 0 frozen constants; library calls: none
  kernel 0: aten.relu.default (FILE:{FIRST + 5} in branchy)
  guard grad mode is off, inference mode is off, the default dtype is torch.float32
  guard L['y'] is a Tensor of float32 [6, 4], strides [4, 1], on cpu
  guard Tensor binds as before relu
"""


def test_explain(tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMESMITH_CACHE_DIR", str(tmp_path))
    told = framesmith.explain(branchy)(X)
    text = re.sub(r"\d+ (instructions|guards)", r"N \1", str(told).replace(__file__, "FILE"))
    assert text.rsplit("seconds: ", 1)[0] == TEXT
    stages = ["capture", "guards", "repeat", "rewrite", "freeze", "cache", "decompose", "lower", "schedule",
              "codegen", "build", "load", "total"]
    assert list(told.seconds) == stages and all(s >= 0 for s in told.seconds.values())
    assert (told.graph_count, told.break_count, told.kernel_count) == (2, 1, 2)
    assert told.break_reasons == {"truth of a tensor's data": 1}
    sources = [file.read_text() for file in tmp_path.rglob("*.cpp")]
    assert len(sources) == 2
    assert any(f"// aten.softmax.int  {__file__}:{FIRST + 2} in branchy" in source for source in sources)


@pytest.mark.parametrize("channel, expected", [
    ("graph", "softmax"), ("loops", "exp"), ("schedule", "exp"), ("code", 'extern "C" void k0('),
    ("guards", "L['x'] is a Tensor"),
    ("timing", "lower 0."), ("timing", "guards 0."), ("breaks", "truth of a tensor's data"),
    ("recompiles", "size of dimension 0: expected 6, got 2"),
])
def test_each_channel_prints(channel, expected, capfd, tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMESMITH_CACHE_DIR", str(tmp_path))
    log.configure(channel)
    try:
        fast = framesmith.compile(branchy)
        fast(X), fast(X[:2])
    finally:
        log.configure("")
    lines = capfd.readouterr().err.splitlines()
    assert lines and all(line.startswith(f"[{channel}] ") for line in lines)
    assert any(expected in line for line in lines)


def one_line(x):
    return x.sin().exp().cos()


def two_lines(x):
    y = x.sin().exp()
    return y.cos()


def test_lines_are_the_present_programs_where_an_equal_graph_was_compiled_before(tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMESMITH_CACHE_DIR", str(tmp_path))
    for fn, lines in ((one_line, [("sin", "exp", "cos")]), (two_lines, [("sin", "exp"), ("cos",)])):
        (record,) = framesmith.explain(fn)(X).records
        first = fn.__code__.co_firstlineno + 1
        assert record.report.work == (tuple(
            (f"{__file__}:{first + k} in {fn.__name__}", ", ".join(f"aten.{name}.default" for name in names))
            for k, names in enumerate(lines)),)
    assert len(list(tmp_path.rglob("*.plan"))) == 1


def test_the_time_of_capture_is_what_the_back_end_leaves_of_the_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMESMITH_CACHE_DIR", str(tmp_path))
    weight = X.clone().requires_grad_()
    seconds = framesmith.explain(lambda: (weight * 2).sum())().seconds
    assert min(seconds.values()) >= 0 and sum(s for name, s in seconds.items() if name != "total") <= seconds["total"]


def test_refusals_are_explained(monkeypatch):
    def f(x):
        for _ in range(200):
            x = x + 1
        return x

    monkeypatch.setenv("FRAMESMITH_MAX_INSTRUCTIONS", "300")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        told = framesmith.explain(f)(X)
    assert told.refusals and told.refusals[0].file == __file__ and "in eager: " in str(told)


def helper(x):
    if x.sum() > 0:
        x = x[None]
    if x.mean() > 0:
        x = x[None]
    return x


def several(x):
    for _ in range(2):
        x = helper(x)
    framesmith.graph_break()
    return x * 2


def test_breaks_are_grouped_with_a_count_and_what_to_change():
    told = framesmith.explain(several)(X)
    groups = {g.reason: g for g in told.groups}
    assert sum(g.count for g in told.groups) == told.break_count + len(told.refusals)
    truth = groups["truth of a tensor's data"]
    assert truth.count >= 2 and len(truth.places) == 2 and "torch.where" in truth.advice
    assert "graph_break()" in groups["graph_break() was called"].advice
    out = io.StringIO()
    rich.console.Console(file=out, width=200).print(told)
    text = out.getvalue()
    assert "truth of a tensor's data" in text and "torch.where" in text and "in helper" in text and "breaks" in text


def test_fullgraph_says_where_what_why_and_what_to_do():
    with pytest.raises(framesmith.exc.Unsupported) as caught:
        framesmith.compile(branchy, fullgraph=True)(X)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"truth of a tensor's data at {__file__}:{FIRST + 3}"
    assert lines[1].strip() == "if y.mean() > 2:  # BREAK"
    assert "torch.where" in lines[2]
