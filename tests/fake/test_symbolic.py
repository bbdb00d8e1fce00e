"""Recording at one size, running at another: no guard but those that the program's own meaning asks for."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

from framesmith.fake import Recorder
from framesmith.graph.interpreter import bind_symbols, run
from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.node import symint
from tests.fake.harness import same_strides
from tests.fake.test_models import bert, gpt2, llama, tensors, timm_model

torch.manual_seed(0)


def symbolic_input(rec, real, name, dims):
    shape = list(real.shape)
    for d in dims:
        shape[d] = symint(rec.shape_env.new_symbol(real.shape[d], f"{name}.size({d})"), rec.shape_env)
    return rec.input(real, name, shape=tuple(shape))


def share(rec, real, name, shape):
    return rec.input(real, name, shape=shape)


def check(fn, first, second, dims, guards=0):
    """`fn` of one input with symbolic `dims`, recorded for `first`, gives what eager gives for `second`."""
    env = ShapeEnv()
    rec = Recorder(env)
    x = symbolic_input(rec, first, "x", dims)
    with torch.no_grad(), rec:
        fakes = tree_leaves(fn(x))
    graph = rec.finish(fakes)
    assert len(env.guards) <= guards, [str(g) for g in env.guards]
    with torch.no_grad():
        for real in (first, second):
            extra = [n.meta["constant"] for n in graph.nodes if "constant" in n.meta]
            symbols = bind_symbols(graph, [real.clone(), *extra])
            assert env.check(symbols) is None, str(env.check(symbols))
            got = run(graph, [real.clone(), *extra])
            want = tree_leaves(fn(real.clone()))
            for g, w, f in zip(got, want, fakes):
                torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-6)
                if isinstance(w, torch.Tensor):
                    shape, stride = evaluated(f.shape, symbols), evaluated(f.stride(), symbols)
                    assert shape == tuple(w.shape)
                    assert same_strides(w.shape, w.stride(), stride), (w.stride(), stride, f.stride())
    return graph


def evaluated(sizes, symbols):
    return tuple(s.node.expr.evaluate(symbols) if isinstance(s, torch.SymInt) else s for s in sizes)


ROW = torch.randn(8)
CELL = torch.nn.GRUCell(8, 4)
WEIGHT = torch.randn(6, 8)
KERNEL = torch.randn(5, 3, 3, 3)


def write_slice(x):
    y = torch.zeros_like(x)
    y[:, 2:4] += 1
    y[1:, 0] = x[:-1, 1]
    return y


def write_blocks(x):
    a, b, _ = (x * 2).unsafe_chunk(3, 1)
    return a.add_(b), x.clone()[:, :3].copy_(x[:, 3:6]), *x.unsafe_chunk(2, -1)


CASES = {
    "cell": CELL,
    "write_blocks": write_blocks,
    "pointwise": lambda x: torch.relu(x * 2 + x) - x.mean(0),
    "reduce": lambda x: (x.sum(1), x.amax(0), x.softmax(-1), x.var(0), x.argmax(0), x.mean(), x.cumsum(0)),
    "spread": lambda x: (x.std(), x.norm(dim=0), x.logsumexp(0, True), x.max(0), x.nansum(1), x.tril(),
                         torch.var_mean(x, 1)),
    "loss": lambda x: (F.mse_loss(x, x * 2), F.huber_loss(x, x + 1),
                       F.binary_cross_entropy_with_logits(x, x.sigmoid())),
    "reshape": lambda x: (x.reshape(-1), x.view(-1, 4), x.unsqueeze(1).expand(-1, 3, -1), x.flatten(),
                          x.view(x.shape[0], 2, 4)),
    "sizes": lambda x: (x / x.shape[0], torch.zeros(x.shape[0], 2) + 1, torch.arange(x.shape[0]), x.numel() * 2),
    "steps": lambda x: (torch.arange(-x.shape[0], x.shape[0] * 2, 1.0, dtype=torch.int64),
                        torch.arange(x.shape[0], -x.shape[0], -1.0), torch.arange(0, x.shape[0], 2.0)),
    "aliases": lambda x: (x[: x.shape[0]] + 1, x.detach() * 2, x[:, : x.shape[1]], torch.histc(x, 4, 0, 3)),
    "pairs": lambda x: (torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2), torch.stack([x.t(), x.t()], 1)),
    "slices": lambda x: (x[1:], x[:-1], x[:, 2:5], x[-1], x[None], x[::2], x[0:2]),
    "linear": lambda x: F.layer_norm(F.linear(x, x.new_ones(6, 8)), (6,)),
    "matmul": lambda x: (x @ x.T, x.T @ x, torch.bmm(x[None], x.t()[None]), torch.einsum("ab,cb->ac", x, x)),
    "cat": lambda x: (torch.cat([x, x]), torch.stack([x, x], 1), torch.cat([x, x[:1]], 0), F.pad(x, (0, 0, 1, 2))),
    "mask": lambda x: x.masked_fill(torch.ones(x.shape[0], 1, dtype=torch.bool), 1) + torch.full((x.shape[0], 1), 2.0),
    "causal": lambda x: torch.where(torch.arange(x.shape[0])[:, None] >= torch.arange(x.shape[0])[None], x @ x.T, -1.0),
    "index": lambda x: (x[torch.arange(x.shape[0]) * 0], x.gather(0, torch.zeros_like(x, dtype=torch.long))),
    "writes": lambda x: x.clone().index_fill_(0, torch.zeros(1, dtype=torch.long), 3.0).add_(1).mul_(x),
    "slice_write": lambda x: write_slice(x),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(1, -1, 2, 4).transpose(1, 2)] * 3, is_causal=True),
    "embedding": lambda x: F.embedding((x > 0).long(), x.new_ones(2, 3)),
    "chunk": lambda x: x.chunk(2, 1)[1] + x.split([4, 4], 1)[0],
    "repeat": lambda x: (x.repeat(2, 1), x.flip(0), x.tril(), x.t().contiguous(), x.roll(1, 0)),
    "topk": lambda x: (x.topk(2, 0), x.sort(0)),
}


@pytest.mark.parametrize("name", CASES)
def test_rows(name):
    check(CASES[name], torch.randn(5, 8), torch.randn(9, 8), [0],
          guards=2 if name in ("slices", "slice_write", "chunk", "topk") else 0)


IMAGES = {
    "conv": lambda x: F.conv2d(x, x.new_ones(5, 3, 3, 3), padding=1, stride=2),
    "norm": lambda x: F.group_norm(F.batch_norm(x, x.new_zeros(3), x.new_ones(3)), 3),
    "pool": lambda x: (F.max_pool2d(x, 3, 2, 1), F.adaptive_avg_pool2d(x, 1), F.avg_pool2d(x, 2)),
    "flatten": lambda x: x.flatten(2).transpose(1, 2) * 1,
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", IMAGES)
def test_images(name, layout):
    first = torch.randn(2, 3, 16, 20).to(memory_format=layout)
    check(IMAGES[name], first, torch.randn(4, 3, 22, 32).to(memory_format=layout), [0, 2, 3], guards=8)


def check_model(build, inputs, others, dims):
    model, _ = build()
    model = model.eval()
    env = ShapeEnv()
    rec = Recorder(env)
    real = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    fakes = {name: rec.input(t, "p_" + name.replace(".", "_")) for name, t in real.items()}
    x = symbolic_input(rec, inputs, "x", dims)
    with torch.no_grad(), rec:
        out = tensors(torch.func.functional_call(model, fakes, (x,), tie_weights=True))
    graph = rec.finish(out)
    with torch.no_grad():
        for batch in (inputs, others):
            extra = [n.meta["constant"] for n in graph.nodes if "constant" in n.meta]
            feed = [*real.values(), batch, *extra]
            assert env.check(bind_symbols(graph, feed)) is None, [str(g) for g in env.guards]
            for g, w in zip(run(graph, feed), tensors(model(batch))):
                torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("build", [bert, gpt2, llama])
def test_language_models(build):
    check_model(build, torch.randint(0, 100, (2, 12)), torch.randint(0, 100, (3, 17)), [0, 1])


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv3_small_100"])
def test_image_models(name):
    check_model(timm_model(name), torch.randn(2, 3, 64, 64), torch.randn(3, 3, 64, 64), [0])


def test_an_element_has_no_symbolic_offset_where_guards_fix_it():
    rec = Recorder(ShapeEnv())
    x = symbolic_input(rec, torch.arange(12).view(4, 3), "x", [0, 1])
    with torch.no_grad(), rec:
        assert int(x.shape[1]) == 3
        assert type(x[2][1].storage_offset()) is int and x[2][1].numel() == 1
