"""The places that ARCHITECTURE.md names exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
PLACE = re.compile(r"`([\w/]+\.(?:py|cpp|h)|[\w/]+/)`")


def test_every_file_that_is_named_exists():
    """A row of the table of rooms names files within its room."""
    named = {name for name in PLACE.findall(TEXT) if "/" in name.rstrip("/")}
    lost = {name for name in named if not any((base / name).exists() for base in (ROOT / "framesmith", ROOT))}
    assert len(named) > 30 and lost == set()


def test_a_call_is_followed_through_ten_places():
    walk = TEXT.split("## One call, followed")[1].split("\n## ")[0]
    steps = re.findall(r"^(\d+)\. `([\w/.]+)`(?:, `([\w.]+)`)?", walk, re.MULTILINE)
    assert [int(number) for number, _, _ in steps] == list(range(1, 11))
    for _, path, name in steps:
        text = (ROOT / "framesmith" / path).read_text()
        for part in filter(None, re.split(r"\.|::", name)):
            assert re.search(rf"(?:def|class|void) (?:\w+::)?{part}\b", text), f"{part} is not in {path}"
