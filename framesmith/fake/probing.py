"""Metadata on symbolic sizes of operators without a shape rule. Where no rule gives the sizes of results (see
`size_inference.py`), the kernel of an operator in an export runs at several sizes, and its results' sizes are fitted by
expressions over those of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from framesmith.fake.layout import is_dense, strides_like
from framesmith.fake.size_inference import Infer, infer_sizes
from framesmith.fake.tensor import FakeTensor, new_fake
from framesmith.symbolic.expr import Expr, Symbol
from framesmith.symbolic.node import env_of, expr_of, symint

_FACTORS = ((1, 1, 1, 1), (2, 3, 5, 7), (3, 7, 2, 5))
"""The factors of the symbols' present values at each probe: products preserve divisibility."""

REFUSALS = (RuntimeError, TypeError, ValueError, IndexError)


def on_symbols(run: Callable[..., Any], infer: Infer, func: Any, args: tuple, kwargs: dict) -> Any:
    """Return the results of `run(func, args, kwargs)`, which takes fakes of plain sizes, on symbols; NotImplemented if
    no size is a symbol, or no expression fits."""
    found: list[Any] = []
    _sizes((args, kwargs), found)
    env = env_of(*found)
    if env is None:
        return NotImplemented
    try:
        present, sizes = _present(partial(run, func), args, kwargs, env)
    except REFUSALS:
        if not any(expr_of(n).free & env.data for n in found):
            raise
        return NotImplemented  # the hint of what data give is a guess
    made = NotImplemented if present is NotImplemented else infer_sizes(infer, func, args, kwargs, present, sizes, env)
    if made is not NotImplemented or not env.probing:
        return made
    exprs = list(dict.fromkeys(expr_of(n) for n in found))
    symbols = sorted({s for e in exprs for s in e.free}, key=lambda s: s.name)
    answers = []
    values = [_assignment(symbols, env.hints, factors) for factors in _FACTORS]
    for assignment in values:
        out = run(func, _plain(args, assignment), _plain(kwargs, assignment))
        if out is NotImplemented:
            return NotImplemented
        answers.append(out)
    several = isinstance(answers[0], tuple | list)
    rows = list(zip(*answers, strict=True)) if several else [tuple(answers)]
    made = []
    for row in rows:
        val = _general(row, exprs, values, env) if isinstance(row[0], FakeTensor) else row[0]
        if val is None and isinstance(row[0], FakeTensor):
            return NotImplemented
        made.append(val)
    return type(answers[0])(made) if several else made[0]


def _present(run: Callable[..., Any], args: tuple, kwargs: dict, env: Any) -> tuple[Any, dict[str, int]]:
    """Return the results at the present sizes, and these sizes. A size that may be 0 or 1, and is, is replaced by 2 if
    the operator accepts that: with so few elements any layout fits, and the layout must be that of other sizes."""
    general = env.hints | {s.name: 2 for s in env.small if env.hints[s.name] < 2 and (s.hi is None or s.hi >= 2)}
    if general != env.hints:
        try:
            return run(_plain(args, general), _plain(kwargs, general)), general
        except REFUSALS:
            pass
    return run(_plain(args, env.hints), _plain(kwargs, env.hints)), env.hints


