"""The benchmark for CUDA devices, as far as it can be seen without one: its models, what it counts, and how results add
up."""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from benchmarks.gpu import jobs, kernels, process, results, table
from benchmarks.gpu.__main__ import _arguments, rows_of
from benchmarks.gpu.decoding import Decoder
from benchmarks.gpu.diffusion import DiffusionUNet
from benchmarks.gpu.models import named
from benchmarks.gpu.row import Row, contenders, label_of
from benchmarks.gpu.work import least

LIMITS = {"copy": 1e9, "tf32": 1e9, "bf16": 2e9}


def test_the_diffusion_model_is_of_its_size() -> None:
    with torch.device("meta"):
        whole = DiffusionUNet()
    assert 855e6 < sum(p.numel() for p in whole.parameters()) < 865e6
    small = DiffusionUNet(width=32, levels=(1, 2), attending=1, context=24)
    x = torch.randn(2, 4, 8, 8)
    assert small(x, torch.tensor([3, 7]), torch.randn(2, 5, 24)).shape == x.shape


def test_decoding_step_by_step_attends_to_what_was_written() -> None:
    torch.manual_seed(0)
    model = Decoder(width=32, inner=48, layers=2, heads=4, words=50, longest=8).eval()
    with torch.no_grad():
        ids = torch.randint(0, 50, (1, 4))
        steps = [model(ids[:, k : k + 1], torch.tensor([k])).clone() for k in range(4)]
        for layer in model.layers:
            layer.keys[:, :, 4:] = torch.nan  # what lies behind the position is not read
            layer.values[:, :, 4:] = 1e9
            layer.keys[:, :, 4:] = 1e9
        torch.testing.assert_close(model(ids[:, 3:], torch.tensor([3])), steps[3])
        torch.testing.assert_close(model(ids[:, 2:3], torch.tensor([2])), steps[2])


def test_the_work_of_contractions_is_counted_with_its_edges() -> None:
    x, w = torch.randn(16, 32), torch.randn(8, 32)
    found = least(lambda: F.relu(F.linear(x, w)) * 2, (x,), LIMITS)
    product = 4 * (16 * 32 + 8 * 32 + 16 * 8)
    edges = 4 * (16 * 32 + 16 * 8)
    assert found["operations"] == 2 * 16 * 32 * 8 and found["bytes"] == product + edges
    assert found["seconds"] == pytest.approx((max(product, 2 * 16 * 32 * 8) + edges) / 1e9)


def _found(seconds: float, peer: bool, mode: str = "default") -> dict[str, Any]:
    ours = {"seconds": seconds, "speedup": 1 / seconds, "first": 2.0, "errors": 1.0}
    rows: dict[str, dict[str, Any]] = {"eager": {"seconds": 1.0, "speedup": 1.0}, label_of("framesmith", mode): ours}
    if peer:
        rows[label_of("torch.compile", mode)] = {"failed": "RuntimeError: no"}
    work = {"bytes": 1e9, "operations": 1e9, "seconds": 0.1}
    return {"peers": rows, "cores": 4, "ceilings": LIMITS, "work": work, "graphs": 1, "breaks": 0}


@pytest.fixture
def kept(tmp_path, monkeypatch) -> results.Results:
    about = {"device": "a GPU", "cuda": "13.0", "cores": 16, "python": "3", "torch": "2"}
    monkeypatch.setattr(results, "device", lambda: about)
    return results.Results(tmp_path / "gpu.json")


def test_rows_add_up_over_runs(kept: results.Results) -> None:
    row = Row("gpt2")
    kept.add(row, _found(0.5, True))
    kept.add(Row("gpt2", training=True, peers=False), _found(0.25, False))
    kept.add(Row("gpt2", warm=True), {"peers": {label_of("framesmith", "default"): {"first": 0.3}}})
    kept.add(row, {"failed": "no time"})  # what was measured before stays
    again = results.Results(kept.path)
    assert json.loads(kept.path.read_text())["rows"].keys() == {row.key(), "gpt2 training bf16 default"}
    assert again.rows[row.key()]["peers"]["framesmith"]["warm"] == 0.3
    assert again.missing(row) is None and again.missing(Row("gpt2", training=True, peers=False)) is None
    assert again.missing(Row("gpt2", training=True)) == Row("gpt2", training=True)
    assert again.missing(Row("gpt2", modes=("default", "reduce-overhead"))) == Row("gpt2", modes=("reduce-overhead",))


def test_a_contender_that_did_not_come_to_its_end_is_missing(kept: results.Results) -> None:
    row = Row("rnn")
    kept.add(row, _found(0.5, True)
             | {"peers": _found(0.5, False)["peers"] | {label_of("torch.compile", "default"): {"late": 90.4}}})
    assert kept.missing(row) == row and kept.missing(Row("rnn", peers=False)) is None
    (_, header, (speeds, *_)), (_, _, (costs, *_)), *_ = table.all_of(kept)
    assert speeds == ["rnn", "1000.000", "2.00 ×", "not in 90 s"] and "> 90" in costs and len(speeds) == len(header)


