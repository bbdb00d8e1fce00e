"""Figures in the README stand between two markers, and are replaced there."""

from __future__ import annotations

from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def write_between(name: str, text: str, readme: Path = README) -> None:
    """Replace what stands between the markers `<!-- name: begin -->` and `<!-- name: end -->`."""
    begin, end = (f"<!-- {name}: {word} -->" for word in ("begin", "end"))
    before, rest = readme.read_text().split(begin, 1)
    readme.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end, 1)[1]}")
