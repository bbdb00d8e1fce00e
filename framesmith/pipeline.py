"""The stages in order, from a recorded graph of functional ATen operators to a callable over one tuple of tensors.

    rewrite     passes over ATen operators                                   lower.contractions, graph
    freeze      what depends on parameters alone becomes constants           graph.freeze
    repeat      a few of many equal parts stand for all until they are       graph.repetition, schedule.repeat
                kernels in order
    decompose   ATen to prims                                                prims.decompose
    lower       prims to loop nests, and passes over these                   lower.lower, lower.contractions
    schedule    fuse, order, plan memory                                     schedule
    codegen     kernels, and the function that calls them                    codegen
    build       compile, cache, load                                         runtime

`PASSES` lists every pass of the first six, but for the split into what is frozen and what runs in each call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import fx

from framesmith._C import CompiledFunction, CompiledGraph, watch
from framesmith.capture.modes import without_default_device
from framesmith.capture_cache.graphs import Image
from framesmith.codegen.printed import KernelFacts
from framesmith.config import Config
from framesmith.graph.census import bytes_of, operators_of
from framesmith.graph.cse import cse
from framesmith.graph.dce import dce
from framesmith.graph.devices import main_device
from framesmith.graph.digest import digest_text
from framesmith.graph.freeze import Frozen, freeze
from framesmith.graph.interpreter import run
from framesmith.graph.printer import print_graph
from framesmith.graph.repetition import RepeatedGraph, Repetition, find_repetition
from framesmith.graph.sink_waits import sink_waits
from framesmith.graph.symbols import close_guards, varying_convolutions
from framesmith.graph.unrolling import NotUnrolled, RewrittenGraph, UnrolledGraph, mark
from framesmith.loops.ir import Program, SizeOf
from framesmith.loops.live import live_bytes
from framesmith.loops.nest import LoopGraph, graph_text
from framesmith.loops.repeats import Repeats
from framesmith.loops.text import operators_by_place, program_text
from framesmith.lower.contractions.attention_decoding import sum_decoded_rows
from framesmith.lower.contractions.attention_tf32 import tile_attention_tf32
from framesmith.lower.contractions.cached_packs import CachedPacks, cached_packs, is_separate
from framesmith.lower.contractions.cancel_casts import cancel_casts
from framesmith.lower.contractions.channels_last import lay_out_conv_weights, split_bias_gradients
from framesmith.lower.contractions.flatten_rnn_weights import flatten_rnn_weights
from framesmith.lower.contractions.fold_batch_norm import fold_batch_norm
from framesmith.lower.contractions.fuse_conv_relu import fuse_conv_relu
from framesmith.lower.contractions.fuse_matmul_activation import fuse_matmul_activations
from framesmith.lower.contractions.geometry import begin_pack
from framesmith.lower.contractions.libraries import choose_library_calls
from framesmith.lower.contractions.masked_attention import tile_masked_attention
from framesmith.lower.contractions.match_attention import match_attention
from framesmith.lower.contractions.matmul_output_dtype import widen_matmul_results
from framesmith.lower.contractions.merge_embedding_bags import merge_embedding_bags
from framesmith.lower.contractions.merge_parallel_matmuls import merge_parallel_matmuls
from framesmith.lower.contractions.merge_summed_matmuls import merge_summed_matmuls
from framesmith.lower.contractions.pack_linear import choose_contractions, worth_freezing
from framesmith.lower.contractions.packed_tables import look_up_packed_rows
from framesmith.lower.contractions.pad_dimensions import pad_dimensions
from framesmith.lower.contractions.pad_strides import pad_strides
from framesmith.lower.contractions.quantized import pack_quantized_weights
from framesmith.lower.lower import lower
from framesmith.passes import IDENTITIES, REGISTERED, Context, Pass, run_passes, with_registered
from framesmith.prims.decompose import decompose
from framesmith.runtime.alive_graphs import Facts, announce
from framesmith.runtime.cache import Cache, key_of, package_identity
from framesmith.runtime.coalesced_memory import gather
from framesmith.runtime.load import load
from framesmith.runtime.plan import Plan
from framesmith.runtime.recorder import record
from framesmith.runtime.toolchain import Toolchain
from framesmith.schedule.repeat import NotPeriodic
from framesmith.symbolic.expr import Expr
from framesmith.targets import TARGETS, Target
from framesmith.util import events, log
from framesmith.util.errors import CompileError, Unsupported
from framesmith.util.priority import has_priority
from framesmith.util.serialize import serializable
from framesmith.util.stack import user_frame
from framesmith.util.timing import stage
from framesmith.util.world import world_size

Compiled = Callable[[tuple[Any, ...]], tuple[Any, ...]]


def _freezing(c: Context) -> bool:
    return c.config.freezing


def _sharing(c: Context) -> bool:
    """Return whether all that reads a weight reads it packed."""
    return c.config.freezing and c.target.unit.shared


def _unrounded(c: Context) -> bool:
    """Return whether sums may be computed in another precision or order than in eager's kernels."""
    return c.config.freezing and not c.config.rounding


