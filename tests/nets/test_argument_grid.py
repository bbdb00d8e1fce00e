"""A sample of the argument grid: no crash, eager's values, eager's errors."""

import re

import pytest

from tests.nets import argument_grid


@pytest.mark.forks
@pytest.mark.parametrize("mode", ("--forward", "--backward"))
def test_sample(mode, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["argument_grid", "--sample", "150", mode])
    status = argument_grid.main()
    out = capsys.readouterr().out
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (\w+)[,:]", out.splitlines()[-1])}
    assert not status, out
    assert counts["right"] + counts["refused"] == 150, out
