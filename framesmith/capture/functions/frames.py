"""Functions that inspect their caller's frame, or count references to an object: their results change if the frame is
rewritten."""

from __future__ import annotations

import gc
import sys
import types
from typing import Any

from framesmith.util.errors import FrameSeen, MemorySeen, Unsupported

from .. import trackers as t
from ..registry import calls, refuses
from ..trackers import Args, Kwargs


@calls(exec, eval)
def _exec(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """`exec` with an explicit namespace is a function of unknown effect; without one, it sees the frame's locals."""
    if len(args) + len(kwargs) < 2 or isinstance(args[1], t.Const):
        raise FrameSeen("exec or eval without a namespace")
    raise Unsupported("exec or eval")


@calls(sys._getframe)
def _getframe(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    levels = args[0].value if args and isinstance(args[0], t.Const) and type(args[0].value) is int else 0
    raise FrameSeen("sys._getframe", max(levels, 0))


@calls(sys.getsizeof)
def _size(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """`getsizeof` depends on state that capture changes, such as whether dead instances of a class shared their
    keys."""
    if any(n.op == "call_function" for n in tracer.recorder.graph.nodes):
        raise Unsupported("a size in memory")
    raise MemorySeen("a size in memory")


refuses(FrameSeen, "locals()", locals)
refuses(FrameSeen, "a debugger", breakpoint, sys.settrace, sys.setprofile, sys._current_frames, sys.call_tracing)
refuses(MemorySeen, "a count of references", sys.getrefcount, gc.get_referrers, gc.get_objects)
refuses(Unsupported, "a frame is cleared", types.FrameType.clear)
