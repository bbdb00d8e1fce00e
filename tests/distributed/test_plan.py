"""`plan`: collectives against values by hand, memory by layout, and what is proposed."""

import dataclasses

import pytest
import torch
from torch import nn

import framesmith
from framesmith.distributed.layouts import Layout, buckets
from framesmith.distributed.links import H100, Hardware, Link, gloo
from framesmith.distributed.work import ROOT, recorded
from framesmith.util.errors import FramesmithError

SLOW = Hardware("slow", {torch.float32: 1e9}, 1e9, 1e9, Link(1.0, 100.0), Link(2.0, 10.0), 4, 1.0)


class Net(nn.Module):
    def __init__(self, blocks=4, width=16):
        super().__init__()
        self.embed = nn.Linear(width, width, bias=False)
        self.blocks = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(blocks))

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return x


def planned(ranks, hardware=H100, **options):
    return framesmith.plan(Net(), ranks, hardware, (torch.empty(8, 16, device="meta"),), **options)


@pytest.mark.parametrize(("name", "seconds"), [
    ("all_gather", 3 * (1 + 40 / 4 / 100)), ("reduce_scatter", 3 * (1 + 40 / 4 / 100)),
    ("all_reduce", 6 * (1 + 40 / 4 / 100)), ("send", 1 + 40 / 100),
])
def test_a_collective_takes_the_time_of_a_ring(name, seconds):
    assert SLOW.collective(name, 40, 4) == pytest.approx(seconds)
    assert SLOW.collective(name, 40, 1) == 0


def test_rings_over_hosts_use_the_links_between_them():
    assert SLOW.link(4, 1) == Link(1.0, 100.0)
    assert SLOW.link(8, 1) == Link(2.0, 40.0)
    assert SLOW.link(8, 4) == SLOW.link(2, 4) == Link(2.0, 10.0)


@pytest.mark.parametrize(("name", "seconds"), [
    ("all_gather", 3 * (2 + 40 / 4 / 100) + 2 * (40 + 10) / 1000), ("all_reduce", 6 * (2 + 40 / 4 / 100)),
    ("reduce_scatter", 6 * (2 + 40 / 4 / 100) + 2 * (40 + 10) / 1000),
])
def test_gloo_sends_halves_that_wait_for_each_other_and_copies(name, seconds):
    assert gloo(1.0, 100.0, bandwidth=1000).collective(name, 40, 4) == pytest.approx(seconds)


@pytest.mark.parametrize(("size", "ranks", "segments"), [
    (4 << 20, 2, 2), ((4 << 20) + 1, 2, 3), (7 << 20, 2, 4), (9 << 20, 3, 3), (1 << 20, 64, 2),
])
def test_gloo_sums_segments_of_at_most_a_mebibyte(size, ranks, segments):
    assert gloo(1.0, 1e30).collective("all_reduce", size, ranks) == pytest.approx(2 * (ranks - 1) * segments)


@pytest.mark.parametrize(("latency", "seconds"), [(0.1, 1.0), (1.0, 1.0), (0.5, 2.0)])
@pytest.mark.parametrize("messages", [2, 4, 6, 12])
def test_two_messages_under_way_take_a_latency_each(latency, seconds, messages):
    """What `GLOO` says, message by message: each rank sends the next one what it has received two messages before, when
    that rank has said that it is ready; this word stands behind what that rank has begun to send."""
    starts, arrivals = [], []
    for k in range(messages):
        posted = arrivals[k - 2] if k >= 2 else 0.0
        free = starts[-1] + seconds if starts else 0.0
        word = max(posted, free) if starts and starts[-1] <= posted else posted
        starts.append(max(word + latency, free))
        arrivals.append(starts[-1] + seconds + latency)
    assert arrivals[-1] == pytest.approx(messages * (latency + seconds))


def test_operations_of_a_step_are_counted():
    x = torch.empty(8, 16)
    work = recorded(Net(), (x,), {}, None)
    product = 2 * 8 * 16 * 16
    assert sum(op.flops for op in work.forward) == 5 * product
    assert sum(op.flops for op in work.backward) == 9 * product  # the input of the first has no gradient
    assert [sum(op.flops for op in work.forward if op.unit == u) for u in range(5)] == [product] * 5
    assert [p.unit for p in work.parameters] == [ROOT, 1, 2, 3, 4]
    assert work.parameters[-1].ready < work.parameters[0].ready <= len(work.backward)


def test_convolutions_are_counted_with_their_derivatives():
    work = recorded(nn.Conv2d(3, 4, 3), (torch.empty(2, 3, 10, 10),), {}, None)
    product = 2 * 2 * 4 * 8 * 8 * 3 * 3 * 3
    assert [sum(op.flops for op in ops) for ops in (work.forward, work.backward)] == [product, product]