def _tf32(c: Context) -> bool:
    return c.target.tf32 and _unrounded(c)


def _caching(c: Context) -> bool:
    return c.config.freezing and c.config.weight_caching


def _in_place(change: Callable[[fx.Graph], Any]) -> Callable[[fx.Graph, Context], None]:
    def run(graph: fx.Graph, context: Context) -> None:
        change(graph)

    return run


def _unmeasured(c: Context) -> bool:
    return not c.config.autotune


_CPU, _CUDA = ("cpu",), ("cuda",)

PASSES = (
    Pass("cse", "aten", _in_place(cse)),
    Pass("dce", "aten", _in_place(dce)),
    Pass("fold_batch_norm", "aten", _in_place(fold_batch_norm), when=_unrounded),
    Pass("pack_quantized_weights", "aten", _in_place(pack_quantized_weights), _CPU, _freezing),
    Pass("choose_contractions", "aten", lambda g, c: choose_contractions(g, c.target.chooser()), _CPU, _freezing),
    Pass("look_up_packed_rows", "aten", _in_place(look_up_packed_rows), _CPU, _sharing),
    Pass("merge_embedding_bags", "aten", _in_place(merge_embedding_bags), _CPU, _freezing),
    Pass("cancel_casts", "aten", _in_place(cancel_casts), _CUDA, _freezing),
    Pass("merge_summed_matmuls", "aten", _in_place(merge_summed_matmuls), _CUDA, _freezing),
    Pass("fuse_conv_relu", "aten", lambda g, c: fuse_conv_relu(g, c.target.fuses_conv_relu()), _CUDA, _unrounded),
    Pass("match_attention", "aten", lambda g, c: match_attention(g, c.target.tf32), _CUDA, _unrounded),
    Pass("choose_library_calls", "aten", _in_place(choose_library_calls), _CUDA, _freezing),
    Pass("sum_decoded_rows", "aten", _in_place(sum_decoded_rows), _CUDA, _unrounded),
    Pass("tile_attention_tf32", "aten", _in_place(tile_attention_tf32), _CUDA, _tf32),
    Pass("tile_masked_attention", "aten", lambda g, c: tile_masked_attention(g, _tf32(c)), _CUDA, _freezing),
    Pass("fuse_matmul_activations", "aten", _in_place(fuse_matmul_activations), _CUDA, _unrounded),
    Pass("widen_matmul_results", "aten", _in_place(widen_matmul_results), _CUDA, _unrounded),
    Pass("merge_parallel_matmuls", "aten", _in_place(merge_parallel_matmuls), _CUDA, _caching),
    Pass("flatten_rnn_weights", "aten", _in_place(flatten_rnn_weights), _CUDA, _caching),
    Pass("lay_out_conv_weights", "aten", _in_place(lay_out_conv_weights), _CUDA, _freezing),
    Pass("split_bias_gradients", "aten", _in_place(split_bias_gradients), _CUDA, _freezing),
    Pass("sink_waits", "aten", _in_place(sink_waits)),
    Pass("repeat", "parts", lambda g, c: find_repetition(g), when=_unmeasured),
    Pass("decompose", "prims", lambda g, c: decompose(g, device=c.target.device, rounding=c.config.rounding),
         makes=True),
    Pass("lower", "loops", lambda g, c: lower(g, c.constants, c.target.device), makes=True),
    Pass("pad_strides", "loops", lambda g, c: pad_strides(g), _CUDA),
    Pass("pad_dimensions", "loops", lambda g, c: pad_dimensions(g), _CUDA),
    Pass("choose_templates", "loops", lambda g, c: c.target.choose_templates(g, c.sizes(g)), _CUDA),
    Pass("schedule", "program", lambda g, c: c.target.schedule(g, c.sizes(g)), makes=True),
)
"""Every pass in order: its name, the form that it transforms (or, as the first of a form, makes), the devices and the
condition."""