def test_figures_become_tables(kept: results.Results) -> None:
    kept.add(Row("gpt2"), _found(0.5, True))
    kept.add(Row("llama"), _found(0.25, False))
    kept.add(Row("llama", modes=("reduce-overhead",), peers=False), _found(0.125, False, "reduce-overhead"))
    kept.kernels = [{"kernel": "softmax", "bytes": 1e9, "framesmith": 1e-3, "eager": 2e-3, "copy": 2e12,
                     "reached": 0.5}]
    (_, header, rows), (_, costs, first), *others = table.all_of(kept)
    assert header == ["model", "eager ms", "default", "torch.compile", "reduce-overhead", "torch.compile"]
    assert rows[0] == ["gpt2", "1000.000", "2.00 ×", "fails", "–", "–"] and rows[1][4] == "8.00 ×"
    assert rows[-2][2] == "4.00 × of 1"  # of those that every contender has run
    assert dict(zip(costs, first[0], strict=True))["1st call s"] == "2.0"
    for _, columns, lines in [("", header, rows), ("", costs, first), *others]:
        assert all(len(row) == len(columns) for row in lines)
    assert table.notes(kept) == ["gpt2 inference bf16 default, torch.compile: RuntimeError: no"]


def test_means_compare_what_both_have_run(kept: results.Results) -> None:
    for name, ours, theirs in (("gpt2", 0.25, 0.5), ("llama", 0.125, None)):
        found = _found(ours, False)
        if theirs is not None:
            found["peers"][label_of("torch.compile", "default")] = {"seconds": theirs, "speedup": 1 / theirs,
                                                                    "first": 8.0}
        kept.add(Row(name), found)
    (_, _, (*_, means, over)), (_, header, (*_, parts)), *_ = table.all_of(kept)
    assert means[2:] == ["4.00 × of 1", "2.00 ×"] and over[2] == "2.00 ×"
    assert parts[header.index("part")] == "25%"


def test_what_is_asked_for() -> None:
    rows = rows_of(_arguments(["decoding", "rnn", "--kinds", "inference", "training", "--modes", "default",
                               "reduce-overhead", "--peers"]))
    assert [row.key() for row in rows] == ["rnn inference bf16 default", "decoding inference bf16 default",
                                           "rnn training bf16 default"]
    assert list(contenders(rows[0])) == ["eager", *(f"{p}, {m}" for p in ("framesmith", "torch.compile")
                                                    for m in rows[0].modes)]
    (row,) = rows_of(_arguments(["rnn", "--ablate"]))
    assert {"no fusion", "no tiling", "no weight caching"} < contenders(row).keys()


def test_everything_is_what_the_tables_show() -> None:
    rows = rows_of(_arguments(["--everything", "--peers"]))
    assert len({(row.key(mode)) for row in rows for mode in row.modes}) == sum(len(row.modes) for row in rows)
    plain = {(row.model, row.training) for row in rows if row.precision == "bf16" and row.modes[0] == "default"}
    assert plain == {(name, kind) for name in named() for kind in (False, True) if not kind
                     or name != "decoding"} | {("kernels", False)}
    assert {row.model for row in rows if row.modes == ("max-autotune",)} == set(named())


def test_kernels_are_a_table() -> None:
    header, rows = kernels.rows_of([{"kernel": "add_norm", "bytes": 2e9, "framesmith": 1e-3, "eager": 3e-3,
                                     "copy": 4e12, "reached": 0.5}])
    assert dict(zip(header, rows[0], strict=True)) == {
        "kernel": "add norm", "MB": "2000", "µs": "1000", "TB/s": "2.00", "of the copy": "50%", "× eager": "3.00",
    }


CHILD = """
import faulthandler, json, os, signal, sys, time
row = json.loads(sys.argv[1])
def say(**what): print(json.dumps(what), flush=True)
def hurried(*_):
    say(figures={"peers": {"eager": {}, "torch.compile, default": {"late": [began, time.monotonic()]}}})
    sys.exit()
signal.signal(signal.SIGUSR1, hurried)
faulthandler.register(signal.SIGUSR2)
if row["model"] == "gpt2" and len(row["modes"]) > 1:
    sys.exit("no modes")
if row["model"] == "vit" and not row["alone"]:
    sys.exit("torch.OutOfMemoryError")
if row["warm"]:
    say(figures={"peers": {"framesmith, default": {"span": [1.0, 1.25]}}})
    sys.exit()
began = time.monotonic()
ticks = [began]
while time.monotonic() < began + 0.3:
    time.sleep(0.01)
    ticks.append(time.monotonic())
first = {"span": [began, ticks[-1]]}
say(ready=True)
sys.stdin.readline()
timed = time.monotonic()
time.sleep(60 if row["model"] == "swin" else 0.2)
device = os.environ["CUDA_VISIBLE_DEVICES"]
times = [timed, time.monotonic()]
say(timed=True, figures={"peers": {"eager": first}, "times": times, "ticks": ticks, "device": device})
if row["model"] == "llama":
    began = time.monotonic()
    say(begins="torch.compile, default")
    time.sleep(60)
if row["model"] == "rnn":
    os.close(1)
    time.sleep(60)
if row["model"] == "t5":
    say(begins="torch.compile, default")
    sys.exit("dead")
"""


