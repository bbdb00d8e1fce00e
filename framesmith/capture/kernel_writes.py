"""The arguments that a Triton function writes: found in its source, without Triton.

Each name may hold what was computed from certain parameters; a store, an atomic or a call of unknown code writes
through every parameter that its pointer was computed from. What a load gives is a number, so nothing follows from it: a
function that makes pointers from numbers is refused.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from framesmith.util.errors import Unsupported

Names = frozenset[str]
NONE: Names = frozenset()
_STORES = frozenset({"store", "scatter", "descriptor_store", "store_tensor_descriptor",
                     "experimental_descriptor_store"})
_LOADS = frozenset({"load", "gather", "descriptor_load", "load_tensor_descriptor", "experimental_descriptor_load"})
_ANYTHING = frozenset({"inline_asm_elementwise", "call_extern", "dispatch", "extern_elementwise"})
_OF_NUMBERS = frozenset({"pointer_type", "PointerType", "int_to_ptr"})


def is_jit(x: Any) -> bool:
    """Return whether `x` is a function under `triton.jit`, or one that runs in Triton's interpreter."""
    return type(x).__module__.startswith("triton.") and inspect.isfunction(getattr(x, "fn", None)) and hasattr(x, "run")


def written_parameters(kernel: Any) -> Names:
    """Return the parameters of a `triton.jit` function whose memory a launch may write. Raises `Unsupported` where that
    is unknown."""
    return _Function(kernel, ()).written()


def _writes(name: str) -> bool:
    return name in _STORES or name.startswith("atomic_")


class _Function:
    """One function: `held` says of which parameters each local name may have been computed."""

    def __init__(self, kernel: Any, around: tuple[Any, ...]) -> None:
        fn = kernel.fn
        try:
            text = getattr(kernel, "src", None) or inspect.getsource(fn)
            tree = ast.parse(textwrap.dedent(text))
        except (OSError, SyntaxError) as error:
            raise Unsupported(f"the text of kernel {fn.__name__} is not there") from error
        self.function = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))
        self.around = (*around, kernel)
        given = self.function.args
        self.parameters = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
        self.held: dict[str, Names] = {name: frozenset({name}) for name in self.parameters}
        self.found: set[str] = set()
        self.scope = {**fn.__globals__, **inspect.getclosurevars(fn).nonlocals}

    def written(self) -> Names:
        nodes = [n for statement in self.function.body for n in ast.walk(statement)]
        if any(isinstance(n, ast.FunctionDef | ast.ClassDef | ast.Lambda) for n in nodes):
            return frozenset(self.parameters)
        if any(getattr(n, "attr", getattr(n, "id", "")) in _OF_NUMBERS for n in nodes):
            raise Unsupported(f"kernel {self.function.name} makes pointers of numbers")
        for name in (n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)):
            self.held.setdefault(name, NONE)
        before: Any = None
        while before != (now := (dict(self.held), len(self.found))):  # loops carry names round
            before = now
            for node in nodes:
                self.step(node)
        return frozenset(self.found)

    def step(self, node: ast.AST) -> None:
        """Note what one node binds to names, or writes."""
        if isinstance(node, ast.Call):
            self.call(node)
        for target, value in _bindings(node):
            held = self.of(value)
            for name in [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]:
                self.held[name] = self.held.get(name, NONE) | held

    def of(self, node: ast.AST | None) -> Names:
        """Return the parameters that a value may have been computed from."""
        if node is None:
            return NONE
        if isinstance(node, ast.Name):
            return self.held.get(node.id, NONE)
        if isinstance(node, ast.Call):
            return self.call(node)
        return NONE.union(*[self.of(child) for child in ast.iter_child_nodes(node)])

    def call(self, node: ast.Call) -> Names:
        places = [self.of(a) for a in node.args]
        keywords = {k.arg: self.of(k.value) for k in node.keywords}
        given = NONE.union(*places, *keywords.values())
        known, function = self.resolve(node.func)
        if not known:
            return self.method(node.func, given)
        name = getattr(function, "__name__", "")
        if is_jit(function):
            return self.jit(function, places, keywords, given)
        if not _is_language(function):
            self.found |= given
            return given
        if name in _ANYTHING:
            self.found |= given
        elif _writes(name):
            self.found |= places[0] if places else given
            return NONE
        return NONE if name in _LOADS else given

    def method(self, function: ast.expr, given: Names) -> Names:
        """Return the parameters for a call of a method of a value, or of a function that is a value itself."""
        if not isinstance(function, ast.Attribute):
            self.found |= given
            return given
        owner = self.of(function.value)
        if _writes(function.attr):
            self.found |= owner
            return NONE
        return NONE if function.attr in _LOADS else owner | given

    def jit(self, function: Any, places: list[Names], keywords: dict[str | None, Names], given: Names) -> Names:
        if function in self.around or None in keywords:
            self.found |= given
            return given
        inner = _Function(function, self.around)
        written = inner.written()
        for name, held in (*zip(inner.parameters, places), *keywords.items()):
            if name in written:
                self.found |= held
        return given

    def resolve(self, node: ast.expr) -> tuple[bool, Any]:
        """Return the object that a name, or a chain of attributes, means outside of the function; and whether it
        does."""
        if isinstance(node, ast.Name):
            if node.id in self.held:
                return False, None
            if node.id in self.scope:
                return True, self.scope[node.id]
            return hasattr(builtins, node.id), getattr(builtins, node.id, None)
        if isinstance(node, ast.Attribute):
            known, owner = self.resolve(node.value)
            if known and hasattr(owner, node.attr):
                return True, getattr(owner, node.attr)
        return False, None


def _is_language(function: Any) -> bool:
    """Return whether a function is Triton's or Python's own, so that its name says what it writes."""
    module = getattr(function, "__module__", None) or type(function).__module__
    return module.split(".")[0] in ("triton", "builtins", "math")


def _bindings(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """Yield the names that a node binds, and to what."""
    match node:
        case ast.Assign():
            yield from ((target, node.value) for target in node.targets)
        case ast.AugAssign() | ast.AnnAssign() | ast.NamedExpr():
            yield node.target, node.value
        case ast.For() | ast.comprehension():
            yield node.target, node.iter
        case ast.withitem() if node.optional_vars is not None:
            yield node.optional_vars, node.context_expr
