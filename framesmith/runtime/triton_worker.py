"""The process that compiles Triton kernels, started by `runtime.triton` as a program of its own: it needs no device, no
torch and no module of ours.

It reads batches from its input, one a line: `[most at once, file]`, where the file has `[job, ...]`, both in JSON; they
may come while others are compiled, whose turn is first. Jobs run in children, which are born with Triton loaded and,
unless the first batch waits already and is small, run in by a kernel compiled for nothing; a child takes one job after
the other while there are any. For each that is done it answers a line: `[number, error or null]`. The result, a pickled
dict, is then in the file `out`.

A job: `number`; `path`: a file with the kernel's source; `name`: of the function; `signature`: Triton's types by
parameter; `constants`: values by `tl.constexpr` parameter (`["dtype", "fp32"]`: a type); `divisible`: places of
arguments that are multiples of 16; `multiples`: (place, what the number there is a multiple of); `warps`, `stages`;
`debug`: assertions are kept; `vector`: see `runtime.triton.Source`; `arch`: 90 for sm_90; `out`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import json
import os
import pickle
import re
import select
import sys
import tempfile
import traceback
from collections import deque
from collections.abc import Iterator
from typing import Any, NoReturn

MANY = 3
"""Kernels for each that is compiled at once from which on one more is worth its time."""
MOST = 64
"""Kernels that a child compiles, since it does not collect what Python and Triton leave behind."""


def compile_kernel(job: dict[str, Any]) -> dict[str, Any]:
    """Return the machine code of one kernel: see `runtime.triton.Binary`."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.language import dtype

    spec = importlib.util.spec_from_file_location("kernel", job["path"])
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    function = getattr(module, job["name"])
    types = {**job["signature"], **dict.fromkeys(job["constants"], "constexpr")}
    signature = {name: types[name] for name in function.arg_names}
    multiples = [*[(place, 16) for place in job["divisible"]], *job["multiples"]]
    attributes = {(place,): [["tt.divisibility", n]] for place, n in multiples}
    constants = {name: dtype(value[1]) if isinstance(value, list) else value for name,
                 value in job["constants"].items()}
    source = ASTSource(function, signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": job["warps"], "num_stages": job["stages"], "debug": job["debug"],
               "sanitize_overflow": False}
    target = GPUTarget("cuda", job["arch"], 32)
    image, ptx, metadata = _machine_code(source, target, options, job)
    if metadata["global_scratch_size"]:
        raise NotImplementedError("a kernel that needs scratch memory of its own")
    parameters = re.search(r"\.entry\s+\w+\s*\(([^)]*)\)", ptx)
    taken = parameters.group(1).count(".param") if parameters else 0
    return {
        "name": metadata["name"],
        "image": image,
        "shared": metadata["shared"],
        "warps": metadata["num_warps"],
        "scratch": taken - len(job["signature"]),
    }


def _machine_code(source: Any, target: Any, options: dict[str, Any],
                  job: dict[str, Any]) -> tuple[bytes, str, dict[str, Any]]:
    """Return the binary, the PTX and what Triton says of them: on the short way, or on Triton's own if that does not
    go, which says why."""
    from triton.compiler import compile

    with open(job["path"]) as file:
        text = file.read()
    stages = _stages()
    if job["vector"] > 1:
        with contextlib.suppress(Exception), _vectors(job["vector"]):
            return stages.machine_code(source, target, options, text)
    with contextlib.suppress(AttributeError, ImportError, KeyError, TypeError):  # this Triton has other parts
        return stages.machine_code(source, target, options, text)
    made = compile(source, target=target, options=options)
    return made.asm["cubin"], made.asm["ptx"], made.metadata._asdict()


@functools.cache
def _stages() -> Any:
    """Return the module beside this file: its package would load torch."""
    spec = importlib.util.spec_from_file_location("triton_stages",
                                                  os.path.join(os.path.dirname(__file__), "triton_stages.py"))
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def _finish(job: dict[str, Any]) -> None:
    """In a child: the result, or the error's text, to its file."""
    try:
        data = pickle.dumps(compile_kernel(job))
    except Exception:
        data = pickle.dumps({"error": traceback.format_exc()})
    with open(job["out"] + ".part", "wb") as file:
        file.write(data)
    os.replace(job["out"] + ".part", job["out"])


@contextlib.contextmanager
def _vectors(n: int) -> Iterator[None]:
    """Tiles with `n` elements along the second dimension get the layout in which these are one thread's. Triton finds
    it as well, but by a search from each access through all that is connected with it: a hundred loads take it ten
    seconds.

    Raises AttributeError where this Triton has other passes.
    """
    from triton._C.libtriton import ir, passes
    from triton.backends.nvidia.compiler import CUDABackend

    convert, coalesce, stage = passes.ttir.add_convert_to_ttgpuir, passes.ttgpuir.add_coalesce, CUDABackend.make_ttgir
    given = (rf"sizePerThread = \[1, 1\], threadsPerWarp = \[{32 // n}, {n}\], (warpsPerCTA = \[\d+, 1\], order = \[1, "
             r"0\])")
    wanted = rf"sizePerThread = [1, {n}], threadsPerWarp = [32, 1], \1"

    def make_ttgir(module: Any, metadata: Any, options: Any, capability: int) -> Any:
        manager = ir.pass_manager(module.context)
        convert(manager, f"cuda:{capability}", options.num_warps, 32, options.num_ctas)
        manager.run(module, "layouts")
        text, found = re.subn(given, wanted, str(module))
        if not found:
            raise NotImplementedError("layouts of another kind")
        with tempfile.NamedTemporaryFile("w", suffix=".ttgir") as file:
            file.write(text)
            file.flush()
            laid_out = ir.parse_mlir_module(file.name, module.context)
        laid_out.context = module.context
        return stage(laid_out, metadata, options, capability)

    passes.ttir.add_convert_to_ttgpuir = passes.ttgpuir.add_coalesce = lambda *_: None
    CUDABackend.make_ttgir = staticmethod(make_ttgir)
    try:
        yield
    finally:
        passes.ttir.add_convert_to_ttgpuir, passes.ttgpuir.add_coalesce = convert, coalesce
        CUDABackend.make_ttgir = staticmethod(stage)


