"""`mode="max-autotune"`: contractions in kernels of our own, whatever is faster, and kernels in configurations that
were measured."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import framesmith
from framesmith import targets
from framesmith.loops.ir import Extern, Program
from framesmith.runtime import trial, triton
from framesmith.runtime.cache import Cache
from framesmith.targets import CudaTarget
from framesmith.tuning import contractions

from .agree import NOTHING, SLACK, error, refuses_nothing, same_layout, tensors

pytestmark = pytest.mark.gpu
D = "cuda"
MODE = "max-autotune-no-cudagraphs"
PROGRAMS = {}
HALF, BF16 = torch.float16, torch.bfloat16


def program(*shapes, dtype=BF16):
    def register(fn):
        PROGRAMS[fn.__name__] = (fn, shapes, dtype)
        return fn

    return register


@program((1000, 520), (1032, 520), (1032,))
def linear_and_gelu(x, w, b):
    return F.gelu(F.linear(x, w, b))


@program((8, 96, 1536), (768, 1536), (768,), (8, 96, 768), dtype=HALF)
def residual_and_norm(x, w, b, r):
    return F.layer_norm(F.linear(x, w, b) + r, (768,))


@program((333, 777), (777, 111), dtype=torch.float32)
def of_float32(x, y):
    return torch.relu(x @ y), x @ y


@program((200, 333), (155, 200))
def turned(x, y):
    return x.t() @ y.t(), x.t() @ x


@program((1, 1000), (900, 1000), (900,))
def one_row(x, w, b):
    return torch.tanh(F.linear(x, w, b))


@program((16, 4096), (512, 4096), (512,))
def few_results(x, w, b):
    return F.silu(F.linear(x, w, b))


@program((12, 130, 64), (12, 64, 70))
def batches(x, y):
    return torch.softmax(torch.bmm(x, y) / 8, -1)


@program((512, 256), (256, 700), (256, 700), (700, 256))
def gated(x, w, v, u):
    return (F.silu(x @ w) * (x @ v)) @ u


@program((4, 64, 28, 28), (128, 64, 1, 1), (4, 128, 28, 28))
def convolution(x, w, r):
    x, r = (t.contiguous(memory_format=torch.channels_last) for t in (x, r))
    return torch.relu(F.conv2d(x, w) + r)


@program((130, 130), (130, 130))
def written_over(x, y):
    x.copy_(x @ y)
    return x + 1


def inputs_of(name):
    _, shapes, dtype = PROGRAMS[name]
    torch.manual_seed(0)
    return [torch.randn(s, device=D, dtype=dtype) for s in shapes]


def check(fn, *inputs, mode=MODE):
    mine, theirs, true = ([copy.deepcopy(t) for t in inputs] for _ in range(3))
    with torch.no_grad():
        exact = tensors(fn(*[t.double() for t in true]))
        want = tensors(fn(*theirs))
        got = tensors(refuses_nothing(fn, *mine, mode=mode))
    same_layout(got, want)
    assert error(got, exact) <= SLACK * error(want, exact) + NOTHING


@pytest.fixture
def programs(monkeypatch):
    """The programs whose kernels are printed."""
    seen: list[Program] = []
    kernels = CudaTarget.kernels
    monkeypatch.setattr(CudaTarget, "kernels", lambda self, program,
                        sizes: (seen.append(program), kernels(self, program, sizes))[1])
    return seen


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "written_over"])
def test_kernels_of_our_own_agree(name, monkeypatch, programs, tmp_path):
    monkeypatch.setenv("FRAMESMITH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(contractions, "GAIN", 1e9)
    check(PROGRAMS[name][0], *inputs_of(name))
    assert programs and not any(type(step) is Extern for program in programs for step in program.steps)


@pytest.mark.parametrize("name", ["linear_and_gelu", "of_float32", "few_results"])
def test_what_is_faster_agrees(name):
    check(PROGRAMS[name][0], *inputs_of(name))


def test_what_is_multiplied_may_be_written_over(monkeypatch, tmp_path):
    monkeypatch.setenv("FRAMESMITH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(contractions, "GAIN", 1e9)
    x, y = inputs_of("written_over")
    z = x.clone()
    framesmith.reset()
    compiled = framesmith.compile(written_over, mode=MODE)
    torch.testing.assert_close(compiled(x, y), written_over(z, y), rtol=2e-2, atol=2e-1)
    torch.testing.assert_close(x, z, rtol=2e-2, atol=2e-1)


@pytest.mark.parametrize("rows", [None, 0])
def test_products_of_float32_are_as_exact_as_asked(rows, monkeypatch, tmp_path):
    """The setting is guarded: another one is another variant."""
    monkeypatch.setenv("FRAMESMITH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(contractions, "GAIN", 1e9)
    x, y = torch.randn(256, 512, device=D), torch.randn(512, 128, device=D)
    true = x.double() @ y.double()
    framesmith.reset()
    compiled = framesmith.compile(lambda a, b: a @ b, mode=MODE, dynamic=rows is not None)
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        errors = []
        for allowed in (False, True, False):
            torch.backends.cuda.matmul.allow_tf32 = allowed
            errors.append(error([compiled(x, y)], [true]))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert errors[0] < 1e-5 < errors[1] < 1e-2 and errors[2] == errors[0]


def test_choices_are_kept_on_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("FRAMESMITH_CACHE_DIR", str(tmp_path))
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128)).to(D)
    x = torch.randn(32, 64, device=D)
    with torch.no_grad():
        refuses_nothing(model, x, mode=MODE)
        kept = (tmp_path / "tuning.json").read_text()
        refuses_nothing(model, x, mode=MODE)
    assert kept and (tmp_path / "tuning.json").read_text() == kept


def test_the_programs_random_numbers_go_on(monkeypatch, tmp_path):
    monkeypatch.setenv("FRAMESMITH_CACHE_DIR", str(tmp_path))
    torch.manual_seed(0)
    refuses_nothing(linear_and_gelu, *inputs_of("linear_and_gelu"), mode=MODE)
    after = torch.rand(4, device=D)
    inputs_of("linear_and_gelu")
    torch.testing.assert_close(torch.rand(4, device=D), after, rtol=0, atol=0)


def test_other_sizes_than_those_that_were_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("FRAMESMITH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(contractions, "GAIN", 1e9)
    framesmith.reset()
    compiled = framesmith.compile(linear_and_gelu, mode=MODE, dynamic=True)
    for rows in (64, 1, 300):
        inputs = [torch.randn(s, device=D, dtype=BF16) for s in ((rows, 200), (72, 200), (72,))]
        want = linear_and_gelu(*[t.double() for t in inputs])
        assert error([compiled(*inputs)], [want]) <= SLACK * error([linear_and_gelu(*inputs)], [want]) + NOTHING


@pytest.mark.parametrize("mode", ["default", MODE])
@pytest.mark.parametrize("dtype", [torch.float32, BF16, HALF])
@pytest.mark.parametrize("rows", [1, 7, 640])
def test_layers_with_their_activation(rows, dtype, mode):
    def layers(x, w, b, v):
        y = F.gelu(F.linear(x, w, b), approximate="tanh")
        return F.linear(torch.relu(F.linear(y, v, b)), w)

    torch.manual_seed(0)
    check(layers, *[torch.randn(s, device=D, dtype=dtype) for s in ((rows, 96), (96, 96), (96,), (96, 96))], mode=mode)


@pytest.mark.parametrize("mode", ["default", MODE])
def test_results_whose_rows_are_askew(mode):
    torch.manual_seed(0)
    x, w = (torch.randn(s, device=D, dtype=BF16) for s in ((1200, 128), (1001, 128)))
    check(lambda x, w: F.linear(x, w), x, w, mode=mode)
    y, v = (torch.randn(s, device=D, dtype=BF16) for s in ((1200, 1001), (1001, 64)))
    check(lambda y, v: torch.tanh(y) @ v, y, v, mode=mode)
    check(lambda y, x: torch.tanh(y).t() @ x, y, x, mode=mode)


ASTRAY = """import triton
import triton.language as tl


@triton.jit
def astray(p0, n):
    tl.store(p0 + n.to(tl.int64) * 1000003, 1.0)
"""


def test_a_kernel_that_goes_astray_leaves_the_process_its_device():
    x = torch.randn(1000, device=D)
    arch = targets._arch(x.device)
    source = triton.TritonSource("astray", ASTRAY, (("p0", "*fp32"), ("n", "i32")))
    (binary,) = triton.start([source], arch, Cache(enabled=False)).wait()
    memory = [trial.Memory(1000, torch.float32)]
    with trial.Trials(x.device.index) as trials:
        near, far = (trial.Contender(binary, (1,), (("*fp32", 0), ("i32", n))) for n in (0, 1 << 30))
        found = trials.milliseconds([near, far, near], memory)
    assert found[1] is None and found[0] > 0 and found[2] > 0
    assert torch.isfinite(x.sum())


def test_what_cannot_be_measured_is_as_without_a_measurement(monkeypatch, tmp_path):
    monkeypatch.setenv("FRAMESMITH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(trial, "WORKER", tmp_path / "there_is_none.py")
    check(PROGRAMS["linear_and_gelu"][0], *inputs_of("linear_and_gelu"))
