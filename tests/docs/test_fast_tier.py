"""`make test-fast` runs files that exist, of each subject."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
LONG = {"models", "fuzz", "nets"}
"""Subjects whose tests all take long."""


def test_each_subject_has_a_quick_file() -> None:
    files = [TESTS.parent / line for line in (TESTS / "fast.txt").read_text().split()]
    assert not [file for file in files if not file.exists()] and len(files) == len(set(files))
    subjects = {path.parent.relative_to(TESTS).parts[0] for path in TESTS.glob("*/**/test_*.py")}
    assert {file.relative_to(TESTS).parts[0] for file in files} >= subjects - LONG
