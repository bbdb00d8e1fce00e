"""The stages in order: a recorded graph of functional ATen operators in, a callable over one tuple of tensors out.

    rewrite     fold batch-norm, choose a kernel for each contraction        lower.contractions
    freeze      what depends on parameters alone becomes constants           graph.freeze
    decompose   ATen to prims                                                prims.decompose
    lower       prims to loop nests                                          lower.lower
    schedule    fuse, order, plan memory                                     schedule
    codegen     C++ kernels and the function that calls them                 codegen
    build       compile, cache, load                                         runtime
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith._C import watch
from framesmith.capture.modes import without_default_device
from framesmith.config import Config
from framesmith.graph.cse import cse
from framesmith.graph.dce import dce
from framesmith.graph.devices import main_device
from framesmith.graph.digest import digest_text
from framesmith.graph.freeze import Frozen, freeze
from framesmith.graph.interpreter import run
from framesmith.graph.printer import print_graph
from framesmith.loops.ir import SizeOf, ValueOf
from framesmith.loops.nest import graph_text
from framesmith.loops.text import program_text
from framesmith.lower.contractions.fold_batch_norm import fold_batch_norm
from framesmith.lower.contractions.pack_linear import worth_freezing
from framesmith.lower.lower import lower
from framesmith.prims.decompose import decompose
from framesmith.runtime.cache import Cache, key_of, package_identity
from framesmith.runtime.coalesced_memory import gather
from framesmith.runtime.load import load
from framesmith.runtime.plan import Call, Plan
from framesmith.runtime.recorder import record
from framesmith.runtime.toolchain import Toolchain
from framesmith.targets import TARGETS, Target
from framesmith.util import log
from framesmith.util.timing import stage

Compiled = Callable[[tuple[Any, ...]], tuple[Any, ...]]


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


def begin_graph(graph: fx.Graph, config: Config, inputs: Sequence[Any]) -> PendingGraph:
    """Begin what `compile_graph` does: do the part that only this process can do.

    Of a graph that `is_self_contained`, nothing but the number of `inputs` matters.
    """
    cache = Cache(config.cache_dir, config.cache)
    toolchain = cache.toolchain(config.compiler, config.compiler_flags)
    device = main_device(graph)
    target = TARGETS[device.type](config, toolchain, cache, device)
    with stage("rewrite"):
        frozen = _rewrite(graph, config, target)
    main = frozen.main if frozen is not None else graph
    with stage("freeze"):
        constants = _Constants(frozen, inputs)
    with stage("cache"):
        places = (frozen.inputs, frozen.parameters, len(inputs)) if frozen is not None else len(inputs)
        how = config.code_key(), toolchain.fingerprint, torch.get_num_threads(), target.identity()
        key = key_of("generated", package_identity(), digest_text(main), places, *how)
        generated = cache.load(key)
    draft = None
    if generated is None:
        target.prepare()
        draft = _generate(main, frozen, constants, inputs, config, target)
    return PendingGraph(config, toolchain, cache, target, main, frozen, constants, key, generated, draft)


def is_self_contained(graph: fx.Graph, config: Config) -> bool:
    """Return whether the code of `graph` depends on nothing but the graph: no size that varies, no parameter, nothing
    that is measured; and whether another process makes most of it, so that it is worth beginning ahead."""
    values = [n.meta["val"] for n in graph.nodes if n.op == "placeholder" and not n.meta.get("param")]
    fixed = all(isinstance(x, torch.Tensor) and all(type(n) is int for n in (*x.shape, *x.stride())) for x in values)
    alone = fixed and not any(n.meta.get("param") for n in graph.nodes if n.op == "placeholder")
    return alone and not config.autotune and TARGETS[main_device(graph).type].aside


@dataclass(slots=True)
class PendingGraph:
    """A graph whose code is known to the cache, `generated`, or on its way: `draft`."""

    config: Config
    toolchain: Toolchain
    cache: Cache
    target: Target
    main: fx.Graph
    frozen: Frozen | None
    constants: _Constants
    key: str
    generated: Generated | None
    draft: Callable[[], Generated] | None

    @property
    def waits(self) -> bool:
        """Return whether there is time until it is finished: another process works on it."""
        return self.draft is not None and self.target.aside

    def finish(self) -> Result:
        """Its code, loaded. Raises what `compile_graph` does."""
        generated, frozen, config = self.generated, self.frozen, self.config
        if generated is None:
            assert self.draft is not None
            with stage("codegen"):
                generated = self.draft()
            self.cache.store(self.key, generated)
            self.generated, self.draft = generated, None
        if log.enabled("code"):
            log.emit("code", self.target.text(generated.units))
        with stage("build"):
            library = self.cache.library(generated.units, self.toolchain)
        with stage("load"):
            call = load(generated.plan, library, None if frozen else (),
                        self.constants.refresh(generated.order) if frozen else None)
        if config.records and generated.plan.device >= 0:
            record(call, generated.plan, [n.target for n in self.main.nodes], config.recordings, config.warn)
        return Result(call, _report(self.main, generated))


@dataclass(frozen=True, slots=True)
class Generated:
    """A graph's entry in the disk cache: C++ text, the plan, and which frozen value is which constant of the plan."""

    units: tuple[str, ...]
    plan: Plan
    order: tuple[int, ...]
    work: tuple[tuple[tuple[str, str], ...], ...]


