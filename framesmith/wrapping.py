"""The result of `compile`: a callable that turns the frame hook on around the original.

A compiled module shares the original's `__dict__`, so it has the same parameters, `state_dict` keys, hooks and
attributes, is an instance of its class, and sees every later change. Its `__call__` and its public methods call the
original's under the hook, so that `self` there is the original. Neither the view nor its class is made by code of the
program.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import inspect
import pickle
import sys
import types
import weakref
from _abc import _abc_init
from abc import ABCMeta
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from framesmith import _C
from framesmith.capture.registry import DESCRIPTORS, calls
from framesmith.util.errors import Unsupported

_TORCH = next(iter(torch.__path__)) + "/"
_subclasses: weakref.WeakKeyDictionary[type, weakref.ref[type]] = weakref.WeakKeyDictionary()


class Request(dict[str, Any]):
    """The data to rebuild a wrapper after unpickling or copying. A copy of a model shares its back end."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Request:
        return self


def _root_template(module: Callable[..., Any]) -> Callable[..., Any]:
    def call_module(*args: Any, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    return call_module


def root_of(module: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `module` (or a function of torch, whose own frames stay as they are), with a code
    object of its own: the guard cache is kept per code, so per instance."""
    root = _root_template(module)
    named: Any = type(module) if isinstance(module, nn.Module) else module
    code = root.__code__.replace(co_qualname=named.__qualname__)
    own = types.FunctionType(code, root.__globals__, named.__name__, None, root.__closure__)
    own.__module__ = named.__module__
    return own


def _belongs_to_torch(fn: Callable[..., Any]) -> bool:
    """Return whether `fn` is a function or a method whose text is torch's, such as the `step` of an optimiser."""
    plain = getattr(fn, "__func__", fn)
    return isinstance(plain, types.FunctionType) and plain.__code__.co_filename.startswith(_TORCH)


class CompiledModule:
    """Mixin of the subclass made for each module class; never instantiated by itself."""

    __slots__ = ()
    _framesmith_call: Any
    _framesmith_methods: dict[str, Any]
    _framesmith_original: Any
    _framesmith_request: Request

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Prevent the program's own `__init_subclass__` from running."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._framesmith_call(*args, **kwargs)

    @property
    def _orig_mod(self) -> Any:
        """The original, by the name that torch.compile gives it."""
        return self._framesmith_original

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """Take keys as torch.compile's wrapper writes them, too."""
        before = prefix + "_orig_mod."
        for key in [key for key in state_dict if key.startswith(before)]:
            state_dict[prefix + key.removeprefix(before)] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *args)  # type: ignore[misc]

    def __prepare_scriptable__(self) -> Any:
        """Return the original, which torch.jit.script takes instead."""
        return self._framesmith_original

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _compile_again, (self._framesmith_original, self._framesmith_request)

    def __copy__(self) -> Any:
        return _compile_again(copy.copy(self._framesmith_original), self._framesmith_request)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = _compile_again(copy.deepcopy(self._framesmith_original, memo), self._framesmith_request)
        memo[id(self)] = copied
        return copied


class CompiledMethod:
    """The descriptor of a public method in the subclass: the original's method, called under the hook."""

    __slots__ = ("cls", "name")

    def __init__(self, cls: type, name: str) -> None:
        self.cls = cls
        self.name = name

    def __get__(self, view: Any, kind: type | None = None) -> Any:
        if view is None:
            return getattr(self.cls, self.name)
        method = getattr(view._framesmith_original, self.name)
        function = getattr(method, "__func__", method)
        if not isinstance(function, types.FunctionType):
            return method
        made = view._framesmith_methods.get(self.name)
        if made is None or made._framesmith_wrapped is not function:
            made = view._framesmith_methods[self.name] = wrap_function(function, view._framesmith_call.callback)
        return made if method is function else types.MethodType(made, method.__self__)


@calls(CompiledModule.__call__)
def _call_captured(cx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Capture a compiled module called in captured code with its caller."""
    return _original(cx, args[0]).call(cx, args[1:], kwargs)


def _method_captured(cx: Any, obj: Any, raw: CompiledMethod, name: str) -> Any:
    return _original(cx, obj).get(cx, name)


def _original(cx: Any, view: Any) -> Any:
    if view.value._framesmith_call.callback is None:
        raise Unsupported("call of a disabled module")
    return view.get(cx, "_framesmith_original")


DESCRIPTORS[CompiledMethod] = _method_captured


def _compile_again(original: Any, request: Request) -> Any:
    return request["compile"](original, **request["options"])


def _is_method(name: str, raw: Any) -> bool:
    """Return whether calls of this class attribute are compiled: a public method that nn.Module has not, and whose text
    is not torch's."""
    if name == "forward":
        return isinstance(raw, types.FunctionType)
    if name.startswith("_") or hasattr(nn.Module, name) or not isinstance(raw, types.FunctionType | staticmethod
                                                                          | classmethod):
        return False
    fn: Any = getattr(raw, "__func__", raw)
    plain = inspect.unwrap(fn)
    return isinstance(plain, types.FunctionType) and not _belongs_to_torch(plain)


def _of_original(raw: Any) -> property:
    """Return a slot shared by the view and the original."""
    return property(
        lambda view: raw.__get__(view._framesmith_original),
        lambda view, value: raw.__set__(view._framesmith_original, value),
        lambda view: raw.__delete__(view._framesmith_original),
    )


def _subclass_of(cls: type) -> type:
    ref = _subclasses.get(cls)
    made = ref() if ref is not None else None
    if made is None:
        names = {name: raw for base in reversed(cls.__mro__) for name, raw in vars(base).items()}
        body: dict[str, Any] = {
            **{name: CompiledMethod(cls, name) for name, raw in names.items() if _is_method(name, raw)},
            **{name: _of_original(raw) for name, raw in names.items() if isinstance(raw, types.MemberDescriptorType)},
            "__slots__": tuple(CompiledModule.__annotations__),
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
        }
        meta: Any = type(cls)
        made = type.__new__(meta, cls.__name__, (CompiledModule, cls), body)
        if issubclass(meta, ABCMeta):
            _abc_init(made)  # or it would answer `isinstance` from the caches of `cls`
        _subclasses[cls] = weakref.ref(made)
    return made


def wrap_module(module: nn.Module, callback: Callable[..., Any] | None, request: Request) -> Any:
    """Return a compiled view on `module`; nothing is compiled yet."""
    if isinstance(module, CompiledModule):
        module = module._framesmith_original
    cls: Any = _subclass_of(type(module))
    base = cls
    while base.__flags__ & _WRITTEN_IN_PYTHON:
        base = base.__base__
    view = base.__new__(cls)
    object.__setattr__(view, "__dict__", module.__dict__)
    for name, value in (
        ("_framesmith_call", _C.CompiledFunction(root_of(module), callback)),
        ("_framesmith_methods", {}),
        ("_framesmith_original", module),
        ("_framesmith_request", request),
    ):
        object.__setattr__(view, name, value)
    _share_state(module, view)
    return view


def _share_state(module: nn.Module, view: nn.Module) -> None:
    """Enter a view where `torch.distributed` keeps the states of modules by identity (`fully_shard`, `replicate`)."""
    states: Any = getattr(sys.modules.get("torch.distributed._composable_state"), "_module_state_mapping", {})
    if module in states:
        states[view] = states[module]


_WRITTEN_IN_PYTHON = 1 << 9
"""Py_TPFLAGS_HEAPTYPE"""


def wrap_function(fn: Callable[..., Any], callback: Callable[..., Any] | None,
                  request: Request | None = None) -> Callable[..., Any]:
    """Return a compiled `fn` with its name, signature and documentation. Without a `request` it cannot be pickled."""
    root = root_of(fn) if callback is not None and _belongs_to_torch(fn) else fn
    compiled: Any = functools.update_wrapper(_C.CompiledFunction(root, callback), fn)
    compiled._framesmith_request = request
    compiled._framesmith_wrapped = fn
    return compiled


def _reduce(compiled: Any) -> str | tuple[Any, ...]:
    """Reduce a compiled function to its name in its module, or else to a request to compile the original again."""
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
