"""The way in: a frame becomes a graph, guards and residual code.

Capture runs the frame symbolically.  Where an instruction cannot be captured, capture starts again and stops just
before it (or before the call, in a caller, from which it can be resumed); the residual code then runs the instruction
and goes on in continuations.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.fx import Graph

from framesmith.fake import Recorder, dispatch_restored
from framesmith.fake.tensor import LayoutSeen
from framesmith.graph.traversal import placeholders_of
from framesmith.util import events, log
from framesmith.util.advice import advice_on_loop
from framesmith.util.errors import (
    DataDependent,
    FirstCall,
    FrameSeen,
    FramesmithError,
    NeedsGrad,
    SharedMemory,
    TooLong,
    Unsupported,
)
from framesmith.util.precision import CONVOLUTIONS, PRODUCTS
from framesmith.util.recursion import deep_recursion
from framesmith.util.stack import Place

from . import functions, opcodes
from . import trackers as t
from .arms import refuse_shared
from .assertions import drawing
from .break_points import GENERATORS, ResultAsked, StopAt, choose_stop, refuse_abandoned
from .bytecode import decoded
from .default_dtypes import Under, under
from .dynamic_sizes import DynamicSizes, contradicted
from .frame import Frame
from .lifetimes import watch
from .modes import restore_devices
from .outputs import graph_caller, settle
from .overrides import as_class, has_function
from .registry import load_late
from .replay import ReplayDiverged, Replays
from .residual import Residual, argument_names, assemble, link
from .resizing_branches import guard_copies
from .run_time_indices import CopySeen
from .settings import read_setting, undo
from .sources import Cell, Guard, Local, Made, Source
from .surroundings import Surroundings
from .symbolic_arithmetic import entered, number_tensors, sizes_among
from .tracer import BreakHere, Tracer, read_state, restore_state
from .warned import refused_in

_CONVOLUTIONS = frozenset((torch.ops.aten.conv2d.default, torch.ops.aten.convolution.default))
_PRODUCTS = _CONVOLUTIONS | frozenset(
    getattr(torch.ops.aten, name).default
    for name in ("linear", "matmul", "mm", "addmm", "bmm", "baddbmm", "einsum", "scaled_dot_product_attention")
)
MAX_ATTEMPTS = 16

CompileFn = Callable[["Graph", list[Any], Callable[[], "Captured"]], Callable[[tuple[Any, ...]], tuple[Any, ...]]]


def _said(error: t.Tracker) -> str:
    """Return the message of an exception, if it is plain text."""
    args = error.init_args if isinstance(error, t.Error) else None
    return f" ({args[0].value})" if args and isinstance(args[0], t.Const) else ""


class UserError(FramesmithError):
    """The program itself raises on this path; plain Python is to run the frame and raise it."""

    def __init__(self, tracker: t.Tracker, at: Place | None) -> None:
        kind = tracker.pytype().__name__
        super().__init__(f"the program raises {kind}{_said(tracker)} at {at}")
        self.kind = kind
        self.said = _said(tracker)[2:-1]
        self.at = at


class AssumedInVain(Unsupported):
    """The frame could not run again if an assertion on data failed: it is captured without assertions."""


class TooLarge(Unsupported):
    """A dynamic number is too large for an input of a graph in this call: it is specialised."""


@dataclass(slots=True)
class Break:
    """The place where a graph ended before its frame did, and the reason."""

    file: str
    line: int
    function: str
    reason: str
    hint: str | None = None


@dataclass(slots=True)
class Captured:
    """One capture.

    `residual_code` takes the frame's arguments and the tuple of the values at `input_sources`; `text` is its source.
    `graph` is None if there was nothing to compute.
    """

    residual_code: CodeType
    guards: list[Guard]
    input_sources: list[Source]
    graph: Graph | None
    text: str
    breaks: list[Break] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)
    held: list[Any] = field(default_factory=list)
    """The objects that residual code holds, by their numbers in its text."""
    line: int = 0
    """The line that errors in residual code show."""
    surroundings: Surroundings = field(default_factory=Surroundings)


def convert_frame(code: CodeType, f_locals: dict[str, Any], f_globals: dict[str, Any],
                  closure: tuple[Any, ...] | None = None,
                  config: Any = None, compile_fn: CompileFn | None = None,
                  varying: frozenset[str] | None = None, sizes: DynamicSizes | None = None) -> Captured:
    """Capture one call of a frame.

    `f_locals` holds the argument locals; `closure` the function's cells; `compile_fn(graph, example_inputs, captured)`
    gives what residual code calls with the tuple of inputs, and `captured()` what is known of the capture before that.
    `varying`: sources, as text, of numbers that are not to be assumed; None: all are. `sizes`: which sizes of inputs
    are symbols; None: none.

    Raises `Unsupported` when the frame must run as plain Python, `UserError` when it raises.
    """
    if code.co_flags & GENERATORS:
        raise Unsupported(f"{code.co_qualname} is a generator or a coroutine",
                          at=(code.co_filename, code.co_firstlineno))
    load_late()
    state = read_state()
    try:
        with deep_recursion(), dispatch_restored(), refused_in(Tracer.folded.__code__):
            return _attempts(code, f_locals, f_globals, closure or (), config, compile_fn, varying,
                             sizes)
    finally:
        restore_state(state)


def _attempts(code: CodeType, f_locals: dict[str, Any], f_globals: dict[str, Any], closure: tuple[Any, ...],
              config: Any,
              compile_fn: CompileFn | None, varying: frozenset[str] | None, sizes: DynamicSizes | None) -> Captured:
    step, depth = -1, 0
    reason: Break | None = None
    doubted: Place | None = None
    why = ""
    broken: set[Place] = set()
    limit = -1 if config is None else config.max_instructions
    state = read_state()
    assumes, assumes_indices, lists_data, replays = True, False, True, True
    symbolic_contents = sizes is not None and sizes.data and sizes.every
    unrolled: frozenset[t.Place] = frozenset()
    span: tuple[int, int] | None = None
    for _ in range(MAX_ATTEMPTS):
        restore_state(state)
        recorder = Recorder()
        tracer = Tracer(recorder, f_globals, step, depth, limit)
        tracer.varying, tracer.dynamic = varying, None if doubted else sizes
        recorder.shape_env = tracer.shapes if sizes is not None and sizes.data else None
        tracer.branches = recorder.shape_env is not None
        if sizes is not None:
            sizes.made = sizes.made_of_numbers = False
        tracer.assumes, tracer.assumes_indices, tracer.unrolled = assumes, assumes_indices, unrolled
        tracer.span = span
        tracer.lists_data = lists_data and recorder.shape_env is not None
        tracer.symbolic_contents = symbolic_contents
        tracer.replays = Replays() if replays else None
        try:
            with recorder, tracer.modes, torch._C.DisableTorchFunctionSubclass():
                root = root_frame(tracer, code, f_locals, closure)
                tracer.frames.append(root)
                residual = Residual(tracer, code)
                run_to_end_or_break(tracer, root, residual)
                refuse_abandoned(tracer, residual.rebuilder.names)
            if doubted is not None and sizes is not None and sizes.strict:
                raise contradicted(sizes.strict[0], f"is captured for one size alone ({why})", doubted[:2])
            with torch._C.DisableTorchFunctionSubclass():
                return finish(tracer, residual, compile_fn, reason, config is not None and config.autotune)
        except t.CapturedError as e:
            raise UserError(e.tracker, tracer.where()) from None
        except AssumedInVain:
            assumes = False
        except ReplayDiverged:
            replays = False
        except CopySeen:
            assumes_indices = True
        except t.ListSeen:
            lists_data = tracer.left_symbolic
            symbolic_contents &= not tracer.left_symbolic
        except t.LoopUnrolled as e:
            unrolled |= {e.place}
            if e.place[1] >= 0:
                _tell_unrolled(e)
            step, depth, reason = -1, 0, None
        except TooLarge:
            varying = None
        except LayoutSeen as e:
            if sizes is None or sizes.narrow:
                raise
            log.emit("recompiles", f"{code.co_qualname}: layouts are not assumed: {e}")
            sizes.narrow = True
            step, depth, reason = -1, 0, None
        except Unsupported as e:
            if tracer.left_symbolic and not isinstance(e, (NeedsGrad, TooLong, FirstCall)):
                log.emit("recompiles", f"{code.co_qualname}: the contents of small inputs are assumed: {e}")
                symbolic_contents, lists_data, unrolled, doubted = False, True, frozenset(), None
                step, depth, reason = -1, 0, None
                continue
            where = tracer.where() or (code.co_filename, code.co_firstlineno, code.co_name)
            e.at = e.at or where[:2]
            if isinstance(e, DataDependent):
                tracer.refuse_unmarked(e)
            if config is not None and config.fullgraph or isinstance(e, (NeedsGrad, TooLong, FirstCall)):
                raise
            if (found := e.span if isinstance(e, ResultAsked) else tracer.span_of_locals()) is not None:
                span = found
                continue
            if doubted is not None:  # a capture of fixed sizes breaks there, too, or the sizes stay fixed
                broken.add(doubted)
                if doubted != where and sizes is not None:
                    sizes.inputs = False
                doubted = None
                continue
            if sizes is not None and sizes.made and where not in broken:
                doubted, why = where, e.reason
                continue
            seen = e.callers + 1 if isinstance(e, FrameSeen) else 0
            limit_here = tracer.steps if step < 0 else step
            new = e.stop if isinstance(e, StopAt) else choose_stop(tracer.frames[:len(tracer.frames) - seen],
                                                                   limit_here)
            if new is None:
                raise
            if reason is None or new[0] != step:
                reason = Break(*e.at, where[2], e.reason, e.hint)
            if (step, depth) == new[:2]:
                raise
            step, depth = new
        finally:
            if sizes is not None:
                sizes.made_of_data |= len(tracer.shapes.data) > len(tracer.shapes.given) or tracer.branched
            undo(tracer.settings)
            tracer.release()
    raise Unsupported(f"no way to break {code.co_qualname} up" + (f" ({reason.reason})" if reason else ""))


def _tell_unrolled(e: t.LoopUnrolled) -> None:
    """Emit the event of a loop that is unrolled."""
    code, index = e.place
    line = decoded(code).instrs[index].line
    events.emit(events.UnrolledLoop(file=code.co_filename, line=line, function=code.co_qualname, reason=str(e),
                                    cause=e.at, remedy=advice_on_loop(str(e))))


def run_to_end_or_break(tracer: Tracer, root: Frame, residual: Residual) -> None:
    """Interpret the frame, and write its residual code."""
    depth = -1
    result = t.NULL
    try:
        result = root.run()
    except BreakHere as b:
        depth = b.depth
    # outside of the handler: what is written may depend on the exception that the program handles
    if depth < 0:
        residual.returns(result)
    else:
        residual.breaks(tracer.frames[:depth + 1])


def root_frame(tracer: Tracer, code: CodeType, f_locals: dict[str, Any], closure: tuple[Any, ...]) -> Frame:
    """Return the frame under capture; its arguments become trackers when they are first read."""
    fn = t.Function(code, tracer.root_globals)
    fn.closure = [tracer.cell(c, Cell(n)) for n, c in zip(code.co_freevars, closure)]
    dec = decoded(code)
    frame = Frame(tracer, fn, dec, [None] * len(dec.localsplus), True)
    tracer.arguments = {i: f_locals[n] for i, n in enumerate(argument_names(code)) if n in f_locals}
    tracer.pending = {i: (Local(dec.localsplus[i]), value) for i, value in tracer.arguments.items()}
    watch(frame)
    return frame


def finish(tracer: Tracer, residual: Residual, compile_fn: CompileFn | None, reason: Break | None,
           tuned: bool = False) -> Captured:
    """Close the graph, compile it, and write the residual code. `tuned`: kernels of our own may stand for a library's
    product, which would read how exact it is to be when it is called."""
    outputs, residual.settled = settle(residual.rebuilder, residual.rebuilder.outputs, tracer.state.inference_mode,
                                       tracer.view_grad)
    tracer.check_copies(outputs)
    refuse_shared(tracer, outputs)
    guard_copies(tracer, outputs)
    recorded = tracer.recorder.finish(outputs)
    graph: Graph | None = recorded
    restore_devices(tracer.devices)
    if tracer.recorder.on_current_device and torch.cuda.device_count() > 1:
        read_setting(tracer, torch._C._cuda_getDevice, [], {})
    dtype = tracer.dtypes.of_graph() or tracer.state.default_dtype
    numbers = entered(tracer)
    inputs = graph_inputs(tracer, recorded, len(numbers))
    try:
        examples = [*(value for _, value in inputs),
                    *number_tensors((), (), sizes_among(numbers), *[late.example for late, _ in numbers])]
    except (OverflowError, RuntimeError) as e:
        raise TooLarge("a number that 64 bits do not hold") from e
    if not any(n.op == "call_function" for n in recorded.nodes):
        graph = None
        if outputs:
            raise Unsupported("outputs without a graph")
    repeatable(tracer, recorded)
    if any(value.device.type == "cuda" for value in examples if isinstance(value, torch.Tensor)):
        for what in _settings(recorded, tuned):
            read_setting(tracer, torch._C._get_fp32_precision_getter, [tracer.made("cuda"), tracer.made(what)], {})
    if graph is not None:
        aliasing(tracer, graph)
        if numbers:
            residual.take(numbers)
    residual.called = graph_caller(tracer.state.inference_mode, outputs)
    if dtype is not tracer.state.default_dtype:
        residual.called = Under(dtype, residual.called)
    text, held = residual.text(graph is not None), residual.rebuilder.held
    code = assemble(residual.code, text, residual.line)
    sources = [source for source, _ in inputs]
    breaks = [reason] if reason is not None else []
    stats = {"instructions": tracer.steps, "inputs": len(sources), "nodes": 0 if graph is None else len(graph.nodes)}

    def captured(call: Any = _no_graph) -> Captured:
        return Captured(link(code, held, call), tracer.all_guards(), sources, graph, text, breaks, stats, held,
                        residual.line, tracer.surroundings)

    if graph is None or compile_fn is None:
        return captured()
    return captured(under(dtype, compile_fn, graph, examples, captured))


def _settings(graph: Graph, tuned: bool) -> list[str]:
    """Return the settings of float32's precision on which the generated code depends: convolutions may be products."""
    single = {n.target for n in graph.nodes if n.target in _PRODUCTS and n.meta["val"].dtype is torch.float32}
    return [what for what, wanted in ((PRODUCTS, single or tuned), (CONVOLUTIONS, single & _CONVOLUTIONS)) if wanted]


