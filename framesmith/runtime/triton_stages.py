"""Triton's stages for kernels of ours, with less around them: a part of `triton_worker`, loaded with it.

    image, ptx, metadata = machine_code(source, target, {"num_warps": 4, ...}, text)

What `triton.compile` does besides (a digest of the source and of what it calls, each stage's text in a cache's files)
is of no use to a process whose results are kept elsewhere; nor are places in the text, where binaries have no lines.
Passes that look for what the text has not leave it as it is: they are left out, with what MLIR verifies behind each.
And of CUDA's library of functions, whose file takes longer to read than most kernels take to translate, what kernels
often call is read once in a process and those that it forks.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

NO_PRODUCTS = {
    "ttgpuir": (
        "f32_dot_tc", "accelerate_matmul", "optimize_dot_operands", "fuse_nested_loops", "prefetch",
        "coalesce_async_copy",
    ),
    "ttnvgpuir": (
        "plan_cta", "optimize_descriptor_encoding", "optimize_tmem_layouts", "tma_lowering", "interleave_tmem",
        "fence_insertion",
        "lower_mma", "allocate_tensor_memory", "check_matmul_two_cta", "proxy_fence_insertion",
    ),
    "hopper": ("hopper_warpspec",),
}  # fmt: skip
"""Passes that have to do with products, tensor memory, descriptors and several blocks of a cluster, by their module of
bindings."""

NO_LOOPS = {"ttgpuir": ("assign_latencies", "schedule_loops", "pipeline"), "ttir": ("triton_licm",)}
"""Passes that have to do with loops."""

OFTEN = """ceilf copysignf exp2f expf expm1f fast_expf fast_fdividef floorf log1pf log2f logf rintf rsqrtf tanhf truncf
umulhi"""
"""Functions of CUDA's library that kernels often call. Those for sines and powers are long: each kernel would read
them."""

GIVEN = {"__assertfail", "vprintf"}
"""Functions that kernels call and no library has."""


def machine_code(source: Any, target: Any, options: dict[str, Any], text: str) -> tuple[bytes, str, dict[str, Any]]:
    """Return the binary of `source` (an `ASTSource`), whose kernel and all that it calls stand in `text`, for `target`;
    its PTX, and what Triton says of it.

    Raises what Triton raises, or AttributeError, ImportError, KeyError or TypeError where this Triton has other parts.
    """
    from triton._C.libtriton import ir
    from triton.compiler.compiler import make_backend

    backend = make_backend(target)
    chosen = backend.parse_options({**options, **source.parse_options()})
    stages: dict[str, Any] = {}
    backend.add_stages(stages, chosen, source.language)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    with contextlib.nullcontext() if options["debug"] else _without_places():
        done = source.make_ir(target, chosen, backend.get_codegen_implementation(chosen), backend.get_module_map(),
                              context)
    metadata = {"target": target, **vars(chosen)}
    found = {}
    with _without_passes(text):
        for name, stage in stages.items():
            with _short_llir() if name == "llir" else contextlib.nullcontext():
                found[name] = done = stage(done, metadata)
    return found["cubin"], found["ptx"], metadata


@contextlib.contextmanager
def _replaced(*others: tuple[Any, str, Any]) -> Iterator[None]:
    """(object, name, value): attributes for the time being."""
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in others]
    for owner, name, value in others:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def _without_places() -> contextlib.AbstractContextManager[None]:
    """Operations have no places in the text."""
    from triton.compiler.code_generator import CodeGenerator
    from triton.compiler.errors import CompilationError

    def visit(self: Any, node: Any) -> Any:
        if node is None:
            return None
        before, self.cur_node = self.cur_node, node
        try:
            found = ast.NodeVisitor.visit(self, node)
        except CompilationError:
            raise
        except Exception as error:
            raise CompilationError(self.jit_fn.src, self.cur_node, repr(error)) from None
        self.cur_node = before
        return found

    return _replaced((CodeGenerator, "visit", visit), (CodeGenerator, "_maybe_set_loc_to_name", lambda *_: None))


def _short_llir() -> contextlib.AbstractContextManager[None]:
    """Shorten the stage to LLVM: skip the folding and merging of LLVM's operations by MLIR, which LLVM does again, and
    link only the `_often` called functions into a kernel that calls no others."""
    from triton._C.libtriton import llvm, passes

    link = llvm.link_extern_libs

    def link_few(module: Any, paths: list[str]) -> None:
        try:
            calls = {f.name for f in module.get_functions() if f.is_declaration()
                     and not f.name.startswith("llvm.")} - GIVEN
            few, names = _often(link, *paths)
            link(module, [*few] if calls <= names else paths)
        except (AttributeError, ValueError):  # other bindings, or no file can be opened: the module is as it was
            link(module, paths)

    nothing = (passes.common, "add_canonicalizer", lambda *_: None), (passes.common, "add_cse", lambda *_: None)
    return _replaced(*nothing, (llvm, "link_extern_libs", link_few))


@functools.cache
def _often(link: Callable[[Any, list[str]], None], *paths: str) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the files of a library of the functions `OFTEN` of that at `paths`, and the names of all that it defines;
    `paths` and no names if anything is not as expected. Its file is in memory, there while a process has it open.

    `link` takes what a module declares, and what that calls, from a library. Done with a module of declarations alone
    it leaves the text of a library of just these, which is true to the first if linking from it leaves the same text;
    but for the order in which the text's comments have the blocks before a block.
    """
    from triton._C.libtriton import ir, llvm

    with contextlib.suppress(Exception):
        context = ir.context()
        ir.load_dialects(context)
        declared = ir.parse_mlir_module(_file("\n".join(f"llvm.func @__nv_{name}()" for name in OFTEN.split())),
                                        context)
        declared.context = context  # which lives as long
        inner = llvm.context()
        first, second = (llvm.to_module(declared, inner) for _ in range(2))
        link(first, list(paths))
        text = str(first)
        path = _file(text.replace("\ndefine internal ", "\ndefine "))
        link(second, [path])
        before, after = (re.sub(" *; preds = .*", "", t) for t in (text, str(second)))
        if before == after:
            return (path,), frozenset(f.name for f in second.get_functions() if not f.is_declaration())
    return paths, frozenset()


def _file(text: str) -> str:
    """Return the path of a file in memory."""
    number = os.memfd_create("framesmith")
    with open(number, "w", closefd=False) as file:
        file.write(text)
    return f"/proc/self/fd/{number}"


def _without_passes(text: str) -> contextlib.AbstractContextManager[None]:
    """Return the passes that find nothing in `text` are not run."""
    from triton._C.libtriton import nvidia, passes

    if "tl.dot" in text or "descriptor" in text:
        return contextlib.nullcontext()
    rooms = {
        "ttgpuir": passes.ttgpuir, "ttir": passes.ttir, "ttnvgpuir": nvidia.passes.ttnvgpuir,
        "hopper": nvidia.passes.hopper,
    }  # fmt: skip
    idle = [NO_PRODUCTS] if re.search("^ *for ", text, re.MULTILINE) else [NO_PRODUCTS, NO_LOOPS]
    return _replaced(*[(rooms[room], f"add_{name}", lambda *_: None) for table in idle for room,
                       names in table.items() for name in names])
