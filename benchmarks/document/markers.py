"""Sections of a document between two markers, and tables as Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

NOT_MEASURED = "Not measured yet."
_SECTION = re.compile(r"<!-- ([\w :,-]+): begin -->\n.*?<!-- \1: end -->", re.DOTALL)


def names(text: str) -> list[str]:
    """The names of the sections in a document."""
    return _SECTION.findall(text)


def filled(text: str, sections: Mapping[str, Callable[[], str]]) -> str:
    """The document with each section made anew. Raises KeyError for a name that no function is known for."""
    return _SECTION.sub(lambda found: section(found[1], sections[found[1]]()), text)


def section(name: str, text: str) -> str:
    """A section of a document, markers included."""
    return f"<!-- {name}: begin -->\n{text}\n<!-- {name}: end -->"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown; the first column is aligned left, the others right."""
    lines = [_line(header), "|---|" + "---:|" * (len(header) - 1), *map(_line, rows)]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def machine(m: Mapping[str, Any]) -> str:
    """The machine of a JSON file in words (see `benchmarks.machine`)."""
    device = f"{m['device']}, CUDA {m['cuda']}, " if "device" in m else ""
    cores = f"{m['cores']} cores, {m['threads']} threads, {m['vectors']}"
    return f"{device}{m['processor']} (family {m['family']}), {cores}, Python {m['python']}, PyTorch {m['torch']}"
