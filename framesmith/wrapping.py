"""What `compile` returns: a callable that turns the frame hook on around the original.

A compiled module shares the original's `__dict__`, so it has the same parameters, `state_dict` keys, hooks and attributes, is an instance
of its class, and sees every later change; it adds nothing but its `__call__`.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import pickle
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from framesmith import _C
from framesmith.capture.registry import calls
from framesmith.util.errors import Unsupported

_TORCH = next(iter(torch.__path__)) + "/"
_subclasses: weakref.WeakKeyDictionary[type, weakref.ref[type]] = weakref.WeakKeyDictionary()


class Request(dict[str, Any]):
    """Everything needed to make the wrapper again after unpickling or copying. A copy of a model shares its back end with it."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Request:
        return self


def _root_template(module: Callable[..., Any]) -> Callable[..., Any]:
    def call_module(*args: Any, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    return call_module


def root_of(module: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls `module` (or a function of torch, whose own frames stay as they are), with a code object of its own: the guard
    cache is kept per code, so per instance."""
    root = _root_template(module)
    named: Any = type(module) if isinstance(module, nn.Module) else module
    code = root.__code__.replace(co_qualname=named.__qualname__)
    own = types.FunctionType(code, root.__globals__, named.__name__, None, root.__closure__)
    own.__module__ = named.__module__
    return own


def _belongs_to_torch(fn: Callable[..., Any]) -> bool:
    """Whether `fn` is a function or a method whose text is torch's, such as the `step` of an optimiser."""
    plain = getattr(fn, "__func__", fn)
    return isinstance(plain, types.FunctionType) and plain.__code__.co_filename.startswith(_TORCH)


class CompiledModule:
    """Mixin of the subclass made for each module class; never instantiated by itself."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._framesmith_call(*args, **kwargs)  # type: ignore[attr-defined]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _compile_again, (self._framesmith_original, self._framesmith_request)  # type: ignore[attr-defined]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        original, request = self._framesmith_original, self._framesmith_request  # type: ignore[attr-defined]
        copied = _compile_again(copy.deepcopy(original, memo), request)
        memo[id(self)] = copied
        return copied


@calls(CompiledModule.__call__)
def _call_captured(cx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A compiled module called in captured code is captured with it."""
    if args[0].value._framesmith_call.callback is None:
        raise Unsupported("call of a disabled module")
    return args[0].get(cx, "_framesmith_original").call(cx, args[1:], kwargs)


def _compile_again(original: Any, request: Request) -> Any:
    return request["compile"](original, **request["options"])


def _subclass_of(cls: type) -> type:
    ref = _subclasses.get(cls)
    made = ref() if ref is not None else None
    if made is None:
        body = {
            "__slots__": ("_framesmith_call", "_framesmith_original", "_framesmith_request"),
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
        }
        made = types.new_class(cls.__name__, (CompiledModule, cls), exec_body=lambda space: space.update(body))
        _subclasses[cls] = weakref.ref(made)
    return made


def wrap_module(module: nn.Module, callback: Callable[..., Any] | None, request: Request) -> nn.Module:
    """A compiled view on `module`; raises nothing, compiles nothing yet."""
    if isinstance(module, CompiledModule):
        module = module.__getattribute__("_framesmith_original")
    cls: Any = _subclass_of(type(module))
    view = cls.__new__(cls)
    object.__setattr__(view, "__dict__", module.__dict__)
    for name, value in (
        ("_framesmith_call", _C.CompiledFunction(root_of(module), callback)),
        ("_framesmith_original", module),
        ("_framesmith_request", request),
    ):
        object.__setattr__(view, name, value)
    return view


def wrap_function(fn: Callable[..., Any], callback: Callable[..., Any] | None, request: Request | None = None) -> Callable[..., Any]:
    """A compiled `fn` with its name, signature and documentation. Without a `request` it cannot be pickled."""
    root = root_of(fn) if callback is not None and _belongs_to_torch(fn) else fn
    compiled: Any = functools.update_wrapper(_C.CompiledFunction(root, callback), fn)
    compiled._framesmith_request = request
    compiled._framesmith_wrapped = fn
    return compiled


def _reduce(compiled: Any) -> str | tuple[Any, ...]:
    """A compiled function pickles as the name under which its module has it, or else as the order to compile the original again."""
    name = getattr(compiled, "__qualname__", None)
    found: Any = sys.modules.get(getattr(compiled, "__module__", None) or "")
    for part in name.split(".") if isinstance(name, str) else ():
        found = getattr(found, part, None)
    if found is compiled:
        return str(name)
    if compiled._framesmith_request is None:
        raise pickle.PicklingError(f"{compiled!r} was not made by framesmith.compile")
    return _compile_again, (compiled._framesmith_wrapped, compiled._framesmith_request)


copyreg.pickle(_C.CompiledFunction, _reduce)