@dataclass(frozen=True, slots=True)
class Report:
    """The facts that `explain` reports about one compiled graph."""

    operators: int
    kernels: int
    externs: tuple[str, ...]
    constants: int
    source: str
    work: tuple[tuple[tuple[str, str], ...], ...]
    """For each kernel: the user's lines that it computes, and their operators."""


def joined(reports: Sequence[Report]) -> Report:
    """Return the report of a graph that was compiled in pieces."""
    return Report(sum(r.operators for r in reports), sum(r.kernels for r in reports),
                  tuple([e for r in reports for e in r.externs]), sum(r.constants for r in reports),
                  "\n".join(r.source for r in reports), tuple([w for r in reports for w in r.work]))


@dataclass(frozen=True, slots=True)
class Result:
    """`call`: the compiled graph. `report` as above."""

    call: Compiled
    report: Report


def compile_graph(graph: fx.Graph, config: Config, inputs: Sequence[Any]) -> Result:
    """Compile `graph`, whose placeholders take `inputs` (real tensors; those with `meta["param"]` may be frozen).

    Raises `CompilerMissing` or `BuildError` when no machine code can be made; the caller then runs the graph in eager.
    """
    return begin_graph(graph, config, inputs).finish()


def begin_graph(graph: fx.Graph, config: Config, inputs: Sequence[Any],
                target: Target | None = None) -> PendingGraph:
    """Begin the compilation of `compile_graph`: do the part that only this process can do. `target`: by default that of
    the graph's device.

    Of a graph that `is_self_contained`, nothing but the number of `inputs` matters.
    """
    close_guards(graph)  # what the cache has is for all sizes that they admit
    now = events.current()
    census = Census(operators_of(graph), now.part if now else "",
                    sum(bytes_of(n) for n in graph.nodes if n.op == "placeholder"))
    device = main_device(graph)
    if target is None:
        cache = Cache(config.cache_dir, config.cache, config.cache_limit, config.packed_limit)
        toolchain = cache.toolchain(config.compiler, config.compiler_flags)
        target = TARGETS[device.type](config, toolchain, cache, device)
    cache, toolchain = target.cache, target.toolchain
    with stage("rewrite"):
        main = _rewritten(graph, config, target)
        frozen = _frozen(main) if config.freezing and config.weight_caching else None
        main = RewrittenGraph(frozen.main) if frozen is not None else main
    if config.dynamic is None and device.type == "cpu" and varying_convolutions(main.sample):
        raise CompileError("our kernels for this convolution need static sizes")
    with stage("freeze"):
        constants = FrozenValues(frozen, inputs, cache)
    with stage("cache"):
        places = (frozen.inputs, frozen.parameters, len(inputs)) if frozen is not None else len(inputs)
        how = config.code_key(), toolchain.fingerprint, torch.get_num_threads(), target.identity()
        text = _text(main)
        key = key_of("generated", package_identity(), text, places, *IDENTITIES, *how)
        generated = cache.load(key)
        parts = {"framesmith itself": package_identity(), "what is frozen": places, "passes of the program": IDENTITIES,
                 **dict(zip(("the options", "the C++ compiler", "the number of threads", "the device"), how))}
        cache.account("code", key, generated is not None, text, parts)
    draft = None
    if generated is None:
        target.prepare()
        generate = partial(_generate, main, frozen, constants, inputs, config, target)
        if world_size() > 1 and not target.aside and not has_priority():
            generated = _generated_once(cache, key, generate)
        else:
            draft = generate()
    return PendingGraph(config, toolchain, cache, target, main, frozen, constants, key, generated, draft, census)


