"""Functions that show and check the compiler's work: `explain`, `report`, `metrics`, `shapes`, `check`, `minify` and
`bisect`. They are not in `api`, so that a program that only compiles does not load their imports."""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import time
from collections.abc import Callable
from typing import Any

import rich
from torch import nn

from framesmith import _C
from framesmith.api import callbacks
from framesmith.compiler import FrameCompiler
from framesmith.config import Config
from framesmith.tools import metrics as counters
from framesmith.tools.bisect import Bisected, bisect_call
from framesmith.tools.check import Check, check_call
from framesmith.tools.child import Setup
from framesmith.tools.collect import collect
from framesmith.tools.explain import Explanation, explain_call
from framesmith.tools.measure import measure_call, measure_graphs
from framesmith.tools.memory import Memory, memory_now
from framesmith.tools.minify import Minified, minify_call
from framesmith.tools.report import Report
from framesmith.tools.shapes import Shapes, shapes_of_call
from framesmith.util import events
from framesmith.wrapping import CompiledModule, root_of


def explain(model: Callable[..., Any]) -> Callable[..., Explanation]:
    """`explain(model)(*args)` captures and compiles one call again and reports on it: see
    `tools.explain.Explanation`."""
    model = _plain(model)
    root = root_of(model) if isinstance(model, nn.Module) else model
    return functools.partial(explain_call, root)


def report(path: str | os.PathLike[str] | None = None, format: str | None = None, *, measure: bool = False,
           call: tuple[Any, ...] | None = None) -> Report:
    """Report the compiler's work in this process so far: see `tools.report.Report`.

    `path`: a file to write. `format`: "html", "json" or "console"; by default that of the file's ending. Without a
    path, "console" prints. `measure`: time each kernel now, on synthetic data. `call`: (model, *args): time a call of a
    compiled model against eager, and the cost of its breaks. Buffers and generators are restored.
    """
    if call is not None:
        call[0](*call[1:])  # what it compiles is in the report
    made = Report(collect([*callbacks]))
    if call is not None:
        model, args = call[0], call[1:]
        measure_call(made.facts, functools.partial(_plain(model), *args), functools.partial(model, *args),
                     _plain(model))
    if measure:
        measure_graphs(made.facts)
    if path is not None:
        made.save(path, format)
    elif format == "console":
        rich.print(made)
    return made


def report_at_exit(path: str, format: str | None = None, measure: bool = False) -> None:
    """Write a report when the process ends; `reset` does not drop its events. Child processes that compile write one
    each, with their number in its name, and processes of a rank other than 0 with that. A launcher, which compiles
    nothing, leaves the one of the process of rank 0 that it has launched."""
    events.keep("report at exit")
    began = time.time()

    def write() -> None:
        child = multiprocessing.parent_process() is not None
        rank = os.environ.get("RANK", "0")
        if child and not events.recent():
            return
        name, ending = os.path.splitext(path)
        tag = f".{os.getpid()}" if child else f".rank{rank}" if rank != "0" else ""
        file = name + tag + ending
        if events.recent() or not os.path.exists(file) or os.path.getmtime(file) < began:
            report(file, format, measure=measure)

    atexit.register(write)


def metrics() -> dict[str, Any]:
    """Counters since the process began: compiles by outcome, seconds by stage, graphs, kernels, bytes of constants,
    breaks by reason, recompiles by guard, fallbacks, lookups in the cache; and the live variants with their numbers of
    calls."""
    return counters.snapshot([*callbacks])


def memory() -> Memory:
    """Return the memory that compiled code holds between calls: the constants of each graph that is alive, by name, and
    idle memory. Its `named(torch.cuda.memory._snapshot())` says in the stacks of a snapshot which blocks these are."""
    return memory_now()


