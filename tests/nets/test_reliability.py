"""The record of the nets' long runs: one row a net, its table."""

import json

from tests.nets import reliability


def test_a_row_is_replaced_and_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(reliability, "RECORD", tmp_path / "record.json")
    for n in (10, 2000):
        row = {"net": "state", "command": "run", "seeds": "0-1999", "cases": n, "differences": 3, "mended": 2}
        reliability.add(row)
    reliability.add({"net": "operators", "command": "check", "cases": 5, "differences": 0, "mended": 0})
    assert [row["net"] for row in json.loads(reliability.RECORD.read_text())] == ["operators", "state"]
    lines = reliability.table(reliability.rows()).splitlines()
    shown = [line.split(" | ")[0].strip("| ") for line in lines[2:]]
    assert shown == ["operators", "state", "language fuzz", "CPython's suite"]
    assert "| `run`, seeds 0-1999 | 2,000 | 3 | 2 | " in lines[3]


def test_a_lost_file_of_cpythons_is_a_difference():
    files = [{"tests": 4, "failed": [], "passed": True}, {"tests": 3, "failed": ["a", "b"], "passed": False},
             {"tests": 2, "failed": [], "passed": False}]
    row = reliability.of_suite({"python": "3.11.7", "date": "2026-11-21", "files": files})
    assert (row["cases"], row["differences"]) == (9, 3)
