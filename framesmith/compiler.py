"""The frame callback, which the hook calls for a frame that no cache entry accepts.

Capture it, compile its graph with the chosen back end, lower its guards, and hand the hook an entry; or say that it
runs in plain Python, and tell the user once where and why.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves

from framesmith import _C
from framesmith.agreement import agreed
from framesmith.autograd.joint import requires_grad, without_history
from framesmith.backends import NATIVE, Compiled
from framesmith.background import Job, in_foreground
from framesmith.capture.entry import Break, Captured, UserError, convert_frame
from framesmith.capture.guards import GuardTree, changed_floats, compile_guards, namespaces, resized_tensors, why_missed
from framesmith.capture.modes import foreign_mode, recomputing, without_default_device
from framesmith.capture.origins import is_continuation, origin
from framesmith.capture.policy import is_foreign, is_machinery, stops_in_debugger
from framesmith.capture.sources import Source
from framesmith.capture.thread_state import handed_over
from framesmith.capture_attempts import capture_with_symbols
from framesmith.capture_cache.entries import CaptureCache, is_marked, is_portable
from framesmith.capture_cache.graphs import Image
from framesmith.code_state import CodeState
from framesmith.config import Config
from framesmith.frames import called_code, is_own, module_of, named, place_of, user_path
from framesmith.graph.census import operators_of, short_name
from framesmith.graph.digest import digest_text
from framesmith.graph_compiler import GradientCompiler, compile_graph, compile_plain
from framesmith.hot_sizes import HotSizes, has_hot_sizes
from framesmith.ledger import Ledger, Record, Use
from framesmith.pipeline import Report
from framesmith.runtime.seen_sizes import SeenSizes
from framesmith.targets import expect
from framesmith.util import events, log
from framesmith.util.advice import advice, prevention, readable
from framesmith.util.alive import Alive
from framesmith.util.collector import collector_paused, collector_resumed
from framesmith.util.dynamo import dynamo_off, hide_from_dynamo, recompile_limit, stance
from framesmith.util.errors import (
    BuildError,
    CompilerMissing,
    ContradictedMark,
    DivergedRanks,
    FirstCall,
    NeedsGrad,
    OddTensor,
    SharedMemory,
    UnfitSizes,
    Unsupported,
    drop_traces,
)
from framesmith.util.interrupts import handlers_heard, raised_by_handler
from framesmith.util.locks import COMPILE_LOCK, released_once
from framesmith.util.priority import has_priority
from framesmith.util.retries import Raising
from framesmith.util.timing import stage
from framesmith.util.world import world_size
from framesmith.verdicts import Verdicts

OFTEN = 64  # captures of a code object after which the user is told

def _takes(entry: _C.Entry, code: CodeType, func: FunctionType, f_locals: dict[str, Any]) -> bool:
    """Return whether the entry's guards hold for a call."""
    return entry.tree.check(*namespaces(code, func, f_locals)) is not None


