"""The benchmark for CUDA devices, as far as it can be seen without one: its models, what it counts, and how results add up."""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from benchmarks.gpu import jobs, kernels, results, table
from benchmarks.gpu.__main__ import _arguments, rows_of
from benchmarks.gpu.decoding import Decoder
from benchmarks.gpu.diffusion import DiffusionUNet
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
    assert again.has(row) and again.has(Row("gpt2", training=True, peers=False))
    assert not again.has(Row("gpt2", training=True)) and not again.has(Row("gpt2", modes=("default", "reduce-overhead")))


def test_figures_become_tables(kept: results.Results) -> None:
    kept.add(Row("gpt2"), _found(0.5, True))
    kept.add(Row("llama"), _found(0.25, False))
    kept.add(Row("llama", modes=("reduce-overhead",), peers=False), _found(0.125, False, "reduce-overhead"))
    kept.kernels = [{"kernel": "softmax", "bytes": 1e9, "framesmith": 1e-3, "eager": 2e-3, "copy": 2e12, "reached": 0.5}]
    (_, header, rows), *others = table.all_of(kept)
    line = dict(zip(header, rows[0], strict=True))
    assert line["default: framesmith"] == "2.00 ×" and line["default: torch.compile"] == "fails" and line["1st call s"] == "2.0"
    assert dict(zip(header, rows[1], strict=True))["reduce-overhead: framesmith"] == "8.00 ×"
    assert dict(zip(header, rows[-1], strict=True))["default: framesmith"] == "4.00 × of 1"  # of those that every contender has run
    assert all(len(row) == len(header) for row in rows)
    for _, columns, lines in others:
        assert all(len(row) == len(columns) for row in lines)
    assert "50%" in table.markdown(kept) and "a GPU, CUDA 13.0" in table.markdown(kept)
    assert table.notes(kept) == ["gpt2 inference bf16 default, torch.compile: RuntimeError: no"]


def test_what_is_asked_for() -> None:
    rows = rows_of(_arguments(["decoding", "rnn", "--kinds", "inference", "training", "--modes", "default", "reduce-overhead", "--peers"]))
    assert [row.key() for row in rows] == ["decoding inference bf16 default", "rnn inference bf16 default", "rnn training bf16 default"]
    assert list(contenders(rows[0])) == ["eager", *(f"{p}, {m}" for p in ("framesmith", "torch.compile") for m in rows[0].modes)]
    (row,) = rows_of(_arguments(["rnn", "--ablate"]))
    assert {"no fusion", "no tiling", "no weight caching"} < contenders(row).keys()


def test_kernels_are_a_table() -> None:
    header, rows = kernels.rows_of([{"kernel": "add_norm", "bytes": 2e9, "framesmith": 1e-3, "eager": 3e-3, "copy": 4e12, "reached": 0.5}])
    assert dict(zip(header, rows[0], strict=True)) == {
        "kernel": "add norm", "MB": "2000", "µs": "1000", "TB/s": "2.00", "of the copy": "50%", "× eager": "3.00",
    }


CHILD = """
import json, sys, time
row = json.loads(sys.argv[1])
if row["model"] == "gpt2" and len(row["modes"]) > 1:
    sys.exit("no memory")
if row["warm"]:
    print(json.dumps({"peers": {"framesmith, default": {"first": 0.25}}}))
elif row["model"] == "llama":
    time.sleep(60)
else:
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.time()
    time.sleep(0.2)
    print(json.dumps({"peers": {}, "span": [began, time.time()]}))
"""


def test_processes_compile_beside_each_other_and_time_alone(monkeypatch) -> None:
    monkeypatch.setattr(jobs, "COMMAND", (sys.executable, "-c", CHILD))
    monkeypatch.setattr(jobs, "RESERVE", 0.5)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 40, 1 << 40))
    told: list[tuple[Row, dict[str, Any]]] = []
    said: list[str] = []
    machine = jobs.Machine(2, 8.0, lambda row, found: told.append((row, found)), said.append)
    machine.run([Row(name, modes=("default", "reduce-overhead")) for name in ("bert_b1", "gpt2", "llama", "t5", "vit")], warm=True)
    spans = sorted(found["span"] for row, found in told if not row.warm)
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))
    measured = {(row.model, row.modes) for row, _ in told if not row.warm}
    both = ("default", "reduce-overhead")
    assert measured == {("bert_b1", both), ("gpt2", ("default",)), ("t5", both), ("vit", both)}
    assert {row.model for row, _ in told if row.warm} == {"bert_b1", "gpt2", "t5", "vit"}
    assert any("no memory" in text for text in said) and any("llama" in text and "out of time" in text for text in said)
