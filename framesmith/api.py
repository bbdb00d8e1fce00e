"""The public face: `compile` and its companions, with `torch.compile`'s signatures."""

from __future__ import annotations

import atexit
import functools
import inspect
import multiprocessing
import os
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import rich
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from framesmith import _C
from framesmith.backends import BACKENDS
from framesmith.buckets import Bucketed
from framesmith.capture.break_points import GENERATORS
from framesmith.capture.functions import marks
from framesmith.compiler import FrameCompiler
from framesmith.config import Config
from framesmith.passes import with_registered
from framesmith.pipeline import PASSES
from framesmith.shared_variants import compiler_for
from framesmith.tools import metrics as counters
from framesmith.tools.bisect import Bisected, bisect_call
from framesmith.tools.check import Check, check_call
from framesmith.tools.child import Setup
from framesmith.tools.collect import collect
from framesmith.tools.explain import Explanation, explain_call
from framesmith.tools.measure import measure_call, measure_graphs
from framesmith.tools.minify import Minified, minify_call
from framesmith.tools.report import Report
from framesmith.tools.shapes import Shapes, shapes_of_call
from framesmith.util import events, log
from framesmith.util.errors import BackendError, FramesmithError
from framesmith.util.state_restored import state_restored
from framesmith.wrapping import CompiledModule, Request, root_of, wrap_function, wrap_module

_callbacks: weakref.WeakSet[FrameCompiler] = weakref.WeakSet()


def compile(  # noqa: A001 - torch.compile's name
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "native",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
) -> Any:
    """A compiled version of a module or function; also a decorator, with or without arguments.

    `fullgraph`: raise `exc.Unsupported` where the graph would break. `dynamic`: see `Config`. `backend`: a name of
    `list_backends()` or a callable `(gm, example_inputs) -> callable`. `mode`: "default", "reduce-overhead",
    "max-autotune", "max-autotune-no-cudagraphs" (on the CPU they mean the same; on a CUDA device the second and the
    third replay calls from CUDA graphs, see docs/gpu.md). `options`: fields of `Config` by name, or torch.compile's
    options; "buckets": {argument: {dim: sizes}}, where sizes are "powers", a list, or a tuple of these and the number
    to pad with: such dimensions are padded up to one of the sizes, and results cut back (see docs/dynamic-sizes.md).
    `disable`: return the model as it is. `recompile_limit`: `max_variants`. `isolate_recompiles`: share no variants
    with what an earlier call has compiled of the same function. Nothing is compiled before the first call.
    """
    given: dict[str, Any] = {
        "fullgraph": fullgraph, "dynamic": dynamic, "backend": backend, "mode": mode, "options": options,
        "disable": disable, "recompile_limit": recompile_limit, "isolate_recompiles": isolate_recompiles,
    }
    if model is None:
        return functools.partial(compile, **given)
    if disable:
        return model
    if not callable(model):
        raise TypeError(f"framesmith.compile takes a module or a callable, not {type(model).__name__}")
    if isinstance(backend, str) and backend not in BACKENDS:
        raise BackendError(f"unknown backend {backend!r}; known: {', '.join(sorted(BACKENDS))}")
    options = dict(options or {})
    buckets = options.pop("buckets", None)
    config = Config.asked(options, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode,
                          max_variants=recompile_limit)
    request = Request(compile=compile, options=given)
    optional = {one.name for one in with_registered(PASSES) if not one.makes}
    if wrong := config.left_out - optional:
        raise FramesmithError(f"no optional passes {sorted(wrong)}; there are {', '.join(sorted(optional))}")
    if isinstance(model, nn.Module):
        callback = _noted(FrameCompiler(config))
        _say_if_suspended(type(model).forward, callback)
        view = wrap_module(model, callback, request)
        if buckets:
            call = Bucketed(view._framesmith_call, view._framesmith_original, buckets)
            object.__setattr__(view, "_framesmith_call", call)
        return view
    compiled = _wrap_callable(model, config, request, isolate_recompiles)
    return functools.update_wrapper(Bucketed(compiled, model, buckets), model) if buckets else compiled


def _say_if_suspended(fn: Any, callback: FrameCompiler) -> None:
    """Warn of a function whose body runs after its call, when the frame hook is off."""
    fn = inspect.unwrap(getattr(fn, "__func__", fn))
    if isinstance(fn, types.FunctionType) and fn.__code__.co_flags & GENERATORS:
        place = f"{fn.__qualname__} ({fn.__code__.co_filename}:{fn.__code__.co_firstlineno})"
        callback.warn(f"suspended:{place}",
                      f"framesmith: {place} runs in eager: it is a generator or a coroutine function; compile the "
                      "functions that it calls instead")


def _noted(callback: FrameCompiler) -> FrameCompiler:
    _callbacks.add(callback)
    if not hasattr(torch.compiler.reset, "__wrapped__"):
        torch.compiler.reset = _with_ours(torch.compiler.reset)
    return callback


