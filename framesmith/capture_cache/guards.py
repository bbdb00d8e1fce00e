"""Guards and the paths of a graph's inputs as JSON.

Paths share their prefixes in one table, from roots to leaves: a path is the number of its row. So is a value that
guards compare with, since many compare with the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from framesmith.capture import sources as src
from framesmith.capture.sources import Guard, Source

from .references import Json, References, Stale, looked_up, tensor_data


class GuardWriter:
    """Guards to JSON. The namespaces come first: they say where objects without a name are. Paths, values and stacks of
    the program are numbers of rows."""

    def __init__(self, refs: References) -> None:
        self._refs = refs
        self._rows: dict[Source, int] = {}
        self._table: list[Json] = []
        self._values: dict[str, tuple[int, Json]] = {}
        self._known: dict[int, int] = {}
        self._stacks: dict[Any, int] = {}

    def write(self, guards: Sequence[Guard], inputs: Sequence[Source]) -> Json:
        """Raises Unportable."""
        ordered = sorted(guards, key=lambda g: _FIRST.get(g.kind, len(_FIRST)))
        found = [self._guard(guard) for guard in ordered]
        return {"guards": found, "inputs": [self._source(source) for source in inputs], "paths": self._table,
                "values": [value for _, value in self._values.values()],
                "stacks": [[list(place) for place in stack] for stack in self._stacks]}

    def _source(self, source: Source) -> int:
        at = self._rows.get(source)
        if at is None:
            base = -1 if source.base is None else self._source(source.base)
            row = tensor_data if isinstance(source, src.Made) else self._refs.identify
            given = [row(getattr(source, name)) for name in _FIELDS[type(source)]]
            at = self._rows[source] = len(self._table)
            self._table.append([type(source).__name__, base, *given])
        return at

    def _guard(self, guard: Guard) -> Json:
        if guard.kind == "namespace":
            owner: Any = guard.source.obj  # type: ignore[union-attr]
            value: Json = [[name, self._refs.place(held, owner, name)] for name, held in guard.value.items()]
            return [guard.kind, self._refs.identify(owner), value]
        row = _VALUES.get(guard.kind, GuardWriter.value)
        value = row(self, guard.value)
        return [guard.kind, -1 if guard.source is None else self._source(guard.source), value, self._stack(guard)]

    def value(self, value: Any) -> int:
        """Return the row of a guard's value."""
        at = self._known.get(id(value))
        if at is None:
            found = self._refs.identify(value)
            at = self._known[id(value)] = self._values.setdefault(repr(found), (len(self._values), found))[0]
        return at

    def _stack(self, guard: Guard) -> int:
        return self._stacks.setdefault(guard.stack, len(self._stacks))


class GuardReader:
    """The way back. Raises Stale."""

    def __init__(self, refs: References) -> None:
        self._refs = refs
        self._sources: list[Source] = []
        self._values: list[Json] = []
        self._known: dict[int, Any] = {}
        self._stacks: list[Any] = []

    def read(self, found: Json) -> tuple[list[Guard], list[Source]]:
        """Return the guards, and the paths of the inputs."""
        self._stacks = [tuple([(file, line, name) for file, line, name in stack]) for stack in found["stacks"]]
        self._values = found["values"]
        spaces = [self._namespace(row) for row in found["guards"] if row[0] == "namespace"]
        for row in found["paths"]:
            self._sources.append(self._source(*row))
        rest = [self._guard(*row) for row in found["guards"] if row[0] != "namespace"]
        return [*rest, *spaces], [self._sources[k] for k in found["inputs"]]

    def _namespace(self, row: Json) -> Guard:
        """Return a guard on the namespace's present values. Raises `Stale` if they are not those of the capture."""
        refs = self._refs
        owner, now = refs.decode(row[1]), {}
        for name, held in row[2]:
            value = now[name] = looked_up(owner, name)
            if refs.place(value, owner, name) != held:
                raise Stale(f"{name} of {src.Pinned(owner)} is another")
        return Guard(src.Pinned(owner), "namespace", now)

    def _source(self, kind: str, base: int, *given: Json) -> Source:
        values = [v if type(v) is str else self._refs.decode(v) for v in given]
        cls = getattr(src, kind)
        return cls(*values) if base < 0 else cls(self._sources[base], *values)  # type: ignore[no-any-return]

    def _guard(self, kind: str, source: int, value: Json, stack: int) -> Guard:
        held = _READ.get(kind, GuardReader.value)(self, value)
        return Guard(None if source < 0 else self._sources[source], kind, held, self._stacks[stack])

    def one(self, at: int) -> Source:
        """Return the path of a row."""
        return self._sources[at]

    def value(self, at: int) -> Any:
        """Return the value of a row, which is one object for all guards that compare with it."""
        if at not in self._known:
            self._known[at] = self._refs.decode(self._values[at])
        return self._known[at]

    def several(self, rows: Json) -> tuple[Source, ...]:
        """Return the paths of rows."""
        return tuple(map(self.one, rows))


def _relation(writer: GuardWriter, value: Any) -> Json:
    relation, symbols = value
    return [writer._refs.encode(relation),
            [[name, writer._source(source), what, dim] for name, (source, what, dim) in symbols.items()]]


def _read_relation(reader: GuardReader, found: Json) -> Any:
    relation, symbols = found
    return reader._refs.decode(relation), {name: (reader.one(at), what, dim) for name, at, what, dim in symbols}


_FIELDS: dict[type[Source], tuple[str, ...]] = {
    **dict.fromkeys((src.Local, src.Global, src.Builtin, src.Cell, src.Attr, src.DictAttr), ("name",)),
    src.GlobalOf: ("module", "name"),
    **dict.fromkeys((src.Pinned, src.Made), ("obj",)),
    src.Slot: ("cls", "name"),
    src.Item: ("key",),
    src.DictKey: ("index",),
    src.TypeOf: (),
    src.Applied: ("function", "text"),
}
"""The fields of a path's source other than its base."""

_FIRST = {"namespace": 0, "function": 1}
_VALUES: dict[str, Callable[[GuardWriter, Any], Json]] = {
    "same": lambda writer, other: writer._source(other),
    **dict.fromkeys(("distinct", "no_alias"), lambda writer, many: [writer._source(source) for source in many]),
    "shape": _relation,
}
_READ: dict[str, Callable[[GuardReader, Json], Any]] = {
    "same": GuardReader.one,
    **dict.fromkeys(("distinct", "no_alias"), GuardReader.several),
    "shape": _read_relation,
}
