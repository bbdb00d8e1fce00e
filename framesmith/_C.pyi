from collections.abc import Callable, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any, Final

SKIP: Final = "skip"
"""A callback's answer: never compile this code under this callback; what it calls is still looked at."""
SKIP_RECURSIVE: Final = "skip_recursive"
"""The same, and the hook is off in everything that it calls."""
FULL: Final = "full"
"""A callback's answer: no more variants; frames that no entry takes run in eager."""

EAGER: Final = "eager"
"""A callback's answer: run this frame in eager this time, with the hook off in everything that it calls."""

FrameCallback = Callable[[CodeType, FunctionType, dict[str, Any]], Entry | str | None]
"""Called with the hook off for a frame that no entry takes: (code, function, arguments by name in co_varnames order).

It returns an Entry to run, None or EAGER to run this frame in eager this time, or SKIP, SKIP_RECURSIVE or FULL. What it
raises is raised at the call. Entries and verdicts belong to the callback object; both hold it weakly.
"""

def instance_dict(object: Any, /) -> dict[str, Any] | None:
    """The instance dict of an object, past any `__dict__` of its class; None if it has none or none yet."""

def not_shown(object: Any, /) -> bool:
    """False within the making of a container's own text, which shows the container as dots."""

def stored_hashes(container: Any, /) -> dict[int, int]:
    """{id of an element: its hash, as it was put in} of a dict's keys or of a set."""

class GuardTree:
    def __new__(
        cls,
        accessors: list[tuple[str, int, Any]],
        checks: list[tuple[str, int, Any, tuple[int, ...], int]],
        inputs: Sequence[int],
        locals: tuple[str, ...],
        cells: tuple[str, ...],
    ) -> GuardTree: ...
    def check(
        self,
        f_locals: dict[str, Any],
        f_globals: dict[str, Any] | None = None,
        f_builtins: dict[str, Any] | None = None,
        cells: dict[str, Any] | None = None,
    ) -> tuple[Any, ...] | None: ...
    def failure(
        self,
        f_locals: dict[str, Any],
        f_globals: dict[str, Any] | None = None,
        f_builtins: dict[str, Any] | None = None,
        cells: dict[str, Any] | None = None,
    ) -> tuple[int, int, Any] | None: ...
    @property
    def alive(self) -> bool: ...
    @property
    def steps(self) -> int: ...
    @property
    def locals(self) -> tuple[str, ...]: ...
    @property
    def cells(self) -> tuple[str, ...]: ...

class Entry:
    def __new__(
        cls, tree: GuardTree, code: CodeType, residual: CodeType, callback: FrameCallback, info: Any = None,
        graphless: bool = False
    ) -> Entry: ...
    @property
    def tree(self) -> GuardTree: ...
    @property
    def residual(self) -> CodeType | None: ...
    @property
    def info(self) -> Any: ...
    @property
    def callback(self) -> FrameCallback | None: ...
    @property
    def hits(self) -> int: ...

    def add(self) -> None:
        """Let frames of its code take it from now on, as the hook does once its guards have held for the first."""
    def drop(self) -> None:
        """Free what it compiled to; no call takes it any more."""

    @property
    def alive(self) -> bool: ...

class CompiledFunction:
    """Calls `function` with the frame callback set in the calling thread (None: with the hook off)."""

    function: Any
    callback: FrameCallback | None
    def __new__(cls, function: Callable[..., Any], callback: FrameCallback | None, *args: Any,
                **kwargs: Any) -> Any: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

def hits() -> int: ...
class TailCall:
    """What residual code returns to go on elsewhere; the caller of the root frame makes the call."""

def tail_call(function: Callable[..., Any], /, *args: Any) -> TailCall: ...
def run(call: TailCall, /) -> Any: ...
def aside(function: Callable[..., Any], /, *args: Any) -> Any: ...
def dead_frame(code: CodeType, globals: dict[str, Any], offset: int, /) -> FrameType: ...
def mark_continuation(code: CodeType) -> None: ...
def set_callback(callback: FrameCallback | None) -> FrameCallback | None: ...
def get_callback() -> FrameCallback | None: ...
def hook_installed() -> bool: ...

class Pace:
    """Whether a thread leaves others their time; `with pace:` is in it. Another thread may set it."""

    gives_way: bool
    def __enter__(self) -> Pace: ...
    def __exit__(self, *exc: object) -> None: ...

def give_way() -> None: ...
def openmp_team() -> int: ...
def end_team() -> None: ...
def skip_code(code: CodeType | FunctionType) -> None: ...
def is_skipped(code: CodeType | FunctionType) -> bool: ...
def entries(code: CodeType | FunctionType) -> list[Entry]: ...
def reset(code: CodeType | FunctionType) -> None: ...
def reopen(code: CodeType | FunctionType) -> None: ...

