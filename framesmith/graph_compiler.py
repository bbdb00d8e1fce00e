"""Compile a captured graph with the chosen back end: one part, or the forward and backwards of a graph that needs
gradients."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from framesmith.autograd.arms import copied
from framesmith.autograd.joint import requires_grad, without_history
from framesmith.autograd.node import Begun, Differentiable, Keep
from framesmith.autograd.operators import evaluated
from framesmith.backends import BACKENDS, NATIVE, Compiled, PendingGraph, begin_ahead, begin_native, run_user
from framesmith.background import Job, in_foreground
from framesmith.capture.modes import without_default_device
from framesmith.capture.thread_state import handed_over
from framesmith.config import Config
from framesmith.graph.control import close, results_of
from framesmith.graph.traversal import placeholders_of
from framesmith.ledger import REPORT, Ledger, Refusal, internal_fault
from framesmith.pipeline import Report
from framesmith.util import events, log
from framesmith.util.collector import collector_paused
from framesmith.util.dynamo import dynamo_off
from framesmith.util.interrupts import handlers_heard, raised_by_handler
from framesmith.util.locks import COMPILE_LOCK
from framesmith.util.priority import has_priority
from framesmith.util.timing import stage
from framesmith.util.world import world_size


def compile_graph(graph: fx.Graph, examples: Sequence[Any], config: Config, ledger: Ledger | None,
                  keep: Callable[..., None] | None) -> tuple[Compiled, Report | None]:
    """Compile a captured graph with the chosen back end, its gradients included where it needs them.

    `keep`: receives the compiled graph as data, for the cache.
    """
    if not requires_grad(graph):
        return compile_plain(without_history(graph), examples, config, keep)
    parts = GradientCompiler(config, ledger)
    program = parts.differentiable(graph)
    kept = None if keep is None else functools.partial(keep, program=program, maker=parts)
    both = functools.partial(parts.both, keep=kept) if config.backend in NATIVE else None
    return program.in_engine(examples, both, kept), parts.reports[0]


def compile_plain(graph: fx.Graph, examples: Sequence[Any], config: Config,
              keep: Keep | None = None) -> tuple[Compiled, Report | None]:
    """Compile a graph without gradients. `keep`: receives it as data."""
    if config.backend in NATIVE:
        return begin_native(graph, examples, config).finish(keep)
    if isinstance(config.backend, str):
        return BACKENDS[config.backend](graph, examples, config)
    return run_user(config.backend, graph, examples), None


@contextlib.contextmanager
def _part_of(owner: events.Compile | None, outcome: str = "compiled") -> Iterator[None]:
    """Compile a part of what `owner` captured: its forward within that compile, else its backward."""
    if events.current() is not None and events.current() is owner:
        with events.part_of_graph("forward"):
            yield
    elif owner is None:
        yield
    else:
        with events.compiling(owner.function, owner.file, owner.line, "backward", "backward") as now:
            now.entries = owner.entries
            yield
            now.outcome = outcome


@contextlib.contextmanager
def _in_back_end(owner: events.Compile | None) -> Iterator[None]:
    """Compile a part of what `owner` captured, in whatever thread. The caller holds the compile lock."""
    with (handlers_heard(), dynamo_off(), collector_paused(), _part_of(owner), stage("total"), stage("back end"),
          without_default_device()):
        yield


class GradientCompiler:
    """Compiles the parts of a captured graph that needs gradients, for the compile that runs when it is made. It lives
    as long as the graph, so it holds no compiler, whose variants would keep themselves alive. `ahead`: this is in the
    background, so that no step is to wait for a backward. `reports`: of the parts, in the order of their compiles."""

    def __init__(self, config: Config, ledger: Ledger | None) -> None:
        self._how = config.partitioner, config.activation_budget, "repeat" not in config.left_out
        self._config = config.with_(scoped_memory=True)
        self._tell = functools.partial(_tell_uncompiled, config, ledger)
        self._owner = events.current()
        self.ahead = has_priority()
        self.reports: list[Report | None] = []

    def differentiable(self, graph: fx.Graph) -> Differentiable:
        """Return a captured graph with its gradients; nothing is compiled yet."""
        return Differentiable(graph, self._compile, *self._how, tell=self._tell,
                              compile_backward=self._compile_backward if self.ahead else None)

    def compile_ahead(self, backward: fx.Graph, there: tuple[bool, ...], keep: Keep) -> None:
        """Compile a copy of a backward before there are inputs, for these tangents, and keep it, where possible. What
        fails is told when the backward runs."""
        graph = _copy(backward)
        for place, given in zip(reversed(placeholders_of(graph)), reversed(there)):
            if not given:
                graph.erase_node(place)
        try:
            with COMPILE_LOCK, _in_back_end(self._owner):
                if (pending := begin_ahead(graph, self._config)) is not None:
                    self.reports.append(pending.finish(keep)[1])
        except Exception as problem:
            if raised_by_handler(problem):
                raise

    def loading(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which a part is loaded instead of compiled."""
        return _part_of(self._owner, "loaded")

    def both(self, forward: fx.Graph, given: Sequence[Any], backwards: Mapping[fx.Graph, Callable[[], Keep | None]],
             keep: Keep | None) -> tuple[Compiled, Begun]:
        """Begin the backward's compilation with the forward's; it continues while the forward runs, unless others wait
        for it: steps of the program, or the other processes of a world, which load it."""
        shared = keep is not None and world_size() > 1
        with COMPILE_LOCK, _in_back_end(self._owner):
            begun = begin_native(forward, given, self._config)
            with events.part_of_graph("backward"):
                ahead = begun.waits or len(backwards) > 1 or self.ahead or shared
                later = [(graph, begin_ahead(graph, self._config)) for graph in backwards if ahead]
        call = self._finish(begun, keep)
        codes: Begun = {graph: functools.partial(self._finish, pending) for graph, pending in later if pending}
        keeps = {graph: backwards[graph]() for graph in codes}
        if not (self.ahead or shared and all(keeps.values())):
            return call, codes
        return call, {graph: _finished_now(code, keeps[graph]) for graph, code in codes.items()}

    def _compile(self, part: fx.Graph, given: Sequence[Any], keep: Keep | None) -> Compiled:
        with COMPILE_LOCK, _in_back_end(self._owner):
            call, report = compile_plain(part, given, self._config, keep)
        self.reports.append(report)
        return call

    def _finish(self, begun: PendingGraph, keep: Keep | None) -> Compiled:
        with COMPILE_LOCK, _in_back_end(self._owner):
            call, report = begun.finish(keep)
        self.reports.append(report)
        return call

    def _compile_backward(self, backward: fx.Graph, given: Sequence[Any], keep: Keep | None) -> Compiled:
        """Run the backward by operators until a job has compiled it."""
        if in_foreground():
            return self._compile(backward, given, keep)
        later = _Replaceable(functools.partial(evaluated, backward))
        graph = _copy(backward)
        shapes, entered = _without_data(graph, given), handed_over()

        def code() -> Compiled | None:
            with entered():
                return later.replace(_or_told(self._tell, functools.partial(self._compile, graph, shapes, keep)))

        owner = self._owner
        Job(("backward", "", 0) if owner is None else (owner.function, owner.file, owner.line), code)
        return later


