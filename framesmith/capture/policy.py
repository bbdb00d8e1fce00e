"""The policy for functions: which run whole on fakes, which are inlined, which are refused; by module, in tables."""

from __future__ import annotations

import enum
import re
import threading
import traceback
import types
from typing import Any

import torch

from framesmith.util.marks import is_disabled

from .registry import FOLDED
from .values import CONSTANT_TYPES

_WHOLE_MODULES = frozenset({
    "torch.nn.functional", "torch.functional", "torch._VF", "torch.nn.init", "torch._tensor", "torch.special",
    "torch.linalg", "torch.fft",
    "torch._C", "torch._C._nn", "torch._C._special", "torch._C._fft", "torch._C._linalg", "torch.nested",
    "torch.sparse",
    "torch._C._VariableFunctions", "torch._C._sparse", "torch._ops",
})
"""Functions of these modules see only their arguments: they run for real, on fakes."""
_CALLING = frozenset({torch.nn.functional.triplet_margin_with_distance_loss})
"""Functions that call an argument, which may be a module: they are inlined."""

_WHOLE_TYPES = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
_TENSOR_BASES = (torch._C.TensorBase, torch.Tensor)

_REFUSED = {
    "torch._dynamo": "TorchDynamo's own functions",
    "torch._inductor": "TorchInductor's own functions",
    "torch.jit": "TorchScript",
    "torch.autograd": "the autograd engine's Python interface is not captured yet",
    "torch._functorch": "function transforms are not captured yet",
    "torch.func": "function transforms are not captured yet",
    "torch._higher_order_ops": "higher-order operators are not captured yet",
    "torch.distributed": "torch.distributed",
    "torch.cuda": "torch.cuda",
    "torch.fx": "torch.fx",
    "framesmith": "framesmith's own functions",
    "logging": "logging",
    "asyncio": "asyncio",
    "threading": "threads",
    "subprocess": "processes",
    "numpy": "NumPy's Python",
}

_FOLLOWED = frozenset({
    "torch.autograd.grad_mode", "torch.utils._contextlib", "torch.autograd.function",
    "torch.distributed.algorithms._checkpoint", "torch.distributed.nn.functional",
    "torch.distributed._functional_collectives", "torch.distributed.tensor.parallel.style",
    "torch.distributed.tensor._api.distribute_module",
    "framesmith.capture.polyfills",
    *(f"framesmith.graph.attention.{n}" for n in ("dense", "_dense", "spread", "indices", "laid_out")),
    "torch._higher_order_ops.invoke_subgraph.mark_compile_region",
    "torch.func.functional_call", "torch.func.stack_module_state", "torch._functorch.functional_call",
    "torch._functorch.vmap._check_randomness_arg",
    *(f"torch.func.{n}" for n in ("vmap", "grad", "grad_and_value", "jacrev", "jacfwd", "hessian")),
})
"""Modules and functions of refused packages that are inlined."""

_IMPURE = frozenset({"now", "today", "utcnow", "fromtimestamp", "__subclasses__"})
_PURE_OF_CLASSES = frozenset({"mro", "__subclasshook__", "__init_subclass__", "__instancecheck__", "__subclasscheck__",
                              "__sizeof__",
                              "__dir__", "__prepare__"})


def pure_method(fn: Any, owner: Any) -> bool:
    """True if the builtin method `fn` of `owner`, a constant or a class, depends on its arguments alone."""
    if fn.__name__ in _IMPURE or isinstance(owner, torch.Generator):
        return False
    kind = type(owner)
    if isinstance(owner, type):
        return owner in CONSTANT_TYPES or owner in FOLDED or fn.__name__ in _PURE_OF_CLASSES
    return (kind in CONSTANT_TYPES or isinstance(owner, enum.Enum) or kind.__module__ == "numpy"
            and hasattr(kind, "item"))


_kinds: dict[int, tuple[Any, bool]] = {}


def runs_whole(fn: Any) -> bool:
    """True if `fn` is torch's own and may run for real on fakes."""
    hit = _kinds.get(id(fn))
    if hit is not None:
        return hit[1]
    whole = _runs_whole(fn)
    if whole and _lasts(fn):
        _kinds[id(fn)] = (fn, whole)
    return whole


