"""torch.compile and the functions of `torch.compiler` with their own signatures, in our terms: what `takeover` puts in
their place. Nothing of torch.compile is imported."""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch.utils._contextlib import _DecoratorContextManager
from torch.utils._pytree import tree_map_only

from framesmith import _C, api
from framesmith.backends import BACKENDS, NATIVE, list_backends, lookup_backend
from framesmith.capture.functions import marks
from framesmith.util import dynamo, log
from framesmith.util.errors import BackendError

OWN = NATIVE | {"eager", "aot_eager"}
DEBUGGING = frozenset({"eager_noexcept", "eager_debug", "pre_dispatch_eager", "aot_eager_decomp_partition",
                       "aot_eager_default_partitioner"})
"""torch.compile's back ends that run a graph by eager's kernels in one way or another."""
_TAKEN = frozenset(inspect.signature(getattr(torch, "compile")).parameters)  # noqa: B009
_default: list[str | Callable[..., Any]] = ["inductor"]


def compile(  # noqa: A001 - torch.compile's name
    model: Callable[..., Any] | None = None, *, backend: str | Callable[..., Any] | None = None,
    mode: str | None = None, options: dict[str, Any] | None = None, name: str | None = None, **more: Any,
) -> Any:
    """`framesmith.compile` for a program that was written for torch.compile.

    `backend`: also a name that another package or the program has registered with torch.compile; None: the default
    back end. A back end that is not ours is given `mode` and `options`, as torch.compile gives them. `name`: a label
    without a meaning here. What else the installed torch.compile takes is named in one message.
    """
    known = inspect.signature(api.compile).parameters
    unused = {key: more.pop(key) for key in sorted((_TAKEN - known.keys()) & more.keys())}
    if text := ", ".join(key for key, value in unused.items() if value is not None):
        log.warn_once(f"arguments:{text}", f"framesmith: arguments of torch.compile that change nothing here: {text}")
    backend, given = resolved(_default[0] if backend is None else backend, mode, options)
    return api.compile(model, backend=backend, **given, **more)


def resolved(backend: str | Callable[..., Any], mode: str | None,
             options: dict[str, Any] | None) -> tuple[str | Callable[..., Any], dict[str, Any]]:
    """Return the arguments of `framesmith.compile` for a back end of torch.compile's: the back end, and mode and
    options if it is ours; another takes these itself."""
    if isinstance(backend, str):
        backend = "eager" if backend in DEBUGGING else backend
        if backend in OWN:
            return backend, {"mode": mode, "options": options}
        backend = lookup_backend(backend) if backend in BACKENDS else registered(backend)
    own = {key: value for key, value in (("mode", mode), ("options", options)) if value and value != "default"}
    return functools.partial(backend, **own) if own else backend, {}


def registered(name: str) -> Callable[..., Any]:
    """Return the back end that the program or an installed package has registered with torch.compile under a name.
    Raises `BackendError` if there is none."""
    loaded = getattr(sys.modules.get("torch._dynamo.backends.registry"), "_COMPILER_FNS", {})
    if name in loaded:
        return loaded[name]
    for entry in importlib.metadata.entry_points(group="torch_dynamo_backends"):
        if entry.name == name:
            return entry.load()
    raise BackendError(f"unknown backend {name!r}; known: {', '.join(all_backends())}")


def all_backends(exclude_tags: Iterable[str] | None = ("debug", "experimental")) -> list[str]:
    """`torch.compiler.list_backends`."""
    debugging = DEBUGGING | {"eager", "aot_eager"}
    outside = {entry.name for entry in importlib.metadata.entry_points(group="torch_dynamo_backends")}
    return sorted({*list_backends(), *outside, *debugging} - (debugging if "debug" in (exclude_tags or ()) else set()))


def set_default_backend(backend: str | Callable[..., Any] | None) -> None:
    """`torch.compiler.set_default_backend`."""
    if not (backend is None or isinstance(backend, str) or callable(backend)):
        raise TypeError(f"backend must be a string or callable, got {type(backend)}")
    _default[0] = "inductor" if backend is None else backend


def get_default_backend() -> str | Callable[..., Any]:
    """`torch.compiler.get_default_backend`."""
    return _default[0]


def reset() -> None:
    """`torch.compiler.reset`: of both compilers, if the other is loaded."""
    if theirs := sys.modules.get("torch._dynamo"):
        theirs.reset()
    api.reset()


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """`torch.compiler.disable`."""
    return api.disable(fn, recursive=recursive, reason=reason)


