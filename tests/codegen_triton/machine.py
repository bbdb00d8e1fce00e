"""Printed Triton kernels on a machine without a GPU: compiled to PTX, or run under Triton's interpreter on CPU
tensors."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import tempfile
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

os.environ.setdefault("TRITON_CACHE_DIR", tempfile.mkdtemp(prefix="framesmith-triton-"))
triton = pytest.importorskip("triton", reason="triton is not installed")

import triton.language as tl  # noqa: E402
from triton._C.libtriton import ir  # noqa: E402
from triton.backends.compiler import GPUTarget, Language  # noqa: E402
from triton.backends.nvidia.compiler import CUDABackend  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from triton.language.semantic import TritonSemantic  # noqa: E402
from triton.runtime import interpreter  # noqa: E402
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle  # noqa: E402

from framesmith.codegen.triton.emit import print_kernels  # noqa: E402
from framesmith.codegen.triton.kernel import Printed, programs  # noqa: E402
from framesmith.codegen.triton.kernel_dedup import shared  # noqa: E402
from framesmith.codegen.triton.scalar_params import kind_of  # noqa: E402
from framesmith.loops.evaluate import _Machine  # noqa: E402
from framesmith.loops.ir import Batch, Extern, Launch, Param, Program  # noqa: E402
from framesmith.runtime import triton_stages  # noqa: E402

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_DIR = Path(tempfile.mkdtemp(prefix="framesmith-triton-"))


@functools.cache
def module_of(text: str) -> Any:
    """The text of a kernel as a module (from a file: Triton reads the source of its functions)."""
    name = f"kernel_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    path = _DIR / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if INTERPRETED:
        module.libdevice = Libdevice()  # type: ignore[attr-defined]
    return module


_contexts: list[Any] = []
"""Kept: the collector may free what lives in a context after the context."""


def to_ptx(k: Printed, capability: int) -> str:
    """The PTX of a kernel for an architecture (80, 90, 100), with all that the printer promises."""
    backend = CUDABackend(GPUTarget("cuda", capability, 32))
    options = backend.parse_options(_options(k))
    source = _source(k)
    context = ir.context()
    _contexts.append(context)
    ir.load_dialects(context)
    backend.load_dialects(context)
    code = source.make_ir(backend.target, options, backend.get_codegen_implementation(options),
                          backend.get_module_map(), context)
    stages: dict[str, Callable[..., Any]] = {}
    backend.add_stages(stages, options, Language.TRITON)
    metadata: dict[str, Any] = {"target": backend.target, **options.__dict__}
    for name in ("ttir", "ttgir", "llir", "ptx"):
        code = stages[name](code, metadata)
    return code


def short_ptx(k: Printed, capability: int, monkeypatch: Any) -> str:
    """As `to_ptx`, the way of the process that compiles."""
    with monkeypatch.context() as changed:
        changed.setattr(CUDABackend, "make_cubin", lambda self, code, *_: code.encode())
        made = ir.context
        changed.setattr(ir, "context", lambda: _contexts.append(made()) or _contexts[-1])
        image, ptx, _ = triton_stages.machine_code(_source(k), GPUTarget("cuda", capability, 32), _options(k), k.text)
    assert image == ptx.encode()
    return ptx


def _options(k: Printed) -> dict[str, Any]:
    return {"num_warps": k.num_warps, "num_stages": k.num_stages, "debug": k.asserts, "sanitize_overflow": False}


def _source(k: Printed) -> ASTSource:
    function = getattr(module_of(k.text), k.name)
    signature = dict(k.signature) | {name: "constexpr" for name, _ in k.constants}
    attrs = {(place,): [["tt.divisibility", n]] for place, n in [*[(place, 16) for place in k.divisible], *k.multiples]}
    return ASTSource(function, signature, dict(k.constants), attrs)


# ------------------------------------------------------------------------------------------------------ the interpreter


class Libdevice:
    """Stands for CUDA's library of functions, which the interpreter does not have: the same functions of torch, in the
    same type."""

    NAMES = {"rint": "round", "fmod": "fmod", "fast_expf": "exp", "fast_dividef": "div"}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return functools.partial(_elementwise, getattr(torch, self.NAMES.get(name, name)))


def _elementwise(f: Callable[..., torch.Tensor], *args: Any) -> Any:
    tensors = [a for a in args if isinstance(a, tl.tensor)]
    scalar = tensors[0].type.scalar
    arrays = [a.handle.data if isinstance(a, tl.tensor) else np.asarray([a]) for a in args]
    arrays = np.broadcast_arrays(*arrays) if tensors[0].dtype else arrays
    kind = torch.float64 if scalar == tl.float64 else torch.float32
    result = f(*[torch.from_numpy(np.array(a)).to(kind) for a in arrays]).numpy()
    shaped = max(tensors, key=lambda t: t.handle.data.size)
    return tl.tensor(TensorHandle(result, scalar),
                     shaped.type if shaped.handle.data.shape == result.shape else _type(scalar, result))


# Where the interpreter is not like a device: its maximum of numbers gives a NaN of either side, and its casts to
# bfloat16 cut.
InterpreterBuilder.create_maxnumf = lambda self, x, y: self.binary_op(x, y, np.fmax)
InterpreterBuilder.create_minnumf = lambda self, x, y: self.binary_op(x, y, np.fmin)
_cut = InterpreterBuilder.cast_impl


def _rounded(self: Any, value: Any, kind: Any) -> Any:
    if kind.scalar != tl.bfloat16:
        return _cut(self, value, kind)
    data = torch.from_numpy(np.array(value.data, dtype=np.float32)).bfloat16().view(torch.int16).numpy().view(np.uint16)
    return TensorHandle(data, tl.bfloat16)


InterpreterBuilder.cast_impl = _rounded


def _dot(self: Any, a: Any, b: Any, d: Any, precision: Any, most: Any) -> Any:
    """Halves of one kind are 16 bits without a meaning to NumPy."""
    x, y = (_widened(t) for t in (a, b))
    return TensorHandle(np.matmul(x, y) + d.data, d.dtype.scalar)


def _widened(t: Any) -> Any:
    if t.dtype.scalar != tl.bfloat16:
        return t.data.astype(np.float32)
    return torch.from_numpy(t.data.view(np.int16)).view(torch.bfloat16).float().numpy()


InterpreterBuilder.create_dot = _dot


class _Rounded:
    """What the one instruction gives that kernels write themselves: floats with 10 bits behind the point."""

    def __init__(self, x: TensorHandle) -> None:
        data = np.ascontiguousarray(x.data)
        bits = (data.view(np.int32) + 0x1000) & -0x2000
        self.value = TensorHandle(np.where(np.isfinite(data), bits.view(np.float32), data), x.dtype)

    def get_result(self, position: int) -> TensorHandle:
        return self.value


def _assembled(self: Any, text: str, constraints: str, values: list[TensorHandle], *rest: Any) -> _Rounded:
    assert text == "cvt.rna.tf32.f32 $0, $1;"
    return _Rounded(values[0])


InterpreterBuilder.create_inline_asm = _assembled
def _combined(self: Any, kinds: Sequence[Any], left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> list[Any]:
    """What the function of a reduction or a scan gives for arrays, in the types of its operands."""
    found = self.combine_fn.fn(*map(self.to_tensor, (*left, *right), (*kinds, *kinds)))
    found = found if isinstance(found, tuple) else (found,)
    return [x.handle.data.astype(a.dtype).reshape(a.shape) for x, a in zip(found, left, strict=True)]


def _reduced(self: Any, given: Sequence[Any]) -> list[Any]:
    """Neighbours are combined, all pairs at once, until one is left: the interpreter goes from element to element."""
    kinds, axis = [x.dtype for x in given], self.axis or 0
    data = [x.handle.data.reshape(-1) if self.axis is None else x.handle.data for x in given]
    while data[0].shape[axis] > 1:
        pairs = [np.split(x.reshape(*x.shape[:axis], -1, 2, *x.shape[axis + 1:]), 2, axis + 1) for x in data]
        left, right = ([x[side].squeeze(axis + 1) for x in pairs] for side in (0, 1))
        data = _combined(self, kinds, left, right)
    if self.axis is None:
        data = [x.reshape((1,) * given[0].handle.data.ndim) for x in data]
    axes = tuple(range(data[0].ndim)) if self.axis is None else axis
    return [self.to_tensor(x if self.keep_dims else x.squeeze(axes), kind) for x, kind in zip(data, kinds)]


def _scanned(self: Any, given: Sequence[Any]) -> list[Any]:
    """Each element is combined with the one before, then with the one two before, four before, and so on."""
    kinds = [x.dtype for x in given]
    data = [np.moveaxis(x.handle.data, self.axis, 0) for x in given]
    step = 1
    while step < len(data[0]):
        later = _combined(self, kinds, [np.roll(x, step, 0) for x in data], data)
        data = [np.concatenate((x[:step], y[step:])) for x, y in zip(data, later)]
        step *= 2
    return [self.to_tensor(np.moveaxis(x, 0, self.axis), kind) for x, kind in zip(data, kinds)]


interpreter.ReduceOps.generic_reduce = _reduced
interpreter.ScanOps.generic_scan = _scanned
_patched = interpreter._patch_lang_tensor


def _patch_tensor(tensor: Any, scope: Any) -> None:
    """Its numbers are arrays of one element, which NumPy no longer takes for an index."""
    _patched(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


interpreter._patch_lang_tensor = _patch_tensor
_patch_language = interpreter._patch_lang


class _Lasting:
    """Changes of the language that are not taken back."""

    def restore(self) -> None:
        pass


@functools.cache
def _interpreted_language() -> _Lasting:
    """Change the language once, for kernels and for the functions of its own library, which see it as `core`."""
    _patch_language(types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    return _Lasting()


@functools.cache
def _sides(*sizes: int) -> tuple[Any, int, str, Any, Any]:
    """A block's shape, its number of elements and its text; shape and number as its tensors have them."""
    shape = tl.tuple(sizes)
    count = tl.core.validate_block_shape(shape)
    return shape, count, str(shape), tl.tuple([tl.constexpr(s) for s in sizes]), tl.constexpr(count)


