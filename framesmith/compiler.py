"""The frame callback, which the hook calls for a frame that no cache entry accepts.

Capture it, compile its graph with the chosen back end, lower its guards, and hand the hook an entry; or say that it
runs in plain Python, and tell the user once where and why.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import re
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
from framesmith.capture.dynamic_sizes import DynamicSizes
from framesmith.capture.entry import Break, Captured, CompileFn, UserError, convert_frame
from framesmith.capture.guards import GuardTree, Miss, compile_guards, namespaces, resized_tensors, why_missed
from framesmith.capture.modes import foreign_mode, recomputing, without_default_device
from framesmith.capture.origins import is_continuation, origin
from framesmith.capture.policy import is_foreign, is_machinery, stops_in_debugger
from framesmith.capture.sources import Source
from framesmith.capture.thread_state import handed_over
from framesmith.capture_cache.entries import CaptureCache, is_marked, is_portable
from framesmith.capture_cache.graphs import Image
from framesmith.config import Config
from framesmith.graph.census import operators_of, short_name
from framesmith.graph.digest import digest_text
from framesmith.graph_compiler import GradientCompiler, compile_graph, compile_plain
from framesmith.hot_sizes import HotSizes, has_hot_sizes
from framesmith.ledger import REPORT, Ledger, Record, Refusal, Use, internal_fault
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
    DataDependent,
    DivergedRanks,
    FirstCall,
    MemorySeen,
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

VARYING = 6
"""Misses of variants because of a number's value after which capture does not assume the value any more (three calls
miss so often). For a float one is enough."""
OFTEN = 64  # captures of a code object after which the user is told
IDLE = 12
"""Breaks without a tensor operation before them after which a function runs in plain Python."""

@dataclass(slots=True)
class CodeState:
    """The state of a code object of this callback.

    `training`: paths to tensors whose requiring grad prevented compilation. `misses`: by guard, the last reason for a
    miss, and in `times` how often it was the reason. `full`: modules that have as many variants as they may, and the
    answer for their further calls; `resized`: a frame of no module has, because sizes of tensors vary. `sizes`:
    dimensions of tensors, by source, that were seen to vary; none of an int that was; `ones`: one of those was 1 in a
    call. `static`: no code could be made for sizes that vary; `data`: it could for symbols of data; `numbers`: for
    those of integers. `job`: what compiles it in the background. `graphless`: captures without a tensor operation.
    `shared`: captures of other processes of the world are waited for.
    `idle`: of a user's code, those of it and its continuations that ended in a break, since the last with one.
    """

    code: weakref.ref[CodeType]
    training: list[GuardTree] = field(default_factory=list)
    misses: dict[tuple[str, str], Miss] = field(default_factory=dict)
    times: Counter[tuple[str, str]] = field(default_factory=Counter)
    full: weakref.WeakKeyDictionary[nn.Module, Any] = field(default_factory=weakref.WeakKeyDictionary)
    resized: bool = False
    number: int = field(default_factory=itertools.count().__next__)
    captures: int = 0
    graphless: int = 0
    sizes: dict[str, frozenset[int]] = field(default_factory=dict)
    ones: bool = False
    static: bool = False
    data: bool = True
    numbers: bool = True
    idle: int = 0
    shared: bool = True
    job: Job | None = None
    raising: Raising = field(default_factory=lambda: Raising())


def _takes(entry: _C.Entry, code: CodeType, func: FunctionType, f_locals: dict[str, Any]) -> bool:
    """Return whether the entry's guards hold for a call."""
    return entry.tree.check(*namespaces(code, func, f_locals)) is not None


