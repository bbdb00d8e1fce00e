"""The report: each cause is named with its line and its remedy, in every form."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import framesmith
from framesmith.tools.report import Report
from framesmith.util.errors import FramesmithError
from framesmith.util.events import CacheLookup
from tests.paths import python_path
from tests.tools import seen_model

FILE = seen_model.__file__
ROOT = Path(FILE).parents[2]
LINES = Path(FILE).read_text().splitlines()

SUM = "h = torch.relu(self.up(x))"


def line_of(mark):
    return next(k for k, line in enumerate(LINES, 1) if mark in line)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch, pytest.warns(UserWarning, match="runs in eager"):
        patch.setenv("FRAMESMITH_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        framesmith.reset()
        net, x = seen_model.run()
        yield framesmith.report(measure=True, call=(net, x))
        framesmith.reset()


def causes(facts):
    breaks = {(p["line"], b["remedy"]) for b in facts["breaks"] for p in b["places"]}
    return breaks, facts["recompiles"], facts["fallbacks"]


def test_every_cause_has_its_line_and_its_remedy(seen):
    breaks, recompiles, fallbacks = causes(seen.facts)
    assert {line for line, _ in breaks} == {line_of(f"BREAK {what}") for what in ("marked", "data", "call")}
    assert all(remedy for _, remedy in breaks) and len(seen.facts["breaks"]) == 3
    first = [r for r in recompiles if "the break" not in r["remedy"]]
    size, mode = first
    assert (size["guard"], size["old"], size["new"]) == ("x", "size of dimension 0 4", "size of dimension 0 3")
    assert size["remedy"].startswith("framesmith.mark_dynamic(x, 0)")
    assert (mode["old"], mode["new"]) == ("grad mode False", "grad mode True") and "same modes" in mode["remedy"]
    (fallback,) = fallbacks
    assert (fallback["line"], fallback["function"]) == (line_of("FALLBACK"), "looks")
    assert "framesmith.disable" in fallback["remedy"]


def test_the_forms_show_them_all(seen):
    breaks, recompiles, fallbacks = causes(seen.facts)
    console = re.sub(r"[\s│┃]+", "", seen.console(width=400))
    for form in (seen.html(), seen.json(), console):
        plain = re.sub(r"\s+", "", form)
        for text in ("graph_break()wascalled", "theintofatensor'sdata", "sys._getframelooksattheframe"):
            assert text in plain.replace("&#39;", "'")
        for remedy in ({r for _, r in breaks} | {r["remedy"] for r in (*recompiles, *fallbacks)}):
            assert re.sub(r"\s+", "", remedy) in plain.replace("&#39;", "'").replace('\\"', '"').replace("&gt;", ">")
    for line, _ in breaks:
        assert f"seen_model.py:{line}" in console
        assert f"seen_model.py<b>:{line}</b>" in seen.html()
    assert Report(json.loads(seen.json())).console() == seen.console()


def test_the_page_stands_alone(seen):
    page = seen.html()
    assert page.count("<svg") > 2 and "prefers-color-scheme: dark" in page
    assert not re.search(r"""(src|href)=["'](?!#)""", page) and "<script" not in page and "url(" not in page
    assert "<iframe" in seen._repr_html_() and seen._repr_html_().count('"') < 12  # all of the page is quoted


def test_graphs_kernels_and_speed_are_measured(seen):
    facts = seen.facts
    assert facts["measured"]["eager"] > 0 and facts["measured"]["speedup"] > 0
    first = facts["graphs"][0]
    assert [o["name"] for o in first["operators"]] == ["aten.linear.default", "aten.relu.default"]
    assert first["operators"][0]["source"] == SUM and first["constants"] > 0
    assert first["memory"]["eager"] and first["memory"]["planned"]
    kernel = first["kernels"][-1]
    assert "relu" in kernel["work"][-1]["operators"] and 'extern "C" void' in kernel["code"]
    assert kernel["seconds"] > 0 and kernel["bytes"] > 0 and kernel["operations"] > 0 and kernel["share"] > 0
    assert kernel["bound"] in ("memory", "arithmetic")
    assert all(b["compile_seconds"] > 0 for b in facts["breaks"])
    assert any(b["call_seconds"] for b in facts["breaks"])
    uses = {v["function"]: v["uses"] for v in facts["variants"]}
    assert uses["Net.forward"] and all(v["guards"] for v in facts["variants"])