_FIRST = """import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def first(p0, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(p0 + i, i < n).to(tl.float32)
    tl.store(p0 + i % n, libdevice.rsqrt(x) * tl.sum(x, 0), i < n)
"""


def _run_in(arch: int) -> None:
    """Compile a kernel: what Python, Triton and LLVM set up at first use is then there in each child."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "first.py")
        with open(path, "w") as file:
            file.write(_FIRST)
        job = {
            "path": path, "name": "first", "signature": {"p0": "*bf16", "n": "i32"}, "constants": {"BLOCK": 256},
            "divisible": [0],
            "multiples": [], "vector": 0, "warps": 4, "stages": 1, "debug": False, "arch": arch,
        }  # fmt: skip
        with contextlib.suppress(Exception):  # the first kernel that is asked for says what is wrong
            compile_kernel(job)
    gc.collect()
    gc.freeze()  # children do not look at what is here, whose pages they share


class _Child:
    """A process that compiles one job after the other. `give`: the end of a pipe into which jobs are written, one a
    line; `number`: of the job it is at; `left`: how many more it takes."""

    def __init__(self, pid: int, give: int) -> None:
        self.pid, self.give = pid, give
        self.number, self.left = -1, MOST


class _Pool:
    """Jobs, the first `most` of which are with children. `running`: by the end of a pipe that has a byte for each job
    done, and closes with the child."""

    def __init__(self, answers: Any) -> None:
        self.answers = answers
        self.most = 1
        self.waiting: deque[dict[str, Any]] = deque()
        self.running: dict[int, _Child] = {}

    def start(self) -> None:
        """Start as many children as may run."""
        while self.waiting and len(self.running) < self.most:
            (jobs, give), (take, done) = os.pipe(), os.pipe()
            pid = os.fork()
            if not pid:
                for end in (give, take, *self.running, *[child.give for child in self.running.values()]):
                    os.close(end)  # one that a sibling keeps open does not end with this process's parent
                _work(jobs, done)
            os.close(jobs)
            os.close(done)
            self.running[take] = _Child(pid, give)
            self._next(take)

    def heard(self, end: int) -> None:
        """The child behind a pipe is done with its job, or gone."""
        child = self.running[end]
        if not os.read(end, 1):
            status = self._leave(end)
            self._answer(child.number, f"the compiler ended with status {status}")
            return
        self._answer(child.number, None)
        if self.waiting and child.left and len(self.running) <= self.most:
            self._next(end)
        else:
            self._leave(end)

    def _next(self, end: int) -> None:
        child, job = self.running[end], self.waiting.popleft()
        child.number, child.left = job["number"], child.left - 1
        with contextlib.suppress(BrokenPipeError):  # it is gone, which its other pipe will say
            os.write(child.give, (json.dumps(job) + "\n").encode())

    def _leave(self, end: int) -> int:
        """Return no more for this child; the status with which it ends."""
        child = self.running.pop(end)
        os.close(end)
        os.close(child.give)
        return os.waitpid(child.pid, 0)[1]

    def _answer(self, number: int, problem: str | None) -> None:
        self.answers.write(json.dumps([number, problem]) + "\n")
        self.answers.flush()


def _work(jobs: int, done: int) -> NoReturn:
    """In a child: jobs as they come."""
    try:
        gc.disable()
        with os.fdopen(jobs) as lines:
            for line in lines:
                _finish(json.loads(line))
                os.write(done, b".")
        os._exit(0)
    finally:
        os._exit(1)


def _batches(pool: _Pool) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yield the batches that come in, until there are no more; the pool works meanwhile."""
    text = b""
    while True:
        for end in select.select([0, *pool.running], [], [])[0]:
            if end:
                pool.heard(end)
                continue
            more = os.read(0, 1 << 16)
            if not more:
                return
            *lines, text = (text + more).split(b"\n")
            for line in lines:
                most, path = json.loads(line)
                with contextlib.suppress(FileNotFoundError), open(path) as file:  # nobody wants it any more
                    yield most, json.load(file)
        pool.start()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    import triton.compiler  # noqa: F401  loaded once, before the first child
    from triton.runtime import cache

    # a digest of all of Triton's files, to tell it from others: this process's cache knows no other
    if hasattr(cache, "triton_key"):
        cache.triton_key = lambda: ""

    waits = select.select([0], [], [], 0)[0]
    if not waits:
        _run_in(int(sys.argv[1]))
    pool = _Pool(answers)
    for most, jobs in _batches(pool):
        if waits and len(jobs) > MANY * most:
            _run_in(jobs[0]["arch"])
        waits = []
        pool.most = most
        pool.waiting.extend(jobs)


if __name__ == "__main__":
    main()