class FrameCompiler:
    """The callback of a `compile` call, or of several (see `sharing`); entries in the guard cache belong to it.
    `ledger`: where to note what was done, which calls then wait for."""

    def __init__(self, config: Config, ledger: Ledger | None = None) -> None:
        self.config = config
        self.ledger = ledger
        self.told = False
        """The user was told of something that is not compiled."""
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
            self.told = False

    def __call__(self, code: CodeType, func: FunctionType, f_locals: dict[str, Any]) -> Any:
        """See `_C.FrameCallback`. Raises `Unsupported` under `fullgraph=True`."""
        if is_foreign(code):
            return _C.SKIP_RECURSIVE
        if is_machinery(code, func.__globals__, self.config.standard_library) or stops_in_debugger(code):
            return _C.SKIP
        if _C.is_transformed() or foreign_mode():
            around = ("a torch.func transform or forward-mode AD" if _C.is_transformed()
                      else "a torch function or dispatch mode")
            place = f"{code.co_filename}:{code.co_firstlineno}"
            self.warn(f"around:{place}",
                      f"framesmith: {code.co_qualname} ({place}) runs in eager when it is called under {around}")
            return _C.EAGER
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
        if torch.is_grad_enabled() and _wants_grad(seen, code, func, f_locals):
            return _C.EAGER
        if seen.raising.waits():
            return None
        if recomputing() and not self._variants(code):  # its forward ran in eager
            return _C.EAGER
        instance = _instance(f_locals)
        if instance is not None and instance in seen.full:
            return seen.full[instance]
        if instance is None and seen.resized and self._variants(code) >= self.limit:
            return _C.EAGER
        if self._miss(seen, code, func, f_locals, instance) >= self.limit:
            return self._full(seen, code, instance)
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
        seen.job = Job(_place(code, func), compile, waited=self.config.deadline > 0)

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
                f"framesmith: detected a recompile under the stance 'fail_on_recompile': {code.co_qualname} "
                f"({code.co_filename}:{code.co_firstlineno}): {reasons}"
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
            seen.misses[miss.guard] = miss
            seen.times[miss.guard] += 1
            log.emit("recompiles", f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno}): {miss.text}")
        if misses:
            nearest = min(misses, key=lambda miss: len(miss.old))
            path = _argument(code, func, nearest.guard[0])
            instead = "remove the break before it, or what makes a variant before that; or else "
            remedy = instead * is_continuation(code) + prevention(nearest.guard[1], path, nearest.old)
            assumed = nearest.assumed if nearest.assumed and not nearest.assumed[0].startswith(_OWN) else None
            events.emit(events.Recompile(*_place(code, func), readable(path), nearest.guard[1],
                                         readable(_argument(code, func, nearest.text)).partition(" (assumed at")[0],
                                         nearest.old, nearest.new, assumed, remedy))
        before = dict(seen.sizes)
        for path, dims in resized_tensors(mine, code, func, f_locals).items():
            seen.sizes[path] = seen.sizes.get(path, frozenset()) | dims
        for miss in seen.misses.values():
            if miss.kind is int:
                seen.sizes.setdefault(miss.guard[0], frozenset())
        if seen.sizes != before:
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
            with (events.compiling(*_place(code, func), why) as compile, collector_paused(),
                  agreed(compile, 0 if self.config.background else self.config.agreement, _reasons(seen))):
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

                hot = HotSizes(graph, config.hot_sizes, fixed,
                               f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})")

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
                captured = self._captured(seen, code, func, f_locals, compile_fn)
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
                    else self._refuse(code, refusal))
        except (CompilerMissing, BuildError) as problem:
            if self.config.fullgraph and not isinstance(problem, CompilerMissing):
                raise
            return self._no_machine_code(code, problem)
        except ContradictedMark as error:
            drop_traces(error, handled)
            raise
        except (RecursionError, MemoryError):
            return None  # too little is left for capture here and now
        except Exception as problem:  # the edge: whatever is wrong inside, the user's program runs
            if not self.config.suppress_errors or self.config.fullgraph or raised_by_handler(problem):
                raise
            return self._bug(code, problem)
        self._note(code, captured, tree, compiled)
        seen.captures += 1
        if seen.captures == OFTEN:
            self._often(seen, code)
        seen.raising = Raising()
        if self._is_idle(seen, code, captured.graph is not None, captured.breaks):
            return _C.SKIP
        if captured.graph is None:
            self._store(code, func, f_locals, captured, None)
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
            return self._captures.store(code, _called(code, func), func, captured, image, **gradients)

    def _load(self, seen: CodeState, code: CodeType, func: FunctionType, f_locals: dict[str, Any]) -> Any:
        """Add and return a variant for a call from the disk cache, or a verdict; None if it has none. Nothing is
        captured or compiled."""
        if self.ledger is not None or not self._keeps(code, f_locals):
            return None
        with stage("cache"), without_default_device():
            found = self._captures.load(code, _called(code, func), func, f_locals,
                                        GradientCompiler(self.config, self.ledger))
        if found is None:
            return None
        self._note_breaks(found.breaks)
        if self._is_idle(seen, code, found.graph, found.breaks):
            return _C.SKIP
        entry = self._entry(found.tree, code, found.residual, _instance(f_locals), not found.graph)
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
            first = turn.enter_context(self._captures.single_capture(code, _called(code, func), values))
        if not first:
            turn.close()  # for the next that waits
        answer = self._made_meanwhile(code, func, f_locals) or self._load(seen, code, func, f_locals)
        if answer is None and not first:  # the other has failed, or the program depends on its process: wait no more
            seen.shared = False
        return answer

    def _captured(self, seen: CodeState, code: CodeType, func: FunctionType, f_locals: dict[str, Any],
                  compile_fn: CompileFn, narrow: bool = False) -> Captured:
        """Capture the frame. `narrow`: sizes of 0 and 1 are specialised where only a mark's range includes them."""
        capture = functools.partial(convert_frame, code, f_locals, func.__globals__, func.__closure__, self.config,
                                    compile_fn)
        varying, sizes = self._varying(seen), self._sizes(seen)
        if sizes is not None:
            sizes.narrow = narrow
        try:
            captured = capture(varying, sizes)
            seen.ones |= sizes is not None and sizes.ones
            return captured
        except (CompilerMissing, BuildError, UnfitSizes, RecursionError, MemoryError):
            raise
        except Exception as problem:
            if sizes is not None and sizes.assumed_large and not raised_by_handler(problem):
                return self._captured(seen, code, func, f_locals, compile_fn, narrow=True)
            if isinstance(problem, ContradictedMark):
                raise
            why = f"{type(problem).__name__}: {problem}".partition("\n")[0]
            if sizes is not None and sizes.made_of_data and not raised_by_handler(problem):
                log.emit("recompiles", f"{code.co_qualname}: no symbols of data: {why}")
                seen.data = False
                try:
                    return self._captured(seen, code, func, f_locals, compile_fn, narrow)
                except DataDependent:  # of the two errors, the first says what was not decided
                    raise problem from None
            if sizes is not None and sizes.made_of_numbers and not raised_by_handler(problem):
                log.emit("recompiles", f"{code.co_qualname}: no symbols of integers: {why}")
                seen.numbers = False
                return self._captured(seen, code, func, f_locals, compile_fn, narrow)
            resized = sizes is not None and sizes.made
            breaks = isinstance(problem, Unsupported) and self.config.fullgraph and varying is not None
            if not (resized or breaks) or raised_by_handler(problem):
                raise
        # code that fails for symbolic sizes may work for these; a branch on a number would break, which `fullgraph`
        # forbids
        captured = capture(None if self.config.fullgraph else varying)
        if resized:
            log.emit("recompiles", f"{code.co_qualname}: sizes stay fixed: {why}")
            seen.static = True
            if self.ledger is not None:
                self.ledger.fixed.append(why)
        return captured

    def _sizes(self, seen: CodeState) -> DynamicSizes | None:
        """Return the sizes of inputs that are symbols: those seen to vary, or requested by the user. A user's back end
        gets graphs of static sizes."""
        if self.config.backend not in NATIVE:
            return None
        inputs = self.config.dynamic is not False and not seen.static
        numbers = frozenset([miss.guard[0] for miss in seen.misses.values() if miss.kind is int])
        numbers |= {path for path, dims in seen.sizes.items() if not dims}
        return DynamicSizes(self.config.dynamic is True, seen.sizes, inputs, self.config.data_symbols and seen.data,
                            numbers=numbers if inputs and seen.numbers else None, ones=seen.ones)

    def _varying(self, seen: CodeState) -> frozenset[str] | None:
        """Return the numbers and tensors on whose value several variants have failed."""
        found = frozenset([guard[0] for guard, times in seen.times.items()
                           if seen.misses[guard].kind is float
                           or guard[1] in ("equals", "callable") and times >= VARYING])
        return None if self.config.dynamic is False or self.config.fullgraph and not found else found

    def _is_idle(self, seen: CodeState, code: CodeType, computes: bool, breaks: Sequence[Break]) -> bool:
        """Return whether the code is not worth its guards: neither it nor its continuations, as far as seen, compute
        anything. `computes`: the present capture does."""
        whole = origin(code, 0)[0]
        user = self._look_up(whole)
        if computes:
            user.idle = 0
            return False
        seen.graphless += 1
        user.idle += bool(breaks)
        if self.config.keep_graphless or not breaks:
            return seen.graphless > 1 and not self.config.keep_graphless
        if user.idle > IDLE:
            last = breaks[-1]
            events.emit(events.Fallback(
                whole.co_qualname, whole.co_filename, whole.co_firstlineno,
                f"{user.idle} breaks in a row had no tensor operation before them; the last: {last.reason} "
                f"({last.file}:{last.line})", last.hint or advice(last.reason)))
            self.warn(
                f"idle:{user.number}",
                f"framesmith: {whole.co_qualname} ({whole.co_filename}:{whole.co_firstlineno}) runs in eager: "
                f"{user.idle} breaks in a row "
                f"had no tensor operation before them. The last: {last.reason} ({last.file}:{last.line}); "
                f"{last.hint or advice(last.reason)}",
            )
        return user.idle > IDLE

    def compile_graph(self, graph: fx.Graph, examples: Sequence[Any],
                      keep: Callable[..., None] | None) -> tuple[Compiled, Report | None]:
        """Compile a captured graph; subclasses run it otherwise. `keep`: receives it as data, for the cache."""
        return compile_graph(graph, examples, self.config, self.ledger, keep)

    # --------------------------------------------------------------------------------------------------------- refusals

    def _refuse(self, code: CodeType, refusal: Unsupported) -> Any:
        file, line = refusal.at or (code.co_filename, code.co_firstlineno)
        if self.ledger is not None:
            self.ledger.refusals.append(Refusal(code.co_qualname, file, line, refusal.reason, refusal.hint))
        events.emit(events.Fallback(code.co_qualname, file, line, refusal.reason,
                                    refusal.hint or advice(refusal.reason)))
        key = "" if isinstance(refusal, OddTensor) else f"{file}:{line}:"
        place = "" if file.startswith(_OWN) else f" ({file}:{line})"
        self.warn(key + refusal.reason, f"framesmith: {code.co_qualname} runs in eager: {refusal.reason}{place}")
        if isinstance(refusal, OddTensor):
            return None
        return _C.SKIP_RECURSIVE if isinstance(refusal, MemorySeen) else _C.SKIP

    def _training(self, code: CodeType, func: FunctionType, refusal: NeedsGrad) -> Any:
        """Run this call in eager, and each later one in which the same tensor requires grad."""
        verdict = self._refuse(code, refusal)
        if isinstance(refusal.source, Source):
            self._look_up(code).training.append(compile_guards([], [refusal.source], func.__globals__))
            return _C.EAGER
        return verdict

    def _no_machine_code(self, code: CodeType, problem: Exception) -> Any:
        events.emit(events.Fallback(code.co_qualname, code.co_filename, code.co_firstlineno, str(problem),
                                    "python -m framesmith doctor says what is missing"))
        self.warn(f"build:{type(problem).__name__}", f"framesmith: running in eager: {problem}")
        return _C.SKIP_RECURSIVE

    def _bug(self, code: CodeType, problem: Exception) -> Any:
        key, reason = internal_fault(problem)
        place = "" if code.co_filename.startswith(_OWN) else f" ({code.co_filename}:{code.co_firstlineno})"
        self.warn(key, f"framesmith: {code.co_qualname}{place} runs in eager, as it would without framesmith, because "
                       f"of {reason}. {REPORT}")
        if self.ledger is not None:
            self.ledger.refusals.append(Refusal(code.co_qualname, code.co_filename, code.co_firstlineno, reason, REPORT,
                                                internal=True))
        events.emit(events.Fallback(code.co_qualname, code.co_filename, code.co_firstlineno, reason, REPORT, True))
        return _C.SKIP

    def note_silence(self, compiled: Any) -> None:
        """Warn that the first calls of a compiled function have compiled nothing, unless there was a warning. The C++
        core calls it."""
        name = getattr(compiled.__wrapped__, "__qualname__", repr(compiled.__wrapped__))
        if not self.told and not self.begun and stance() == "default":
            self.warn(f"silent:{name}",
                      f"framesmith: calls of {name} have compiled nothing so far: they run no Python function that "
                      "can be captured. Compile the functions and modules that compute with tensors")

    def warn(self, key: str, text: str) -> None:
        """Warn once for each key, if the program wants warnings."""
        self.told = True
        if self.config.warn:
            log.warn_once(key, text)

    def _often(self, seen: CodeState, code: CodeType) -> None:
        reasons = _reasons(seen) or "the modules that it is called with, or weights and objects that they hold"
        self.warn(
            f"often:{seen.number}",
            f"framesmith: {code.co_qualname} ({code.co_filename}:{code.co_firstlineno}) was compiled {seen.captures} "
            "times: each "
            f"module has a budget of {self.limit} variants. What kept changing: {reasons}. Pass what varies as a "
            "tensor, keep "
            f"modules instead of making new ones, or set options={{'max_variants': n}} to a lower limit",
        )

    def _full(self, seen: CodeState, code: CodeType, instance: nn.Module | None) -> Any:
        reasons = _reasons(seen)
        events.emit(events.Fallback(
            code.co_qualname, code.co_filename, code.co_firstlineno,
            f"it has {self.limit} variants, and calls that none takes run in eager; what kept changing: {reasons}",
            "options={'max_variants': n} allows more; " + "; ".join(dict.fromkeys(
                [prevention(m.guard[1], m.guard[0], m.old) for m in seen.misses.values()]))))
        self.warn(
            f"full:{seen.number}",
            f"framesmith: {code.co_qualname} ({code.co_filename}:{code.co_firstlineno}) has {self.limit} variants; "
            f"calls that none takes run in eager. What kept changing: {reasons}. options={{'max_variants': n}} allows "
            f"more{self._remedy(seen)}",
        )
        # Sizes that change from call to call change beneath this frame, too: what it calls would fill up in its turn.
        resized = 2 * sum(n for (_, kind), n in seen.times.items() if kind == "tensor") > seen.times.total()
        if instance is not None:
            # A method that calls `forward` in a loop may grow what `forward` does not read: that is left its own
            # variants.
            inner = getattr(type(instance).forward, "__code__", None) is origin(code, 0)[0]
            seen.full[instance] = _C.EAGER if resized and inner else None
            return seen.full[instance]
        seen.resized = resized
        return _C.EAGER if resized else _C.FULL

    def _remedy(self, seen: CodeState) -> str:
        """Return advice on dynamic sizes, each of which has a variant."""
        where = ", ".join(f"dimension {d} of {path}" for path, dims in sorted(seen.sizes.items()) for d in sorted(dims))
        if not where:
            return ""
        if self.config.dynamic is False:
            return f". With dynamic=False each size of {where} is a variant"
        return f". What varies: {where}. framesmith.mark_dynamic makes an error of the line that assumes one size"

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