def test_a_process_that_hangs_holds_up_no_other(monkeypatch) -> None:
    monkeypatch.setattr(process, "COMMAND", (sys.executable, "-c", CHILD))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1 << 40, 1 << 40))
    monkeypatch.setattr(jobs, "LONGEST", 2.0)
    monkeypatch.setattr(process, "PARTING", 1.0)
    cores = tuple(os.sched_getaffinity(0))
    found: dict[str, dict[str, Any]] = {}
    said: list[str] = []
    there = [jobs.Device(0, "0", LIMITS, [cores, cores])]
    machine = jobs.Machine(there, 60.0, 1.0, lambda row, what: found.update({row.model: what}), said.append)
    machine.run([Row(name) for name in ("swin", "rnn", "dlrm")], warm=False)
    assert found["swin"] == {"failed": "timed for 2 s"}
    assert any(text.startswith("swin inference bf16 default hangs") and "line" in text for text in said)
    assert all("times" in found[name] for name in ("rnn", "dlrm"))


def test_second_processes_alone_have_caches_that_a_first_one_filled(monkeypatch) -> None:
    monkeypatch.setattr(process, "COMMAND", (sys.executable, "-c", CHILD))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1 << 40, 1 << 40))
    begun: list[Path] = []
    original = process.Process.__init__

    def noting(self: process.Process, row: Row, limits: Any, device: str, own: tuple[int, ...], caches: Path) -> None:
        begun.append(caches)
        original(self, row, limits, device, own, caches)

    monkeypatch.setattr(process.Process, "__init__", noting)
    cores = tuple(os.sched_getaffinity(0))
    found: list[Row] = []
    machine = jobs.Machine([jobs.Device(0, "0", LIMITS, [cores])], 60.0, 1.0, lambda row, _: found.append(row),
                           lambda _: None)
    rows = [Row(name, warm=True, peers=False) for name in ("bert_b1", "dlrm")]
    machine.run(rows, warm=False)
    assert found == rows and [begun.count(caches) for caches in dict.fromkeys(begun)] == [2, 2]


@pytest.fixture
def told(monkeypatch) -> dict[Row, dict[str, Any]]:
    """What processes of `CHILD` on two devices say of some rows."""
    monkeypatch.setattr(process, "COMMAND", (sys.executable, "-c", CHILD))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1 << 40, 1 << 40))
    monkeypatch.setattr(jobs, "ROW", 1.0)
    cores = tuple(os.sched_getaffinity(0))
    there = [jobs.Device(k, str(k), LIMITS, [cores, cores]) for k in range(2)]
    found: dict[Row, dict[str, Any]] = {}
    machine = jobs.Machine(there, 60.0, 1.0, found.__setitem__, lambda _: None)
    machine.run([Row(name, modes=("default", "reduce-overhead"))
                 for name in ("bert_b1", "gpt2", "llama", "t5", "vit", "dlrm")], warm=True)
    return found


def test_processes_compile_beside_each_other_and_time_alone(told: dict[Row, dict[str, Any]]) -> None:
    both = ("default", "reduce-overhead")
    cold = {(row.model, row.modes, row.alone): found for row, found in told.items() if not row.warm}
    assert cold.keys() == {(m, both, False) for m in ("bert_b1", "llama", "t5", "dlrm")} | {("gpt2", both[:1], False),
                                                                                            ("vit", both, True)}
    assert {row.model: found["peers"]["framesmith, default"]["first"] for row,
            found in told.items() if row.warm} == dict.fromkeys(
        ("bert_b1", "gpt2", "llama", "t5", "vit", "dlrm"), 0.25
    )
    assert 1.0 <= cold["llama", both, False]["peers"]["torch.compile, default"]["late"] < 30
    assert "dead" in cold["t5", both, False]["peers"]["torch.compile, default"]["failed"]


def test_nothing_else_moves_while_one_is_timed_and_that_is_no_part_of_first_calls(
    told: dict[Row, dict[str, Any]]) -> None:
    measured = [found for found in told.values() if "times" in found]
    for one, other in itertools.permutations(measured, 2):
        if one["device"] == other["device"]:
            begin, end = other["times"]
            assert one["times"][1] <= begin or end <= one["times"][0]
            assert not [tick for tick in one["ticks"] if begin < tick < end]
            began, ended = one["ticks"][0], one["ticks"][-1]
            assert one["peers"]["eager"]["first"] <= ended - began - max(0.0, min(end, ended)
                                                                         - max(begin, began)) + 0.01
