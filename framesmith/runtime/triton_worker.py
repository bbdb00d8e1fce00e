"""The process that compiles Triton kernels, started by `runtime.triton` as a program of its own: it needs no device, no torch and no
module of ours.

It reads batches from its input, one a line: `[most at once, [job, ...]]` in JSON. Each job runs in a child, which is born with Triton
loaded. For each that is done it answers a line: `[number, error or null]`. The result, a pickled dict, is then in the file `out`.

A job: `number`; `path`: a file with the kernel's source; `name`: of the function; `signature`: Triton's types by parameter; `constants`:
values by `tl.constexpr` parameter
(`["dtype", "fp32"]`: a type); `divisible`: places of arguments that are multiples of 16; `warps`, `stages`; `debug`: assertions are
kept; `arch`: 90 for sm_90; `out`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import re
import sys
import traceback
from typing import Any


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
    attributes = {(place,): [["tt.divisibility", 16]] for place in job["divisible"]}
    constants = {name: dtype(value[1]) if isinstance(value, list) else value for name, value in job["constants"].items()}
    source = ASTSource(function, signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": job["warps"], "num_stages": job["stages"], "debug": job["debug"], "sanitize_overflow": False}
    made = compile(source, target=GPUTarget("cuda", job["arch"], 32), options=options)
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


def _serve(most: int, jobs: list[dict[str, Any]], answers: Any) -> None:
    running: dict[int, int] = {}
    waiting = list(reversed(jobs))
    while waiting or running:
        while waiting and len(running) < most:
            job = waiting.pop()
            child = os.fork()
            if not child:
                os._exit(_finish(job))
            running[child] = job["number"]
        child, status = os.wait()
        number = running.pop(child, None)
        if number is not None:
            answers.write(json.dumps([number, f"the compiler ended with status {status}" if status else None]) + "\n")
            answers.flush()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    import triton.compiler  # noqa: F401  loaded once, before the first child
    from triton.runtime import cache

    if hasattr(cache, "triton_key"):  # a digest of all of Triton's files, to tell it from others: this process's cache knows no other
        cache.triton_key = lambda: ""

    for line in sys.stdin:
        most, jobs = json.loads(line)
        _serve(most, jobs, answers)


if __name__ == "__main__":
    main()
