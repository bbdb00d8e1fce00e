"""Launches of the program's own Triton kernels: `kernel[grid](...)` as a node of the graph.

What `triton.heuristics` computes and what a grid computes of META is followed like any other Python. Triton itself is
never imported here.
"""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import torch

from framesmith.fake.launching import Memories, record_launch
from framesmith.graph.launch import Grids, Launch, found_at
from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..kernel_writes import is_jit, written_parameters
from ..registry import by_name
from ..trackers import Args, Kwargs

_tokens = itertools.count()


@by_name("triton.runtime.jit.JITFunction.run", "triton.runtime.interpreter.InterpretedFunction.run")
def _run(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    call = _Call(tracer, args, kwargs)
    missing = [p.name for p in call.signature.parameters.values() if p.default is p.empty and p.name not in call.bound]
    if missing:
        raise Unsupported(f"a launch without {missing[0]}")
    call.record(call.grid({}))
    return t.NONE


@by_name("triton.runtime.autotuner.Autotuner.run")
def _tuned(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Launch a tuned kernel: the tuner chooses at the first call, as in eager, so the grid is computed for each
    configuration. If it has chosen, or has one configuration, the kernel inside it is launched."""
    call = _Call(tracer, args, kwargs)
    tuner = call.kernel
    chosen = tuner.configs[0] if len(tuner.configs) == 1 else call.chosen()
    if chosen is not None and not _hooks(tuner):
        added = {name: tracer.made(value) for name, value in chosen.all_kwargs().items()}
        return args[0].get(tracer, "fn").get(tracer, "run").call(tracer, args[1:], {**kwargs, **added})
    if not is_jit(tuner.fn) or not hasattr(tuner.fn, "src"):
        raise Unsupported("triton.autotune around something else than a triton.jit function")
    names = sorted({name for config in tuner.configs for name in config.kwargs})
    table = {}
    for config in tuner.configs:
        values = {name: tracer.made(value) for name, value in config.kwargs.items()}
        table[tuple([config.kwargs.get(name) for name in names])] = call.grid(values)
    grids = set(table.values())
    if len(grids) > 1 and any(len(config.kwargs) < len(names) for config in tuner.configs):
        raise Unsupported("triton.autotune over configurations with different parameters")
    call.record(grids.pop() if len(grids) == 1 else Grids(tuple(names), table))
    return t.NONE


class _Call:
    """One launch: the kernel, and its arguments by parameter."""

    def __init__(self, tracer: Any, args: Args, kwargs: Kwargs) -> None:
        self.tracer = tracer
        owner = args[0]
        self.kernel = _itself(tracer, owner)
        self.function = self.kernel
        while not is_jit(self.function):  # what a tuner is around
            self.function = self.function.fn
        if self.function.pre_run_hooks or tracer.transformed:
            raise Unsupported("a kernel with hooks, or within a function transform")
        if self.function is self.kernel and "_src" in vars(self.kernel):
            owner.get(tracer, "_src")
        kwargs = dict(kwargs)
        self.asked = kwargs.pop("grid")
        if kwargs.pop("warmup", t.FALSE).truth(tracer):
            raise Unsupported("warmup of a kernel")
        self.positional, self.keywords = args[1:], kwargs
        self.signature = getattr(self.function, "signature", None) or inspect.signature(self.function.fn)
        names = self.signature.parameters
        try:
            bound = self.signature.bind_partial(*self.positional, **{k: v for k, v in kwargs.items() if k in names})
        except TypeError as error:
            raise Unsupported(f"a launch with other arguments than the kernel takes ({error})") from error
        self.bound: dict[str, t.Tracker] = bound.arguments

    def grid(self, chosen: dict[str, t.Tracker]) -> tuple[int, ...]:
        """Return the number of programs along each axis; `chosen`: the arguments that a tuner adds."""
        tracer, asked = self.tracer, self.asked
        if not isinstance(asked, t.Sequence):
            defaults = {p.name: tracer.made(p.default)
                        for p in self.signature.parameters.values() if p.default is not p.empty}
            asked = asked.call(tracer, [t.Dict({**defaults, **self.bound, **chosen})], {})
        return tuple([int(tracer.index(x)) for x in asked.items_list(tracer)])

    def chosen(self) -> Any:
        """Return the configuration that the tuner has chosen for such arguments, if it has."""
        tuner = self.kernel
        given = {**dict(zip(tuner.arg_names, self.positional)),
                 **{k: v for k, v in self.keywords.items() if k in tuner.arg_names}}
        keys = [given[key] for key in tuner.keys if key in given]
        if any(isinstance(x, t.Tensor) for x in keys):
            return None
        types = [str(x.fake.dtype) for x in given.values() if isinstance(x, t.Tensor)]
        return tuner.cache.get((*[x.real(self.tracer) for x in keys], *types))

    def record(self, grid: tuple[int, ...] | Grids) -> None:
        tracer, function = self.tracer, self.function
        tensors = {name: x.fake for name, x in self.bound.items() if isinstance(x, t.Tensor)}
        interpreted = not hasattr(function, "src")
        if not interpreted and any(x.device.type != "cuda" for x in tensors.values()):
            raise Unsupported("a kernel over tensors that are not on a CUDA device")
        writes = written_parameters(function)
        if self.function is not self.kernel:
            writes |= _written_by_tuner(self.kernel, tensors)
        written = [x for name, x in tensors.items() if name in writes]
        if not written:
            raise Unsupported("a kernel that writes none of its arguments")
        memories = Memories(list(tensors.values()), written)
        positional = tuple([self.value(x, memories) for x in self.positional])
        keywords = tuple([(name, self.value(x, memories)) for name, x in self.keywords.items()])
        launch = Launch(self.kernel, function.fn.__name__, self.identity(), self.path(), grid, positional, keywords,
                        memories.descriptions, memories.written)
        tracer.recorder.stack = tracer.user_stack()
        with torch.no_grad():  # autograd does not see what a kernel writes
            before = tracer.mark()
            record_launch(tracer.recorder, launch, memories.owners)
            if before is not None:
                tracer.follow(*before)

    def value(self, x: t.Tracker, memories: Memories) -> Any:
        """Return an argument in the form that the launch holds."""
        if isinstance(x, t.Tensor):
            return memories.windows[id(x.fake)]
        if isinstance(x, t.Tuple):
            if any(isinstance(item, t.Tensor) for item in x.open(self.tracer)):
                raise Unsupported("a tuple of tensors as an argument of a kernel")
            return tuple([self.value(item, memories) for item in x.open(self.tracer)])
        if isinstance(x, t.Object) and x.cls.__module__.startswith("triton."):
            if not is_jit(x.value) and x.cls.__name__ not in ("dtype", "constexpr"):
                raise Unsupported(f"{x.describe()} as an argument of a kernel")
            return _itself(self.tracer, x)
        value = x.real(self.tracer)
        return int(value) if isinstance(value, torch.SymInt) else value

    def identity(self) -> str:
        """Return the text that identifies the kernel's computation; one in Triton's interpreter equals no other."""
        if not hasattr(self.function, "src"):
            return f"interpreted {next(_tokens)}"
        configs = [str(c) for c in self.kernel.configs] if self.kernel is not self.function else []
        inner = [x.value.cache_key for x in self.bound.values() if isinstance(x, t.Object)
                 and hasattr(x.value, "cache_key")]
        return f"{self.function.cache_key} {configs} {inner}"

    def path(self) -> tuple[str, str] | None:
        fn = self.function.fn
        path = fn.__module__, fn.__qualname__
        return path if hasattr(self.function, "src") and found_at(*path) is self.kernel else None


def _written_by_tuner(tuner: Any, tensors: dict[str, Any]) -> set[str]:
    """Return the names of the tensors that a tuner resets or restores; of all, where hooks of the program's may write
    them."""
    return set(tensors) if _hooks(tuner) else {*tuner.reset_to_zero, *tuner.restore_value}


def _hooks(tuner: Any) -> bool:
    """Return whether functions of the program's run before or after a launch."""
    return tuner.user_defined_pre_hook or tuner.user_defined_post_hook or any(config.pre_hook
                                                                              for config in tuner.configs)


def _itself(tracer: Any, x: t.Tracker) -> Any:
    """Return the object of Triton's that a tracker represents."""
    if not isinstance(x, t.Object) or x.value is None:
        raise Unsupported("a kernel that the frame makes")
    tracer.guard(x.source, "id", x.value)
    return x.value