_OF_NUMBERS = tl.tuple([]), tl.constexpr(1)


def _make_block(self: Any, element_ty: Any, shape: Sequence[Any]) -> None:
    sizes = [s.value if type(s) is tl.constexpr else s for s in shape]
    if not sizes:
        raise TypeError("0d block_type is forbidden")
    self.element_ty = element_ty
    self.shape, self.numel, text, *self.of_tensors = _sides(*sizes)
    self.name = f"<{text}, {element_ty}>"


def _make_tensor(self: Any, handle: Any, type: Any) -> None:
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = type.of_tensors if type.is_block() else _OF_NUMBERS


_type_of_numbers = functools.cache(interpreter._get_np_dtype)


def _numpy_type(kind: Any) -> np.dtype:
    while type(kind) is tl.block_type:
        kind = kind.element_ty
    return np.dtype(np.uint64) if isinstance(kind, tl.pointer_type) else _type_of_numbers(kind)


def _give_semantic(owner: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
    """What the language's function itself is given, without the function around it that asks for it."""
    semantic, inner = TritonSemantic(builder), getattr(member, "__wrapped__", member)

    def given(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = semantic
        return inner(*args, **kwargs)

    scope.set_attr(owner, name, given)


if INTERPRETED:  # in such a process no kernel is compiled
    # each operation makes types, whose parts are few: they were half of the time
    tl.block_type.__init__, tl.tensor.__init__ = _make_block, _make_tensor
    interpreter._get_np_dtype, interpreter._patch_attr = _numpy_type, _give_semantic
    # the interpreter searches the language for what to change at each call of a function of a kernel
    interpreter._patch_lang = lambda fn: _interpreted_language()
    # integers wrap around, as in kernels that are compiled: `sanitize_overflow` is False there
    TritonSemantic.binary_op_sanitize_overflow_impl = lambda *args: None


def _type(scalar: Any, result: Any) -> Any:
    return tl.block_type(scalar, list(result.shape))


def run_kernel(k: Printed, memory: Sequence[torch.Tensor], sizes: Sequence[int] = (), *,
               count: int | None = None) -> None:
    """Run a kernel on flat memories: on a GPU, or under the interpreter (`TRITON_INTERPRET=1` when Triton is
    imported)."""
    env = dict(zip(k.symbols, sizes, strict=True))
    grid = tuple(g if type(g) is int else count if k.batch else g.evaluate(env) for g in k.grid)
    if 0 in grid:
        return
    options = {"num_warps": k.num_warps, "num_stages": k.num_stages, "debug": k.asserts, "sanitize_overflow": False}
    given = [m if kind.startswith("*") else m.item() + 0 for m, (_, kind) in zip(memory, k.signature)]
    numbers = [n.value for n in k.numbers]
    getattr(module_of(k.text), k.name)[grid](*given, *sizes, *numbers, **dict(k.constants),
                                             **({} if INTERPRETED else options))


def run_batch(k: Printed, step: Batch, rows: Sequence[Sequence[torch.Tensor]]) -> None:
    """Run a kernel over a table of rows of flat memories."""
    assert k.batch is not None
    table = [[*map(_word, row, step.kernel.params), size] for row, size in zip(rows, step.sizes, strict=True)]
    where = [(row, block) for row, size in enumerate(step.sizes) for block in range(-(-size // k.batch))]
    assert len(where) == programs(step.sizes, k.batch)
    run_kernel(k, [torch.tensor(table).reshape(-1), torch.tensor(where, dtype=torch.int32).reshape(-1)],
               count=len(where))


def _word(memory: torch.Tensor, param: Param) -> int:
    """What stands in a batch's table for an argument."""
    if not param.host:
        return memory.data_ptr()
    kind = kind_of(param.dtype)
    value = (memory.float().view(torch.int32) if kind == "fp32" else memory.view(torch.int64) if kind == "fp64"
             else memory)
    return int(value.item())


def run_program(program: Program, inputs: Sequence[Any], wide: bool = False,
                typical: int | None = None) -> tuple[Any, ...]:
    """Run `program` with its kernels under the interpreter, and all else as the evaluator of the loop IR does.
    `typical`: what size symbols are said to be (None: nothing is said)."""
    machine = _Machine(program, inputs)
    sizes = None if typical is None else dict.fromkeys(machine.sizes, typical)
    printed = dict(zip(program.kernels, shared(print_kernels(program, wide=wide, sizes=sizes))))
    for step in program.steps:
        if type(step) is Launch:
            k = printed[step.kernel]
            run_kernel(k, [machine.flat(n) for n in step.args], [machine.sizes[s] for s in k.symbols])
        elif type(step) is Batch:
            run_batch(printed[step.kernel], step, [[machine.flat(n) for n in row] for row in step.rows])
        elif type(step) is Extern:
            machine.extern(step)
    return tuple(machine.argument(o) for o in program.outputs)
