"""Write the figures of the documents anew, from the JSON that is committed. Nothing is measured.

    python -m benchmarks.document [--check]

A document has a section of figures between the markers `<!-- NAME: begin -->` and `<!-- NAME: end -->`;
`sections.SECTIONS` makes the text of each name. `--check`: write nothing, name what differs from the JSON, and fail
if anything does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.document import chart, summary
from benchmarks.document.markers import filled
from benchmarks.document.sections import SECTIONS

ROOT = Path(__file__).parents[2]
PLOT = ROOT / "docs" / "benchmarks" / "speed-ups.svg"


def documents() -> list[Path]:
    """The files that may have sections of figures."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def made() -> Iterator[tuple[Path, str]]:
    """Each file with the text that it should have."""
    for path in documents():
        yield path, filled(path.read_text(), SECTIONS)
    yield PLOT, chart.bars(summary.lines())


def main(argv: list[str] | None = None) -> int:
    """The command line; the exit status is 1 if `--check` found a difference."""
    parser = argparse.ArgumentParser("python -m benchmarks.document", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a document and the JSON differ")
    args = parser.parse_args(argv)
    different = [(path, text) for path, text in made() if not path.exists() or path.read_text() != text]
    for path, text in different:
        print(f"{path.relative_to(ROOT)}: {'differs from the JSON' if args.check else 'written'}")
        if not args.check:
            path.write_text(text)
    return int(args.check and bool(different))


if __name__ == "__main__":
    sys.exit(main())