class _Constants:
    """The frozen values of a graph: computed once here, and again by `refresh` when a parameter changed."""

    def __init__(self, frozen: Frozen | None, inputs: Sequence[Any]) -> None:
        self.frozen = frozen
        self.values: tuple[torch.Tensor, ...] = ()
        self.unwritten: Callable[[Sequence[torch.Tensor]], bool] | None = None
        if frozen is not None:
            self.unwritten = watch(self._given(inputs))
            self.values = self._compute(inputs)

    def _given(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        assert self.frozen is not None
        return [inputs[i] for i in self.frozen.parameters]

    def _compute(self, inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        assert self.frozen is not None
        given = self._given(inputs)
        with torch.no_grad(), without_default_device(), torch._C._DisableAutocast():  # casts are in the graph already
            found = list(run(self.frozen.constants, given))
            if any(t.is_cuda for t in found):
                gather(found, given)
        return tuple(found)

    def by_placeholder(self) -> dict[int, torch.Tensor]:
        """Placeholder index of the main graph -> tensor."""
        first = len(self.frozen.inputs) if self.frozen is not None else 0
        return {first + k: value for k, value in enumerate(self.values)}

    def refresh(self, order: tuple[int, ...]) -> Callable[[tuple[Any, ...]], Sequence[torch.Tensor]]:
        """A function from the call's inputs to the plan's constants; the values computed here serve its first call."""

        def compute(inputs: tuple[Any, ...]) -> Sequence[torch.Tensor]:
            ready, unwritten = self.values, self.unwritten
            self.values, self.unwritten = (), None
            if unwritten is None or not unwritten(self._given(inputs)):
                ready = self._compute(inputs)
            return [ready[k] for k in order]

        return compute


def _rewrite(graph: fx.Graph, config: Config, target: Target) -> Frozen | None:
    """Graph rewrites in place, and the split into frozen and main parts (None: nothing to freeze)."""
    cse(graph)
    dce(graph)
    if log.enabled("graph"):
        log.emit("graph", print_graph(graph, "captured"))
    if not config.freezing:
        return None
    if not config.rounding:
        fold_batch_norm(graph)
    target.rewrite(graph)
    return freeze(graph, worth_freezing) if config.weight_caching else None


def _generate(
    main: fx.Graph, frozen: Frozen | None, constants: _Constants, inputs: Sequence[Any], config: Config, target: Target
) -> Callable[[], Generated]:
    """From the graph that runs in each call to C++ text and plan; what is called gives them when kernels are
    compiled."""
    with stage("decompose"):
        prims = decompose(main, device=target.device, rounding=config.rounding)
    if log.enabled("graph"):
        log.emit("graph", print_graph(prims, "prims"))
    given = constants.by_placeholder()
    with stage("lower"):
        loops = lower(prims, given, target.device)
    if log.enabled("loops"):
        log.emit("loops", graph_text(loops))
    with stage("schedule"):
        own = [inputs[i] for i in frozen.inputs] if frozen is not None else inputs
        sizes = {symbol: _size(own[of.input], of) for symbol, of in loops.symbols.items()}
        program = target.schedule(loops, sizes)
    if log.enabled("schedule"):
        log.emit("schedule", program_text(program))
    with stage("codegen"):
        watched = frozen.parameters if frozen is not None else ()
        positions = [*frozen.inputs, *given] if frozen is not None else range(len(inputs))
        draft = target.print(program, positions, len(inputs), watched, sizes)
        index = {id(tensor): k for k, tensor in enumerate(constants.values)}

    def finish() -> Generated:
        wrapped, work = draft()
        return Generated(wrapped.units, wrapped.plan, tuple([index[id(tensor)] for tensor in wrapped.constants]), work)

    return finish


def _size(given: Any, of: SizeOf | ValueOf) -> int:
    """The value of a size symbol in this call."""
    return given.shape[of.dim] if type(of) is SizeOf else given


def _report(main: fx.Graph, generated: Generated) -> Report:
    operators = sum(1 for n in main.nodes if n.op == "call_function")
    externs = tuple(e.name if isinstance(e, Call) else getattr(e.function, "__name__", "python")
                    for e in generated.plan.externs)
    return Report(operators, len(generated.work), externs, generated.plan.constants, "\n".join(generated.units),
                  generated.work)
