"""Attention with modified scores over tiles, on fakes of a CUDA device: calls as lowering makes them, and what they are
given."""

import torch
from torch.nn.attention.flex_attention import create_block_mask

from framesmith.capture.functions.attention import ByIndex
from framesmith.fake.recorder import Recorder
from framesmith.fake.tensor import contiguous_strides, new_fake
from framesmith.graph.attention import LISTS, Attention, AttentionGradient, Scores
from framesmith.loops.attention import LIST_NAMES
from framesmith.loops.ir import Extern
from tests.gpu.fakes import DEVICE, scheduled

B, H, E = 2, 4, 16
TYPES = torch.float32, *[torch.int64] * 4


def soft_cap(score, b, h, q, k, table, slopes):
    return 3 * torch.tanh(score / 3) + table[q, k] + slopes[h] * (q - k)


def soft_cap_gradient(score, b, h, q, k, tangent, table, slopes):
    return tangent * (1 - torch.tanh(score / 3) ** 2)


def causal(score, b, h, q, k):
    return torch.where(q >= k, score, -float("inf"))


def causal_gradient(score, b, h, q, k, tangent):
    return torch.where(q >= k, tangent, 0.0)


def window(b, h, q, k):
    return (q >= k) & (q - k < 20)


def triangle(b, h, q, k):
    return k <= q


def documents(b, h, q, k, of):
    return of[b, q] == of[b, k]


CASES = {
    "plain": (None, None, None, 0, 0), "causal": (causal, causal_gradient, None, 0, 0),
    "soft cap": (soft_cap, soft_cap_gradient, None, 2, 0),
    "window": (None, None, window, 0, 0), "triangle": (None, None, triangle, 0, 0),
    "all": (soft_cap, soft_cap_gradient, documents, 2, 1),
}
"""Name -> modification of scores, its gradient, mask, how many operands the modification has, and the mask."""
SHAPES = {"even": (64, 96, H), "ragged": (50, 75, 2)}
"""Rows, columns, and heads of keys and values."""


def graph_of(fn, shape, operands, *more):
    """`fn` of all scores and indices as a graph; `more`: what stands between indices and operands."""
    rec = Recorder()
    shapes = [tuple(n if dim in (k, -1) else 1 for k, n in enumerate(shape)) for dim in (-1, 0, 1, 2, 3)]
    given = [new_fake(size, contiguous_strides(size), dtype) for size, dtype in zip(shapes, TYPES)]
    given = given[1:] if fn in (window, documents, triangle) else given
    given += [new_fake(shape, contiguous_strides(shape), torch.float32) for _ in more]
    given += [new_fake(tuple(x.shape), x.stride(), x.dtype) for x in operands]
    fakes = [rec.input_like(x, f"x{i}") for i, x in enumerate(given)]
    with torch.no_grad(), rec, ByIndex():
        out = fn(*fakes)
    return rec.finish([out])


def case(name, size, dtype, blocks=None, tf32=False):
    """(Scores, operands, lists)"""
    score, gradient, mask, of_score, of_mask = CASES[name]
    rows, columns, _ = SHAPES[size]
    shape = B, H, rows, columns
    table, slopes = torch.linspace(-1, 1, rows * columns).reshape(rows, columns), torch.linspace(-0.1, 0.1, H).to(dtype)
    of = (torch.arange(columns) // 20).repeat(B, 1)
    of_scores, of_masks = [table, slopes][:of_score], [of][:of_mask]
    parts = ((score, of_scores, ()), (gradient, of_scores, (1,)), (mask, of_masks, ()))
    graphs = [fn and graph_of(fn, shape, x, *more) for fn, x, more in parts]
    lists = [None] * LISTS
    if blocks and mask:
        made = create_block_mask(lambda b, h, q, k: mask(b, h, q, k, *of_masks), B, None, rows, columns, "cpu", blocks)
        lists = list(made.as_tuple()[2:2 + LISTS])
    counts = of_score, of_score, of_mask
    scores = Scores(*graphs, counts, E**-0.5, blocks if blocks and mask else None, causal=name == "triangle", tf32=tf32)
    return scores, [*of_scores, *of_scores, *of_masks], lists


def calls(name, size, dtype, blocks=None, gradient=False, tf32=False):
    """The calls over tiles, and tensors for each by name."""
    scores, operands, lists = case(name, size, dtype, blocks, tf32)
    rows, columns, heads = SHAPES[size]
    torch.manual_seed(0)
    q, k, v = torch.randn(B, rows, H, E).transpose(1, 2), torch.randn(B, heads, columns,
                                                                      E), torch.randn(B, heads, columns, 2 * E)
    given = [x.to(dtype) for x in (q, k, v)]
    target = AttentionGradient(scores) if gradient else Attention(scores)
    if gradient:
        out, total = Attention(scores)(*given, *lists, *operands)
        g = torch.randn(out.shape).to(dtype)
        given += [g, total, (out.float() * g.float()).sum(-1)]
    made = target(*given, *lists, *operands)
    rec = Recorder()
    inputs = [x if x is None else rec.input_like(new_fake(tuple(x.shape), x.stride(), x.dtype, DEVICE), f"x{i}")
              for i, x in enumerate([*given, *lists, *operands])]
    vals = tuple([new_fake(tuple(x.shape), x.stride(), x.dtype, DEVICE) for x in made])
    with torch.no_grad(), rec:
        rec.results(rec.emit(target, tuple([rec.nodes(x) for x in inputs]), vals), vals)
    program = scheduled(rec.finish(vals))
    named = dict(zip(("q", "k", "v", "g", "total", "delta"), given)) | {f"operand{i}": x for i,
                                                                        x in enumerate(operands)}
    names = ("dq", "dk", "dv") if gradient else ("out", "total")
    named |= dict(zip(names, [torch.full_like(x, float("nan")) for x in made], strict=True))
    tiles = [step.target for step in program.steps if type(step) is Extern]
    named |= dict(zip(LIST_NAMES, lists, strict=True))
    return program, tiles, named
