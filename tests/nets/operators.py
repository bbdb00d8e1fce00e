"""PyTorch's own samples of its operators and modules (`op_db`, `module_db`), compiled and in eager.

    python -m tests.nets.operators [NAME ...] [--dtypes float32,int64] [--modes forward,backward] [--samples N] [--jobs
    J] [--json OUT]

Modes: forward; backward; in place (the operator's in-place method); errors (samples that eager refuses). Several
samples of an operator go into one graph, and one by one where that differs or breaks. Values, dtypes, shapes, strides,
`requires_grad`, memory that results and inputs share, inputs afterwards, the generator afterwards, gradients with their
strides and types of errors must be eager's, in two calls. Tangents lie in memory as the results do. Values may differ
by the rounding of their dtype, and by four times what eager's own differ from float64's (`tests/nets/compare.py`). A
name may end in `*`. Each group of samples runs in a process that may crash or hang.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
import traceback
import warnings
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

import framesmith
from framesmith.ledger import Ledger
from framesmith.tools.difference import mismatch, strides
from tests.fuzz.pool import run_all
from tests.fuzz.runner import Verdict
from tests.nets.operator_cases import CANCELLING, DTYPES, MODES, UNCOMPARED, Call, Subject, calls, chosen, subjects

TOGETHER = 8
"""Samples of one graph."""
OPTIONS = {"compiler_flags": "-O0", "numerics": "eager", "warn": False}

Item = tuple[tuple[Subject, int], ...]
"""Samples by number, of one mode and dtype."""
Shown = dict[str, Any]


def program(made: list[Any]) -> list[Any]:
    return [fn(*args, **kwargs) for fn, args, kwargs in made]


@dataclass
class Judged(Verdict):
    """A verdict on several samples; `parts`: that on each."""

    parts: list[Verdict] = field(default_factory=list)


def judge(item: Item) -> Judged:
    """Compare samples in one graph without those that break, and one by one if that differs."""
    found, why = _compared(item)
    if not (why or found):
        parts = [Verdict("same", captured=1) for _ in item]
    elif len(item) == 1:
        detail = f"{item[0][0]}: sample {item[0][1]}: {found}" if found else ""
        parts = [Verdict("different" if found else "same", detail, reasons=Counter(why))]
    else:
        whole = () if found else tuple([one for one in item if not any(_compared((one,), "eager"))])
        whole = whole if len(whole) < len(item) else ()
        verdicts = {one: part for few in (whole, *((one,) for one in item if one not in whole)) if few
                    for one, part in zip(few, judge(few).parts, strict=True)}  # fmt: skip
        parts = [verdicts[one] for one in item]
        if found and not any(v.detail for v in parts):
            parts[0] = Verdict("different", f"{', '.join(f'{s} {n}' for s, n in item)} together: {found}")
    details = [v.detail for v in parts if v.detail]
    return Judged("different" if details else "same", "\n".join(details), parts=parts)


def _compared(item: Item, backend: str = "native") -> tuple[str, list[str]]:
    """What differs, and why not all is one graph."""
    some = [calls(subject)[number] for subject, number in item]
    values = not any(subject.name in UNCOMPARED for subject, _ in item)
    least = float(any(subject.name in CANCELLING for subject, _ in item))
    plain = _run(program, some, False)
    wide = {} if "error" in plain else _run(program, some, True)
    ledger = Ledger()
    fn = framesmith.compile(program, backend=backend, options=OPTIONS)
    fn.callback.ledger = ledger
    try:
        for call in range(2):
            got = _run(fn, some, False)
            if found := _difference(plain, got, wide, values, least):
                return f"call {call}: {found}", []
    except Exception:
        return traceback.format_exc(limit=-3), []
    finally:
        framesmith.reset()
    if faults := [r.reason for r in ledger.refusals if r.internal]:
        return f"internal: {faults[0]}", []
    why = [b.reason for r in ledger.records for b in r.breaks] + [r.reason for r in ledger.refusals]
    return "", why[:1] or ["eager raises"] * ("error" in plain) or ["no operators"] * (
        not any(r.operators for r in ledger.records))


def _run(fn: Any, some: list[Call], wide: bool) -> Shown:
    """All that is seen of a call, in order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = [call.make(wide) for call in some]
        given = _tensors(made)
        try:
            torch.manual_seed(1)
            results = fn(made)
            shown: Shown = {"generator": torch.rand(())}
            seen = list(given)
            for k, x in enumerate(tree_leaves(results)):
                if not isinstance(x, torch.Tensor):
                    shown[f"result {k}"] = x
                    continue
                shown[f"result {k} is"] = _kind(x, seen)
                shown[f"result {k}"] = x.detach().clone()
                seen.append(x)
            for k, x in enumerate(given):
                shown[f"input {k} is"] = x.requires_grad, x.is_leaf
                shown[f"input {k}"] = x.detach().clone()
            _gradients(shown, [call.processed(result) for call, result in zip(some, results)], given)
        except Exception as error:
            shown = {"error": error}
    return shown


