"""Captured graphs that need gradients, in the cache: what the node of the autograd engine has to know, the compiled
backwards by what is asked of them, and the captured graph itself, of which any other backward is made.
"""

from __future__ import annotations

import base64
import contextlib
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Protocol

import torch
from torch import fx

from framesmith._C import CompiledFunction, CompiledGraph, DifferentiableGraph
from framesmith.autograd.node import (
    BackwardFacts,
    Compiled,
    Differentiable,
    Fitted,
    Keep,
    Key,
    SegmentFacts,
    Sizes,
    Values,
)
from framesmith.autograd.segments import Part, run_parts
from framesmith.capture.default_dtypes import under
from framesmith.capture.modes import without_default_device
from framesmith.fake import FakeTensor
from framesmith.fake.tensor import new_fake
from framesmith.graph.nodes import insert_node
from framesmith.runtime.cache import Cache, key_of
from framesmith.util import log
from framesmith.util.collector import collector_paused
from framesmith.util.dynamo import dynamo_off
from framesmith.util.errors import FramesmithError
from framesmith.util.interrupts import raised_by_handler
from framesmith.util.locks import COMPILE_LOCK, forkable_lock
from framesmith.util.world import world_size

from .graphs import Image, argument, arguments, read_image, write_image
from .references import Json, References, Unportable, tensor_data
from .variants import SUFFIX, first_fitting


