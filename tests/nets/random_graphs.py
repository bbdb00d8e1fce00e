"""Random programs over tensors with gradients, compiled and in eager: `python -m tests.nets.random_graphs --count N
--seed S --jobs J [--dynamic]`.

`--dynamic`: a program is compiled for any size (those of odd seeds once sizes were seen to change) and called with
inputs of several sizes.

Values (relative to a run in float64), dtypes, strides, `requires_grad`, memory that results share, inputs that are
written, gradients and types of errors are compared. Each program runs in a process that may crash. What differs is
printed as the smallest program that does.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

import framesmith
from framesmith.ledger import Ledger
from framesmith.tools.difference import mismatch, strides, to_float64
from tests.fuzz.pool import run_all
from tests.fuzz.reduce import reduce, signature
from tests.fuzz.runner import Verdict
from tests.nets.random_graphs_writer import write
from tests.nets.rounding import is_exact, is_rounding, overflows, reads_leftovers, reads_unseen_writes, roundings

OPTIONS = {"compiler_flags": "-O0", "numerics": "eager", "warn": False}

RESIZED: tuple[dict[int, int], ...] = (
    {}, {2: 4, 3: 5, 4: 6, 5: 7}, {2: 6, 3: 2, 4: 8, 5: 11}, {2: 4, 3: 4, 4: 4, 5: 4}, {3: 1}, {4: 20, 3: 9}, {4: 1},
    {2: 0}, {2: 8, 4: 16, 5: 33},
)
"""What the sizes of inputs become, call by call."""
_SIZE = re.compile(r"\((?:\d+, ?)+\d*\)")

Shown = dict[str, Any]


def resized(text: str, to: dict[int, int]) -> str:
    """The program with inputs of other sizes."""
    head, rest = text.split("def program", 1)
    moved = _SIZE.sub(lambda found: re.sub(r"\d+", lambda n: str(to.get(int(n[0]), n[0])), found[0]), head)
    return f"{moved}def program{rest}"


def judge(text: str, dynamic: bool | None = False) -> Verdict:
    """Compare compiled calls of a program with eager's: two, or one for each of several sizes where `dynamic` (see
    `framesmith.compile`) is not False."""
    spaces: list[dict[str, Any]] = []
    try:
        for variant in [text, text] if dynamic is False else [resized(text, to) for to in RESIZED]:
            space: dict[str, Any] = {}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(compile(variant, "<random graph>", "exec"), space)
            runs = [_run(space, space["program"], wide) for wide in (False, True)]
            if "inputs" in runs[0]:
                continue  # they cannot be made at these sizes
            spaces.append(space | {"runs": runs, "text": variant})
    except Exception as error:
        return Verdict("left out", repr(error))
    if not spaces:
        return Verdict("left out", "no inputs")
    ledger = Ledger()
    fn = framesmith.compile(spaces[0]["program"], options=OPTIONS, dynamic=dynamic)
    fn.callback.ledger = ledger
    try:
        for call, space in enumerate(spaces):
            if bad := _compared(space, fn, f"call {call}"):
                return bad
    except Exception:
        return Verdict("internal", traceback.format_exc(limit=-3))
    finally:
        framesmith.reset()
    if faults := [r.reason for r in ledger.refusals if r.internal]:
        return Verdict("internal", faults[0])
    reasons = Counter([b.reason for r in ledger.records for b in r.breaks] + [f"refused: {r.reason}"
                                                                              for r in ledger.refusals])
    return Verdict("same", "", 0, sum(r.operators.total() > 0 for r in ledger.records),
                   reasons + Counter([f"fixed: {why}" for why in ledger.fixed]))


def used(text: str) -> str:
    """The program without statements whose values nothing reads."""
    lines = text.splitlines()
    for k in reversed(range(len(lines))):
        made = re.match(r"    (t\d+) = ", lines[k])
        if made and not re.search(rf"\b{made[1]}\b", "\n".join(lines[k + 1:])):
            del lines[k]
    return "\n".join(lines)


def _run_text(text: str) -> Shown:
    space: dict[str, Any] = {}
    exec(compile(text, "<random graph>", "exec"), space)
    return _run(space, space["program"], False)


def _compared(space: dict[str, Any], fn: Any, call: str) -> Verdict | None:
    """A verdict on one call if it differs from eager's."""
    def again() -> Shown:
        return _run(space, space["program"], False)

    plain, wide = space["runs"]
    found = _difference(plain, _run(space, fn, False), wide, cache(lambda: roundings(again)))
    if not found:
        return None
    if found.startswith("error") and found.endswith("became None") and "error" not in _run_text(used(space["text"])):
        return Verdict("left out", "what nothing reads would raise")
    if lost := overflows(again):
        return Verdict("left out", f"eager's {lost[0]} overflows within")
    if reads_leftovers(again):
        return Verdict("left out", "as_strided reads what an operator left behind its result")
    if found.startswith("gradient") and reads_unseen_writes(again):
        return Verdict("left out", "a gradient reads what was written without a version")
    return Verdict("different", f"{call}: {found}")