def prometheus(registry: Any = None) -> counters.Collector:
    """Give `metrics()` to a registry of `prometheus_client` (default: that of the process), for it to ask whenever it
    is scraped. Returns the collector, which `registry.unregister` takes. Raises ImportError without that package."""
    return counters.prometheus(lambda: [*callbacks], registry)


def shapes(model: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Shapes:
    """Return the shapes that `model(*args, **kwargs)` gives, its arithmetic and its memory as formulas of the sizes of
    its tensors, without running it: see `tools.shapes.Shapes`. Raises `exc.ShapeError` where an operator refuses the
    shapes, and `exc.Unsupported` where the graph would break."""
    return shapes_of_call(_plain(model), args, kwargs)


def check(model: Callable[..., Any], /, *args: Any, tolerance: float | None = None, train: bool = False,
          options: dict[str, Any] | None = None, **kwargs: Any) -> Check:
    """Run `model(*args, **kwargs)` in eager, compiled and in float64, and name the first operator whose compiled value
    is off by more than rounding: see `tools.check.Check`, which is true where nothing is.

    `tolerance`: relative, in the place of the dtype's own. `train`: with gradients of parameters and of arguments that
    require grad. `options`: as for `compile`; those of `model`, if it is compiled, by default. Buffers and generators
    are restored.
    """
    plain, root, config = _asked(model, options)
    return check_call(plain, root, args, kwargs, config, train, tolerance)


def minify(model: Callable[..., Any], /, *args: Any, train: bool = False, options: dict[str, Any] | None = None,
           setup: Setup = None, seconds: float = 30.0, slow: float = 2.0, budget: float = 300.0,
           tolerance: float | None = None, **kwargs: Any) -> Minified:
    """Find the smallest program that reproduces the fault of `model(*args, **kwargs)`: a wrong result, an error, a
    crash, a hang, or code slower than eager. `str()` of what is returned is a script: see `tools.minify.Minified`.

    Candidates are compiled and run in a child process. `setup`: "module", "module:function" or a function, called there
    first. `seconds`: the time after which a candidate counts as hanging. `slow`: that many times eager's time is slow;
    0: slowness is no fault. `budget`: seconds for the whole search. `train`, `options`, `tolerance`: as for `check`.
    """
    _, root, config = _asked(model, options)
    return minify_call(root, args, kwargs, config, train, setup, seconds, slow, budget, tolerance)


def bisect(model: Callable[..., Any], /, *args: Any, train: bool = False, options: dict[str, Any] | None = None,
           setup: Setup = None, seconds: float = 30.0, slow: float = 2.0, tolerance: float | None = None,
           **kwargs: Any) -> Bisected:
    """Find the option, pass, decomposition or lowering that causes the fault of `model(*args, **kwargs)`: see
    `tools.bisect.Bisected`. The arguments are those of `minify`."""
    _, root, config = _asked(model, options)
    return bisect_call(root, args, kwargs, config, train, setup, seconds, slow, tolerance)


def _asked(model: Any, options: dict[str, Any] | None) -> tuple[Any, Callable[..., Any], Config]:
    """Return a model as it was before `compile`, a function that calls it, and the options."""
    compiled = model._framesmith_call if isinstance(model, CompiledModule) else model
    callback = getattr(compiled, "callback", None)
    config = callback.config if isinstance(callback, FrameCompiler) and options is None else Config.asked(options or {})
    plain = _plain(model)
    asked = config.with_(fullgraph=False, background=False)
    return plain, root_of(plain) if isinstance(plain, nn.Module) else plain, asked


def _plain(model: Any) -> Any:
    """Return the model that was given to `compile`, from what it returned."""
    if isinstance(model, CompiledModule):
        return model._framesmith_original  # type: ignore[attr-defined]
    return model.function if isinstance(model, _C.CompiledFunction) else model


if _at_exit := os.environ.get("FRAMESMITH_REPORT"):
    report_at_exit(_at_exit, measure=os.environ.get("FRAMESMITH_REPORT_MEASURE", "0") not in ("", "0"))