def _gradients(shown: Shown, results: list[Any], given: list[torch.Tensor]) -> None:
    leaving = [y for y in tree_leaves(results) if isinstance(y, torch.Tensor) and y.requires_grad
               and y.grad_fn is not None]
    wanted = [x for x in given if x.requires_grad and x.is_leaf]
    if leaving and wanted:
        tangents = [torch.empty_like(y).copy_(torch.linspace(0.5, 1.5, y.numel(), dtype=torch.float64).reshape(y.shape))
                    for y in leaving]
        for k, g in enumerate(torch.autograd.grad(leaving, wanted, tangents, allow_unused=True)):
            shown[f"gradient {k} is"] = None if g is None else _layout(g)
            shown[f"gradient {k}"] = g


def _tensors(made: list[Any]) -> list[torch.Tensor]:
    """The tensors of the arguments, and of modules."""
    out: list[torch.Tensor] = []
    for fn, args, kwargs in made:
        if isinstance(fn, torch.nn.Module):
            out += [x for x in (*fn.parameters(), *fn.buffers()) if not is_lazy(x)]
        out += [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    return out


def _kind(y: torch.Tensor, others: list[torch.Tensor]) -> Any:
    is_same = [k for k, x in enumerate(others) if x is y]
    shared = [k for k, x in enumerate(others) if _address(x) == _address(y)] if _address(y) else []
    return y.requires_grad, y.is_leaf, y.is_conj(), y.is_neg(), is_same, shared, _layout(y)


def _address(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr() if x.layout == torch.strided and not x.is_nested and x.numel() else 0


def _layout(x: torch.Tensor) -> Any:
    return strides(x) if x.layout == torch.strided and not x.is_nested else x.layout


def _difference(want: Shown, got: Shown, wide: Shown, values: bool, least: float) -> str:
    for key in [*want, *(k for k in got if k not in want)]:
        a, b = want.get(key), got.get(key)
        if key == "error" or key not in want or key not in got:
            found = "" if type(a) is type(b) else _raised(want, got)
        elif isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            about = 1.0 if key.startswith("gradient") else least  # tangents are about one
            differs = values or a.dtype is not b.dtype or a.shape != b.shape
            found = mismatch(a, b, wide.get(key), about) if differs else ""
        else:
            found = "" if (a == b or repr(a) == repr(b)) and type(a) is type(b) else f"{a} became {b}"
        if found:
            return f"{key}: {found}"
    return ""


def _raised(want: Shown, got: Shown) -> str:
    a, b = ([f"{type(e).__name__}: {str(e)[:150]}" if (e := shown.get("error")) else "no error"]
            for shown in (want, got))
    return f"{a[0]} became {b[0]}"


class Tally:
    """Counts by operator, dtype and mode: samples, those in one graph, and those that differ, with what was found."""

    def __init__(self) -> None:
        self.counts: dict[Subject, Counter[str]] = defaultdict(Counter)
        self.faults: dict[Subject, list[str]] = defaultdict(list)
        self.reasons: dict[Subject, Counter[str]] = defaultdict(Counter)

    def take(self, item: Item, verdict: Verdict) -> None:
        if verdict.detail:
            print(verdict.detail, flush=True)
        lost = [Verdict(verdict.kind, f"{subject}: sample {number}: {verdict.detail}") for subject, number in item]
        parts = verdict.parts if isinstance(verdict, Judged) else lost
        for (subject, _), one in zip(item, parts, strict=True):
            self.counts[subject].update(samples=1, compiled=one.captured, different=bool(one.detail))
            self.reasons[subject] += one.reasons
            if one.detail:
                self.faults[subject].append(one.detail)

    def json(self, before: dict[str, Any]) -> dict[str, Any]:
        """Merge the counts of this run with those that it has not of `before`."""
        rows: dict[str, Any] = {name: dict(row) for name, row in before["operators"].items()}
        for subject, count in self.counts.items():
            row: dict[str, Any] = {k: count[k] for k in ("samples", "compiled", "different")}
            more = {"faults": self.faults.get(subject), "in eager": self.reasons[subject]}
            row.update({k: v for k, v in more.items() if v})
            rows.setdefault(subject.name, {})[f"{subject.dtype} {subject.mode}"] = row
        about = {"torch": torch.__version__, "date": datetime.date.today().isoformat(), "run": before["run"]}
        return {**about, "operators": rows}

    def line(self) -> str:
        total = sum((c for s, c in self.counts.items() if s.mode != "errors"), Counter())
        refused = sum((c for s, c in self.counts.items() if s.mode == "errors"), Counter())
        return (f"{len({s.name for s in self.counts})} operators, {total['samples']} samples: {total['compiled']} in "
                "one graph, "
                f"{total['samples'] - total['compiled'] - total['different']} partly in eager, {total['different']} "
                "differ; "
                f"{refused['samples']} errors: {refused['different']} differ")


def check(wanted: list[Subject], samples: int, jobs: int = 1, seconds: float = 1e9, kept: Path | None = None) -> Tally:
    """All samples of the subjects; what ends a process is tried again one by one. `kept`: where counts are written now
    and then."""
    tally, end = Tally(), time.monotonic() + seconds
    before = json.loads(kept.read_text()) if kept is not None and kept.exists() else {"run": [], "operators": {}}
    before["run"] = [*before["run"], f"python -m tests.nets.operators {' '.join(sys.argv[1:])}"]
    for few in (wanted[k:k + 48] for k in range(0, len(wanted), 48)):
        if time.monotonic() > end:
            break
        rows = [[(subject, n) for n in chosen(len(calls(subject)), samples)] for subject in few]
        if 0 < samples < 4:  # of several operators
            kinds = dict.fromkeys((s.dtype, s.mode) for s in few)
            rows = [[one for row in rows for one in row if (one[0].dtype, one[0].mode) == kind] for kind in kinds]
        items = [tuple(row[k:k + TOGETHER]) for row in rows for k in range(0, len(row), TOGETHER)]
        again: list[Item] = []
        for item, verdict in run_all(judge, items, jobs):
            if verdict.kind == "crash" and len(item) > 1:
                again += [(one,) for one in item]
            else:
                tally.take(item, verdict)
        for item, verdict in run_all(judge, again, jobs):
            tally.take(item, verdict)
        print(f"{few[-1]}: {tally.line()}", file=sys.stderr, flush=True)
        if kept is not None:
            kept.write_text(written(tally.json(before)))
    return tally


def written(saved: dict[str, Any]) -> str:
    """Print the JSON text, with a line for each operator, dtype and mode."""
    rows = []
    for name, row in sorted(saved["operators"].items()):
        lines = [f"   {json.dumps(key)}: {json.dumps(value, sort_keys=True)}" for key, value in sorted(row.items())]
        rows.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n  }")
    about = [f" {json.dumps(key)}: {json.dumps(saved[key])},\n" for key in ("torch", "date", "run")]
    return "{\n" + "".join(about) + ' "operators": {\n' + ",\n".join(rows) + "\n }\n}\n"


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", help="operators and modules (default: all)")
    p.add_argument("--dtypes", default=",".join(DTYPES))
    p.add_argument("--modes", default=",".join(MODES))
    p.add_argument("--samples", type=int, default=0, help="of each operator, dtype and mode (0: all, but at most 400)")
    p.add_argument("--jobs", type=int, default=1)
    p.add_argument("--seconds", type=float, default=1e9, help="begin no more after so long")
    p.add_argument("--json", type=Path, help="counts and faults; those of other operators that it has stay")
    a = p.parse_args()
    wanted = subjects(a.names, a.dtypes.split(","), a.modes.split(","))
    tally = check(wanted, a.samples, a.jobs, a.seconds, a.json)
    print(tally.line())
    return bool(any(c["different"] for c in tally.counts.values()))


if __name__ == "__main__":
    sys.exit(main())