def _lasts(fn: Any) -> bool:
    """Return whether a function lives as long as torch. Others are not cached, since an entry would keep them alive."""
    return isinstance(fn, (types.MethodDescriptorType,
                           types.WrapperDescriptorType)) or _own(fn) and not isinstance(fn, _WHOLE_TYPES)


def _own(fn: Any) -> bool:
    """Return whether a function is defined by torch, even if `functools.wraps` has set another `__module__`."""
    name = fn.__globals__.get("__name__", "") if isinstance(fn, types.FunctionType) else getattr(fn, "__module__",
                                                                                                 None) or ""
    return name == "torch" or name.startswith("torch.")


def _runs_whole(fn: Any) -> bool:
    if isinstance(fn, _WHOLE_TYPES):
        return True
    module = getattr(fn, "__module__", None)
    if isinstance(fn, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        return fn.__objclass__ in _TENSOR_BASES
    if isinstance(fn, types.BuiltinFunctionType):
        # torch._C's own functions read or set state: those that may run have rows in CALLS
        owner = getattr(fn, "__self__", None)
        if isinstance(owner, types.ModuleType) or owner is None:
            return module == "torch" and owner is None or module in _WHOLE_MODULES and module != "torch._C"
        return False
    if not isinstance(fn, types.FunctionType) or fn in _CALLING:
        return False
    return (module in _WHOLE_MODULES or module == "torch") and _own(fn)


def stops_in_debugger(code: types.CodeType) -> bool:
    """Return whether code contains a breakpoint: it runs in its own frame, which the user can inspect."""
    return "breakpoint" in code.co_names or "set_trace" in code.co_names


def refused_function(fn: Any) -> str | None:
    """Return the reason why a Python function may not be inlined, or None."""
    module = getattr(fn, "__module__", None)
    if isinstance(fn, types.FunctionType) and stops_in_debugger(fn.__code__):
        return f"{fn.__qualname__} has a breakpoint"
    if not isinstance(module, str):
        return None
    if is_disabled(fn):
        return f"{fn.__qualname__} is disabled by torch.compiler.disable"
    path = f"{module}.{fn.__qualname__}"
    while path and path not in _FOLLOWED:
        reason = _REFUSED.get(path)
        if reason is not None:
            return f"call of {fn.__module__}.{fn.__qualname__}: {reason}"
        path = path.rpartition(".")[0]
    return None


_TORCH = next(iter(torch.__path__)) + "/"
# Libraries without tensor programs, and what `torch.compiler.disable` puts around a function.
_OTHERS = re.compile(
    r"/(?:site|dist)-packages/(?:numpy|scipy|pandas|PIL|matplotlib|sympy|sklearn|networkx|rich|tqdm|filelock|_?pytest|tokenizers|safetensors"
    r"|huggingface_hub|typing_extensions\.py|yaml|requests|triton|torch/_dynamo|torch/_inductor)(?:/|$)"
)
_WRAPPERS = _TORCH + "distributed/algorithms/_checkpoint/"
"""Modules that call others under checkpoint."""
_OWN = __file__.rsplit("/", 2)[0] + "/"
_STANDARD = tuple({p.rsplit("/", 1)[0] + "/" for p in (traceback.__file__, threading.__file__)})


def is_foreign(code: types.CodeType) -> bool:
    """Return whether nothing that frames of `code` call is captured."""
    return _OTHERS.search(code.co_filename) is not None


def is_machinery(code: types.CodeType, space: dict[str, Any], standard_library: bool) -> bool:
    """Return whether frames of `code`, with the globals `space`, run as plain Python: those of torch (except its
    modules' own forward), of framesmith and, by default, of the standard library; and finalisers, which the garbage
    collector runs at any time.

    Functions that they call may be captured.
    """
    file = code.co_filename
    if code.co_name == "__del__":
        return True
    if file == "<string>":  # the methods of named tuples, and of torch's own data classes
        return str(space.get("__name__")).startswith(("namedtuple_", "torch."))
    if file.startswith(_TORCH):
        if file.startswith(_WRAPPERS):
            return code.co_name != "forward"
        return not file.startswith(_TORCH + "nn/modules/") or file.endswith(("/module.py", "/_functions.py"))
    if file.startswith(_OWN):
        return code.co_name != "call_module"
    return not standard_library and (file.startswith("<frozen") or file.startswith(_STANDARD)
                                     and "site-packages" not in file)
