"""The documents have the figures of the committed JSON, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from benchmarks.document import __main__ as document
from benchmarks.document import chart, markers, summary
from benchmarks.document.sections import SECTIONS
from benchmarks.document.summary import Line

NAMES = {path: markers.names(path.read_text()) for path in document.documents()}
LINKS = [*document.ROOT.glob("*.md"), *sorted((document.ROOT / "docs").rglob("*.md"))]


@pytest.mark.skipif(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13),
                    reason="the table of decompositions has operators that this PyTorch lacks")
def test_documents_and_json_are_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert document.main(["--check"]) == 0, capsys.readouterr().out


def test_every_section_stands_in_a_document() -> None:
    assert {name for names in NAMES.values() for name in names} == SECTIONS.keys()


def test_a_difference_is_named_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    (tmp_path / "docs" / "benchmarks").mkdir(parents=True)
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- fuzz: begin -->\nold\n<!-- fuzz: end -->\nafter\n")
    monkeypatch.setattr(document, "ROOT", tmp_path)
    monkeypatch.setattr(document, "PLOT", tmp_path / "plot.svg")
    assert document.main(["--check"]) == 1 and "old" in readme.read_text()
    assert "README.md: differs" in capsys.readouterr().out
    assert document.main([]) == 0 == document.main(["--check"])
    text = readme.read_text()
    assert text.startswith("before\n<!-- fuzz") and text.endswith("end -->\nafter\n") and "first seed" in text


def test_an_unknown_section_is_an_error() -> None:
    with pytest.raises(KeyError, match="nothing"):
        markers.filled("<!-- nothing: begin -->\n<!-- nothing: end -->", SECTIONS)


def test_means_are_over_the_models_that_both_ran() -> None:
    rows = [
        {"framesmith": {"speedup": 4.0}, "torch.compile": {"speedup": 2.0}, "peer": {"speedup": 3.0}},
        {"framesmith": {"speedup": 1.0}, "torch.compile": {"speedup": 2.0}, "peer": {"failed": "no"}},
        {"framesmith": {"speedup": 9.0}, "torch.compile": {"failed": "no"}, "peer": {"speedup": 9.0}},
    ]
    line = summary.mean("inference", rows, "speedup", speed=True)
    cells = line.cells(("framesmith", "torch.compile", "peer", "other"))
    assert cells == ["inference", "2", "2.00", "2.00", "3.00 of 1", "–", "1.00"]


def test_the_plot_has_a_bar_for_each_speed_up() -> None:
    speeds = {"framesmith": (3.0, 2), "torch.compile": (1.5, 2)}
    text = chart.bars([Line("inference", speeds, speed=True), Line("first call", {"framesmith": (1.0, 2)})])
    assert text.count("<rect") == 1 + 2 + 2 and "3.00" in text and "first call" not in text


def test_the_readme_is_short() -> None:
    assert len((document.ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("path", LINKS, ids=lambda path: str(path.relative_to(document.ROOT)))
def test_links_lead_to_files(path: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    broken = [link for link in links if "://" not in link and not (path.parent / link).exists()]
    assert not broken
