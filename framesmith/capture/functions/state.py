"""The thread's torch state: grad mode, autocast, default dtype; and functions that ask whether compilation is on."""

from __future__ import annotations

from typing import Any, cast

import torch

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..overrides import overriding
from ..polyfills.attention import keeps_padded_places
from ..registry import by_name, calls, folds, named, refuses
from ..settings import read_setting, write_setting
from ..trackers import Args, Kwargs

folds(torch.is_grad_enabled, torch.is_inference_mode_enabled, torch.get_default_dtype, torch.is_autocast_enabled,
      torch.get_autocast_dtype, torch.is_autocast_cpu_enabled, torch.is_autocast_cache_enabled,
      torch.are_deterministic_algorithms_enabled,
      torch._C._is_autocast_available, torch.get_default_device, torch._C._get_privateuse1_backend_name,
      torch._C._is_any_autocast_enabled, torch.get_autocast_cpu_dtype, torch.get_autocast_gpu_dtype)


_ASKING = ("torch._functorch.", "torch.distributed.nn.")
"""Modules whose functions would do otherwise, or refuse, where they are compiled."""


def _constant(value: Any, *functions: Any) -> None:
    for fn in functions:
        calls(fn)(lambda tracer, args, kwargs, value=value: tracer.made(value))


@calls(torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling)
def _is_compiling(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Return True to the program; torch's function transforms, which would behave differently, get False."""
    frame = tracer.frames[-1]
    asks = str(frame.globals.get("__name__"))
    if asks == "torch.nn.modules.transformer":
        known = dict(zip(frame.code.co_varnames, frame.locals))
        return cast(t.Tracker, tracer.made(keeps_padded_places).call(tracer, [known["first_layer"], known["src"]], {}))
    return t.boolean(not asks.startswith(_ASKING))


@by_name("torch.fx._symbolic_trace.is_fx_tracing")
def _is_fx_tracing(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Run the original at capture, where it warns once in a process."""
    is_tracing = named("torch.fx._symbolic_trace.is_fx_tracing")
    tracer.folded(is_tracing, ())
    return cast(t.Tracker, tracer.read_global(is_tracing.__globals__, "_is_fx_tracing_flag"))


_constant(False, *filter(None, map(named, ("torch.jit.is_scripting", "torch.jit.is_tracing",
                                           "torch.onnx.is_in_onnx_export"))),
          torch.compiler.is_exporting, torch.cuda.is_current_stream_capturing)
_constant(None, torch._C._log_api_usage_once, torch._C._get_tracing_state)


@calls(torch.overrides.has_torch_function)
def _has_override(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return _has_override_among(tracer, args[0].items_list(tracer), kwargs)


@calls(torch.overrides.has_torch_function_unary, torch.overrides.has_torch_function_variadic)
def _has_override_among(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if tracer.modes.functions:
        raise Unsupported("a function of torch's Python in a function mode")
    return t.boolean(tracer.asks(*[x for x in args if isinstance(x, t.Tensor)]) or bool(overriding(tracer, args)))


folds(torch.distributed.is_available, torch.overrides.is_tensor_method_or_property)


def _of_the_process(*paths: str) -> None:
    """Register functions whose results never change in a process: their calls are folded."""
    for path in paths:
        by_name(path)(lambda tracer, args, kwargs, path=path: tracer.made(tracer.answer(
            named(path), tuple([a.real(tracer) for a in args]), {k: v.real(tracer) for k, v in kwargs.items()})))


_of_the_process(
    "torch.cuda.get_device_capability", "torch.cuda.get_device_name", "torch.cuda.is_bf16_supported",
    "torch.cuda.is_available", "torch.cuda.device_count", "torch.cuda._is_compiled", "torch.cuda.is_initialized",
    "torch.backends.cuda.is_built", "torch.backends.mps.is_available", "torch.backends.mps.is_built",
    "torch.xpu.is_available",
    "torch.xpu.device_count", "torch.mps.is_available", "torch.mtia.is_available", "torch.accelerator.is_available",
)


if torch.distributed.is_available():
    calls(torch.distributed.is_initialized)(lambda tracer, args,
                                            kwargs: read_setting(tracer, torch.distributed.is_initialized, args,
                                                                 kwargs))


def _writes(setter: str, getter: str) -> None:
    """Register the setter of a setting of devices that no graph is captured for."""
    fn, reads = named(f"torch._C.{setter}"), named(f"torch._C.{getter}")
    if fn is not None and reads is not None:
        calls(fn)(lambda tracer, args, kwargs: write_setting(tracer, fn, reads, args))


for _name in ("enabled", "benchmark", "deterministic", "allow_tf32", "depthwise_kernel"):
    _writes(f"_set_cudnn_{_name}", f"_get_cudnn_{_name}")
_writes("_cuda_set_cudnn_benchmark_limit", "_cuda_get_cudnn_benchmark_limit")
_writes("_set_fp32_precision_setter", "_get_fp32_precision_getter")


@calls(named("torch.jit.annotate"))
def _annotate(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return args[1]


refuses(Unsupported, "a change or a reading of torch's global state", torch.use_deterministic_algorithms,
        torch.set_num_threads, torch.set_rng_state, torch.get_rng_state, torch.initial_seed, torch.seed)
