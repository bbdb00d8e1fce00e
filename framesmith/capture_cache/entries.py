"""The entries of the cache: a capture with its guards, its residual code and its compiled graph, in one file.

The key is of the frame's code, the options, the versions and the machine. What an entry refers to besides, it names
with digests: it is taken where all of that is the same in this process, and its guards hold for the call. See
docs/capture-cache.md.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from types import CodeType, FunctionType
from typing import Any

import torch

from framesmith.autograd.joint import requires_grad
from framesmith.autograd.node import Differentiable
from framesmith.capture.cached_results import SameResult, is_plain
from framesmith.capture.entry import Break, Captured
from framesmith.capture.guards import GuardTree, compile_guards, namespaces
from framesmith.capture.residual import assemble, link
from framesmith.capture.sources import Guard, Pinned
from framesmith.capture.surroundings import Answer
from framesmith.config import Config
from framesmith.graph.devices import devices_of
from framesmith.graph.symbols import symbols_of
from framesmith.passes import IDENTITIES
from framesmith.runtime.cache import Cache, key_of, package_identity
from framesmith.util import events, log
from framesmith.util.interrupts import raised_by_handler
from framesmith.util.world import world_size

from .call_digest import call_digest
from .digests import code_digest
from .gradients import Backwards, Maker, Stored, in_engine, write_gradients
from .graphs import Image, read_image, write_image
from .guards import GuardReader, GuardWriter
from .references import Json, References, Stale, Unportable
from .variants import SUFFIX, first_fitting


@dataclass(frozen=True, slots=True)
class Variant:
    """A captured frame in the form for the hook."""

    tree: GuardTree
    residual: CodeType
    graph: bool
    breaks: list[Break]


class CaptureCache:
    """The captures in the disk cache, for one configuration."""

    def __init__(self, config: Config) -> None:
        self._config = config

    @functools.cached_property
    def _cache(self) -> Cache:
        return Cache(self._config.cache_dir, packed_limit=self._config.packed_limit)

    def _key(self, code: CodeType, called: CodeType) -> str:
        config = self._config
        toolchain = self._cache.toolchain(config.compiler, config.compiler_flags)
        return key_of("capture", package_identity(), sys.version, torch.__version__, config.capture_key(), *IDENTITIES,
                      toolchain.fingerprint, torch.get_num_threads(), code_digest(code), code_digest(called))

    def single_capture(self, code: CodeType, called: CodeType,
                       values: Sequence[Any]) -> contextlib.AbstractContextManager[bool]:
        """Return the context in which this process captures a call with these arguments for all that share the cache;
        its value is whether none did so before it."""
        return self._cache.alone(key_of("turn", self._key(code, called), call_digest(values)))

    def load(self, code: CodeType, called: CodeType, fn: FunctionType, f_locals: dict[str, Any],
             maker: Maker) -> Variant | None:
        """Return the first stored variant of `code`, a frame of `fn` that runs `called`, whose guards hold for a call;
        None: there is none. Captures and compiles nothing. `maker`: of backwards that are not stored."""
        variant, why = first_fitting(
            self._cache, self._key(code, called),
            lambda own, found: self._variant(own, found, code, fn, f_locals, maker), "no capture of this code is kept")
        if variant is None:
            log.emit("cache", f"no stored capture of {code.co_qualname} fits: {why}")
        return variant

    def _variant(self, key: str, found: Json, code: CodeType, fn: FunctionType, f_locals: dict[str, Any],
                 maker: Maker) -> Variant:
        refs = References(code, fn.__globals__)
        guards, inputs = GuardReader(refs).read(found["guards"])
        tree = compile_guards(guards, inputs, fn.__globals__)
        given = namespaces(code, fn, f_locals)
        if tree.check(*given) is None:
            raise Stale(tree.explain_failure(*given))
        if cached := [guard for answer in found["answers"] for guard in _asked(refs, *answer)]:
            tree = compile_guards([*guards, *cached], inputs, fn.__globals__)
        call: Any = None if found["graph"] is None else read_image(refs, found["graph"], self._cache)
        if found["gradients"] is not None:
            call = in_engine(found["gradients"], call, Backwards(self._cache, key), maker)
        residual = found["residual"]
        held = [refs.decode(one) for one in residual["held"]]
        unlinked = assemble(code, residual["text"], code.co_firstlineno + residual["line"])
        return Variant(tree, link(unlinked, held, call), call is not None, [Break(*row) for row in found["breaks"]])

    def store(self, code: CodeType, called: CodeType, fn: FunctionType, captured: Captured, image: Image | None,
              program: Differentiable | None = None, maker: Maker | None = None) -> bool:
        """Store a capture, unless a part is bound to this process: then emit an event that names it. Returns whether
        it is stored. `image`: its graph, None if it has none; `program`: the gradients of the graph, which `maker`
        compiles; backwards are stored as they are compiled."""
        key = self._key(code, called)
        try:
            if captured.surroundings.bound:
                raise Unportable(captured.surroundings.bound)
            refs = References(code, fn.__globals__, captured.surroundings.functions)
            value = {
                "guards": GuardWriter(refs).write([g for g in captured.guards if not _is_answer(g)],
                                                  captured.input_sources),
                "answers": [_answer(refs, answer) for answer in captured.surroundings.answers],
                "residual": {"text": captured.text, "line": captured.line - code.co_firstlineno,
                             "held": [refs.identify(one) for one in captured.held]},
                "breaks": [astuple(one) for one in captured.breaks],
                "graph": None if image is None else write_image(refs, image),
                "gradients": None if program is None else write_gradients(program),
            }
        except Exception as problem:  # the edge: what cannot be kept costs nobody a call
            if raised_by_handler(problem):
                raise
            reason = str(problem) if isinstance(problem, Unportable) else f"{type(problem).__name__}: {problem}"
            log.emit("cache", f"the capture of {code.co_qualname} is not kept: {reason}")
            events.emit(events.NotCached(code.co_qualname, code.co_filename, code.co_firstlineno, reason))
            return False
        own = self._cache.add_variant(key, value, SUFFIX)
        if program is not None and maker is not None and own is not None:
            backwards = Backwards(self._cache, own)
            program.keep_backward = backwards.store
            if world_size() > 1:
                program.stored = Stored(value["gradients"], backwards, maker, program)
        return own is not None


def is_portable(captured: Captured) -> bool:
    """Return whether a capture can be stored, as far as is known before its graph is compiled."""
    graph = captured.graph
    if captured.surroundings.bound or graph is None:
        return False
    on_cpu = all(device.type == "cpu" for node in graph.nodes for device in devices_of(node.meta.get("val")))
    return on_cpu and not (requires_grad(graph) and symbols_of(graph.nodes))


def _answer(refs: References, answer: Answer) -> Json:
    return [refs.identify(answer.function), refs.encode(answer.args), refs.encode(dict(answer.kwargs)),
            refs.identify(answer.result)]


def _asked(refs: References, function: Json, args: Json, kwargs: Json, result: Json) -> list[Guard]:
    """Ask a function as the capture did, and return the guard that its cache keeps the result. Raises Stale."""
    fn, given, named = refs.decode(function), refs.decode(args), refs.decode(kwargs)
    now = fn(*given, **named)
    refs.expect(now, result)
    cached = isinstance(fn, functools._lru_cache_wrapper)
    return [Guard(Pinned(fn), "callable", SameResult.of(fn, given, named, now))] if cached else []


def _is_answer(guard: Guard) -> bool:
    """Return whether a guard follows from an answer, before which it cannot hold in a new process."""
    return isinstance(guard.value, SameResult) and is_plain(guard.value.result)


def is_marked(values: Sequence[Any]) -> bool:
    """Return whether the program has marked sizes of a tensor among the arguments, which capture must see."""
    return any(isinstance(x, torch.Tensor) and any(name.startswith(_MARKS) for name in x.__dict__) for x in values)


_MARKS = ("_framesmith_", "_dynamo_")