def _copy(graph: fx.Graph) -> fx.Graph:
    """Return a copy of a graph, which the pipeline may rewrite."""
    copy, made = copied(graph)
    close(copy, [made[r] if isinstance(r, fx.Node) else r for r in results_of(graph)])
    return copy


def _finished_now(code: Callable[[Keep | None], Compiled], keep: Keep | None) -> Callable[[Keep | None], Compiled]:
    """Run `code` now, and return a function that gives what it gives, or raises what it raises."""
    try:
        made = code(keep)
    except Exception as problem:
        if raised_by_handler(problem):
            raise
        return functools.partial(_raise, problem)
    return lambda keep: made


def _raise(problem: Exception, *ignored: Any) -> Compiled:
    raise problem


class _Replaceable:
    """A callable that is replaced by other code when that is compiled."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, given: Any) -> Any:
        return self._call(given)

    def replace(self, call: Compiled | None) -> Compiled | None:
        """Let later calls take `call`, if there is one; returns it."""
        self._call = call or self._call
        return call


def _or_told(tell: Callable[[Exception], None], compile: Callable[[], Compiled]) -> Compiled | None:
    try:
        return compile()
    except Exception as problem:  # as it is, the backward is right
        tell(problem)
        return None


def _without_data(graph: fx.Graph, given: Sequence[Any]) -> list[Any]:
    """Return inputs of the same shapes, for a graph that is compiled after they have died; parameters, which live on,
    unchanged."""
    places = placeholders_of(graph)
    return [x if place.meta.get("param") or not isinstance(x, torch.Tensor) else
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
            for place, x in zip(places, given, strict=True)]


def _tell_uncompiled(config: Config, ledger: Ledger | None, problem: Exception) -> None:
    key, reason = internal_fault(problem)
    if config.warn:
        log.warn_once(key, f"framesmith: a backward runs operator by operator because of {reason}. {REPORT}")
    if ledger is not None:
        ledger.refusals.append(Refusal("backward", "", 0, reason, REPORT, internal=True))
    events.emit(events.Fallback("backward", "", 0, reason, REPORT, True))