def graph_inputs(tracer: Tracer, graph: Graph, numbers: int) -> list[tuple[Source, Any]]:
    """Source and value of each placeholder but the last `numbers`; a tensor made of Python data is held by the guards
    themselves."""
    known: dict[Any, tuple[Source, Any]] = {
        x.fake._alias.storage.input: (x.source, as_class(x.value, torch.Tensor) if has_function(x.pyclass) else x.value)
        for x in tracer.inputs if x.source is not None
    }
    known.update((node, (Made(real), real)) for node, real in tracer.recorder.constants)
    places = placeholders_of(graph)
    return [known[node] for node in places[:len(places) - numbers]]


def aliasing(tracer: Tracer, graph: Graph) -> None:
    """Guard that the inputs' storages are disjoint if the graph writes an input."""
    if any(tracer.recorder.mutated(x.fake) for x in tracer.inputs):
        if overlap([x.value for x in tracer.inputs]):
            raise SharedMemory("an input is written that shares its storage with another input")
        if tracer.checks:
            raise AssumedInVain("an assertion on a tensor's data in code that writes its inputs")
        tracer.guards[(None, "no_alias", 0)] = Guard(None, "no_alias", tuple(x.source for x in tracer.inputs))


def repeatable(tracer: Tracer, graph: Graph) -> None:
    """Check that the frame may run again, as it does where an assertion does not hold: it must not have drawn from
    generators of the program's own. Raises AssumedInVain."""
    if not tracer.checks:
        return
    if tracer.draws or any(isinstance(a, torch.Generator) for n in drawing(graph.nodes)
                           for a in (*n.args, *n.kwargs.values())):
        raise AssumedInVain("an assertion on a tensor's data in code that draws random numbers of a generator of its "
                            "own")


def overlap(tensors: list[Any]) -> bool:
    """Return whether two tensors' storages share memory, or are one that is empty: its versions are shared, too."""
    storages = [x.untyped_storage() for x in tensors]
    spans = sorted((start, start + max(s.nbytes(), 1)) for s in storages
                   for start in (s.data_ptr() if s.nbytes() else s._cdata,))
    return any(second[0] < first[1] for first, second in itertools.pairwise(spans))


def _no_graph(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    raise RuntimeError("this graph was captured without a compiler")


__all__ = ["Break", "Captured", "CodeType", "CompileFn", "FunctionType", "UserError", "convert_frame", "functions",
           "opcodes"]