class FrameCompiler:
    """The callback of a `compile` call, or of several (see `sharing`); entries in the guard cache belong to it.
    `ledger`: where to note what was done, which calls then wait for."""

    def __init__(self, config: Config, ledger: Ledger | None = None) -> None:
        self.config = config
        self.ledger = ledger
        self.verdicts = Verdicts(config, ledger)
        self.begun = False
        """Something was compiled in the background."""
        self._wrappers: Alive[Any] = Alive()
        self._seen_sizes = SeenSizes(config)
        self._seen: dict[int, CodeState] = {}  # by identity: equal code objects are different frames

    def uses(self) -> list[Use]:
        """Return the variants of this callback, with the number of calls that took them."""
        found = []
        for seen in [*self._seen.values()]:
            if (code := seen.code()) is None:
                continue
            for entry in _C.entries(code):
                if entry.callback is self and isinstance(entry.tree, GuardTree) and entry.tree.made is not None:
                    made = entry.tree.made
                    found.append(Use(made.number, made.function, made.file, made.line, entry.hits + 1, entry.alive,
                                     entry.tree.describe()))
        return found

    def entries(self) -> frozenset[str]:
        """Return the keys of cache entries of this callback's variants, their backwards included."""
        made = [entry.tree.made for seen in tuple(self._seen.values()) if (code := seen.code()) is not None
                for entry in _C.entries(code) if entry.callback is self and isinstance(entry.tree, GuardTree)]
        return frozenset().union(*[m.entries for m in made if m is not None])

    @property
    def compiles(self) -> int:
        """The number of frames that this callback has compiled."""
        return sum([seen.captures for seen in [*self._seen.values()]])

    def admit(self, wrapper: Any) -> None:
        """Serve one more compiled function, with a budget of variants of its own."""
        self._wrappers.add(wrapper)
        for seen in [*self._seen.values()]:
            if len(self._wrappers) > 1 and (code := seen.code()) is not None:
                _C.reopen(code)

    def forget(self) -> None:
        """Drop every entry and verdict of this callback, once a compile in another thread has ended."""
        with COMPILE_LOCK:
            for seen in self._seen.values():
                if (code := seen.code()) is not None:
                    _C.reset(code)
            self._seen.clear()
            self.verdicts.told = False

    def __call__(self, code: CodeType, func: FunctionType, f_locals: dict[str, Any]) -> Any:
        """See `_C.FrameCallback`. Raises `Unsupported` under `fullgraph=True`."""
        if is_foreign(code):
            return _C.SKIP_RECURSIVE
        if is_machinery(code, func.__globals__, self.config.standard_library) or stops_in_debugger(code):
            return _C.SKIP
        if _C.is_transformed() or foreign_mode():
            return self.verdicts.around(code)
        if self.config.background and self.ledger is None and not in_foreground():
            return self._in_background(code, func, f_locals)
        with COMPILE_LOCK, handlers_heard(), dynamo_off():
            if (entry := self._made_meanwhile(code, func, f_locals)) is not None:
                return entry
            return self._decide(code, func, f_locals, self._compile)

    def _decide(self, code: CodeType, func: FunctionType, f_locals: dict[str, Any], compile: Callable[..., Any]) -> Any:
        """Return the answer for a call that no variant takes: that of `compile`, if one may be made."""
        if (now := stance()) != "default" and (answer := self._by_stance(now, code, func, f_locals)) is not _C.FULL:
            return answer
        seen = self._look_up(code)
        if torch.is_grad_enabled() and seen.wants_grad(code, func, f_locals):
            return _C.EAGER
        if seen.raising.waits():
            return None
        if recomputing() and not self._variants(code):  # its forward ran in eager
            return _C.EAGER
        instance = module_of(f_locals)
        if instance is not None and instance in seen.full:
            return seen.full[instance]
        if instance is None and seen.resized and self._variants(code) >= self.limit:
            return _C.EAGER
        if self._miss(seen, code, func, f_locals, instance) >= self.limit:
            return self.verdicts.full(seen, code, instance, self.limit)
        return compile(seen, code, func, f_locals, instance)

    # ------------------------------------------------------------------------------------------------------- background

    def _in_background(self, code: CodeType, func: FunctionType, f_locals: dict[str, Any]) -> Any:
        """Return the answer at once, or at the deadline: the job's result if there is one, else eager's."""
        seen = self._seen.get(id(code))
        if seen is not None and seen.code() is code and (job := seen.job) is not None:
            if job.pending:
                return _C.EAGER
            if (answer := self._result(seen)) is not None:
                return answer
        if not COMPILE_LOCK.acquire(blocking=False):
            return _C.EAGER
        try:
            seen = self._seen.get(id(code))
            begun = seen is not None and seen.job is not None  # by another thread, since
            with dynamo_off():
                answer = (_C.EAGER if begun else self._made_meanwhile(code, func, f_locals)
                          or self._decide(code, func, f_locals, self._begin))
        finally:
            COMPILE_LOCK.release()
        seen = self._seen.get(id(code))
        if answer is not None or seen is None or (job := seen.job) is None:
            return answer
        if self.config.deadline > 0 and job.wait(self.config.deadline):
            return self._made_meanwhile(code, func, f_locals) or self._result(seen) or _C.EAGER
        job.defer()
        return _C.EAGER

    def _result(self, seen: CodeState) -> Any:
        """Return the verdict of the finished job; None: there are variants, or later calls may get one. Raises what
        capture raised under `fullgraph=True`."""
        job, seen.job = seen.job, None
        answer = None if job is None else job.result()
        return None if isinstance(answer, _C.Entry) else answer

    def _begin(self, seen: CodeState, code: CodeType, func: FunctionType, f_locals: dict[str, Any],
               instance: nn.Module | None) -> None:
        """Begin a job for a call; eager serves this one."""
        entered = handed_over()

        def compile() -> Any:
            with entered(), COMPILE_LOCK, dynamo_off():
                answer = self._compile(seen, code, func, f_locals, instance)
                if isinstance(answer, _C.Entry):
                    if self._seen.get(id(code)) is seen:
                        answer.add()  # for later calls, though its guards may not hold for this one any more
                    else:  # `reset` came between
                        answer.drop()
                return answer

        self.begun = True
        seen.job = Job(place_of(code, func), compile, waited=self.config.deadline > 0)

    def _by_stance(self, stance: str, code: CodeType, func: FunctionType, f_locals: dict[str, Any]) -> Any:
        """Return the answer that `torch.compiler.set_stance` asks for where no variant takes the call; FULL: the usual
        one."""
        if stance.endswith("eager_then_compile"):
            seen = self._seen.get(id(code))
            self._look_up(code)
            return _C.EAGER if seen is None else _C.FULL
        if stance == "fail_on_recompile" and any(isinstance(x, torch.Tensor | nn.Module)
                                                 for x in tree_leaves(f_locals)):
            mine = [entry for entry in _C.entries(code) if entry.callback is self and entry.alive]
            reasons = "; ".join(miss.text for miss in why_missed(mine, code, func,
                                                                 f_locals)) or "no variant was compiled yet"
            raise RuntimeError(
                f"framesmith: detected a recompile under the stance 'fail_on_recompile': {named(code)}: {reasons}"
            )
        return _C.FULL if stance == "force_eager" else None

    @property
    def limit(self) -> int:
        """Return the limit of variants of a code object, for each live function compiled of it: ours, or
        torch.compile's setting if only that is set."""
        asked = self.config.max_variants
        one = recompile_limit() or asked if asked == Config.max_variants else asked
        return one * max(1, len(self._wrappers))

    def _variants(self, code: CodeType) -> int:
        return sum(entry.callback is self and entry.alive for entry in _C.entries(code))

    def _miss(self, seen: CodeState, code: CodeType, func: FunctionType, f_locals: dict[str, Any],
              instance: nn.Module | None) -> int:
        """Record why no variant takes this call, and return the number of variants, for a method those of its
        module."""
        mine = [entry for entry in _C.entries(code) if entry.callback is self]
        for entry in mine:
            if entry.info is not None and entry.info() is None:
                entry.drop()
        mine = [entry for entry in mine if entry.alive and (entry.info is None or entry.info() is instance)]
        misses = why_missed(mine, code, func, f_locals)
        for miss in misses:
            log.emit("recompiles", f"{named(code)}: {miss.text}")
        if misses:
            nearest = min(misses, key=lambda miss: len(miss.old))
            path = user_path(code, func, nearest.guard[0])
            instead = "remove the break before it, or what makes a variant before that; or else "
            remedy = instead * is_continuation(code) + prevention(nearest.guard[1], path, nearest.old)
            assumed = nearest.assumed if nearest.assumed and not is_own(nearest.assumed[0]) else None
            events.emit(events.Recompile(*place_of(code, func), readable(path), nearest.guard[1],
                                         readable(user_path(code, func, nearest.text)).partition(" (assumed at")[0],
                                         nearest.old, nearest.new, assumed, remedy))
        known = {miss.guard for miss in misses if miss.kind is float}
        if known:
            misses += [miss for miss in changed_floats(mine, code, func, f_locals) if miss.guard not in known]
        if seen.note_misses(misses, resized_tensors(mine, code, func, f_locals)):
            self._seen_sizes.note(code, seen.sizes)
        return len(mine)

    def _made_meanwhile(self, code: CodeType, func: FunctionType, f_locals: dict[str, Any]) -> Any:
        """Return the variant for this call that another thread has made meanwhile, if any."""
        return next((entry for entry in _C.entries(code) if entry.callback is self
                     and _takes(entry, code, func, f_locals)), None)

    def _look_up(self, code: CodeType) -> CodeState:
        seen = self._seen.get(id(code))
        if seen is None or seen.code() is not code:
            seen = self._seen[id(code)] = CodeState(weakref.ref(code), sizes=self._seen_sizes.of(code))
        return seen

    def _compile(self, seen: CodeState, code: CodeType, func: FunctionType, f_locals: dict[str, Any],
                 instance: nn.Module | None) -> Any:
        """Compile an entry for the call, or return a verdict, and emit an event."""
        why = ("after a break" if is_continuation(code) else "another variant" if self._variants(code)
               else "first call")
        answer: Any = None
        try:
            with (events.compiling(*place_of(code, func), why) as compile, collector_paused(),
                  agreed(compile, 0 if self.config.background else self.config.agreement, seen.reasons())):
                with contextlib.ExitStack() as turn:
                    answer = (self._load(seen, code, func, f_locals)
                              or self._captured_by_another(seen, turn, code, func, f_locals))
                    if isinstance(answer, _C.Entry):
                        compile.outcome = "loaded"
                    elif answer is None:
                        unkept = turn.close if world_size() > 1 else None
                        answer = self._convert(seen, code, func, f_locals, instance, unkept)
                        if isinstance(answer, _C.Entry):
                            compile.outcome = "compiled"
                if isinstance(answer, _C.Entry) and answer.tree.made is None:  # type: ignore[attr-defined]
                    answer.tree.made = compile  # type: ignore[attr-defined]
                return answer
        except DivergedRanks:
            if isinstance(answer, _C.Entry):
                answer.drop()
            raise

    def _convert(self, seen: CodeState, code: CodeType, func: FunctionType, f_locals: dict[str, Any],
                 instance: nn.Module | None, unkept: Callable[[], None] | None) -> Any:
        """Capture and compile a frame. `unkept`: to be called as soon as it is known that the cache gets nothing."""
        compiled: list[tuple[Counter[str], Report | None]] = []

        def compile_fn(graph: fx.Graph, examples: Sequence[Any], captured: Callable[[], Captured]) -> Compiled:
            if self.config.agreement and (now := events.current()) is not None:
                now.graph = digest_text(graph)
            if unkept is not None and not is_portable(captured()):
                unkept()
            operators = Counter(short_name(node.target) for node in graph.nodes if node.op == "call_function")
            hot = None
            if self.config.backend in NATIVE and has_hot_sizes(graph, self.config) and not requires_grad(graph):
                config = self.config  # what is made here may not hold `self`

                def fixed(graph: fx.Graph, given: Sequence[Any]) -> Compiled:
                    return compile_plain(without_history(graph), given, config)[0]

                hot = HotSizes(graph, config.hot_sizes, fixed, named(code))

            def keep(image: Image, **gradients: Any) -> None:
                if not self._store(code, func, f_locals, captured(), image, **gradients) and unkept is not None:
                    unkept()

            with stage("back end"), without_default_device():
                call, report = self.compile_graph(graph, examples, keep if hot is None else None)
            if report is None:
                events.emit(_interpreted(graph, self.config.backend))
            compiled.append((operators, report))
            return call if hot is None else hot.around(call)

        handled = sys.exc_info()[1]
        try:
            expect(self.config, f"{code.co_filename}:{code.co_firstlineno} {code.co_qualname}")
            with stage("total"):
                capture = functools.partial(convert_frame, code, f_locals, func.__globals__, func.__closure__,
                                            self.config, compile_fn)
                captured = capture_with_symbols(capture, seen, self.config, self.ledger, code.co_qualname)
            with stage("guards"):
                tree = compile_guards(captured.guards, captured.input_sources, func.__globals__)
        except (UserError, SharedMemory, UnfitSizes) as error:
            # plain Python raises it; or it holds only for these arguments
            drop_traces(error, handled)
            if self.config.fullgraph and isinstance(error, Unsupported):
                raise
            seen.raising.again()
            return None
        except FirstCall as error:
            drop_traces(error, handled)
            seen.raising.again()
            return _C.EAGER
        except Unsupported as refusal:
            drop_traces(refusal, handled)
            if self.config.fullgraph:
                raise
            if isinstance(refusal, OddTensor):
                seen.raising.again()
            return (self._training(code, func, refusal) if isinstance(refusal, NeedsGrad)
                    else self.verdicts.refused(code, refusal))
        except (CompilerMissing, BuildError) as problem:
            if self.config.fullgraph and not isinstance(problem, CompilerMissing):
                raise
            return self.verdicts.unbuilt(code, problem)
        except ContradictedMark as error:
            drop_traces(error, handled)
            raise
        except (RecursionError, MemoryError):
            return None  # too little is left for capture here and now
        except Exception as problem:  # the edge: whatever is wrong inside, the user's program runs
            if not self.config.suppress_errors or self.config.fullgraph or raised_by_handler(problem):
                raise
            return self.verdicts.fault(code, problem)
        self._note(code, captured, tree, compiled)
        seen.captures += 1
        if seen.captures == OFTEN:
            self.verdicts.often(seen, code, self.limit)
        seen.raising = Raising()
        if captured.graph is None:  # even if it is not used here: it has the verdict of other processes
            self._store(code, func, f_locals, captured, None)
        if self._is_idle(seen, code, captured.graph is not None, captured.breaks):
            return _C.SKIP
        entry = self._entry(tree, code, captured.residual_code, instance, captured.graph is None)
        if _takes(entry, code, func, f_locals):
            entry.add()  # before the turn ends: a thread that waits for it finds the entry
        return entry

    def _entry(self, tree: GuardTree, code: CodeType, residual: CodeType, instance: nn.Module | None,
               graphless: bool = False) -> _C.Entry:
        hide_from_dynamo(residual)
        info = None if instance is None else weakref.ref(instance)
        return _C.Entry(tree, code, residual, self, info, graphless=graphless)

    # ---------------------------------------------------------------------------------------------------- capture cache

    @functools.cached_property
    def _captures(self) -> CaptureCache:
        return CaptureCache(self.config)

    def _keeps(self, code: CodeType, f_locals: dict[str, Any]) -> bool:
        """Return whether captures of a frame are kept in the disk cache."""
        config = self.config
        return (config.cache and config.keep_captures and not config.agreement and config.backend in NATIVE
                and not config.hot_sizes and not is_marked(tree_leaves(f_locals)))

    def _store(self, code: CodeType, func: FunctionType, f_locals: dict[str, Any], captured: Captured,
               image: Image | None, **gradients: Any) -> bool:
        """Keep a capture in the disk cache; return whether it is."""
        if not self._keeps(code, f_locals):
            return False
        with stage("cache"):
            return self._captures.store(code, called_code(code, func), func, captured, image, **gradients)

    def _load(self, seen: CodeState, code: CodeType, func: FunctionType, f_locals: dict[str, Any]) -> Any:
        """Add and return a variant for a call from the disk cache, or a verdict; None if it has none. Nothing is
        captured or compiled."""
        if self.ledger is not None or not self._keeps(code, f_locals):
            return None
        with stage("cache"), without_default_device():
            found = self._captures.load(code, called_code(code, func), func, f_locals,
                                        GradientCompiler(self.config, self.ledger))
        if found is None:
            return None
        self._note_breaks(found.breaks)
        if self._is_idle(seen, code, found.graph, found.breaks):
            return _C.SKIP
        entry = self._entry(found.tree, code, found.residual, module_of(f_locals), not found.graph)
        entry.add()
        return entry

    def _captured_by_another(self, seen: CodeState, turn: contextlib.ExitStack, code: CodeType, func: FunctionType,
                             f_locals: dict[str, Any]) -> Any:
        """Return the variant that another process of the world has made of a like call, once it has; None: this
        process is to make one, for the others, too, until `turn` is closed. Other threads of this process compile
        meanwhile, and may have made it."""
        if (world_size() == 1 or not seen.shared or has_priority() or self.ledger is not None
                or not self._keeps(code, f_locals)):
            return None
        # a continuation in a loop needs several variants with like arguments: the number made so far tells them apart
        values = [self._variants(code), *tree_leaves(f_locals)]
        with stage("cache"), collector_resumed(), released_once(COMPILE_LOCK):
            first = turn.enter_context(self._captures.single_capture(code, called_code(code, func), values))
        if not first:
            turn.close()  # for the next that waits
        answer = self._made_meanwhile(code, func, f_locals) or self._load(seen, code, func, f_locals)
        if answer is None and not first:  # the other has failed, or the program depends on its process: wait no more
            seen.shared = False
        return answer

    def _is_idle(self, seen: CodeState, code: CodeType, computes: bool, breaks: Sequence[Break]) -> bool:
        whole = origin(code, 0)[0]
        return self.verdicts.idle(seen, whole, self._look_up(whole), computes, breaks)

    def compile_graph(self, graph: fx.Graph, examples: Sequence[Any],
                      keep: Callable[..., None] | None) -> tuple[Compiled, Report | None]:
        """Compile a captured graph; subclasses run it otherwise. `keep`: receives it as data, for the cache."""
        return compile_graph(graph, examples, self.config, self.ledger, keep)

    def _training(self, code: CodeType, func: FunctionType, refusal: NeedsGrad) -> Any:
        """Run this call in eager, and each later one in which the same tensor requires grad."""
        verdict = self.verdicts.refused(code, refusal)
        if isinstance(refusal.source, Source):
            self._look_up(code).training.append(compile_guards([], [refusal.source], func.__globals__))
            return _C.EAGER
        return verdict

    def note_silence(self, compiled: Any) -> None:
        """Warn that the first calls of a compiled function have compiled nothing, unless there was a warning. The C++
        core calls it."""
        if not self.begun and stance() == "default":
            self.verdicts.silent(compiled.__wrapped__)

    def _note_breaks(self, breaks: Sequence[Break]) -> None:
        for b in breaks:
            log.emit("breaks", f"{b.file}:{b.line} in {b.function}: {b.reason}")
            events.emit(events.GraphBreak(b.file, b.line, b.function, b.reason, b.hint or advice(b.reason)))

    def _note(self, code: CodeType, captured: Captured, tree: GuardTree,
              compiled: list[tuple[Counter[str], Report | None]]) -> None:
        events.emit(events.Captured(len(tree.notes), captured.stats["instructions"], captured.graph is not None))
        self._note_breaks(captured.breaks)
        if log.enabled("guards"):
            log.emit("guards", "\n".join(f"{code.co_qualname}: {g}" for g in tree.describe()))
        if self.ledger is None:
            return
        operators, report = compiled[-1] if compiled else (Counter[str](), None)
        self.ledger.records.append(Record(
            code.co_qualname, code.co_filename, code.co_firstlineno, captured.breaks, tree.describe(), operators,
            report, captured.stats["instructions"],
        ))


def _interpreted(graph: fx.Graph, backend: Any) -> events.GraphCompiled:
    """Return the event of a graph that has no code of ours."""
    name = backend if isinstance(backend, str) else getattr(backend, "__name__", "a back end")
    number = events.next_graph()
    return events.GraphCompiled(number, "", events.graph_name(number), name, operators_of(graph), (), (), "", "", "",
                                (), 0, 0)
