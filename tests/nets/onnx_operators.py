"""PyTorch's own samples of its operators (`op_db`), exported to ONNX and run by ONNX Runtime, beside eager.

    python -m tests.nets.onnx_operators [NAME ...] [--dtypes float32,int64,bool] [--samples N] [--jobs J] [--json OUT]

Each sample is a file of its own, checked by `onnx.checker`. Of a sample becomes: "equal" (values by the rounding of
their dtype, and by four times what eager's own differ from float64's; of random numbers dtype and shape); "different";
"no form" (ONNX cannot say it: the export's error names the operator); "no kernel" (ONNX Runtime has none for a node of
these dtypes); "not exported" (`framesmith.export` refuses the call, or eager does); "failed" (whatever else).
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnxruntime
import torch

import framesmith
from framesmith.export.trees import flatten
from framesmith.onnx import NoOnnxForm
from framesmith.onnx import export as export_onnx
from framesmith.util.errors import FramesmithError
from tests.fuzz.pool import run_all
from tests.fuzz.runner import Verdict
from tests.nets.onnx_running import NoKernel, difference, drawn, expected, inputs_of, least_of, of_onnxruntime
from tests.nets.operator_cases import UNCOMPARED, Subject, calls, chosen, operators, subjects

DTYPES = ("float32", "int64", "bool")
KINDS = ("equal", "no kernel", "no form", "not exported", "different", "failed")
BAD = ("different", "failed")
EACH = 200
"""After so many samples counts are written."""
TIES = {"topk": 1, "kthvalue": 1, "median": 1, "nanmedian": 1, "mode": 1, "sort": 1, "argsort": 0}
"""Operators that promise values, and not which of equal ones they are: how many outputs come before the places, which
are not compared."""
Item = tuple[Subject, int]


def judge(item: Item) -> Verdict:
    """Export a sample, run the file, and compare."""
    subject, number = item
    call = calls(subject)[number]
    with warnings.catch_warnings(), tempfile.TemporaryDirectory(prefix="onnx-") as folder, torch.no_grad():
        warnings.simplefilter("ignore")
        kind, detail = _judged(call, subject, Path(folder) / "sample.onnx")
    return Verdict(kind, detail)


def _judged(call: Any, subject: Subject, path: Path) -> tuple[str, str]:
    fn, args, kwargs = call.make(False)

    def program(args: Any, kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    try:
        torch.manual_seed(1)
        result = program(*call.make(False)[1:])
        exported = framesmith.export(program, (args, kwargs), operators="onnx")
        want = expected(exported, result)
    except (FramesmithError, RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, AssertionError) as e:
        return "not exported", _line(e)
    try:
        made = export_onnx(exported, path)
        got = of_onnxruntime(path)(inputs_of(exported, flatten(((args, kwargs), {}))[0]))
    except NoOnnxForm as e:
        return "no form", "; ".join(dict.fromkeys(str(p.operator) + (p.why and f" ({p.why})") for p in e.problems))
    except FramesmithError as e:
        return "not exported", _line(e)
    except NoKernel as e:
        return "no kernel", _line(e)
    except Exception as e:
        return "failed", _line(e)
    if drawn(made) or subject.name in UNCOMPARED:
        free, exact = range(len(want)), []
    else:
        free, exact = range(TIES.get(subject.name, len(want)), len(want)), _exact(call, exported)
    found = difference(want, got, exact, free, least_of(made))
    own = [x.numpy() for x in expected(exported, exported(*call.make(False)[1:]))] if found else want
    if found and difference(want, own, exact, free):
        return "not exported", f"the exported program differs: {found}"
    return ("different", found) if found else ("equal", "")


def _exact(call: Any, exported: Any) -> list[Any]:
    """The results in float64, where there are such."""
    try:
        fn, args, kwargs = call.make(True)
        return expected(exported, fn(*args, **kwargs))
    except Exception:
        return []


def _line(e: BaseException) -> str:
    return re.sub(r"(?<![\w.])/\S+/", "", f"{type(e).__name__}: {' '.join(str(e).split())}")[:300]


class Tally:
    """Counts of kinds by operator and dtype, and what was found."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self.details: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)

    def take(self, item: Item, verdict: Verdict) -> None:
        key = item[0].name, item[0].dtype
        kind = verdict.kind if verdict.kind in KINDS else "failed"
        self.counts[key][kind] += 1
        if verdict.detail:
            self.details[key].setdefault(kind, f"sample {item[1]}: {verdict.detail}")
        if kind in BAD:
            print(f"{item[0]} sample {item[1]}: {kind}: {verdict.detail}", flush=True)

    def summary(self) -> dict[str, Any]:
        """Of operators: those that ONNX can say (in one sample or more), those of them that are equal wherever there
        is a kernel, and those without a kernel."""
        by_name: dict[str, Counter[str]] = defaultdict(Counter)
        for (name, _), count in self.counts.items():
            by_name[name] += count
        said = {n: c for n, c in by_name.items() if c["equal"] + c["different"] + c["failed"] + c["no kernel"]}
        runnable = {n: c for n, c in said.items() if c["equal"] + c["different"] + c["failed"]}
        equal = [n for n, c in runnable.items() if not c["different"] + c["failed"]]
        total = sum(self.counts.values(), Counter())
        return {"operators": len(by_name), "with a form": len(said), "without a kernel": len(said) - len(runnable),
                "equal": len(equal), "samples": {k: total[k] for k in KINDS}}

    def text(self) -> str:
        """The JSON text, with a line for each operator and dtype."""
        about = {"date": datetime.date.today().isoformat(), "torch": torch.__version__,
                 "onnxruntime": onnxruntime.__version__, "summary": self.summary(),
                 "run": f"python -m tests.nets.onnx_operators {' '.join(sys.argv[1:])}".strip()}
        rows = [json.dumps(f"{name} {dtype}") + ": " + json.dumps({**count, **self.details[name, dtype]}
                if not self.details[name, dtype] else {**count, "found": self.details[name, dtype]})
                for (name, dtype), count in sorted(self.counts.items())]
        head = ",\n ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in about.items())
        return f'{{\n {head},\n "operators": {{\n  ' + ",\n  ".join(rows) + "\n }\n}\n"


def check(wanted: Iterable[Subject], samples: int, jobs: int = 1, kept: Path | None = None) -> Tally:
    """All samples of the subjects, at most so many of each. `kept`: where counts are written as they come."""
    tally = Tally()
    items = ((subject, n) for subject in wanted for n in chosen(len(calls(subject)), samples))
    for number, (item, verdict) in enumerate(run_all(judge, items, jobs), 1):
        tally.take(item, verdict)
        if kept is not None and number % EACH == 0:
            kept.write_text(tally.text())
    if kept is not None:
        kept.write_text(tally.text())
    return tally


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", help="operators (default: all)")
    p.add_argument("--dtypes", default=",".join(DTYPES))
    p.add_argument("--samples", type=int, default=10, help="of each operator and dtype (0: all)")
    p.add_argument("--jobs", type=int, default=1)
    p.add_argument("--json", type=Path)
    a = p.parse_args()
    wanted = [s for s in subjects(a.names, a.dtypes.split(","), ["forward"]) if s.name in operators()]
    tally = check(wanted, a.samples, a.jobs, a.json)
    print(json.dumps(tally.summary()))
    return any(sum(c[k] for k in BAD) for c in tally.counts.values())


if __name__ == "__main__":
    sys.exit(main())
