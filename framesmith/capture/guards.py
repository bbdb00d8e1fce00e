"""Guards as data, lowered to the C++ tree that is checked before a compiled variant runs.

Each distinct `Source` becomes one accessor, so guards that share the walk to a prefix share its cost. The tree keeps no
object alive that allows a weak reference: when one dies, the tree, and with it the variant, is dead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

from torch.utils._device import DeviceContext

from framesmith import _C
from framesmith.capture import sources as src
from framesmith.capture.bare_guards import parts_of
from framesmith.capture.guard_text import Note, change, explain, predicate, resized
from framesmith.capture.relation_code import postfix
from framesmith.capture.sources import Guard, Source
from framesmith.capture.trackers.keys import lasts
from framesmith.util.errors import GuardError
from framesmith.util.events import Compile
from framesmith.util.stack import Place


@dataclass(frozen=True, slots=True)
class Miss:
    """The reason why a variant does not accept a call. `guard`: path and kind of what failed; `text`: in the user's
    terms.

    `kind`: the class of the value that was assumed: a float is seldom what a program branches on. `old`: what the
    guard wants, `new`: what it was given, in short. `assumed`: the user's line that made the assumption.
    """

    guard: tuple[str, str]
    text: str
    kind: type | None = None
    old: str = ""
    new: str = ""
    assumed: Place | None = None


class GuardTree(_C.GuardTree):
    """The checked form of a variant's guards; `check` and `failure` are C++."""

    made: Compile | None = None
    """The compilation that made the variant."""
    notes: list[Note]
    paths: list[str | Source]

    def explain_failure(self, f_locals: dict[str, Any], f_globals: dict[str, Any] | None = None,
                        f_builtins: dict[str, Any] | None = None, cells: dict[str, Any] | None = None) -> str:
        """Describe the first guard that fails, in the user's terms; "" if all hold."""
        miss = self.miss(f_locals, f_globals, f_builtins, cells)
        return "" if miss is None else miss.text

    def miss(self, f_locals: dict[str, Any], f_globals: dict[str, Any] | None = None,
             f_builtins: dict[str, Any] | None = None, cells: dict[str, Any] | None = None) -> Miss | None:
        """Return the same as a `Miss`."""
        failure = self.failure(f_locals, f_globals, f_builtins, cells)
        if failure is None:
            return None
        number, accessor, value = failure
        if number < 0 and accessor < 0:
            return Miss(("", "gone"), "an object that the guards watch is gone")
        if accessor >= 0:
            return Miss((str(self.paths[accessor]), "there"), f"{self.paths[accessor]} is not there any more")
        return _missed(self.notes[number], value)

    def changed_floats(self, *frame: Any) -> Iterator[Miss]:
        """Yield a miss for each float that differs from the guarded one, where all of these are there."""
        notes = [note for note in self.notes if note.kind == "equals" and type(note.value) is float
                 and isinstance(note.path, Source)]
        found = compile_guards([], [note.path for note in notes]).check(*frame)  # type: ignore[misc]
        for note, value in zip(notes, found or ()):
            if type(value) is float and value != note.value:
                yield _missed(note, value)

    def resized(self, *frame: Any) -> Iterator[tuple[str, frozenset[int]]]:
        """Sources, as text, of tensors that differ from what is guarded in sizes alone, with the dimensions."""
        for note in self.notes:
            if note.kind == "tensor" and isinstance(note.path, Source):
                found = compile_guards([], [note.path]).check(*frame)
                if found is not None and (dims := resized(note.value, found[0])):
                    yield str(note.path), dims

    def describe(self) -> list[str]:
        """Return one line of text for each guard."""
        return [str(note) for note in self.notes]


def _missed(note: Note, value: Any) -> Miss:
    return Miss((str(note.path), note.kind), explain(note, value),
                type(note.value) if note.kind == "equals" else None, *change(note, value),
                note.stack[-1] if note.stack else None)