def _wrap_callable(fn: Callable[..., Any], config: Config, request: Request, isolated: bool) -> Callable[..., Any]:
    if isinstance(fn, _C.CompiledFunction):
        fn = getattr(fn, "_framesmith_wrapped", fn.function)
    if isinstance(fn, types.BuiltinFunctionType | type):
        return fn
    callback = _noted(FrameCompiler(config) if isolated else compiler_for(fn, config))
    _say_if_suspended(fn, callback)
    compiled = wrap_function(fn, callback, request)
    callback.admit(compiled)
    return compiled


def warm_up(model: Callable[..., Any], sizes: Iterable[Any]) -> int:
    """Compile ahead what a list of calls needs; how often something was compiled.

    `model`: what `compile` returned. `sizes`: each a tuple of arguments, a dict of keyword arguments, or a callable
    that makes one of these. Each is called, in the modes that the caller is in (grad, autocast). Where grad mode is on
    and a result requires grad, its backward runs, too, without adding to any `.grad`. Buffers and generators are as
    before afterwards. Raises TypeError for a model that is not compiled, and what a call raises.
    """
    compiled = model._framesmith_call if isinstance(model, CompiledModule) else model
    callback = getattr(compiled, "callback", None)
    if not isinstance(callback, FrameCompiler):
        raise TypeError("framesmith.warm_up takes what framesmith.compile returned")
    before = callback.compiles
    with state_restored(model):
        for size in sizes:
            given = size() if callable(size) and not isinstance(size, torch.Tensor) else size
            args, kwargs = ((), given) if isinstance(given, dict) else (given, {})
            _differentiated(model, model(*args, **kwargs), (args, kwargs))
    return callback.compiles - before


def _differentiated(model: Any, result: Any, given: Any) -> None:
    """Run the backward of a result, and drop the gradients."""
    results = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor) and x.requires_grad]
    leaves = [*(model.parameters() if isinstance(model, nn.Module) else ()), *tree_leaves(given)]
    wanted = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
    if results and wanted:
        torch.autograd.grad(results, wanted, [torch.ones_like(x) for x in results], allow_unused=True)


def reset() -> None:
    """Forget every compiled variant and every warning; the next call of anything compiled starts afresh."""
    for callback in _callbacks:
        callback.forget()
    log.forget_warnings()
    events.forget()