def test_the_stages_of_a_compile_add_up(seen):
    for c in seen.facts["compiles"]:
        assert sum(c["stages"].values()) == pytest.approx(sum(s["seconds"] for s in c["spans"] if s["depth"] == 0))
        assert sum(c["stages"].values()) <= c["seconds"] * 1.001


def test_misses_of_the_cache_have_reasons(tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMESMITH_CACHE_DIR", str(tmp_path))

    def looked_up(options):
        framesmith.reset()
        seen = []
        with framesmith.on_event(seen.append):
            framesmith.compile(lambda a: a.sin() * 2, options=options)(torch.ones(5))
        return [(e.what, e.hit, e.reason) for e in seen if isinstance(e, CacheLookup) and e.what == "code"]

    assert looked_up({}) == [("code", False, "the cache has no such graph yet")]
    assert looked_up({}) == [("code", True, "")]
    assert looked_up({"parallel_threshold": 5}) == [("code", False, "changed since: the options")]
    for file in tmp_path.rglob("*.plan"):
        file.write_bytes(b"")
    assert looked_up({"parallel_threshold": 5})[0][1:] == (False, "its entry is gone or damaged")


def test_explain_shows_its_report():
    told = framesmith.explain(lambda a: a.cos() + 1)(torch.ones(3))
    assert "<iframe" in told._repr_html_() and "aten.cos.default" in told.report.html()


def run(*command, **env):
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=240,
                          env={**os.environ, "PYTHONPATH": python_path(ROOT), **env}, cwd=ROOT)
    assert not done.returncode, done.stderr
    return done.stdout


def test_a_program_leaves_a_report(tmp_path):
    page, data = tmp_path / "page.html", tmp_path / "data.json"
    program = "import tests.tools.seen_model as m; m.run()"
    run("-W", "ignore", "-c", program, FRAMESMITH_REPORT=str(data), FRAMESMITH_CACHE_DIR=str(tmp_path / "cache"))
    facts = Report.read(data).facts
    assert facts["totals"]["breaks"] >= 3 and facts["totals"]["fallbacks"] == 1
    assert "graph_break() was called" in run("-m", "framesmith", "report", str(data), COLUMNS="300")
    run("-m", "framesmith", "report", str(data), "-o", str(page))
    assert "<!doctype html>" in page.read_text()


def test_the_command_runs_a_program(tmp_path):
    script, page = tmp_path / "app.py", tmp_path / "page.json"
    script.write_text("import sys, torch, framesmith\n"
                      "framesmith.compile(lambda a: a.sin() + len(sys.argv))(torch.ones(3))\n")
    run("-m", "framesmith", "report", "-o", str(page), str(script), "an argument")
    facts = Report.read(page).facts
    assert facts["totals"]["graphs"] == 1 and facts["program"].endswith("an argument")


def test_a_launcher_leaves_the_report_of_what_it_launched(tmp_path):
    page = tmp_path / "page.json"
    page.write_text("of an earlier run")
    os.utime(page, (0, 0))
    worker = "import torch, framesmith; framesmith.compile(lambda x: x.sin() + 1)(torch.ones(3))"
    launcher = f"import subprocess, sys, framesmith; subprocess.run([sys.executable, '-c', {worker!r}], check=True)"
    run("-c", launcher, FRAMESMITH_REPORT=str(page))
    assert Report.read(page).facts["totals"]["graphs"] == 1
    run("-c", "import framesmith", FRAMESMITH_REPORT=str(page))
    assert Report.read(page).facts["totals"]["graphs"] == 0


def test_what_is_no_report_is_refused(tmp_path, seen):
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(FramesmithError, match="no report"):
        Report.read(tmp_path / "a.json")
    with pytest.raises(FramesmithError, match="unknown format"):
        seen.save(tmp_path / "a.html", "pdf")