class _Lowering:
    """The accessors and checks of one tree, as they are found."""

    def __init__(self, f_globals: Mapping[str, Any] | None) -> None:
        self.f_globals = f_globals
        self.accessors: list[tuple[str, int, Any]] = []
        self.paths: list[str | Source] = []
        self.checks: list[tuple[str, int, Any, tuple[int, ...], int]] = []
        self.notes: list[Note] = []
        self.locals: dict[str, int] = {}
        self.cells: dict[str, int] = {}
        self._registers: dict[Source, int] = {}
        self._seen: set[tuple[str, int, int]] = set()
        self._namespaces: dict[int, dict[str, Any]] = {}
        self._remembered: dict[tuple[str, int], Any] = {}

    def register(self, source: Source) -> int:
        """Return the register that holds the value at `source`."""
        at = self._registers.get(source)
        if at is None:
            base = source.base
            parent = -1 if base is None else self.register(base)
            name, payload = _ACCESS[type(source)](self, source)
            at = self._registers[source] = len(self.accessors)
            self.accessors.append((name, parent, payload))
            # A note must not hold what the tree only watches.
            self.paths.append(str(source) if name == "pinned" or (base is not None and type(self.paths[parent]) is str)
                              else source)
        return at

    def add(self, guard: Guard) -> None:
        """Lower one guard."""
        if guard.kind == "bare":
            for part in parts_of(guard):
                self.add(part)
            return
        row = _CHECKS.get(guard.kind)
        if row is None:
            raise GuardError(f"unknown kind of guard {guard.kind!r}")
        if guard.kind == "namespace":
            self.add_namespace(guard)
            return
        at = -1 if guard.source is None or guard.kind == "function" else self.register(guard.source)
        key = (guard.kind, at, id(guard.value))
        if at >= 0 and key in self._seen:
            return
        self._seen.add(key)
        name, payload, reads = row(self, guard.value)
        self.append(name, at, payload, reads, guard)

    def append(self, name: str, at: int, payload: Any, reads: tuple[int, ...], guard: Guard) -> None:
        path = None if guard.source is None else self.paths[at] if at >= 0 else str(guard.source)
        self.checks.append((name, at, payload, reads, len(self.notes)))
        self.notes.append(Note(guard.kind, path, self._remember(guard), guard.stack))

    def _remember(self, guard: Guard) -> Any:
        """Return the part of a guard's value that explanations need, without holding an object of the user's."""
        row = _REMEMBER.get(guard.kind)
        if row is None:
            return guard.value
        key = guard.kind, id(guard.value)  # which the guard keeps alive meanwhile
        if key not in self._remembered:
            self._remembered[key] = row(guard.value)
        return self._remembered[key]

    def add_namespace(self, guard: Guard) -> None:
        """Join all lookups in one namespace to one check: the version of the whole is compared first."""
        if type(guard.source) is not src.Pinned:
            raise GuardError(f"a namespace guard wants a pinned dict or class, not {guard.source}")
        owner = guard.source.obj
        names = self._namespaces.get(id(owner))
        if names is not None:
            names.update(guard.value)
            return
        names = self._namespaces[id(owner)] = dict(guard.value)
        if isinstance(owner, type):
            self.append("class_names", -1, (owner, names, src.MISSING), (), guard)
            return
        own = owner is self.f_globals
        payload = (None if own else owner, None if own else _module_of(owner), names, src.MISSING)
        self.append("dict_names", -1, payload, (), guard)


def _module_of(namespace: dict[str, Any]) -> ModuleType | None:
    """Return the imported module whose dict this is."""
    module = sys.modules.get(namespace.get("__name__", ""))
    return module if type(module) is ModuleType and module.__dict__ is namespace else None


def _name(value: Any) -> str:
    name = src.name_of(value)
    return name if name is not None else f"<{type(value).__name__} at {id(value):#x}>"


def _key(key: Any) -> Any:
    return key if lasts(key) and src.name_of(key) is None else _name(key)


def _texts(value: Iterable[Any]) -> tuple[str, ...]:
    return tuple(map(str, value))


_REMEMBER: dict[str, Callable[[Any], Any]] = {
    "type": _name,
    "id": _name,
    "same": str,
    "distinct": _texts,
    "no_alias": _texts,
    "namespace": tuple,
    "callable": predicate,
    "function": _name,
    "keys": lambda keys: tuple(map(_key, keys)),
    "contains": _key,
    "not_contains": _key,
    "shape": lambda value: (str(value[0]), {name: f"{where[0]}" for name, where in value[1].items()}),
}


# --- sources ---

def _module_global(low: _Lowering, source: Any) -> tuple[str, Any]:
    module = sys.modules.get(source.module)
    if type(module) is not ModuleType:
        raise GuardError(f"{source}: there is no plain module {source.module!r}")
    return "module_global", (module, source.name)


def _access(name: str, field: str) -> Callable[[_Lowering, Any], tuple[str, Any]]:
    return lambda low, source: (name, getattr(source, field))


_ACCESS: dict[type, Callable[[_Lowering, Any], tuple[str, Any]]] = {
    src.Local: lambda low, source: ("local", low.locals.setdefault(source.name, len(low.locals))),
    src.Cell: lambda low, source: ("cell", low.cells.setdefault(source.name, len(low.cells))),
    src.Global: _access("global", "name"),
    src.Builtin: _access("builtin", "name"),
    src.GlobalOf: _module_global,
    src.Pinned: _access("pinned", "obj"),
    src.Made: _access("made", "obj"),
    src.Attr: _access("attr", "name"),
    src.Slot: lambda low, source: ("slot", (source.cls, source.name)),
    src.DictAttr: _access("dict_attr", "name"),
    src.Item: _access("item", "key"),
    src.DictKey: _access("dict_key", "index"),
    src.Applied: _access("applied", "function"),
    src.TypeOf: lambda low, source: ("type_of", None),
}


