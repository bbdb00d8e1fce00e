"""A backward cut into segments computes what the whole does."""

import pytest
import torch
from torch import nn

import framesmith
from framesmith.autograd import segments


class Branched(nn.Module):
    """Layers of which later segments read views, statistics and several results of earlier ones."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)
        self.norm, self.shared = nn.LayerNorm(64), nn.Linear(64, 64)
        self.scale = nn.Parameter(torch.ones(64))

    def forward(self, x):
        x = self.norm(self.first(x)).relu()
        parts = self.shared(x).chunk(2, 1)
        y = torch.cat([parts[1].sigmoid(), parts[0]], 1) * self.scale
        return self.last(self.shared(y) + x.flip(1)).max(1).values.sum()


NETS = {
    "branched": (Branched, (8, 64)),
    "sequence": (lambda: nn.TransformerEncoderLayer(64, 4, 128, 0.1, batch_first=True), (4, 8, 64)),
    "images": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3)),
               (2, 3, 16, 16)),
}


@pytest.mark.parametrize("name", NETS)
def test_as_the_whole(name, monkeypatch):
    make, shape = NETS[name]
    monkeypatch.setattr(segments, "LEAST", 1)
    ran, run = [], segments.Segments.run

    def told(self, given, compile):
        for gradients in run(self, given, compile):
            ran.append(1)
            yield gradients

    monkeypatch.setattr(segments.Segments, "run", told)
    torch.manual_seed(0)
    net = make().double()
    x = torch.randn(shape, dtype=torch.float64)

    def gradients(fn, hooked):
        net.zero_grad()
        torch.manual_seed(1)
        given = x.clone().requires_grad_()
        handles = [p.register_post_accumulate_grad_hook(lambda p: None) for p in net.parameters() if hooked]
        (fn(given) ** 2).sum().backward()
        for handle in handles:
            handle.remove()
        return [given.grad, *[p.grad for p in net.parameters()]]

    expected, compiled = gradients(net, False), framesmith.compile(net, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(gradients(compiled, True), expected, rtol=1e-9, atol=1e-11)
    assert len(ran) >= 4
    torch.testing.assert_close(gradients(compiled, False), expected, rtol=1e-9, atol=1e-11)


def test_gradients_are_handed_on_not_copied(monkeypatch):
    """The engine accumulates a gradient itself, not a copy, if nothing else holds it meanwhile."""
    monkeypatch.setattr(segments, "LEAST", 1)
    given, run = [], segments.Segments.run

    def noted(gradients):
        given.extend(x.data_ptr() for x in gradients if x is not None)
        return gradients

    monkeypatch.setattr(segments.Segments, "run", lambda *args: map(noted, run(*args)))
    net = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(4)])
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: None)
    framesmith.compile(net)(torch.randn(8, 64)).sum().backward()
    assert sorted(given) == sorted(p.grad.data_ptr() for p in net.parameters()) and len(given) == 4


def sizes_of_segments(*sizes):
    """How many elements the gradients of each segment have, for layers of these numbers of outputs."""
    net = nn.Sequential(*[nn.Linear(256, size) if k % 2 else nn.Linear(size, 256) for k, size in enumerate(sizes)])
    found, init = [], segments.Segments.__init__

    def noted(self, graph):
        init(self, graph)
        found.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments.Segments, "__init__", noted)
        patch.setattr(segments, "LEAST", 1 << 10)
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(lambda _: None)
        framesmith.compile(net)(torch.randn(4, sizes[0])).sum().backward()
    (made,) = found
    grads = list(made._graph.nodes)[-1].args[0]
    count = [0] * (1 + max(made.of, default=0))
    for place, grad in enumerate(grads):
        if isinstance(grad, torch.fx.Node):
            count[made.of[place]] += grad.meta["val"].numel()
    return count


def test_equal_layers_are_divided_equally():
    """Each of eight layers has less than an eighth of all bytes with the bias of the last."""
    count = sizes_of_segments(*[256] * 8)
    assert len(count) == 8 and max(count) - min(count) <= 512, count


def test_inputs_of_segments_are_in_the_order_of_the_graph(monkeypatch):
    """The text of a segment, by which processes share its code, depends on no order of a set."""
    monkeypatch.setattr(segments, "LEAST", 1)
    found, init = [], segments.Segments.__init__
    monkeypatch.setattr(segments.Segments, "__init__", lambda self, graph: (init(self, graph), found.append(self))[0])
    net = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU()) for _ in range(4)])
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: None)
    framesmith.compile(net)(torch.randn(4, 16)).sum().backward()
    (made,) = found
    for part, graph in made.parts():
        places = [n for n in graph.nodes if n.op == "placeholder"]
        calls = [n for n in graph.nodes if n.op == "call_function"]
        read = dict.fromkeys(a for n in calls for a in n.all_input_nodes if a in places)
        assert places[:len(read)] == list(read) and len(part.takes) == len(places)