def test_attention_keeps_no_scores():
    def attend(q):
        return nn.functional.scaled_dot_product_attention(q, q, q)

    class Attend(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Parameter(torch.empty(1, 2, 256, 8))

        def forward(self):
            return attend(self.q * 1)

    work = recorded(Attend(), (), {}, None)
    flops = [op.flops for op in work.forward if op.flops]
    assert flops == [2 * 2 * 256 * 256 * 16]
    assert sum(work.saved) < 4 * 2 * 256 * 256 and work.attentions == (1,)


def test_buckets_close_in_the_order_of_gradients():
    assert buckets(((1.0, 4.0), (2.0, 4.0), (3.0, 1.0)), 8.0) == [(2.0, 8.0), (3.0, 1.0)]
    assert buckets((), 8.0) == []


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_sharding_divides_parameters_gradients_and_states(ranks):
    plan = planned(ranks)
    whole, shard = plan.of(Layout(ranks)).parts, plan.of(Layout(ranks, sharded=True)).parts
    assert whole["parameters"] == 5 * 16 * 16 * 4 and whole["optimizer"] == 2 * whole["parameters"]
    for part in ("parameters", "gradients", "optimizer"):
        assert shard[part] == whole[part] / ranks


def test_tensor_and_pipeline_parallel_divide_parameters():
    plan = planned(8)
    assert plan.of(Layout(1, 8)).parts["parameters"] == 5 * 16 * 16 * 4 / 8
    assert plan.of(Layout(2, 1, 4)).parts["parameters"] == 2 * 16 * 16 * 4


def test_all_layouts_are_products_of_the_ranks_and_fit_hosts():
    plan = planned(64)
    assert {p.layout.ranks for p in plan.predictions} == {64}
    assert len({p.layout for p in plan.predictions}) == len(plan.predictions)
    assert max(p.layout.tensor for p in plan.predictions) == 8
    assert max(p.layout.pipeline for p in plan.predictions) == 4
    assert Layout(8, 4, 2, sharded=True) in {p.layout for p in plan.predictions}


def test_one_rank_computes_alone():
    best = planned(1).best
    assert best.layout == Layout() and best.exposed == best.idle == 0 and best.seconds == best.compute


def test_what_does_not_fit_is_not_proposed():
    full = planned(8)
    least = min(p.memory for p in full.predictions)
    plan = planned(8, dataclasses.replace(H100, memory=least))
    assert plan.best.memory == least and plan.best is plan.predictions[0]
    tiny = dataclasses.replace(H100, memory=least - 1)
    assert planned(8, tiny).best is None and "nothing fits" in str(planned(8, tiny))


def test_a_blocking_backend_exposes_what_streams_hide():
    hidden = planned(4, SLOW).of(Layout(4, sharded=True))
    blocked = planned(4, dataclasses.replace(SLOW, streams=False)).of(Layout(4, sharded=True))
    size = 16 * 16 * 4
    copied = 9 * 2 * size / 4 / 1e9
    assert blocked.exposed == pytest.approx(14 * 3 * (1 + size / 4 / 100) + copied)  # 9 gathers and 5 scatters
    assert hidden.exposed < blocked.exposed == blocked.communication == hidden.communication


def test_copies_of_buffers_are_computation():
    plan = planned(4, SLOW, optimizer="sgd")
    size, alone = 5 * 16 * 16 * 4, planned(1, SLOW, optimizer="sgd").best.compute
    whole, shard = plan.of(Layout(4)), plan.of(Layout(4, sharded=True))
    assert whole.compute == pytest.approx(alone + 2 * 2 * size / 1e9)
    gathered, scattered = size * (1 + 4 / 5), size
    assert shard.compute == pytest.approx(alone - 3 * size * (3 / 4) / 1e9 + 2 * (gathered + scattered) / 1e9)


def test_buckets_are_communication_that_is_partly_hidden():
    found = planned(4, SLOW).of(Layout(4))
    assert found.communication == pytest.approx(6 * (1 + 5 * 16 * 16 * 4 / 4 / 100))
    assert 0 < found.exposed <= found.communication


def test_a_step_that_reads_values_is_refused():
    class Reads(Net):
        def forward(self, x):
            return super().forward(x) * x.sum().item()

    with pytest.raises(FramesmithError, match="does not run without values"):
        framesmith.plan(Reads(), 2, H100, (torch.empty(8, 16),))
    with pytest.raises(FramesmithError, match="no optimizer"):
        planned(2, optimizer="none")


def test_the_model_stays_as_it_is():
    model, x = Net(), torch.ones(8, 16)
    before = [p.clone() for p in model.parameters()]
    framesmith.plan(model, 2, H100, (x,))
    assert all(torch.equal(a, b) and a.device.type == "cpu" and a.grad is None
               for a, b in zip(model.parameters(), before, strict=True))
    assert not model._forward_hooks and not model.blocks[0]._forward_pre_hooks