class Maker(Protocol):
    """Makes and compiles backwards that are not stored. `ahead`: no step of the program is to wait for one."""

    ahead: bool

    def compile_ahead(self, backward: fx.Graph, there: tuple[bool, ...], keep: Keep) -> None:
        """Compile a copy of a backward before there are inputs, for these tangents, and keep it, where possible."""
        ...

    def differentiable(self, graph: fx.Graph) -> Differentiable:
        """Return a captured graph with its gradients."""
        ...

    def loading(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which a stored backward is loaded."""
        ...


# ------------------------------------------------------------------------------------------------------------ the graph


def write_gradients(program: Differentiable) -> Json:
    """Return what is stored of a graph with its gradients besides its forward. Raises Unportable."""
    if program.layout[_SIZES]:
        raise Unportable("a graph with gradients whose sizes vary")
    text = json.dumps(_rows(program.graph), separators=(",", ":"))
    return {"layout": program.layout, "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
            "graph": base64.b64encode(zlib.compress(text.encode(), 1)).decode()}  # which is seldom read


def in_engine(found: Json, forward: CompiledGraph, backwards: Backwards, maker: Maker) -> Compiled:
    """Return the callable for a stored graph: its forward, with the backward as its autograd node."""
    stored = Stored(found, backwards, maker)
    if maker.ahead:
        stored.prepare()
    return DifferentiableGraph(stored, forward, *found["layout"])


_SIZES, _SEGMENT = 12, 13
"""The places in `Differentiable.layout` of the sizes that vary, and of the segment of each gradient."""
_ASKED = 2, 3
"""The places there of the results with gradients, and of the inputs whose gradients are asked for."""


def _rows(graph: fx.Graph) -> Json:
    """Return a captured graph of fixed sizes with all metadata on which its gradients depend. Raises Unportable."""
    refs, stacks = _references(), dict[Any, int]()
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    rows = []
    for node in graph.nodes:
        meta = dict(node.meta)
        stack = stacks.setdefault(tuple(meta.pop("stack", ())), len(stacks))
        val = _value(meta.pop("val", None))
        target = refs.encode(node.target) if node.op == "call_function" else ""
        if "constant" in meta:
            meta["constant"] = tensor_data(meta["constant"])
        for name in _NODES & meta.keys():
            if meta[name] is not None and meta[name] not in numbers:
                raise Unportable("a value that is part of one that is not in the graph")
            meta[name] = numbers.get(meta[name])
        for name, value in meta.items():
            if name not in _NODES and type(value) is not _KEPT.get(name):
                raise Unportable(f"{name} of a value, a {type(value).__name__}")
        rows.append([node.op, node.name, target, arguments(refs, node.args, numbers),
                     arguments(refs, node.kwargs, numbers), val, stack, meta])
    return [[list(map(list, stack)) for stack in stacks], rows]


_NODES = frozenset(("in", "within"))
"""Metadata that name another node."""
_FLAGS = "requires_grad", "passing", "param", "grad", "no_grad", "straight", "written", "once", "uncounted", "spare"
_KEPT: dict[str, type] = {
    **dict.fromkeys(_FLAGS, bool),
    **dict.fromkeys(("turn", "overwritten", "in_place", "checkpoint"), int), "source": str, "constant": list,
}
"""The other metadata that a stored graph may have, with their types."""


def _value(val: Any) -> Json:
    """Return the metadata of a value: the fake of a tensor of fixed sizes, or several. Raises Unportable."""
    if val is None or type(val) is int:
        return val
    if type(val) is tuple or type(val) is list:
        return ["()" if type(val) is tuple else "[]", *map(_value, val)]
    sizes = (*val.shape, *val.stride(), val.storage_offset()) if type(val) is FakeTensor else (None,)
    if any(type(n) is not int for n in sizes) or val.device.type != "cpu" or val.is_inference() or (
            val.is_conj() or val.is_neg()):
        raise Unportable(f"a value of a graph with gradients: {val}")
    return [str(val.dtype).removeprefix("torch."), list(val.shape), list(val.stride()), val.storage_offset()]


def _graph(found: Json) -> fx.Graph:
    """Return the captured graph of `_rows`."""
    refs, graph, nodes = _references(), fx.Graph(), list[fx.Node]()
    stacks = list(map(_tuples, found[0]))
    for op, name, target, args, kwargs, val, stack, meta in found[1]:
        to = refs.decode(target) if op == "call_function" else name if op == "placeholder" else "output"
        node = insert_node(graph, op, name, to, argument(refs, args, nodes), argument(refs, kwargs, nodes))
        if "constant" in meta:
            meta["constant"] = refs.decode(meta["constant"])
        node.meta.update(val=_fake(val), stack=stacks[stack], **meta)
        nodes.append(node)
    for node in nodes:
        node.meta.update({name: nodes[node.meta[name]] for name in _NODES & node.meta.keys()
                          if node.meta[name] is not None})
    return graph


def _fake(found: Json) -> Any:
    if type(found) is not list:
        return found
    if found[0] in ("()", "[]"):
        several = [_fake(one) for one in found[1:]]
        return tuple(several) if found[0] == "()" else several
    dtype, shape, stride, offset = found
    return new_fake(tuple(shape), tuple(stride), getattr(torch, dtype), offset=offset)


def _references() -> References:
    """Return the references of a graph: it names nothing of the program's."""
    return References(_references.__code__, {})


# -------------------------------------------------------------------------------------------------------- the backwards


class Backwards:
    """The stored backwards of one stored capture, the entry `key`. They have entries of their own, since a backward is
    compiled when it first runs."""

    def __init__(self, cache: Cache, key: str) -> None:
        self._cache, self._key = cache, key

    def _key_of(self, asked: Key) -> str:
        return key_of("backward", self._key, asked)

    def single(self, asked: Key) -> contextlib.AbstractContextManager[bool]:
        """Return the context in which this process makes a backward for all that share the cache; see `Cache.alone`."""
        return self._cache.alone(key_of("turn", self._key_of(asked)))

    def store(self, asked: Key, facts: BackwardFacts | SegmentFacts, image: Image) -> None:
        """Store a compiled backward, or a segment of one, unless a part of it is bound to this process."""
        try:
            value = {"facts": asdict(facts), "graph": write_image(_references(), image)}
        except Exception as problem:  # the edge: what cannot be kept costs nobody a call
            if raised_by_handler(problem):
                raise
            log.emit("cache", f"a backward is not kept: {type(problem).__name__}: {problem}")
            return
        self._cache.add_variant(self._key_of(asked), value, SUFFIX)

    def load(self, asked: Key, loading: Callable[[], contextlib.AbstractContextManager[None]]) -> Loaded | None:
        """Return a stored backward, or segment of one; None if there is none that fits."""
        def read(own: str, found: Json) -> Loaded:
            facts = _facts(found["facts"])
            with loading():
                return Loaded(facts, read_image(_references(), found["graph"], self._cache))

        return first_fitting(self._cache, self._key_of(asked), read, "no such backward is kept")[0]


def _tuples(found: Json) -> Any:
    """Convert JSON arrays to tuples."""
    return tuple([_tuples(x) for x in found]) if type(found) is list else found


def _facts(found: Json) -> BackwardFacts | SegmentFacts:
    told = {name: _tuples(value) for name, value in found.items()}
    if "part" not in told:
        return BackwardFacts(**told)
    told["part"] = Part(**{name: _tuples(value) for name, value in told["part"].items()})
    return SegmentFacts(**told)


class Loaded:
    """A stored backward, or a segment of one."""

    def __init__(self, facts: Any, call: CompiledGraph) -> None:
        self.facts = facts
        self.call = Fitted(facts.strides, {})
        self.call.call = call


class Stored:
    """What `Differentiable` is to the node of the autograd engine, for a stored graph: backwards that are stored are
    loaded, and all else is done by a `Differentiable` of the captured graph, `program` if there is one."""

    def __init__(self, found: Json, backwards: Backwards, maker: Maker, program: Differentiable | None = None) -> None:
        self._found, self._backwards, self._maker = found, backwards, maker
        self._loaded: dict[Key, Loaded | None] = {}
        self._program = program
        self._lock: Any = forkable_lock()

    def prepare(self) -> None:
        """Load the backward of all results and gradients, or what makes it."""
        results, gradients = (len(self._found["layout"][place]) for place in _ASKED)
        if self._stored(((True,) * results, (True,) * gradients)) is None:
            self.program  # noqa: B018

    def _stored(self, asked: Key) -> Loaded | None:
        with self._lock:
            if asked not in self._loaded:
                self._loaded[asked] = CompiledFunction(self._load, None)(asked)
            return self._loaded[asked]

    def _segments(self) -> list[Loaded] | None:
        """Return the stored segments of the backward, if all of one division are there."""
        found = [self._stored(number) for number in range(1 + max(self._found["layout"][_SEGMENT]))]
        segments = [one for one in found if one is not None]
        whole = len(segments) == len(found) and len({one.facts.cut for one in segments}) == 1
        return segments if whole else None

    def _load(self, asked: Key) -> Loaded | None:
        """Load a part. One process of a world makes a backward that there is not, and the others wait for it."""
        if isinstance(asked, int) or self._maker.ahead or world_size() == 1:
            return self._load_now(asked)
        with self._backwards.single(asked) as first:
            found = self._load_now(asked)
            if found is None and first:
                self.program.store(*asked, self._maker.compile_ahead)
                found = self._load_now(asked)
            return found

    def _load_now(self, asked: Key) -> Loaded | None:
        with _compiling():
            return self._backwards.load(asked, self._maker.loading)

    @property
    def program(self) -> Differentiable:
        """The captured graph with its gradients."""
        with self._lock:
            if self._program is None:
                self._program = CompiledFunction(self._made, None)()
            return self._program

    def _made(self) -> Differentiable:
        found = self._found
        with _compiling():
            graph = _graph(json.loads(zlib.decompress(base64.b64decode(found["graph"]))))
            program = under(getattr(torch, found["dtype"]), self._maker.differentiable, graph)
        if program.layout != _tuples(found["layout"]):
            raise FramesmithError("the gradients of a stored graph are not those that its forward was compiled for")
        program.keep_backward = self._backwards.store
        return program

    def reads(self, there: tuple[bool, ...], wanted: tuple[bool, ...], again: bool,
              sizes: Sizes) -> tuple[tuple[bool, ...], tuple[bool, ...], Values]:
        """See `Differentiable`, as for the others."""
        stored = None if again else self._stored((there, wanted))
        if stored is None:
            return self.program.reads(there, wanted, again, sizes)
        return stored.facts.reads, stored.facts.checks, stored.facts.taken

    def spent(self, there: tuple[bool, ...], wanted: tuple[bool, ...], sizes: Sizes) -> tuple[bool, ...]:
        stored = self._stored((there, wanted))
        if stored is None or stored.facts.spent is None:
            return self.program.spent(there, wanted, sizes)
        return stored.facts.spent

    def backward(self, kept: list[Any], tangents: list[Any], wanted: tuple[bool, ...], sizes: Sizes) -> Values:
        stored = self._stored((tuple([x is not None for x in tangents]), wanted))
        if stored is None:
            return self.program.backward(kept, tangents, wanted, sizes)
        given = [*[x for x in kept if x is not None], *tangents]
        kept.clear()
        tangents.clear()
        return stored.call(given)

    def segments(self, kept: list[Any], tangents: list[Any], wanted: tuple[bool, ...],
                 sizes: Sizes) -> Values | Iterator[Values]:
        if not (all(wanted) and all(x is not None for x in tangents)):
            return self.backward(kept, tangents, wanted, sizes)
        stored = self._segments()
        if stored is None:
            return self.program.segments(kept, tangents, wanted, sizes)
        given = [*kept, *tangents]
        kept.clear()
        tangents.clear()
        parts = [one.facts.part for one in stored]
        return run_parts(parts, len(wanted), given, lambda number, taken: stored[number].call)

    def whole(self, inputs: Values, kept: list[Any], tangents: list[Any], wanted: tuple[bool, ...],
              sizes: Sizes) -> Values:
        return self.program.whole(inputs, kept, tangents, wanted, sizes)

    def by_operators(self, inputs: Values, kept: list[Any], tangents: list[Any], wanted: tuple[bool, ...],
                     again: bool, sizes: Sizes) -> Values:
        return self.program.by_operators(inputs, kept, tangents, wanted, again, sizes)


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """Load or make code within a backward, in whatever thread."""
    with COMPILE_LOCK, dynamo_off(), collector_paused(), without_default_device():
        yield