def _run(space: dict[str, Any], fn: Any, wide: bool) -> Shown:
    """All that is seen of a call, in order."""
    shown: Shown = {}
    torch.manual_seed(0)  # a program that was made smaller may have lost its own seed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            given = space["inputs"]()
        except Exception as error:
            return {"inputs": repr(error)}
        if wide:
            if len({x.untyped_storage().data_ptr() for x in given if x.numel()}) < sum(x.numel() > 0 for x in given):
                return shown  # in float64 they would share nothing
            given = tuple([to_float64(x) for x in given])
        leaves = [_leaf(x) for x in given]
        try:
            results = fn(*given)
            for k, y in enumerate(results):
                shown[f"result {k}"] = y.detach().clone()
                shown[f"result {k} is"] = _kind(y, [*given, *results[:k]])
            for k, x in enumerate(given):
                shown[f"input {k} after"] = x.detach().clone()
                shown[f"input {k} is"] = x.requires_grad, x.is_leaf
            leaving = [y for y in results if y.requires_grad and y.grad_fn is not None]
            tangents = [torch.linspace(0.5, 1.5, y.numel(), dtype=torch.float64).reshape(y.shape).to(y.dtype)
                        for y in leaving]
            if leaving:
                torch.autograd.backward(leaving, tangents)
            for k, x in enumerate(leaves):
                shown[f"gradient {k}"] = x.grad if x.grad is None else _in_memory(x.grad)
                shown[f"gradient {k} is"] = None if x.grad is None else strides(x.grad)
        except Exception as error:
            if "ZeroTensors are immutable" in str(error):  # torch's own fault: it writes what it gave no memory
                raise
            shown["error"] = type(error).__name__
    return shown


def _in_memory(x: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or zeros for one that autograd gives no memory, whose values no operator can ask for."""
    return torch.zeros(x.shape, dtype=x.dtype) if x._is_zerotensor() else x


def _leaf(x: torch.Tensor) -> torch.Tensor:
    """What an input is computed of."""
    node: Any = x.grad_fn
    while node is not None and not hasattr(node, "variable"):
        node = node.next_functions[0][0]
    return x if node is None else node.variable  # type: ignore[no-any-return]


def _kind(y: torch.Tensor, others: list[torch.Tensor]) -> Any:
    shared = [k for k, x in enumerate(others) if x.numel()
              and x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()]
    return y.requires_grad, y.is_leaf, shared if y.numel() else [], strides(y)


def _difference(want: Shown, got: Shown, wide: Shown, eager: Callable[[], list[Shown]]) -> str:
    """What differs and is not eager's own rounding: see `tests.nets.rounding`."""
    for key in [*want, *(k for k in got if k not in want)]:
        a, b = want.get(key), got.get(key)
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            exact = wide.get(key)
            near = partial(mismatch, exact=exact)
            found = near(a, b)
            if found and (is_exact(a, b, exact) or is_rounding(a, b, [shown.get(key) for shown in eager()], near)):
                found = ""
        elif key.startswith("gradient") and all(_is_nothing(shown.get(key.removesuffix(" is")))
                                                for shown in (want, got)):
            found = ""  # of what was overwritten whole eager has a gradient of zeros
        else:
            found = "" if a == b and type(a) is type(b) else f"{a} became {b}"
        if found:
            return f"{key}: {found}"
    return ""


def _signature(verdict: Verdict) -> str:
    """How a program fails: what of it differs, and by what kinds of values."""
    kinds = set(re.findall(r"nan|inf|True|False|None|torch\.\w+|[A-Z]\w+", verdict.detail))
    return f"{signature(verdict)} {sorted(kinds)}" if verdict.kind == "different" else signature(verdict)


def _is_nothing(gradient: Any) -> bool:
    return gradient is None or not gradient.any()


def _dynamic(seed: int, wanted: bool) -> bool | None:
    return (None if seed % 2 else True) if wanted else False


def _written(seed: int) -> str | None:
    """Return the program of `seed`, written in another process; None if eager ends that process as it tries the
    statements."""
    [(_, verdict)] = run_all(lambda number: Verdict("same", write(number)), [seed])
    return verdict.detail if verdict.good else None


def main() -> int:
    p = argparse.ArgumentParser(prog="python -m tests.nets.random_graphs", description="Random graphs with gradients.")
    p.add_argument("--seed", type=int, default=0, help="the first seed")
    p.add_argument("--count", type=int, default=100, help="how many programs")
    p.add_argument("--jobs", type=int, default=1, help="processes")
    p.add_argument("--small", type=int, default=60,
                   help="seconds that a failing program is made smaller for (0: printed as it is)")
    p.add_argument("--seconds", type=float, default=1e9, help="begin no more after so long")
    p.add_argument("--dynamic", action="store_true", help="compile for any size, and call with several")
    a = p.parse_args()
    end = time.monotonic() + a.seconds
    kinds: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    captured = 0
    seeds = itertools.takewhile(lambda _: time.monotonic() < end, range(a.seed, a.seed + a.count))
    for seed, verdict in run_all(lambda seed: judge(write(seed), _dynamic(seed, a.dynamic)), seeds, a.jobs):
        kinds[verdict.kind] += 1
        reasons += Counter({why: n for why, n in verdict.reasons.items() if why.startswith("fixed")})
        captured += verdict.captured > 0
        if not verdict.good:
            text = _written(seed)
            if text is None:
                kinds[verdict.kind] -= 1
                kinds["left out"] += 1
                continue
            text = reduce(text, partial(judge, dynamic=_dynamic(seed, a.dynamic)), a.small,
                          _signature) if a.small else text
            print(f"# seed {seed}: {verdict.kind}: {verdict.detail}\n{text}\n", flush=True)
    print(f"{kinds.total()} programs from seed {a.seed}: {dict(kinds)}; {captured} with captured code")
    print(*(f"{n} × {why}" for why, n in reasons.most_common()), sep="\n")
    return 1 if kinds.total() - kinds["same"] - kinds["left out"] else 0


if __name__ == "__main__":
    sys.exit(main())
