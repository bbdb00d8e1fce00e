"""Metadata on symbolic sizes are those of eager at any size, and assume none."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from framesmith.fake import Recorder
from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.expr import Symbol
from framesmith.symbolic.node import expr_of, symint

ROWS = torch.library.custom_op("framesmith_tests::rows", lambda x, w: x @ w, mutates_args=(),
                               schema="(Tensor x, Tensor w) -> Tensor")


@ROWS.register_fake
def _(x, w):
    assert x.dim() == 2
    return torch.empty(x.size(0), w.size(1), dtype=x.dtype)


def parts(x):
    """[n, m, 2] as complex numbers."""
    return torch.view_as_complex(x.reshape(x.shape[0], -1, 2))


PROGRAMS = {
    "custom operator": lambda x: ROWS(x.reshape(-1, 4), torch.ones(4, 5)),
    "glu": lambda x: F.glu(x, 1),
    "unfold": lambda x: x.unfold(2, 3, 2).unfold(1, 2, 1),
    "diagonal": lambda x: torch.diagonal(x, 1, 1, 2),
    "diagonal below": lambda x: torch.diagonal(x, -2, 0, 2),
    "view_as_complex": parts,
    "view_as_real": lambda x: torch.view_as_real(parts(x).transpose(0, 1)),
    "polar": lambda x: torch.polar(x[:, :1], x),
    "count_nonzero": lambda x: torch.count_nonzero(x, 1),
    "nan_to_num": lambda x: torch.nan_to_num(x.transpose(1, 2)),
    "chunk": lambda x: torch.cat([x, x], 1).chunk(2, 1)[1],
    "bucketize": lambda x: torch.bucketize(x, torch.arange(5.0)),
    "fft": lambda x: torch.fft.fft(x, dim=1),
    "rfft": lambda x: torch.fft.rfft(x, dim=1),
    "irfft": lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=2) * 2, n=x.shape[2]),
    "columns": lambda x: F.unfold(x[:, None], (3, 1), padding=(1, 0)),
    "grid_sample": lambda x: F.grid_sample(x[:, None], torch.zeros(x.shape[0], x.shape[1], 4, 2), align_corners=False),
    "solve_triangular": lambda x: torch.linalg.solve_triangular(torch.eye(x.shape[1]).expand(x.shape[0], -1, -1), x,
                                                                upper=False),
    "nothing": lambda x: torch.cat([x.new_zeros(x.shape[0], 0, 4), x[:, :0, :4] * 2], 1),
    "repeat_interleave": lambda x: torch.repeat_interleave(x, torch.tensor([2]), 0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_and_strides_follow(name: str) -> None:
    program, recorder = PROGRAMS[name], Recorder(shape_env=ShapeEnv())
    env = recorder.shape_env
    real = torch.randn(3, 8, 12)
    symbols = [env.new_symbol(n, ("x", d)) for d, n in enumerate(real.shape)]
    fake = recorder.input(real, "x", shape=tuple(symint(s, env) for s in symbols))
    with torch.no_grad(), recorder:
        out = program(fake)
    for sizes in ((3, 8, 12), (4, 4, 8), (5, 16, 16)):
        want = program(torch.randn(sizes))
        values = {s.name: n for s, n in zip(symbols, sizes, strict=True) if isinstance(s, Symbol)}
        at = [tuple(expr_of(n).evaluate(values) for n in part) for part in (out.shape, out.stride())]
        assert at == [tuple(want.shape), want.stride()] and out.dtype is want.dtype
        assert all(guard.rel.evaluate(values) for guard in env.guards)


def test_what_eager_refuses_of_some_sizes_is_guarded() -> None:
    recorder = Recorder(shape_env=ShapeEnv())
    env = recorder.shape_env
    symbol = env.new_symbol(8, ("x", 0))
    fake = recorder.input(torch.randn(8), "x", shape=(symint(symbol, env),))
    with torch.no_grad(), recorder:
        F.glu(fake, 0)
    assert not all(guard.rel.evaluate({symbol.name: 7}) for guard in env.guards)
