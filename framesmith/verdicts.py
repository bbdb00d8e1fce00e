"""Verdicts on frames that run in eager: each is noted and told to the user once, with its place and a remedy."""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType
from typing import Any

from torch import nn

from framesmith import _C
from framesmith.capture.entry import Break
from framesmith.capture.origins import origin
from framesmith.code_state import CodeState
from framesmith.config import Config
from framesmith.frames import is_own, named
from framesmith.ledger import REPORT, Ledger, Refusal, internal_fault
from framesmith.util import events, log
from framesmith.util.advice import advice, prevention
from framesmith.util.errors import MemorySeen, OddTensor, Unsupported

IDLE = 12
"""Breaks without a tensor operation before them after which a function runs in plain Python."""


class Verdicts:
    """The verdicts of one frame callback. Those that a method returns are the callback's answer to the hook.

    `told`: the user was told of something that is not compiled.
    """

    def __init__(self, config: Config, ledger: Ledger | None) -> None:
        self._config = config
        self._ledger = ledger
        self.told = False

    def warn(self, key: str, text: str) -> None:
        """Warn once for each key, if the program wants warnings."""
        self.told = True
        if self._config.warn:
            log.warn_once(key, f"framesmith: {text}")

    def _note(self, code: CodeType, place: tuple[str, int], reason: str, hint: str | None, remedy: str,
              internal: bool = False) -> None:
        if self._ledger is not None:
            self._ledger.refusals.append(Refusal(code.co_qualname, *place, reason, hint, internal))
        events.emit(events.Fallback(code.co_qualname, *place, reason, remedy, internal))

    def around(self, code: CodeType) -> Any:
        """Run a call in eager that a transform or a mode of PyTorch's surrounds."""
        around = ("a torch.func transform or forward-mode AD" if _C.is_transformed()
                  else "a torch function or dispatch mode")
        self.warn(f"around:{code.co_filename}:{code.co_firstlineno}",
                  f"{named(code)} runs in eager when it is called under {around}")
        return _C.EAGER

    def refused(self, code: CodeType, refusal: Unsupported) -> Any:
        """Run a frame in eager that cannot be captured."""
        place = refusal.at or (code.co_filename, code.co_firstlineno)
        self._note(code, place, refusal.reason, refusal.hint, refusal.hint or advice(refusal.reason))
        odd, where = isinstance(refusal, OddTensor), f"{place[0]}:{place[1]}"
        self.warn(("" if odd else f"{where}:") + refusal.reason,
                  f"{code.co_qualname} runs in eager: {refusal.reason}{'' if is_own(place[0]) else f' ({where})'}")
        if odd:
            return None
        return _C.SKIP_RECURSIVE if isinstance(refusal, MemorySeen) else _C.SKIP

    def unbuilt(self, code: CodeType, problem: Exception) -> Any:
        """Run a frame in eager, and all that it calls, because no machine code can be built."""
        events.emit(events.Fallback(code.co_qualname, code.co_filename, code.co_firstlineno, str(problem),
                                    "python -m framesmith doctor says what is missing"))
        self.warn(f"build:{type(problem).__name__}", f"running in eager: {problem}")
        return _C.SKIP_RECURSIVE

    def fault(self, code: CodeType, problem: Exception) -> Any:
        """Run a frame in eager because of a fault of framesmith's own."""
        key, reason = internal_fault(problem)
        self.warn(key, f"{code.co_qualname if is_own(code.co_filename) else named(code)} runs in eager, as it would "
                       f"without framesmith, because of {reason}. {REPORT}")
        self._note(code, (code.co_filename, code.co_firstlineno), reason, REPORT, REPORT, internal=True)
        return _C.SKIP

    def silent(self, function: Any) -> None:
        """Warn that the first calls of a function have compiled nothing, unless there was a warning."""
        name = getattr(function, "__qualname__", repr(function))
        if not self.told:
            self.warn(f"silent:{name}",
                      f"calls of {name} have compiled nothing so far: they run no Python function that can be "
                      "captured. Compile the functions and modules that compute with tensors")

    def often(self, seen: CodeState, code: CodeType, limit: int) -> None:
        """Warn of a function that is compiled again and again, each time for another module."""
        reasons = seen.reasons() or "the modules that it is called with, or weights and objects that they hold"
        self.warn(f"often:{seen.number}",
                  f"{named(code)} was compiled {seen.captures} times: each module has a budget of {limit} variants. "
                  f"What kept changing: {reasons}. Pass what varies as a tensor, keep modules instead of making new "
                  "ones, or set options={'max_variants': n} to a lower limit")

    def full(self, seen: CodeState, code: CodeType, instance: nn.Module | None, limit: int) -> Any:
        """Run the calls in eager that none of a code object's variants takes, since there are as many as may be."""
        reasons = seen.reasons()
        events.emit(events.Fallback(
            code.co_qualname, code.co_filename, code.co_firstlineno,
            f"it has {limit} variants, and calls that none takes run in eager; what kept changing: {reasons}",
            "options={'max_variants': n} allows more; " + "; ".join(dict.fromkeys(
                [prevention(m.guard[1], m.guard[0], m.old) for m in seen.misses.values()]))))
        self.warn(f"full:{seen.number}",
                  f"{named(code)} has {limit} variants; calls that none takes run in eager. What kept changing: "
                  f"{reasons}. options={{'max_variants': n}} allows more{self._on_sizes(seen)}")
        # Sizes that change from call to call change beneath this frame, too: what it calls would fill up in its turn.
        resized = seen.misses_are_of_sizes()
        if instance is not None:
            # A method that calls `forward` in a loop may grow what `forward` does not read: that is left its own
            # variants.
            inner = getattr(type(instance).forward, "__code__", None) is origin(code, 0)[0]
            seen.full[instance] = _C.EAGER if resized and inner else None
            return seen.full[instance]
        seen.resized = resized
        return _C.EAGER if resized else _C.FULL

    def _on_sizes(self, seen: CodeState) -> str:
        """Return advice on sizes of which each has a variant."""
        where = seen.varying_dimensions()
        if not where:
            return ""
        if self._config.dynamic is False:
            return f". With dynamic=False each size of {where} is a variant"
        return f". What varies: {where}. framesmith.mark_dynamic makes an error of the line that assumes one size"

    def idle(self, seen: CodeState, whole: CodeType, user: CodeState, computes: bool, breaks: Sequence[Break]) -> bool:
        """Return whether a code object is not worth its guards: neither it nor its continuations, as far as seen,
        compute anything. `whole`: the user's code that it is of, in the state `user`; `computes`: the present capture
        does."""
        if computes:
            user.idle = 0
            return False
        seen.graphless += 1
        user.idle += bool(breaks)
        if self._config.keep_graphless or not breaks:
            return seen.graphless > 1 and not self._config.keep_graphless
        if user.idle > IDLE:
            last = breaks[-1]
            what = f"{user.idle} breaks in a row had no tensor operation before them"
            cause, remedy = f"{last.reason} ({last.file}:{last.line})", last.hint or advice(last.reason)
            events.emit(events.Fallback(whole.co_qualname, whole.co_filename, whole.co_firstlineno,
                                        f"{what}; the last: {cause}", remedy))
            self.warn(f"idle:{user.number}", f"{named(whole)} runs in eager: {what}. The last: {cause}; {remedy}")
        return user.idle > IDLE
