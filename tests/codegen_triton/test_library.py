"""Kernels that call what is often called of CUDA's library are linked with that alone, and their code is as with all of
it."""

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from triton._C.libtriton import llvm  # noqa: E402

from framesmith.codegen.triton.emit import print_kernels  # noqa: E402
from framesmith.runtime import triton_stages  # noqa: E402
from framesmith.schedule.target import GPU  # noqa: E402
from tests.codegen_triton.machine import short_ptx, to_ptx  # noqa: E402
from tests.schedule.harness import program_of  # noqa: E402

LINK = llvm.link_extern_libs
WHOLE = "libdevice.10.bc"


def often(x, y):
    signs = torch.copysign(torch.expm1(x), torch.log1p(y)) + torch.tanh(x) * torch.round(y)
    return torch.exp(x) + torch.exp2(y) - torch.log(x) * torch.log2(y), x.floor() + y.ceil() - x.trunc() * torch.rsqrt(
        y), signs


def linked(fn, dtype, chip, monkeypatch):
    """Where the functions of the kernel of `fn` come from."""
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    (k,) = print_kernels(program_of(fn, *[torch.empty(5000, dtype=dtype)] * 2, target=GPU))
    paths = []

    def link(module, files):
        here = any(not f.is_declaration() for f in module.get_functions())
        paths.extend(files if here else [])  # a module without a kernel is the small library in the making
        LINK(module, files)

    expected = to_ptx(k, chip)
    monkeypatch.setattr(llvm, "link_extern_libs", link)
    assert short_ptx(k, chip, monkeypatch) == expected
    return [path.split("/")[-1] if path.endswith(WHOLE) else "few" for path in paths]


@pytest.mark.parametrize("chip", [80, 90, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_often_called(dtype, chip, monkeypatch):
    assert linked(often, dtype, chip, monkeypatch) == ["few"]


@pytest.mark.parametrize("dtype, fn",
                         [(torch.float32, lambda x, y: torch.sin(x) + torch.exp(y)), (torch.float64, often)])
def test_what_is_not(dtype, fn, monkeypatch):
    assert linked(fn, dtype, 90, monkeypatch) == [WHOLE]


def test_a_library_of_another_kind(monkeypatch):
    """One that cannot be read as text, or gives another text the second time, is used as it is."""
    monkeypatch.setattr(triton_stages, "_file", lambda text: "/nowhere")
    assert linked(often, torch.float32, 90, monkeypatch) == [WHOLE]
    monkeypatch.undo()
    lost = iter([LINK, lambda *_: None])
    assert triton_stages._often(lambda module, files: next(lost)(module, files), _whole()) == ((_whole(),), frozenset())


def _whole():
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDABackend

    ((_, path),) = CUDABackend(GPUTarget("cuda", 90, 32)).parse_options({}).extern_libs
    return path