def substitute_in_graph(original_fn: Callable[..., Any], *, can_constant_fold_through: bool = False,
                        skip_signature_check: bool = False) -> Callable[..., Any]:
    """`torch.compiler.substitute_in_graph`: captured code that calls `original_fn` is captured through the decorated
    function."""
    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        marks.substitute(original_fn, fn)
        return functools.wraps(fn)(lambda *args, **kwargs: original_fn(*args, **kwargs))

    return decorate


def nested_compile_region(fn: Callable[..., Any] | None = None, **how: Any) -> Any:
    """`torch.compiler.nested_compile_region`: equal kernels of a graph are compiled once in any case."""
    return (lambda f: f) if fn is None else fn


def cudagraph_mark_step_begin() -> None:
    """`torch.compiler.cudagraph_mark_step_begin`: results of recorded calls are never overwritten."""


def set_enable_guard_collectives(enabled: bool) -> bool:
    """`torch.compiler.set_enable_guard_collectives`: guards are checked without communication."""
    if enabled:
        log.warn_once("collectives", "framesmith: guards are checked without collectives; "
                                     "set_enable_guard_collectives changes nothing")
    return False


def wrap_numpy(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.compiler.wrap_numpy`: a function of arrays as one of tensors."""
    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map_only(torch.Tensor, lambda x: x.numpy(), (args, kwargs))
        return tree_map_only(np.ndarray, torch.as_tensor, fn(*args, **kwargs))

    return wrapped


class set_stance(_DecoratorContextManager):  # noqa: N801
    """`torch.compiler.set_stance`: a function, a context manager and a decorator. The other compiler's is set, too, if
    it is loaded."""

    def __init__(self, stance: str = "default", *, skip_guard_eval_unsafe: bool = False,
                 force_backend: str | Callable[..., Any] | None = None) -> None:
        if stance not in dynamo.STANCES:
            raise RuntimeError(f"invalid torch.compile stance {stance!r}; known: {', '.join(dynamo.STANCES)}")
        if force_backend is not None and stance != "default":
            raise RuntimeError("non-default stance cannot have force_backend set")
        self.given = {"stance": stance, "skip_guard_eval_unsafe": skip_guard_eval_unsafe,
                      "force_backend": force_backend}
        by_eager = isinstance(force_backend, str) and resolved(force_backend, None, None)[0] in ("eager", "aot_eager")
        self.stance = dynamo.Stance("force_eager" if by_eager else stance)
        if force_backend is not None and not by_eager and force_backend not in NATIVE:
            log.warn_once("force_backend", "framesmith: set_stance(force_backend=...) takes native and eager back ends")
        theirs = getattr(sys.modules.get("torch._dynamo"), "set_stance", None)
        self.theirs = None if theirs is None else theirs(**self.given)
        self.before = dynamo.set_stance(self.stance)

    def __call__(self, fn: Any) -> Any:
        """Decorate `fn`: the stance holds in its calls alone."""
        self.__exit__(None, None, None)
        return super().__call__(fn)

    def __enter__(self) -> None:
        if self.theirs is not None:
            self.theirs.__enter__()
        dynamo.set_stance(self.stance)

    def __exit__(self, *raised: Any) -> None:
        dynamo.set_stance(self.before)
        if self.theirs is not None:
            self.theirs.__exit__(*raised)

    def clone(self) -> set_stance:
        """Return the same stance, to be entered again."""
        return type(self)(**self.given)  # type: ignore[arg-type]


FUNCTIONS: dict[str, dict[str, Any]] = {
    "torch": {"compile": _C.CompiledFunction(compile, None)},
    "torch.compiler": {
        "allow_in_graph": api.allow_in_graph, "assume_constant_result": api.assume_constant_result,
        "cudagraph_mark_step_begin": cudagraph_mark_step_begin, "disable": disable,
        "get_default_backend": get_default_backend, "list_backends": all_backends,
        "nested_compile_region": nested_compile_region, "reset": reset, "set_default_backend": set_default_backend,
        "set_enable_guard_collectives": set_enable_guard_collectives, "set_stance": set_stance,
        "substitute_in_graph": substitute_in_graph, "wrap_numpy": wrap_numpy,
    },
}
"""module -> name -> what it means under `install`. (With the frame hook off where it makes objects of ours.)"""
