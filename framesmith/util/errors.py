"""Every exception that framesmith raises on purpose. Refusals are typed, so that the edge can fall back to eager."""

from __future__ import annotations

import linecache
from collections.abc import Collection
from typing import Any

from framesmith.util.advice import advice


def drop_traces(error: BaseException | None, handled: BaseException | None) -> None:
    """Drop the frames of an error and of its causes: they keep capture's objects alive, including the user's model.

    `handled`: what the user's program was handling when capture began; it came before, and is the user's.
    """
    while error is not None and error is not handled and error.__traceback__ is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


class FramesmithError(Exception):
    """Base of all of framesmith's own errors."""


def _placed(what: str, at: tuple[str, int] | None) -> str:
    """Return the text with the user's place and line behind it."""
    source = linecache.getline(*at).strip() if at else ""
    return what + (f" at {at[0]}:{at[1]}" if at else "") + (f"\n    {source}" if source else "")


class Unsupported(FramesmithError):
    """The frame, the instruction or the operation cannot be captured.

    `reason` is one line in the user's terms, `hint` says what to change, `at` is the user's `(file, line)` if known.
    """

    def __init__(self, reason: str, *, hint: str | None = None, at: tuple[str, int] | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.at = at

    def __str__(self) -> str:
        if self.at is None:
            return f"{self.reason} ({self.hint})" if self.hint else self.reason
        return f"{_placed(self.reason, self.at)}\n  {self.hint or advice(self.reason)}"


class DataDependent(Unsupported):
    """A Python value is needed that only the tensor's data can give (`.item()`, `bool(tensor)`, `nonzero`). `symbols`:
    sizes of inputs, among those that decide it, of which the program wants that nothing is assumed."""

    def __init__(self, reason: str, *, symbols: Collection[Any] = (), **place: Any) -> None:
        super().__init__(reason, **place)
        self.symbols = symbols


class FrameSeen(Unsupported):
    """The instruction inspects its own frame, and `callers` above it: these must run as plain Python."""

    def __init__(self, what: str, callers: int = 0) -> None:
        super().__init__(f"{what} looks at the frame",
                         hint="call it in a function that is not compiled (framesmith.disable)")
        self.callers = callers


class MemorySeen(FrameSeen):
    """The instruction inspects the interpreter's memory: nothing that runs below the frame may leave more there than
    plain Python does."""


class NeedsGrad(Unsupported):
    """A leaf that requires grad is written in grad mode, which autograd refuses. `source` is its path from the frame (a
    capture source)."""

    def __init__(self, source: object) -> None:
        super().__init__(f"{source}, a leaf that requires grad, is written in place",
                         hint="write it under torch.no_grad()")
        self.source = source


class TooLong(Unsupported):
    """Capture has reached its limit of instructions in the frame: a loop that Python should run."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"more than {limit} instructions",
                         hint="raise max_instructions, or move the long loop out of the compiled code")


class ContradictedMark(FramesmithError):
    """The program assumes one size of a dimension that it marks to vary, or calls with a size outside of the range that
    it gives. `at` is the user's `(file, line)` that does."""

    def __init__(self, what: str, *, hint: str, at: tuple[str, int] | None = None) -> None:
        super().__init__(f"{_placed(what, at)}\n  {hint}")
        self.at = at


class DivergedRanks(FramesmithError):
    """Processes of a world have not compiled the same, as the option `agreement` asks."""


class ShapeError(FramesmithError):
    """An operator refuses the shapes that a call brings it. `at` is the user's `(file, line)`."""

    def __init__(self, what: str, *, at: tuple[str, int] | None) -> None:
        super().__init__(_placed(what, at))
        self.at = at


class SharedMemory(Unsupported):
    """Inputs of this call share memory, and one is written. Other calls may have inputs that do not."""


class UnfitSizes(FramesmithError):
    """Sizes in this call violate a requirement of an operator: plain Python raises, or has another way."""


class OddTensor(Unsupported):
    """A tensor of a kind that is left to eager: sparse, nested, on another device, of a subclass. Later calls may bring
    others."""


class FirstCall(Unsupported):
    """The program sets itself up in this call, as lazy modules and caches do: plain Python runs it, and later calls are
    captured."""


class CompileError(FramesmithError):
    """A stage after capture failed on a valid graph."""


class CompilerMissing(CompileError):
    """This machine has no usable C++ compiler; the message names what to install."""


class TritonMissing(CompilerMissing):
    """Triton, which compiles kernels for CUDA devices, is not installed."""


class BuildError(CompileError):
    """The C++ compiler refused generated code. `command` and `output` are the compiler's."""

    def __init__(self, message: str, *, command: str = "", output: str = "") -> None:
        super().__init__(message)
        self.command = command
        self.output = output


class VerifyError(FramesmithError):
    """An IR breaks one of its own invariants: a fault of ours, never of the user."""


class CacheError(FramesmithError):
    """The disk cache cannot be used; callers go on without it."""


class BundleError(CacheError):
    """A bundle of the cache is damaged, or not authenticated."""


class NotSerializable(FramesmithError):
    """A value has no form that the disk cache keeps."""


class BackendError(FramesmithError):
    """A user's back end is unknown or failed."""


class GuardError(FramesmithError):
    """A guard does not hold for the values that it was made from."""


class PackageError(FramesmithError):
    """A model cannot be packaged as asked, or a package cannot be used."""


class RequestRefused(FramesmithError):
    """A request that is not served; `status` is HTTP's for it, the text says what is wrong."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[1])


class ExportError(FramesmithError):
    """A program cannot be exported as asked, or an exported one cannot be used so; the message proposes what to
    change."""
