"""Models of transformers and timm, exported to ONNX with a dynamic batch (and length), run at two sizes by ONNX Runtime
and OpenVINO, beside eager.

    python -m tests.nets.onnx_models transformers|timm [NAME ...] [--count N] [--jobs J] [--json OUT]

The architectures are those of `benchmarks.breadth`, small and with random weights, in a fixed random order; those
without such a model do not count. Results may differ by the rounding of float32, and by four times what eager's own
differ from float64's; where eager's own are far off, an engine's may be as far. Each engine's verdict is "equal",
"different", "no kernel" or "failed"; a model that draws random numbers is compared in dtypes and shapes. Models that
the JSON file has are not tried again, unless they are named.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import importlib
import importlib.metadata
import json
import random
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from torch import nn

import framesmith
from benchmarks.breadth.case import NoModel
from benchmarks.breadth.sizes import Sizes, at, only
from framesmith.onnx import NoOnnxForm
from framesmith.onnx import export as export_onnx
from framesmith.util.errors import FramesmithError
from tests.fuzz.pool import run_all
from tests.fuzz.runner import Verdict
from tests.nets.onnx_running import (
    NoKernel,
    Run,
    as_near,
    difference,
    drawn,
    expected,
    inputs_of,
    least_of,
    of_onnxruntime,
    of_openvino,
)

SUITES = ("transformers", "timm")
ENGINES: dict[str, Callable[[Path], Run]] = {"onnxruntime": of_onnxruntime, "openvino": of_openvino}
SIZES = (Sizes(2, 24), Sizes(3, 31))
VARYING = (("batch", "length"), ("batch",), ("length",), ())
"""What varies, the most first: a model may fix some of it."""
Item = tuple[str, str]


@dataclass
class Judged(Verdict):
    """A verdict on a model; `row`: what is kept of it."""

    row: dict[str, Any] = field(default_factory=dict)


def judge(item: Item) -> Judged:
    """Export a model with as much dynamic as it takes, and run the file by all engines."""
    suite, name = item
    row: dict[str, Any] = {}
    with warnings.catch_warnings(), tempfile.TemporaryDirectory(prefix="onnx-") as folder, torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            case = importlib.import_module(f"benchmarks.breadth.{suite}").case(name)
            model = case.build()
            case.inputs(model)
        except Exception as e:  # eager alone
            return Judged("no model", _line(e), row={"export": "no model"})
        for varying in VARYING:
            try:
                cases = _cases(case, model, varying)
                program = framesmith.export(model, (), cases[0], dynamic_shapes=_dims(cases, varying), operators="onnx")
                row.pop("refused", None)
                break
            except (FramesmithError, RuntimeError, ValueError, IndexError, TypeError, NoModel) as e:
                row["refused"] = _line(e)
        if "refused" in row:
            row["export"] = "not exported"
        else:
            row["dimensions"] = list(program.dimensions)
            _run(model, program, cases, Path(folder) / "model.onnx", row)
    return Judged(row["export"], row.get("found", row.get("refused", "")), row=row)


def _cases(case: Any, model: nn.Module, varying: tuple[str, ...]) -> list[dict[str, Any]]:
    cases = []
    for sizes in SIZES:
        with at(only(varying, sizes)):
            cases.append(case.inputs(model))
    for kwargs in cases:
        model(**kwargs)
    return cases


def _dims(cases: list[dict[str, Any]], varying: tuple[str, ...]) -> dict[str, Any]:
    """A name for each dimension that is the batch or the length in all cases; what varies besides varies by itself."""
    sizes = [only(varying, s) for s in SIZES]
    names = {tuple(getattr(s, name) for s in sizes): framesmith.Dim(name) for name in varying}
    return {key: {d: names.get(pair, framesmith.Dim.AUTO) for d, pair in enumerate(zip(x.shape, cases[1][key].shape))
                  if pair[0] != pair[1]} if isinstance(x, torch.Tensor) else None for key, x in cases[0].items()}


def _run(model: nn.Module, program: Any, cases: list[dict[str, Any]], path: Path, row: dict[str, Any]) -> None:
    start = time.perf_counter()
    try:
        made = export_onnx(program, path)
    except NoOnnxForm as e:
        row.update(export="no form", found="; ".join(dict.fromkeys(map(str, e.problems)))[:400])
        return
    except Exception as e:
        row.update(export="failed", found=_line(e))
        return
    row.update(export="exported", seconds=round(time.perf_counter() - start, 2), nodes=len(made.graph))
    row.update({"draws": True} if drawn(made) else {})
    wide = _double(model)
    for engine, load in ENGINES.items():
        try:
            run, found = load(path), ""
            for kwargs in cases:
                leaves = program.bind((), copy.copy(kwargs))
                want = expected(program, model(**copy.deepcopy(kwargs)))
                exact = _exact(wide, program, kwargs)
                free = range(len(want)) if drawn(made) else ()
                got = run(inputs_of(program, leaves))
                if this := difference(want, got, exact, free, least_of(made)):
                    if as_near(want, got, exact):
                        row["note"] = f"as near to float64 as eager, where {this}"[:200]
                    else:
                        found = found or this
            row[engine] = "different" if found else "equal"
            row.update({f"{engine} found": found} if found else {})
        except NoKernel as e:
            row.update({engine: "no kernel", f"{engine} found": _line(e)})
        except Exception as e:
            row.update({engine: "failed", f"{engine} found": _line(e)})


def _double(model: nn.Module) -> nn.Module | None:
    try:
        return copy.deepcopy(model).double()
    except Exception:
        return None


def _exact(wide: Any, program: Any, kwargs: dict[str, Any]) -> list[Any]:
    """The results in float64; nothing where the model does not take it."""
    try:
        return expected(program, wide(**{k: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point()
                                         else copy.deepcopy(x) for k, x in kwargs.items()}))
    except Exception:
        return []


def _line(e: BaseException) -> str:
    return re.sub(r"(?<![\w.])/\S+/", "", f"{type(e).__name__}: {' '.join(str(e).split())}")[:300]


def _drawn(suite: str, names: list[str]) -> Iterator[Item]:
    if not names:
        names = list(importlib.import_module(f"benchmarks.breadth.{suite}").names())
        random.Random(0).shuffle(names)
    yield from ((suite, name) for name in names)


def check(suite: str, names: list[str], most: int, jobs: int = 1, kept: Path | None = None) -> dict[str, Any]:
    """Rows by name, until so many models have been tried. `kept`: where they are written as they come; those that it
    has count, and are not tried again unless they are named."""
    rows: dict[str, dict[str, Any]] = json.loads(kept.read_text())["models"] if kept and kept.exists() else {}
    wanted = (item for item in _drawn(suite, names) if names or item[1] not in rows)
    for (_, name), verdict in run_all(judge, wanted, jobs, batch=4):
        row = verdict.row if isinstance(verdict, Judged) else {"export": "failed", "found": verdict.detail}
        print(name, json.dumps(row), flush=True)
        if row["export"] != "no model":
            rows[name] = row
            if kept is not None:
                kept.write_text(_text(rows))
        if len(rows) >= most and not names:
            break
    return rows


def summary(rows: dict[str, dict[str, Any]]) -> dict[str, int]:
    """How many models were tried, and how many are equal in each engine."""
    return {"models": len(rows), "exported": sum(r["export"] == "exported" for r in rows.values()),
            "with a dynamic batch": sum("batch" in r.get("dimensions", ()) for r in rows.values()),
            **{engine: sum(r.get(engine) == "equal" for r in rows.values()) for engine in ENGINES}}


def _text(rows: dict[str, dict[str, Any]]) -> str:
    """The JSON text, with a line for each model."""
    about = {"date": datetime.date.today().isoformat(), "torch": torch.__version__,
             "onnxruntime": onnxruntime.__version__, "openvino": importlib.metadata.version("openvino"),
             "run": f"python -m tests.nets.onnx_models {sys.argv[1]}", "summary": summary(rows)}
    head = ",\n ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in about.items())
    lines = ",\n  ".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(rows.items()))
    return f'{{\n {head},\n "models": {{\n  {lines}\n }}\n}}\n'


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("suite", choices=SUITES)
    p.add_argument("names", nargs="*", help="architectures (default: all)")
    p.add_argument("--count", type=int, default=60)
    p.add_argument("--jobs", type=int, default=1)
    p.add_argument("--json", type=Path)
    a = p.parse_args()
    rows = check(a.suite, a.names, a.count, a.jobs, a.json)
    print(json.dumps(summary(rows)))
    return any(r[engine] in ("different", "failed") for r in rows.values() for engine in ENGINES if engine in r)


if __name__ == "__main__":
    sys.exit(main())