def at_hints(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Return the arguments with their present sizes, without guards; unchanged if there is no symbol, or if a size is
    data-dependent."""
    found: list[Any] = []
    _sizes((args, kwargs), found)
    env = env_of(*found)
    if env is None or any(expr_of(n).free & env.data for n in found):
        return args, kwargs
    return _plain(args, env.hints), _plain(kwargs, env.hints)


def varies(args: tuple, kwargs: dict) -> bool:
    """Return whether a size among arguments is a symbol."""
    found: list[Any] = []
    _sizes((args, kwargs), found)
    return bool(found)


def emptied(args: tuple, kwargs: dict) -> Iterator[tuple[Any, dict[str, int], tuple, dict]]:
    """Yield each size that may be 0 and is not at present, all sizes with 0 for it, and the arguments of these
    sizes."""
    found: list[Any] = []
    _sizes((args, kwargs), found)
    env = env_of(*found)
    if env is None:
        return
    for symbol in sorted({s for n in found for s in expr_of(n).free} & env.small, key=lambda s: s.name):
        if not symbol.lo and env.hints[symbol.name]:
            sizes = env.hints | {symbol.name: 0}
            yield symint(symbol, env), sizes, _plain(args, sizes), _plain(kwargs, sizes)


def shapes_of(vals: Any, sizes: dict[str, int]) -> list[tuple[int, ...]]:
    """Return the shapes of results for sizes."""
    every = vals if isinstance(vals, (tuple, list)) else (vals,)
    return [_plain(tuple(x.shape), sizes) for x in every if isinstance(x, FakeTensor)]


def _assignment(symbols: list[Symbol], hints: dict[str, int], factors: tuple[int, ...]) -> dict[Any, int]:
    out: dict[Any, int] = {}
    for i, s in enumerate(symbols):
        value = hints[s.name] * factors[i % len(factors)]
        if s.hi is not None and value > s.hi:
            value = max(s.lo or 0, s.hi - i - factors[0])
        out[s.name] = value
    return out


def _sizes(value: Any, found: list[Any]) -> None:
    if isinstance(value, torch.SymInt):
        found.append(value)
    elif isinstance(value, FakeTensor):
        found.extend(n for n in (*value.shape, *value.stride()) if isinstance(n, torch.SymInt))
    elif isinstance(value, tuple | list):
        for v in value:
            _sizes(v, found)
    elif isinstance(value, dict):
        _sizes(tuple(value.values()), found)


def _plain(value: Any, sizes: dict[Any, int]) -> Any:
    if isinstance(value, torch.SymInt):
        return expr_of(value).evaluate(sizes)
    if isinstance(value, FakeTensor):
        shape, stride = _plain(tuple(value.shape), sizes), _plain(value.stride(), sizes)
        return new_fake(shape, stride, value.dtype, value.device)
    if isinstance(value, tuple | list):
        return type(value)([_plain(v, sizes) for v in value]) if type(value) in (tuple, list) else tuple(
            [_plain(v, sizes) for v in value])
    return {k: _plain(v, sizes) for k, v in value.items()} if isinstance(value, dict) else value


def _general(row: tuple[FakeTensor, ...], exprs: list[Expr], values: list[dict[Any, int]], env: Any) -> Any:
    """Return the fake of which all the results are instances; None if there is none."""
    if len({x.dim() for x in row}) > 1 or not all(is_dense(tuple(x.shape), x.stride()) for x in row):
        return None
    shape = []
    for sizes in zip(*[x.shape for x in row], strict=True):
        size = _expression(sizes, exprs, values)
        if size is None:
            return None
        shape.append(symint(size, env))
    first = row[0]
    return new_fake(tuple(shape), strides_like(first, tuple(shape)), first.dtype, first.device)


def _expression(sizes: tuple[int, ...], exprs: list[Expr], values: list[dict[Any, int]]) -> Expr | int | None:
    if len(set(sizes)) == 1:
        return sizes[0]
    given = [[e.evaluate(v) for v in values] for e in exprs]
    for e, known in zip(exprs, given, strict=True):
        if known == list(sizes):
            return e
    for e, known in zip(exprs, given, strict=True):
        if known[1] != known[0]:
            scale, rest = divmod(sizes[1] - sizes[0], known[1] - known[0])
            offset = sizes[0] - scale * known[0]
            if not rest and all(scale * k + offset == n for k, n in zip(known, sizes, strict=True)):
                return e * scale + offset
    for i, (e, known) in enumerate(zip(exprs, given, strict=True)):
        for other, more in zip(exprs[i:], given[i:], strict=True):
            if all(a * b == n for a, b, n in zip(known, more, sizes, strict=True)):
                return e * other
    return None
