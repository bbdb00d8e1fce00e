"""The process that compiles Triton kernels, started by `runtime.triton` as a program of its own: it needs no device, no torch and no
module of ours.

It reads batches from its input, one a line: `[most at once, file]`, where the file has `[job, ...]`, both in JSON; they may come while
others are compiled, whose turn is first. Each job runs in a child, which is born with Triton loaded and, unless the first batch waits
already and is small, run in by a kernel compiled for nothing. For each that is done it answers a line: `[number, error or null]`. The
result, a pickled dict, is then in the file `out`.

A job: `number`; `path`: a file with the kernel's source; `name`: of the function; `signature`: Triton's types by parameter; `constants`:
values by `tl.constexpr` parameter
(`["dtype", "fp32"]`: a type); `divisible`: places of arguments that are multiples of 16; `multiples`: (place, what the number there is a
multiple of); `warps`, `stages`; `debug`: assertions are kept; `vector`: see `runtime.triton.Source`; `arch`: 90 for sm_90; `out`.
"""

from __future__ import annotations

import contextlib
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
from typing import Any

MANY = 3
"""Kernels for each that is compiled at once from which on one more is worth its time."""


def compile_kernel(job: dict[str, Any]) -> dict[str, Any]:
    """The machine code of one kernel: see `runtime.triton.Binary`."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile
    from triton.language import dtype

    spec = importlib.util.spec_from_file_location("kernel", job["path"])
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    function = getattr(module, job["name"])
    types = {**job["signature"], **dict.fromkeys(job["constants"], "constexpr")}
    signature = {name: types[name] for name in function.arg_names}
    multiples = [*[(place, 16) for place in job["divisible"]], *job["multiples"]]
    attributes = {(place,): [["tt.divisibility", n]] for place, n in multiples}
    constants = {name: dtype(value[1]) if isinstance(value, list) else value for name, value in job["constants"].items()}
    source = ASTSource(function, signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": job["warps"], "num_stages": job["stages"], "debug": job["debug"], "sanitize_overflow": False}
    target = GPUTarget("cuda", job["arch"], 32)
    made = None
    if job["vector"] > 1:
        with contextlib.suppress(Exception), _vectors(job["vector"]):
            made = compile(source, target=target, options=options)
    made = made or compile(source, target=target, options=options)
    if made.metadata.global_scratch_size:
        raise NotImplementedError("a kernel that needs scratch memory of its own")
    parameters = re.search(r"\.entry\s+\w+\s*\(([^)]*)\)", made.asm["ptx"])
    taken = parameters.group(1).count(".param") if parameters else 0
    return {
        "name": made.metadata.name,
        "image": made.asm["cubin"],
        "shared": made.metadata.shared,
        "warps": made.metadata.num_warps,
        "scratch": taken - len(job["signature"]),
    }


def _finish(job: dict[str, Any]) -> int:
    """In a child: the result, or the error's text, to its file."""
    try:
        data = pickle.dumps(compile_kernel(job))
    except Exception:
        data = pickle.dumps({"error": traceback.format_exc()})
    with open(job["out"] + ".part", "wb") as file:
        file.write(data)
    os.replace(job["out"] + ".part", job["out"])
    return 0


@contextlib.contextmanager
def _vectors(n: int) -> Iterator[None]:
    """Tiles with `n` elements along the second dimension get the layout in which these are one thread's. Triton finds it as well, but by a
    search from each access through all that is connected with it: a hundred loads take it ten seconds.

    Raises AttributeError where this Triton has other passes.
    """
    from triton._C.libtriton import ir, passes
    from triton.backends.nvidia.compiler import CUDABackend

    convert, coalesce, stage = passes.ttir.add_convert_to_ttgpuir, passes.ttgpuir.add_coalesce, CUDABackend.make_ttgir
    given = rf"sizePerThread = \[1, 1\], threadsPerWarp = \[{32 // n}, {n}\], (warpsPerCTA = \[\d+, 1\], order = \[1, 0\])"
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
        passes.ttir.add_convert_to_ttgpuir, passes.ttgpuir.add_coalesce, CUDABackend.make_ttgir = convert, coalesce, staticmethod(stage)


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
            "path": path, "name": "first", "signature": {"p0": "*bf16", "n": "i32"}, "constants": {"BLOCK": 256}, "divisible": [0],
            "multiples": [], "vector": 0, "warps": 4, "stages": 1, "debug": False, "arch": arch,
        }  # fmt: skip
        with contextlib.suppress(Exception):  # the first kernel that is asked for says what is wrong
            compile_kernel(job)
    gc.collect()
    gc.freeze()  # children do not look at what is here, whose pages they share


class _Pool:
    """Jobs, the first `most` of which are in children. `running`: by the end of a pipe that closes with the child."""

    def __init__(self, answers: Any) -> None:
        self.answers = answers
        self.most = 1
        self.waiting: deque[dict[str, Any]] = deque()
        self.running: dict[int, tuple[int, int]] = {}

    def start(self) -> None:
        """As many as may run."""
        while self.waiting and len(self.running) < self.most:
            job = self.waiting.popleft()
            ours, theirs = os.pipe()
            child = os.fork()
            if not child:
                os._exit(_finish(job))
            os.close(theirs)
            self.running[ours] = child, job["number"]

    def ended(self, end: int) -> None:
        """The child behind a pipe is done."""
        child, number = self.running.pop(end)
        os.close(end)
        status = os.waitpid(child, 0)[1]
        self.answers.write(json.dumps([number, f"the compiler ended with status {status}" if status else None]) + "\n")
        self.answers.flush()


def _batches(pool: _Pool) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """What comes in, until there is nothing more; meanwhile the pool works."""
    text = b""
    while True:
        for end in select.select([0, *pool.running], [], [])[0]:
            if end:
                pool.ended(end)
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

    if hasattr(cache, "triton_key"):  # a digest of all of Triton's files, to tell it from others: this process's cache knows no other
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