class CompiledGraph:
    """A plan and its library; called with one tuple of inputs it returns a tuple. See `runtime.plan` and
    `runtime.load`."""

    checked: bool
    def __new__(
        cls,
        plan: tuple[Any, ...],
        library: str,
        constants: Sequence[Any] | None = None,
        refresh: Callable[[tuple[Any, ...]], Sequence[Any]] | None = None,
    ) -> CompiledGraph: ...
    def __call__(self, inputs: tuple[Any, ...], /) -> tuple[Any, ...]: ...
    def check(self, inputs: tuple[Any, ...], /) -> None: ...
    @property
    def calls(self) -> int: ...
    def record(self, recorder: Any, limit: int, /) -> None: ...
    def name(self, graph: str, steps: Sequence[str], /) -> None:
        """Name the ranges that a profiler is shown: of a call, and of each launch and call of an operator in it."""
    @property
    def refreshes(self) -> int: ...
    @property
    def constants(self) -> list[tuple[int, int]]:
        """(Address, bytes) of each constant that it holds now."""
    @property
    def recordings(self) -> tuple[int, int]: ...

def watch(tensors: Sequence[Any], /) -> Callable[[Sequence[Any]], bool]:
    """Begin to watch the data of tensors; what is returned says whether a list is those tensors, and nothing wrote to
    them since."""

def detect_writes_by(how: str, /) -> str:
    """How tensors that are watched from now on are; returns what it was.

    "automatic", or for tests "copy", "tracking", "digest", "accesses".
    """

def trim_memory() -> int: ...
def take_has_written() -> bool: ...
def idle_memory() -> int: ...
def recorded_bytes(device: int, idle: bool, /) -> int: ...
def new_cuda_stream(device: int, /) -> int: ...

LANES: Final[int]
VECTOR_REGISTERS: Final[int]

def contract(a: int, b: int, out: int, geometry: tuple[int, ...], /) -> None: ...
def pack(*args: int) -> None:
    """pack(weight, out, depth, n, k_stride, n_stride, columns)"""

def is_packed(*args: int) -> bool:
    """Return whether `pack` of the same arguments would change no bit of `out`."""

def is_plain(tensor: Any, /) -> bool: ...
def is_transformed() -> bool: ...
def misplaced(values: Sequence[Any], strides: tuple[Any, ...], /) -> tuple[list[Any], list[tuple[int, int]]]: ...
def hooked(tensors: Sequence[Any], /) -> bool: ...

class DifferentiableGraph:
    """Calls `forward` with a tuple, and puts its results into the autograd engine as those of one node.

    `forward` gives `results` values and then extras; the first `outputs` of them are returned, the others written to
    the inputs `written`, in grad mode. `differentiable`: results that have a gradient. `wanted`: inputs that get one.
    `kept`: what the node keeps, (0 input, 1 result, 2 extra; place). `watched`: what nobody may write before the
    backward, though it is not kept. `needed`: inputs that `whole` is given; `exact`: those of them that nobody may
    write; `copied`: inputs that the graph writes, but that are needed as they were. `order`: places in `wanted`, as
    eager accumulates gradients; `later`: for each of `differentiable`, those that are computed of it. `sizes`: sizes of
    inputs that vary, (place, dimension). `segment`: for each of `wanted`, the part of the backward that gives its
    gradient; empty if there is one.

    The engine calls `program.backward(kept, tangents, asked, sizes)`, or `program.whole(inputs, kept, tangents, asked,
    sizes)` in grad mode; both give a tuple, a gradient or None for each of `wanted`, None where it is not `asked` for.
    Where that or a tangent is missing, or in grad mode, it calls `program.reads(tangents there, asked, grad mode,
    sizes)` before, which says what of `kept` to give.
    """

    def __new__(
        cls,
        program: Any,
        forward: Callable[[tuple[Any, ...]], tuple[Any, ...]],
        results: int,
        outputs: int,
        differentiable: Sequence[int],
        wanted: Sequence[int],
        written: Sequence[int],
        kept: Sequence[tuple[int, int]],
        watched: Sequence[tuple[int, int]],
        needed: Sequence[int],
        exact: Sequence[int],
        copied: Sequence[int],
        order: Sequence[int],
        later: Sequence[Sequence[int]],
        sizes: Sequence[tuple[int, int]],
        segment: Sequence[int],
        /,
    ) -> DifferentiableGraph: ...
    def __call__(self, inputs: tuple[Any, ...], /) -> tuple[Any, ...]: ...