def _generated_once(cache: Cache, key: str, generate: Callable[[], Callable[[], Generated]]) -> Generated:
    """Generate code in one process of a world: the others wait for it, with their processors idle, and load it. Nothing
    communicates meanwhile."""
    with contextlib.ExitStack() as stack:
        with stage("cache"):
            stack.enter_context(cache.alone(key))
            found: Generated | None = cache.load(key)
        if found is None:
            found = generate()()
            with stage("cache"):
                cache.store(key, found)
    return found


def is_self_contained(graph: fx.Graph, config: Config) -> bool:
    """Return whether the code of `graph` depends only on the graph: no dynamic size, no parameter, nothing measured."""
    values = [n.meta["val"] for n in graph.nodes if n.op == "placeholder" and not n.meta.get("param")]
    fixed = all(isinstance(x, torch.Tensor) and all(type(n) is int for n in (*x.shape, *x.stride())) for x in values)
    alone = fixed and not any(n.meta.get("param") for n in graph.nodes if n.op == "placeholder")
    return alone and not config.autotune


@dataclass(frozen=True, slots=True)
class Census:
    """A captured graph for reports: its operators, its part (forward or backward), bytes of inputs."""

    operators: tuple[events.Operator, ...]
    part: str
    given: int


@dataclass(slots=True)
class PendingGraph:
    """A graph whose code is in the cache, `generated`, or being generated, `draft`."""

    config: Config
    toolchain: Toolchain
    cache: Cache
    target: Target
    main: RewrittenGraph
    frozen: Frozen | None
    constants: FrozenValues
    key: str
    generated: Generated | None
    draft: Callable[[], Generated] | None
    census: Census

    @property
    def waits(self) -> bool:
        """Return whether it is not finished yet: another process works on it."""
        return self.draft is not None and self.target.aside

    def generate(self) -> Generated:
        """Return its code as text, and its plan."""
        if self.generated is None:
            assert self.draft is not None
            with stage("codegen"):
                self.generated = self.draft()
        return self.generated

    def finish(self, meanwhile: Callable[[Image], None] | None = None) -> Result:
        """Return its loaded code. Raises what `compile_graph` does.

        `meanwhile(image)` is called while the C++ compiler runs, if there is something to build.
        """
        generated, frozen, config = self.generate(), self.frozen, self.config
        if log.enabled("code"):
            log.emit("code", self.target.text(generated.units))
        line = _lines(self.main)
        places = [(operator, line(number)) for operator, number in generated.plan.places]
        report = _report(self.main, generated, line)
        number = events.next_graph()
        with events.part_of_graph(self.census.part):
            name = events.graph_name(number)
        compiled = events.GraphCompiled(
            number, self.census.part, name, str(self.target.device), self.census.operators, report.work, tuple(places),
            self.key, str(self.cache.folder), "", self._values(),
            sum(t.numel() * t.element_size() for t in self.constants.values), self.census.given)
        names = frozen.names() if frozen is not None else []
        facts = Facts(compiled, tuple(step_names(generated, report, places)),
                      tuple([names[k] for k in generated.order]))

        def keep(library: str) -> None:
            if self.draft is not None:
                self.cache.store(self.key, generated)
            if meanwhile is not None:
                meanwhile(Image(generated.plan.encode(), library, frozen, generated.order, facts))
            with stage("freeze"):
                self.constants.complete()

        library, call = self._loaded(generated, generated.plan.located(places), keep)
        self.draft = None
        if config.records and generated.plan.device >= 0:
            targets = [n.target for n in self.main.graph.nodes]
            record(call, generated.plan, targets, places, config.recordings, config.warn)
        announce(call, facts, str(library))
        return Result(call, report)

    def _loaded(self, generated: Generated, plan: Plan, keep: Callable[[str], None]) -> tuple[Path, CompiledGraph]:
        """Build the library if it does not exist, and load the graph in it. Another process may remove it in between.

        `keep(key of the library)` is called while it is built.
        """
        refresh = self.constants.refresh(generated.order) if self.frozen else None
        while True:
            with stage("build"):
                library = self.cache.library(generated.units, self.toolchain, keep)
            try:
                with stage("load"):
                    return library, load(plan, library, None if self.frozen else (), refresh)
            except RuntimeError:
                if library.exists():
                    raise

    def _values(self) -> tuple[int, ...]:
        """Return the values of the plan's size symbols in the call that is compiled for."""
        assert self.generated is not None
        given: Any = self.constants.given
        return tuple([int(given[s.input][s.dim] if s.dim >= 0 else given[s.input])
                      for s in self.generated.plan.symbols])


