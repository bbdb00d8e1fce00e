"""Masks of attention that are known when the program is captured."""

import torch
import torch.nn.functional as F

import framesmith
from framesmith.fake.recorder import Recorder

ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
Q = torch.randn(2, 3, 16, 8)


def recorded(fn, *inputs):
    """Positional arguments behind the tensors, and the named ones, of the attention that `fn` records."""
    rec = Recorder()
    with torch.no_grad(), rec:
        out = fn(*[rec.input(x, f"x{i}") for i, x in enumerate(inputs)])
    (node,) = [n for n in rec.finish([out]).nodes if n.target is ATTENTION]
    return node.args[3:], node.kwargs


def rows_and_columns(n, m):
    return torch.arange(n).view(1, 1, n, 1), torch.arange(m).view(1, 1, 1, m)


def open_to_all(q):
    rows, _ = rows_and_columns(16, 16)
    return F.scaled_dot_product_attention(q, q, q, attn_mask=(rows >= 0).expand(2, -1, 16, 16), scale=0.5)


def triangle(q):
    rows, columns = rows_and_columns(16, 16)
    return F.scaled_dot_product_attention(q, q, q, (columns <= rows).expand(2, -1, 16, 16))


def band(q):
    rows, columns = rows_and_columns(16, 16)
    return F.scaled_dot_product_attention(q, q, q, (columns <= rows) & (columns > rows - 4))


def fewer_rows(q):
    rows, columns = rows_and_columns(4, 16)
    return F.scaled_dot_product_attention(q[:, :, :4], q, q, columns <= rows)


def dropped(q):
    rows, _ = rows_and_columns(16, 16)
    return F.scaled_dot_product_attention(q, q, q, rows >= 0, 0.5)


def test_what_is_known_needs_no_mask():
    assert recorded(open_to_all, Q) == ((), {"scale": 0.5})
    assert recorded(triangle, Q) == ((None, 0.0, True), {})


def test_other_masks_stay():
    for fn in (band, fewer_rows, dropped):
        args, named = recorded(fn, Q)
        assert isinstance([*args, *named.values()][0], torch.fx.Node), fn
    args, _ = recorded(lambda q, mask: F.scaled_dot_product_attention(q, q, q, mask), Q,
                       torch.ones(16, 16, dtype=torch.bool))
    assert isinstance(args[0], torch.fx.Node)  # what an input holds is not known


def test_results_are_the_same():
    for fn in (open_to_all, triangle, band, fewer_rows):
        torch.testing.assert_close(framesmith.compile(fn, fullgraph=True)(Q), fn(Q))
