"""A line on the terminal for each compile that takes longer than a second: its stage, and the time so far."""

from __future__ import annotations

import os
import threading
from typing import Any

from framesmith.util import events

DELAY = 1.0
"""Seconds before a compile is shown."""


class Display:
    """The compiles that run, on a console of rich. It shows nothing where that is no terminal."""

    def __init__(self, console: Any = None) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._waiting: dict[int, threading.Timer] = {}
        self._shown: dict[int, Any] = {}
        self._lines: Any = None

    def __call__(self, event: events.Event) -> None:
        """Follow the events of compiles, in their threads."""
        if isinstance(event, events.CompileBegan):
            timer = threading.Timer(DELAY, self._show, [events.current()])
            timer.daemon = True
            with self._lock:
                self._waiting[event.compile] = timer
            timer.start()
        elif isinstance(event, events.CompileEnded):
            self._hide(event.compile)

    def _show(self, compile: events.Compile) -> None:
        with self._lock:
            if self._waiting.pop(compile.number, None) is None:
                return  # it has ended
            if self._lines is None:
                self._lines = self._started()
            self._shown[compile.number] = self._lines.add_task("", total=None, compile=compile)

    def _hide(self, number: int) -> None:
        with self._lock:
            if (timer := self._waiting.pop(number, None)) is not None:
                timer.cancel()
            if (line := self._shown.pop(number, None)) is not None:
                self._lines.remove_task(line)
                if not self._shown:
                    self._lines.stop()
                    self._lines = None

    def _started(self) -> Any:
        from rich.console import Console
        from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TimeElapsedColumn
        from rich.text import Text

        class Stage(ProgressColumn):
            def render(self, task: Task) -> Text:
                return Text(_line(task.fields["compile"]), no_wrap=True, overflow="ellipsis")

        lines = Progress(SpinnerColumn(), Stage(), TimeElapsedColumn(), transient=True, refresh_per_second=4,
                         console=self._console or Console(stderr=True), redirect_stdout=False, redirect_stderr=False)
        lines.start()
        return lines


def _line(compile: events.Compile) -> str:
    """Return the line that names the function being compiled and its innermost stage."""
    part = f"{compile.part} of " if compile.part else ""
    stage = compile.running[-1] if compile.running else "capture"
    return f"framesmith: {part}{compile.function} ({os.path.basename(compile.file)}:{compile.line}): {stage}"


_attached: list[Display] = []


def show_progress() -> None:
    """Show the compiles of this process from now on."""
    if not _attached:
        _attached.append(Display())
        events.on_event(_attached[0])