def _place(code: CodeType, func: FunctionType) -> tuple[str, str, int]:
    """Return function, file and line of a frame in the user's terms: for one that calls a module, the module's
    `forward`."""
    own = _called(code, func)
    return own.co_qualname, own.co_filename, own.co_firstlineno


def _called(code: CodeType, func: FunctionType) -> CodeType:
    """Return the user's code that a frame of ours calls; else the frame's own."""
    cells = dict(zip(code.co_freevars, func.__closure__ or ())) if code.co_filename.startswith(_OWN) else {}
    called: Any = cells["module"].cell_contents if "module" in cells else None
    inner = inspect.unwrap(type(called).forward if isinstance(called, nn.Module) else called) if called else None
    return getattr(inner, "__code__", code)


def _argument(code: CodeType, func: FunctionType, path: str) -> str:
    """Return a guard's path (or a text with some) as the user's function names it, if a frame of ours passes it on."""
    own = _called(code, func)
    if own is code:
        return path
    first = own.co_varnames[:1] == ("self",)
    names = own.co_varnames[first:own.co_argcount]
    path = re.sub(r"L\['kwargs'\]\['(\w+)'\]", r"L['\1']", path).replace("L['kwargs']", "the keyword arguments")
    return re.sub(r"L\['args'\]\[(\d+)\]", lambda m: f"L['{names[int(m[1])]}']" if int(m[1]) < len(names) else m[0],
                  path)


def _interpreted(graph: fx.Graph, backend: Any) -> events.GraphCompiled:
    """Return the event of a graph that has no code of ours."""
    name = backend if isinstance(backend, str) else getattr(backend, "__name__", "a back end")
    number = events.next_graph()
    return events.GraphCompiled(number, "", events.graph_name(number), name, operators_of(graph), (), (), "", "", "",
                                (), 0, 0)


def _reasons(seen: CodeState) -> str:
    return "; ".join(f"{seen.misses[guard].text} [{times} times]" for guard, times in seen.times.most_common(4))


def _instance(f_locals: dict[str, Any]) -> nn.Module | None:
    """Return the module that the frame works for: the first among its arguments, `self` of a method."""
    return next((v for v in f_locals.values() if issubclass(type(v), nn.Module)), None)


def _wants_grad(seen: CodeState, code: CodeType, func: FunctionType, f_locals: dict[str, Any]) -> bool:
    """Return whether a tensor that forbade compilation before still requires grad."""
    for tree in seen.training:
        found = tree.check(*namespaces(code, func, f_locals))
        if found is not None and isinstance(found[0], torch.Tensor) and found[0].requires_grad:
            return True
    return False


_OWN = __file__.rsplit("/", 1)[0] + "/"
