"""The public face: `compile` and its companions, with `torch.compile`'s signatures."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from framesmith import _C
from framesmith.backends import BACKENDS
from framesmith.background import foreground
from framesmith.buckets import Bucketed
from framesmith.capture.break_points import GENERATORS
from framesmith.capture.functions import marks
from framesmith.capture.registry import LATE
from framesmith.compiler import FrameCompiler
from framesmith.config import Config
from framesmith.passes import with_registered
from framesmith.pipeline import PASSES
from framesmith.shared_variants import compiler_for
from framesmith.tools.progress import show_progress
from framesmith.util import events, log
from framesmith.util.alive import Alive
from framesmith.util.errors import BackendError, FramesmithError
from framesmith.util.state_restored import state_restored
from framesmith.wrapping import CompiledModule, Request, wrap_function, wrap_module

if torch.distributed.is_available():
    LATE.append((torch.distributed.is_initialized, "framesmith.distributed"))

callbacks: Alive[FrameCompiler] = Alive()


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
    """Return a compiled version of a module or function; also a decorator, with or without arguments.

    `fullgraph`: raise `exc.Unsupported` where the graph would break. `dynamic`: see `Config`. `backend`: a name of
    `list_backends()` or a callable `(gm, example_inputs) -> callable`. `mode`: "default", "reduce-overhead",
    "max-autotune", "max-autotune-no-cudagraphs" (on the CPU they mean the same; on a CUDA device the second and the
    third replay calls from CUDA graphs, see docs/gpu.md). `options`: fields of `Config` by name, or torch.compile's
    options; "buckets": {argument: {dim: sizes}}, where sizes are "powers", a list, or a tuple of these and the number
    to pad with: such dimensions are padded up to one of the sizes, and results are sliced back (see
    docs/dynamic-sizes.md). `disable`: return the model unchanged. `recompile_limit`: `max_variants`.
    `isolate_recompiles`: share no variants with earlier compiled functions of the same code. Nothing is compiled before
    the first call.
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
    if config.progress and sys.stderr is not None and sys.stderr.isatty():
        show_progress()
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
        callback.verdicts.warn(f"suspended:{place}",
                               f"{place} runs in eager: it is a generator or a coroutine function; compile "
                               "the functions that it calls instead")


def _noted(callback: FrameCompiler) -> FrameCompiler:
    callbacks.add(callback)
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
    """Compile the code for a list of calls ahead, and return the number of compiles.

    `model`: what `compile` returned. `sizes`: each a tuple of arguments, a dict of keyword arguments, or a callable
    that makes one of these. Each is called, in the modes that the caller is in (grad, autocast). Where grad mode is on
    and a result requires grad, its backward runs, too, without adding to any `.grad`. Buffers and generators are
    restored. Raises TypeError for a model that is not compiled, and exceptions of the calls.
    """
    compiled = model._framesmith_call if isinstance(model, CompiledModule) else model
    callback = getattr(compiled, "callback", None)
    if not isinstance(callback, FrameCompiler):
        raise TypeError("framesmith.warm_up takes what framesmith.compile returned")
    before = callback.compiles
    with state_restored(model), foreground():
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
    """Drop all compiled variants and records of warnings; the next call of a compiled function compiles again."""
    for callback in callbacks:
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
    """Always run `fn` (a function or a module) in plain Python and, if `recursive`, all functions that it calls. Also a
    decorator.

    A call of it in captured code ends the graph, and `explain` shows `reason`.
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
    """Take each call of `fn` (or of each function of a list) as a whole: its operators on tensors are recorded, and its
    Python is not captured. Other state that it reads is not guarded. For a class of tensors with `__tensor_flatten__`,
    declare that its `__torch_dispatch__` depends only on its operands and has no side effects, so that it may run
    during capture and not in each call. Returns `fn`."""
    return _each(fn, marks.allow)


def disallow_in_graph(fn: Any) -> Any:
    """End the graph before each call of `fn` (or of each function of a list), and make the call in Python. Returns
    `fn`."""
    return _each(fn, lambda f: marks.disallow(f, "disallowed in graphs"))


def assume_constant_result(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Call `fn` once, during capture, with arguments known then, and make its result (Python values) a constant. Also a
    decorator."""
    marks.constant(fn)
    return fn


def _each(fn: Any, mark: Callable[[Callable[..., Any]], None]) -> Any:
    for f in fn if isinstance(fn, list | tuple) else (fn,):
        if not callable(f):
            raise TypeError(f"expected a callable, not {f!r}")
        mark(f)
    return fn
