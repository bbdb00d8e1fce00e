"""Emulated links, steps over them, and the tables of the page on many processes."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
import torch

from benchmarks import link_emulation, links, plan_llama
from benchmarks.document import distributed
from benchmarks.document.markers import NOT_MEASURED
from benchmarks.document.summary import saved
from framesmith.distributed.links import gloo

needs_links = pytest.mark.usefixtures("links_can_be_made")
SIZE = sum(p.numel() * p.itemsize for p in links.Net().parameters())
LINK = {"round_trip": 0.002, "rate": 1e9}
SECONDS = {
    "one rank, eager": 0.1, "one rank, framesmith": 0.08, "DDP, eager": 0.2, "DDP, framesmith": 0.1,
    "FSDP2, eager": 0.5, "FSDP2, framesmith": 0.48, f"DDP, {links.ALONE}": 0.16, f"FSDP2, {links.ALONE}": 0.4,
    "product": 0.004, "copy": 0.001,
}


FASTEST = """
import json, sys, time
import torch, torch.distributed as dist
rank, ranks, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
whole, part = torch.zeros(ranks * 8), torch.zeros(8)
calls = {"all_reduce": lambda: dist.all_reduce(whole), "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
         "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole)}
found = {}
for name, call in calls.items():
    times = []
    for _ in range(6):
        dist.barrier()
        start = time.perf_counter()
        call()
        times.append(torch.tensor(time.perf_counter() - start))
        dist.all_reduce(times[-1], dist.ReduceOp.MAX)
    found[name] = min(times).item()
print(json.dumps(found))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def links_can_be_made() -> None:
    if reason := link_emulation.unavailable():
        pytest.skip(reason)


def namespaces() -> set[str]:
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return {line.split()[0] for line in done.stdout.splitlines() if line.startswith(f"framesmith-{os.getpid()}-")}


@needs_links
def test_a_link_has_the_delay_and_at_most_the_rate_and_goes_away() -> None:
    with link_emulation.emulated(2, 5e7, 5e-3) as made:
        assert namespaces() == set(made.names)
        found = link_emulation.checked(made, 1 << 20)
    assert found["round_trip"] >= 2 * 5e-3
    assert 0 < found["rate"] <= 5e7
    assert not namespaces()


@needs_links
def test_an_error_within_removes_the_links() -> None:
    with pytest.raises(ZeroDivisionError), link_emulation.emulated(2, 1e9, 0.0):
        raise ZeroDivisionError
    assert not namespaces()


@needs_links
@pytest.mark.parametrize("ranks", [2, 3])
def test_each_segment_of_gloo_costs_a_latency(ranks, tmp_path) -> None:
    """Of a few bytes nothing but latencies is left; at the best of six times another process hardly disturbs."""
    delay = 0.02
    with link_emulation.emulated(ranks, 1e9, delay) as made:
        environment = os.environ | made.environment()
        started = [subprocess.Popen(made.command(rank, ["-c", FASTEST, str(rank), str(ranks), str(tmp_path / "store")]),
                                    env=environment, text=True, stdout=subprocess.PIPE) for rank in range(ranks)]
        said = [process.communicate(timeout=120)[0] for process in started]
    for name, seconds in json.loads(said[0]).items():
        expected = gloo(delay, 1e9 / 8).collective(name, 32 * ranks, ranks)
        assert 0.95 * expected < seconds < 1.3 * expected, name


@needs_links
def test_steps_are_measured_and_predicted() -> None:
    row = links.run(2, 1e9, 1e-4, 1, False)
    assert row["seconds"].keys() == SECONDS.keys() and min(row["seconds"].values()) > 0
    least = SIZE * 8 / 1e9  # two ranks send each other half of the gradients, and then half of their sums
    assert row["seconds"][f"DDP, {links.ALONE}"] > least
    assert row["seconds"][f"FSDP2, {links.ALONE}"] > 2 * least
    assert row["predicted"].keys() == {"DDP", "FSDP2"}


def test_links_need_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in str(link_emulation.unavailable())


def test_a_slower_link_is_predicted_to_cost_its_bytes() -> None:
    fast, slow = links.predicted(2, LINK, SECONDS), links.predicted(2, LINK | {"rate": 1e8}, SECONDS)
    for way, times in {"DDP": 1, "FSDP2": 2}.items():  # an all_reduce; two gathers and an all_reduce
        assert slow[way]["communication"] - fast[way]["communication"] == pytest.approx(times * SIZE * (8e-8 - 8e-9))
    assert fast["FSDP2"]["exposed"] == fast["FSDP2"]["communication"]
    assert fast["DDP"]["exposed"] < fast["DDP"]["communication"]


def test_the_table_has_what_is_hidden_and_predicted(tmp_path) -> None:
    predicted = {"DDP": {"seconds": 0.15, "communication": 0.12, "exposed": 0.03},
                 "FSDP2": {"seconds": 0.4, "communication": 0.3, "exposed": 0.3}}
    row = {"ranks": 2, "link": LINK, "seconds": SECONDS, "predicted": predicted}
    found = {cells[0]: cells[1:] for cells in links.rows_of(row)[1]}
    assert found["DDP, eager"] == ["200.0 ms", "38%", "75%", "150.0 ms", "0.75"]
    assert found["DDP, framesmith"] == ["100.0 ms", "88%", "75%", "", ""]
    assert found[f"DDP, {links.ALONE}"] == ["160.0 ms", "", "", "120.0 ms", "0.75"]
    assert "copy" not in found
    assert distributed.slow_links(tmp_path) == NOT_MEASURED
    about = {"machine": links.machine.describe(), "load": 0.5, "date": "2026-01-01", "row": row}
    (tmp_path / "links-2.json").write_text(json.dumps(about))
    assert "**2 ranks, 1 Gbit/s and 2.00 ms of a round trip, measured**" in distributed.slow_links(tmp_path)


def test_the_plan_of_the_llama_is_what_is_committed() -> None:
    committed = saved("plan-llama")
    if torch.__version__.split("+")[0] != committed["torch"]:
        pytest.skip(f"the plan was made with PyTorch {committed['torch']}")
    found = json.loads(json.dumps(plan_llama.planned([8, 1024])))
    assert found == committed | {"plans": {n: committed["plans"][n] for n in ("8", "1024")}}
    for plans in committed["plans"].values():
        assert plans[0]["fits"] and plans[0]["seconds"] == min(p["seconds"] for p in plans if p["fits"])


@pytest.mark.parametrize(("layout", "kind"), [
    (plan_llama.Layout(8, sharded=True), "FSDP2"), (plan_llama.Layout(16, 8, 2), "DDP × TP × PP"),
    (plan_llama.Layout(), "one rank"),
])
def test_the_kind_of_a_layout_has_no_sizes(layout, kind) -> None:
    assert plan_llama.kind(layout) == kind
