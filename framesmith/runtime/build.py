"""The build of generated source into a shared library."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from framesmith.runtime.toolchain import Toolchain
from framesmith.util import log
from framesmith.util.errors import BuildError, CompilerMissing
from framesmith.util.priority import start


def build(units: Sequence[str], toolchain: Toolchain, library: Path,
          finish: Callable[[Path], None] | None = None, meanwhile: Callable[[], None] | None = None) -> None:
    """Compile translation units `units` in parallel and link them into `library`, written by one atomic rename after
    `finish(file)`. `meanwhile()` is called while the compiler runs.

    Raises `BuildError` with the compiler's words, and OSError when the folder cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="build-", dir=library.parent) as folder:
        finished = Path(folder) / "library.so"
        objects = _compile_all(units, toolchain, Path(folder), meanwhile)
        needed = [_stand_in(name, toolchain, Path(folder)) for prefix, name in toolchain.libraries
                  if any(prefix.encode() in o.read_bytes() for o in objects)]
        _wait(_start([toolchain.compiler, *map(str, objects), "-o", str(finished), *toolchain.link_flags, *needed]))
        if finish is not None:
            finish(finished)
        os.replace(finished, library)


def _stand_in(name: str, toolchain: Toolchain, folder: Path) -> str:
    """Make a library without symbols that a link takes for the one of that name: the result needs it, and its symbols
    are looked up when that is loaded. The linker would read the whole table of PyTorch's, for 0.2 s."""
    _wait(_start([toolchain.compiler, "-shared", "-nostdlib", f"-Wl,-soname,{name}", "-x", "assembler", "/dev/null",
                  "-o", str(folder / name)]))
    return str(folder / name)


def _compile_all(units: Sequence[str], toolchain: Toolchain, folder: Path,
                 meanwhile: Callable[[], None] | None) -> list[Path]:
    sources = [_write(folder / f"unit{i}.cpp", text) for i, text in enumerate(units)]
    running = [_start([toolchain.compiler, *toolchain.compile_flags, "-c", str(s), "-o", str(s.with_suffix(".o"))])
               for s in sources]
    try:
        if meanwhile is not None:
            meanwhile()
        for process in running:
            _wait(process)
    finally:
        for process in running:
            _end(process)
    return [s.with_suffix(".o") for s in sources]


def _write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def _start(command: list[str]) -> subprocess.Popen[str]:
    log.emit("code", " ".join(command))
    try:
        return start(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except OSError as error:
        missing = CompilerMissing(f"no C++ compiler to build what is not in the cache: cannot run "
                                  f"{command[0] or 'g++'}")
        raise (missing if not command[0] or isinstance(error, FileNotFoundError) else
               BuildError(f"cannot run {command[0]}: {error}", command=" ".join(command))) from error


def _end(process: subprocess.Popen[str]) -> None:
    """End the processes of an interrupted build."""
    if process.poll() is None:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[str]) -> None:
    try:
        output, _ = process.communicate()
    finally:
        _end(process)
    if process.returncode:
        command = " ".join(str(a) for a in process.args)  # type: ignore[union-attr]
        shown = "\n".join(output.splitlines()[:20])
        raise BuildError(f"the C++ compiler refused generated code ({process.returncode}):\n{shown}", command=command,
                         output=output)