def step_names(generated: Generated, report: Report, places: Sequence[tuple[str, str]]) -> list[str]:
    """Return the names of the ranges that a profiler is shown in a call: kernel or operator, and the user's lines."""
    plan, kernels = generated.plan, generated.kernels
    named = {"kernel": [f"{k.name}: {work_text(work)}" for k, work in zip(kernels, report.work)],
             "call": [f"call {work_text([(place, operator)])}" for operator, place in places]}
    return [named[what][n] if n < len(named[what]) else f"{what} {n}" for what, n in plan.steps]


def work_text(work: Sequence[tuple[str, str]]) -> str:
    """Describe what a kernel computes, in one line."""
    return "; ".join([operators + (f" ({place})" if place else "") for place, operators in work])


@serializable
@dataclass(frozen=True, slots=True)
class Generated:
    """A graph's entry in the disk cache: C++ text, the plan, and which frozen value is which constant of the plan.

    `work`: of each kernel, the operators that it computes and the numbers of their nodes, since an equal graph of
    another program has other lines. `kernels`: how they are printed and what they cost. `memory`: see `live_bytes`.
    `symbols`: the size symbols, as in the plan.
    """

    units: tuple[str, ...]
    plan: Plan
    order: tuple[int, ...]
    work: tuple[tuple[tuple[str, int], ...], ...]
    kernels: tuple[KernelFacts, ...]
    memory: tuple[Expr, ...]
    symbols: tuple[Expr, ...]