def _with_ours(theirs: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(theirs)
    def reset_both() -> None:
        theirs()
        reset()

    return reset_both


def disable(fn: Callable[..., Any] | None = None, *, recursive: bool = True, reason: str | None = None) -> Any:
    """Run `fn` (a function or a module) in plain Python always and, if `recursive`, all that it calls. Also a
    decorator.

    Captured code that calls it ends its graph there, with `reason` among the words of `explain`.
    """
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    if isinstance(fn, type):  # its instances do
        fn.__init__ = disable(fn.__init__)  # type: ignore[misc]
        if issubclass(fn, nn.Module):
            fn._call_impl = disable(fn._call_impl)  # type: ignore[method-assign]
        return fn
    if isinstance(fn, nn.Module):
        return wrap_module(fn, None, Request(compile=disable, options={"recursive": recursive, "reason": reason}))
    if recursive:
        return wrap_function(fn, None, Request(compile=disable, options={"recursive": recursive, "reason": reason}))
    if isinstance(fn, types.FunctionType):
        _C.skip_code(fn)
    marks.disallow(fn, reason or "disabled")
    return fn


def allow_in_graph(fn: Any) -> Any:
    """Take each call of `fn` (or of each function of a list) as a whole: the operators that it reaches on tensors are
    recorded and its Python is not looked into. What it reads besides its arguments is not guarded. Returns `fn`."""
    return _each(fn, marks.allow)


def disallow_in_graph(fn: Any) -> Any:
    """End the graph before each call of `fn` (or of each function of a list), and make the call in Python. Returns
    `fn`."""
    return _each(fn, lambda f: marks.disallow(f, "disallowed in graphs"))


def assume_constant_result(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Call `fn` once, in capture, with arguments known then, and take its result (Python values) for good. Also a
    decorator."""
    marks.constant(fn)
    return fn


def _each(fn: Any, mark: Callable[[Callable[..., Any]], None]) -> Any:
    for f in fn if isinstance(fn, list | tuple) else (fn,):
        if not callable(f):
            raise TypeError(f"expected a callable, not {f!r}")
        mark(f)
    return fn


def explain(model: Callable[..., Any]) -> Callable[..., Explanation]:
    """`explain(model)(*args)` captures and compiles one call anew and tells what came of it: see
    `tools.explain.Explanation`."""
    model = _plain(model)
    root = root_of(model) if isinstance(model, nn.Module) else model
    return functools.partial(explain_call, root)


def report(path: str | os.PathLike[str] | None = None, format: str | None = None, *, measure: bool = False,
           call: tuple[Any, ...] | None = None) -> Report:
    """What the compiler has done in this process so far: see `tools.report.Report`.

    `path`: a file to write. `format`: "html", "json" or "console"; by default that of the file's ending. Without a
    path, "console" prints. `measure`: time each kernel now, on data that is made up. `call`: (model, *args): time a
    call of a compiled model against eager, and what the breaks cost in it. Buffers and generators are as before
    afterwards.
    """
    if call is not None:
        call[0](*call[1:])  # what it compiles is in the report
    made = Report(collect([*_callbacks]))
    if measure or call is not None:
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
    """Write a report when the process ends. `reset` does not shorten it. Processes that this one has started write
    one each, if they compile anything, with their number in its name."""
    events.keep("report at exit")

    def write() -> None:
        child = multiprocessing.parent_process() is not None
        rank = os.environ.get("RANK", "0")
        if child and not events.recent():
            return
        name, ending = os.path.splitext(path)
        tag = f".{os.getpid()}" if child else f".rank{rank}" if rank != "0" else ""
        report(name + tag + ending, format, measure=measure)

    atexit.register(write)


def metrics() -> dict[str, Any]:
    """Counters since the process began: compiles by outcome, seconds by stage, graphs, kernels, bytes of constants,
    breaks by reason, recompiles by guard, fallbacks, lookups in the cache; and the variants that are alive, with how
    often calls took them."""
    return counters.snapshot([*_callbacks])


def prometheus(registry: Any = None) -> counters.Collector:
    """Give `metrics()` to a registry of `prometheus_client` (default: that of the process), for it to ask whenever it
    is scraped. Returns the collector, which `registry.unregister` takes. Raises ImportError without that package."""
    return counters.prometheus(lambda: [*_callbacks], registry)


def shapes(model: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Shapes:
    """The shapes that `model(*args, **kwargs)` gives, its arithmetic and its memory as formulas of the sizes of its
    tensors, without running it: see `tools.shapes.Shapes`. Raises `exc.ShapeError` where an operator refuses the
    shapes, and `exc.Unsupported` where the graph would break."""
    return shapes_of_call(_plain(model), args, kwargs)


def check(model: Callable[..., Any], /, *args: Any, tolerance: float | None = None, train: bool = False,
          options: dict[str, Any] | None = None, **kwargs: Any) -> Check:
    """Run `model(*args, **kwargs)` in eager, compiled and in float64, and name the first operator whose compiled value
    is off by more than rounding: see `tools.check.Check`, which is true where nothing is.

    `tolerance`: relative, in the place of the dtype's own. `train`: with gradients of parameters and of arguments that
    require grad. `options`: as for `compile`; those of `model`, if it is compiled, by default. Buffers and generators
    are as before afterwards.
    """
    plain, root, config = _asked(model, options)
    return check_call(plain, root, args, kwargs, config, train, tolerance)


def minify(model: Callable[..., Any], /, *args: Any, train: bool = False, options: dict[str, Any] | None = None,
           setup: Setup = None, seconds: float = 30.0, slow: float = 2.0, budget: float = 300.0,
           tolerance: float | None = None, **kwargs: Any) -> Minified:
    """Find the smallest program that shows what is wrong with `model(*args, **kwargs)`: a wrong result, an error, a
    crash, a hang, or code slower than eager. `str()` of what is returned is a script: see `tools.minify.Minified`.

    Candidates are compiled and run in a child process. `setup`: "module", "module:function" or a function, called
    there first. `seconds`: a candidate that gives no answer for so long hangs. `slow`: so many times as long as eager
    is slow; 0: that is no fault. `budget`: seconds for the whole search. `train`, `options`, `tolerance`: as for
    `check`.
    """
    _, root, config = _asked(model, options)
    return minify_call(root, args, kwargs, config, train, setup, seconds, slow, budget, tolerance)


def bisect(model: Callable[..., Any], /, *args: Any, train: bool = False, options: dict[str, Any] | None = None,
           setup: Setup = None, seconds: float = 30.0, slow: float = 2.0, tolerance: float | None = None,
           **kwargs: Any) -> Bisected:
    """Find which option, pass, decomposition or lowering is to blame for what is wrong with `model(*args, **kwargs)`:
    see `tools.bisect.Bisected`. The arguments are those of `minify`."""
    _, root, config = _asked(model, options)
    return bisect_call(root, args, kwargs, config, train, setup, seconds, slow, tolerance)


def _asked(model: Any, options: dict[str, Any] | None) -> tuple[Any, Callable[..., Any], Config]:
    """A model as it was before `compile`, a function that calls it, and the options."""
    compiled = model._framesmith_call if isinstance(model, CompiledModule) else model
    callback = getattr(compiled, "callback", None)
    config = callback.config if isinstance(callback, FrameCompiler) and options is None else Config.asked(options or {})
    plain = _plain(model)
    return plain, root_of(plain) if isinstance(plain, nn.Module) else plain, config.with_(fullgraph=False)


def _plain(model: Any) -> Any:
    """What was given to `compile`, of what it returned."""
    if isinstance(model, CompiledModule):
        return model._framesmith_original  # type: ignore[attr-defined]
    return model.function if isinstance(model, _C.CompiledFunction) else model


if _at_exit := os.environ.get("FRAMESMITH_REPORT"):
    report_at_exit(_at_exit, measure=os.environ.get("FRAMESMITH_REPORT_MEASURE", "0") not in ("", "0"))
