"""The table of first steps of one rank and of several."""

import json

from benchmarks import machine, ranks
from benchmarks.document import distributed
from benchmarks.document.markers import NOT_MEASURED


def test_the_table_has_both_processor_times_and_their_ratio(tmp_path) -> None:
    path = tmp_path / "ranks.json"
    assert distributed.first_steps(path) == NOT_MEASURED
    row = {"model": "bert", "way": "DDP", "ranks": 4, "one": 5.0, "several": 6.0, "ratio": 1.2, "eager": 0.5}
    assert ranks.rows_of([row])[1] == [["bert", "DDP", "4", "5.00 s", "6.00 s", "1.20", "0.50 s"]]
    about = {"machine": machine.describe(), "load": 0.5, "date": "2026-01-01", "rounds": 3}
    path.write_text(json.dumps({**about, "rows": [row]}))
    found = distributed.first_steps(path)
    assert found.startswith("Rounds: 3. Machine: ")
    assert found.endswith("| bert | DDP | 4 | 5.00 s | 6.00 s | 1.20 | 0.50 s |")
