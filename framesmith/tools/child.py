"""A child process that answers questions, and may crash or hang.

It is forked, so that it has all registrations and changes of this process, unless a CUDA device is in use, whose
context does not survive a fork; then it is a fresh interpreter, which `setup` prepares.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import torch

Setup = str | Callable[[], Any] | None
"""The child's first action: "module" is imported, "module:function" called."""
_HANGS, _READY = "hang", 120.0


class Lost(Exception):
    """The child ended, or gave no answer in time. `how`: a signal's name, "exit status N" or "hang"; `said`: its last
    words."""

    def __init__(self, how: str, said: str = "") -> None:
        super().__init__(f"{how}: {said}" if said else how)
        self.how, self.said = how, said

    @property
    def hangs(self) -> bool:
        return self.how == _HANGS


class Raised(Exception):
    """The question raised in the child."""


class Child:
    """Another process that runs `work(question)`, and is restarted after it was lost."""

    def __init__(self, work: Callable[[Any], Any], setup: Setup = None, fork: bool | None = None) -> None:
        self.work, self.setup = work, setup
        self.forks = not torch.cuda.is_initialized() if fork is None else fork
        self._pipe: Connection | None = None

    def ask(self, question: Any, seconds: float) -> Any:
        """Return the answer. Raises `Lost`, and `Raised` where `work` does."""
        if self._pipe is None:
            self._start()
            self._receive(_READY)
        assert self._pipe is not None
        self._pipe.send_bytes(pickle.dumps(question))
        return self._receive(seconds)

    def _receive(self, seconds: float) -> Any:
        assert self._pipe is not None
        try:
            if not self._pipe.poll(seconds):
                self._end()
                raise Lost(_HANGS, f"no answer in {seconds:.0f} s")
            good, answer = pickle.loads(self._pipe.recv_bytes())
        except (EOFError, ConnectionError):
            status = self._wait()
            how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            raise Lost(how, self._last_words()) from None
        if not good:
            raise Raised(answer)
        return answer

    def _start(self) -> None:
        self._words = tempfile.TemporaryFile()  # noqa: SIM115
        ours, theirs = Pipe()
        self._pipe = ours
        sys.stdout.flush()
        sys.stderr.flush()
        if self.forks:
            self._pid = os.fork()
            if self._pid == 0:
                ours.close()
                _run_forked(theirs, self.work, self.setup, self._words.fileno())
        else:
            code = f"import sys; sys.path[:] = {sys.path!r}; from framesmith.tools.child import serve; " \
                   f"serve({theirs.fileno()})"
            process = subprocess.Popen([sys.executable, "-c", code], pass_fds=[theirs.fileno()],
                                       stdout=self._words, stderr=self._words, stdin=subprocess.DEVNULL)
            self._pid, process.returncode = process.pid, 0  # waited for here
            ours.send_bytes(pickle.dumps((self.work, self.setup)))
        theirs.close()

    def _last_words(self) -> str:
        self._words.seek(0)
        lines = self._words.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else ""

    def _wait(self) -> int:
        assert self._pipe is not None
        self._pipe.close()
        self._pipe = None
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._wait()

    def close(self) -> None:
        """End the process, if there is one."""
        if self._pipe is not None:
            self._end()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _run_forked(pipe: Connection, work: Callable[[Any], Any], setup: Setup, words: int) -> None:
    """Be the forked process; never returns. Its work is a thread's of its own, which has no part in OpenMP's threads of
    the parent, that are not there."""
    try:
        faulthandler.disable()  # it may hold another descriptor of the parent's
        os.dup2(words, 1)
        os.dup2(words, 2)
        thread = threading.Thread(target=_answer, args=(pipe, work, setup))
        thread.start()
        thread.join()
    finally:
        os._exit(0)


def serve(descriptor: int) -> None:
    """Be the fresh interpreter: answer until the other end is closed."""
    pipe = Connection(descriptor)
    _answer(pipe, *pickle.loads(pipe.recv_bytes()))


def _answer(pipe: Connection, work: Callable[[Any], Any], setup: Setup) -> None:
    try:
        prepare(setup)
        pipe.send_bytes(pickle.dumps((True, None)))
        while True:
            pipe.send_bytes(_reply(work, pickle.loads(pipe.recv_bytes())))
    except (EOFError, ConnectionError):
        return


def _reply(work: Callable[[Any], Any], question: Any) -> bytes:
    try:
        return pickle.dumps((True, work(question)))
    except Exception as error:
        return pickle.dumps((False, f"{type(error).__name__}: {error}"))


def prepare(setup: Setup) -> None:
    """Run the setup of a process."""
    if callable(setup):
        setup()
    elif setup:
        module, _, name = setup.partition(":")
        loaded = importlib.import_module(module)
        if name:
            getattr(loaded, name)()