# --- checks: (name of the C++ check, payload, registers read besides the guard's own) ---

_Lowered = tuple[str, Any, tuple[int, ...]]


def _plain(name: str) -> Callable[[_Lowering, Any], _Lowered]:
    return lambda low, value: (name, value, ())


def _tensor(low: _Lowering, spec: Any) -> _Lowered:
    payload = (spec.cls, spec.dtype, spec.device, spec.layout, spec.sizes, spec.strides, spec.requires_grad, spec.keys)
    return "tensor", payload, ()


def _globals_state(low: _Lowering, state: Any) -> _Lowered:
    device = None if state.default_device is None else (DeviceContext, state.default_device)
    payload = (state.grad_enabled, state.inference_mode, state.autocast, state.default_dtype, state.deterministic,
               device, state.torch_functions)
    return "globals_state", payload, ()


def _same(low: _Lowering, other: Source) -> _Lowered:
    at = low.register(other)
    return "same", at, (at,)


def _many(name: str) -> Callable[[_Lowering, Any], _Lowered]:
    def lower(low: _Lowering, many: Iterable[Source]) -> _Lowered:
        registers = tuple(low.register(source) for source in many)
        return name, registers, registers

    return lower


def _shape(low: _Lowering, value: Any) -> _Lowered:
    relation, symbols = value
    code, names = postfix(relation)
    leaves = []
    for name in names:
        source, what, dim = symbols[name]
        leaves.append((low.register(source), _LEAF[what], dim or 0))
    return "shape", (code, tuple(leaves)), tuple(at for at, _, _ in leaves)


_LEAF = {"size": "s", "stride": "t", "value": "v"}

_PLAIN = ("type", "id", "equals", "none", "not_none", "len", "keys", "contains", "not_contains", "bool", "hasattr",
          "not_hasattr", "callable", "function")
_CHECKS: dict[str, Callable[[_Lowering, Any], _Lowered]] = {
    **{kind: _plain(kind) for kind in _PLAIN},
    "tensor": _tensor,
    "globals_state": _globals_state,
    "same": _same,
    "distinct": _many("distinct"),
    "no_alias": _many("no_alias"),
    "shape": _shape,
    "namespace": _plain("namespace"),
}


def compile_guards(
    guards: Iterable[Guard], input_sources: Sequence[Source], f_globals: Mapping[str, Any] | None = None
) -> GuardTree:
    """Lower guards and the graph's inputs to one tree.

    `f_globals` is the frame's: a namespace guard on it is then checked on whatever globals the frame has. Raises
    GuardError for a guard that no tree can hold, ValueError or TypeError for a value that does not fit its kind.
    """
    low = _Lowering(f_globals)
    for guard in guards:
        low.add(guard)
    inputs = [low.register(source) for source in input_sources]
    tree = GuardTree(low.accessors, low.checks, inputs, tuple(low.locals), tuple(low.cells))
    tree.notes = low.notes
    tree.paths = low.paths
    return tree


def why_missed(entries: Iterable[Any], code: CodeType, func: FunctionType, f_locals: dict[str, Any]) -> list[Miss]:
    """Return for each of some variants of `code` the guard that fails for this call."""
    missed = [tree.miss(*namespaces(code, func, f_locals)) for tree in _trees(entries)]
    return [miss for miss in missed if miss is not None]


def changed_floats(entries: Iterable[Any], code: CodeType, func: FunctionType, f_locals: dict[str, Any]) -> list[Miss]:
    """Return a miss for each float that differs, in this call, from one that a variant was made for."""
    frame = namespaces(code, func, f_locals)
    return [miss for tree in _trees(entries) for miss in tree.changed_floats(*frame)]


def resized_tensors(entries: Iterable[Any], code: CodeType, func: FunctionType,
                    f_locals: dict[str, Any]) -> dict[str, frozenset[int]]:
    """Return the tensors, by source as text, whose sizes in this call differ from those that variants were made for,
    and the dimensions."""
    found: dict[str, frozenset[int]] = {}
    for tree in _trees(entries):
        for path, dims in tree.resized(*namespaces(code, func, f_locals)):
            found[path] = found.get(path, frozenset()) | dims
    return found


def _trees(entries: Iterable[Any]) -> list[GuardTree]:
    return [entry.tree for entry in entries if isinstance(entry.tree, GuardTree)]


def namespaces(code: CodeType, func: FunctionType, f_locals: dict[str, Any]) -> tuple[Any, ...]:
    """Return the namespaces on which a guard tree is checked for a call of `func`: locals, globals, builtins, cells by
    name."""
    cells = dict(zip(code.co_freevars, func.__closure__ or (), strict=True))
    return f_locals, func.__globals__, func.__builtins__, cells  # type: ignore[attr-defined]
