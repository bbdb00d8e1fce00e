"""The table of `make run` on a narrow terminal."""

from __future__ import annotations

from rich.console import Console

from benchmarks.demo import Row, table

ROWS = [
    Row("BERT-6", 0.15441, 0.05581, 1.021, 1, 0, 9.5e-07),
    Row("ResNet-18", 12.34567, 9.87654, 123.456, 100, 100, 1.2e-12),
]


def test_no_cell_is_cut_at_eighty_columns() -> None:
    console = Console(width=80)
    with console.capture() as captured:
        console.print(table(ROWS))
    text = captured.get()
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    for row in ROWS:
        (line,) = [line for line in text.splitlines() if line.strip().startswith(row.model)]
        assert line.split() == " ".join(row.cells()).split()