class FrozenValues:
    """The frozen values of a graph: computed once here, and again by `refresh` after a parameter has changed.

    Packed weights that the cache does not have are only allocated at first: their elements, which no stage reads, are
    written by `complete`, while the C++ compiler runs.
    """

    def __init__(self, frozen: Frozen | None, inputs: Sequence[Any], cache: Cache) -> None:
        self.frozen = frozen
        self.given = tuple([tuple(x.shape) if isinstance(x, torch.Tensor) else x for x in inputs])
        self.values: tuple[torch.Tensor, ...] = ()
        self.unwritten: Callable[[Sequence[torch.Tensor]], bool] | None = None
        self._unfilled: list[Callable[[], None]] = []
        self._kept: CachedPacks | None = None
        if frozen is not None:
            self.unwritten = watch(self._given(inputs))
            with torch.no_grad(), without_default_device():
                self._kept = cached_packs(cache, frozen.constants, self._given(inputs))
            self.values = self._compute(inputs, self._allocated)
            if has_priority() or any(t.is_cuda for t in self.values):
                self.complete()

    def _given(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        assert self.frozen is not None
        return [inputs[i] for i in self.frozen.parameters]

    def complete(self) -> tuple[torch.Tensor, ...]:
        """Write the elements that are not written yet; return the values."""
        for fill in self._unfilled:
            fill()
        self._unfilled.clear()
        return self.values

    def _allocated(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """Return the value of a node, without elements if it is a packed weight that nothing but the output reads.
        Raises Unsupported if eager's operator refuses the data of constants, as it will in plain Python."""
        if not is_separate(node):
            try:
                return node.target(*args, **kwargs)  # type: ignore[operator]
            except (RuntimeError, IndexError) as error:
                if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "aten":
                    raise Unsupported(f"{node.target} of constants raises: {error}") from error
                raise
        value, fill = (begin_pack if self._kept is None else self._kept.begin)(*args, **kwargs)
        self._unfilled.append(fill)
        return value

    def _compute(self, inputs: Sequence[Any],
                 call: Callable[[fx.Node, Any, Any], Any] | None = None) -> tuple[torch.Tensor, ...]:
        assert self.frozen is not None
        given = self._given(inputs)
        with torch.no_grad(), without_default_device(), torch._C._DisableAutocast():  # casts are in the graph already
            found = list(run(self.frozen.constants, given, call=call))
            if any(t.is_cuda for t in found):
                gather(found, given)
        return tuple(found)

    def by_placeholder(self) -> dict[int, torch.Tensor]:
        """Placeholder index of the main graph -> tensor."""
        first = len(self.frozen.inputs) if self.frozen is not None else 0
        return {first + k: value for k, value in enumerate(self.values)}

    def refresh(self, order: tuple[int, ...]) -> Callable[[tuple[Any, ...]], Sequence[torch.Tensor]]:
        """Return a function from the call's inputs to the plan's constants; the values computed here serve its first
        call."""

        def compute(inputs: tuple[Any, ...]) -> Sequence[torch.Tensor]:
            ready, unwritten, kept = self.complete(), self.unwritten, self._kept
            self.values, self.unwritten, self._kept = (), None, None
            if unwritten is None or not unwritten(self._given(inputs)):
                ready = self._compute(inputs)
            elif kept is not None:
                kept.keep()
            return [ready[k] for k in order]

        return CompiledFunction(compute, None)  # within a call of the program's, of which nothing here is a part


def _rewritten(graph: fx.Graph, config: Config, target: Target) -> RewrittenGraph:
    """Return the rewritten graph, the same or another. On the CPU a few of many equal parts are rewritten, unless there
    are parameters to be frozen, for which the whole graph is split in any case."""
    if log.enabled("graph"):
        log.emit("graph", print_graph(graph, "captured"))
    context = Context(config, target)
    holds = any(n.meta.get("param") for n in graph.nodes if n.op == "placeholder")
    if not holds and target.device.type == "cpu" and (found := _parts(graph, context)) is not None:
        mark(found.short)
        run_passes(PASSES, "aten", found.short, context)
        try:
            return UnrolledGraph(graph, found)
        except NotUnrolled as reason:
            log.emit("graph", f"parts are rewritten one by one: {reason}")
    if isinstance(graph, RepeatedGraph):
        graph.parts = None
    run_passes(with_registered(PASSES), "aten", graph, context)
    return RewrittenGraph(graph)


def _frozen(main: RewrittenGraph) -> Frozen | None:
    """Split a graph into frozen and main parts; None: nothing to freeze."""
    frozen = freeze(main.sample, worth_freezing)
    return frozen if frozen is None or main.parts is None else freeze(main.graph, worth_freezing)


def _text(main: RewrittenGraph) -> str:
    """Return the text that determines the code of a graph."""
    parts, text = main.parts, digest_text(main.sample)
    return text if parts is None else f"{text}\n{[getattr(parts, f.name) for f in fields(parts) if f.name != 'short']}"


def _parts(graph: fx.Graph, context: Context) -> Repetition | None:
    """Return a graph as a few of its equal parts; None if it has none."""
    if REGISTERED:  # passes of the program may look at more than a part
        return None
    with stage("repeat"):
        found = run_passes(PASSES, "parts", graph, context)
    return None if found is graph else found


def _generate(
    main: RewrittenGraph, frozen: Frozen | None, constants: FrozenValues, inputs: Sequence[Any], config: Config,
    target: Target
) -> Callable[[], Generated]:
    """Generate C++ text and plan of the graph that runs in each call; the returned function gives them once kernels are
    compiled."""
    own = [inputs[i] for i in frozen.inputs] if frozen is not None else inputs
    given = constants.by_placeholder()
    context = Context(config, target, given, lambda loops: _sizes(loops, own))
    parts = main.parts or _parts(main.graph, context)
    loops, program = (parts and _scheduled_by_part(parts, context)) or _scheduled(main.graph, context)
    with stage("codegen"):
        watched = frozen.parameters if frozen is not None else ()
        positions = [*frozen.inputs, *given] if frozen is not None else range(len(inputs))
        draft = target.print(program, positions, len(inputs), watched, context.sizes(loops))
        index = {id(tensor): k for k, tensor in enumerate(constants.values)}

    def finish() -> Generated:
        wrapped, kernels = draft()
        work = tuple([tuple(dict.fromkeys((o.op, o.node) for o in kernel.origins)) for kernel in kernels])
        facts = tuple([replace(kernel, origins=()) for kernel in kernels])
        order = tuple([index[id(tensor)] for tensor in wrapped.constants])
        return Generated(wrapped.units, wrapped.plan, order, work, facts, live_bytes(program),
                         tuple(program.symbols))

    return finish


def _scheduled_by_part(found: Repetition, context: Context) -> tuple[LoopGraph, Program] | None:
    """Return the result of `_scheduled` from a few of the graph's many equal parts; None if some stage does not treat
    them alike."""
    given = {short: context.constants[place] for place, short in enumerate(found.inputs)
             if short is not None and place in context.constants}
    try:
        return _scheduled(found.short, replace(context, constants=given), Repeats(found, context.constants))
    except NotPeriodic as reason:
        log.emit("schedule", f"no parts are left out: {reason}")
        return None


def _scheduled(main: fx.Graph, context: Context, repeats: Repeats | None = None) -> tuple[LoopGraph, Program]:
    """Return the loop nests and the program of a graph; with `repeats` the nests of a short graph, and the program of
    the whole."""
    passes = with_registered(PASSES)
    with stage("decompose"):
        prims = run_passes(passes, "prims", main, context)
    if log.enabled("graph"):
        log.emit("graph", print_graph(prims, "prims"))
    with stage("lower"):
        loops = run_passes(passes, "loops", prims, context)
        if repeats is not None:
            places = {short: place for place, short in enumerate(repeats.of.inputs)}
            symbols = {s: replace(at, input=places[at.input]) for s, at in loops.symbols.items()}
            loops = replace(loops, symbols=symbols, repeats=repeats)
    if log.enabled("loops"):
        log.emit("loops", graph_text(loops))
    with stage("schedule"):
        program = run_passes(passes, "program", loops, context)
    if log.enabled("schedule"):
        log.emit("schedule", program_text(program))
    return loops, program


def _sizes(loops: LoopGraph, given: Sequence[Any]) -> Mapping[Any, int]:
    """Return the values of size symbols in the call with the inputs `given`."""
    return {symbol: given[of.input].shape[of.dim] if type(of) is SizeOf else given[of.input]
            for symbol, of in loops.symbols.items()}


def _lines(main: RewrittenGraph) -> Callable[[int], str]:
    """Return a function from the number of a node to the user's line in this program, or ""."""
    @cache
    def line(number: int) -> str:
        stack = main.stack(number) if number >= 0 else None
        return "{}:{} in {}".format(*user_frame(stack)) if stack else ""

    return line


def _report(main: RewrittenGraph, generated: Generated, line: Callable[[int], str]) -> Report:
    externs = tuple(e.name if isinstance(e.name, str) else getattr(e.name, "__name__", "python")
                    for e in generated.plan.externs)
    return Report(main.calls, len(generated.work), externs, generated.plan.constants, "\n".join(generated.units),
                  tuple([operators_by_place((line(number), operator) for operator, number in kernel)
                         for kernel in generated.work]))
