"""Grad mode, inference mode and autocast: as context managers, decorators and functions, nested, left changed, across
breaks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import framesmith
from tests.capture.agree import check
from tests.programs import Programs

X = torch.linspace(-1, 1, 12).reshape(3, 4)
W = torch.linspace(-1, 1, 20).reshape(5, 4)
program = Programs(check)


test_same_as_eager = program.test()


@program(X)
def no_grad(x):
    with torch.no_grad():
        y = x + 1
        inside = torch.is_grad_enabled()
    return y, inside, torch.is_grad_enabled()


@program(X, grad=True)
def no_grad_in_grad_mode(x):
    with torch.no_grad():
        y = x + 1
        inside = torch.is_grad_enabled()
    return y, inside, torch.is_grad_enabled()


@program(X)
def enable_grad(x):
    with torch.enable_grad():
        y = x + 1
        inside = torch.is_grad_enabled()
    return y, inside, torch.is_grad_enabled()


@torch.no_grad()
def decorated(x):
    return x * 2, torch.is_grad_enabled()


@torch.no_grad
def decorated_bare(x):
    return x * 3, torch.is_grad_enabled()


@torch.enable_grad()
def decorated_on(x):
    return x * 2, torch.is_grad_enabled()


@torch.set_grad_enabled(False)
def decorated_set(x):
    return x * 2, torch.is_grad_enabled()


@program(X, grad=True)
def decorators(x):
    return decorated(x), decorated_bare(x), decorated_on(x), decorated_set(x), torch.is_grad_enabled()


program(X, grad=True)(decorated)
program(X)(decorated_on)


@program(X, grad=True)
def set_grad_enabled(x):
    torch.set_grad_enabled(False)
    a = torch.is_grad_enabled()
    with torch.set_grad_enabled(True):
        b = torch.is_grad_enabled()
    with torch.set_grad_enabled(mode=False):
        y = x + 1
    c = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    return a, b, c, y


@program(X, grad=True)
def grad_mode_left_changed(x):
    torch.set_grad_enabled(False)
    return x + 1


@program(X)
def grad_mode_left_on(x):
    torch._C._set_grad_enabled(True)
    return x + 1


@program(X, grad=True)
def grad_mode_nested(x):
    out = []
    with torch.no_grad():
        out.append(torch.is_grad_enabled())
        with torch.enable_grad():
            out.append(torch.is_grad_enabled())
            with torch.no_grad():
                out.append(torch.is_grad_enabled())
            out.append(torch.is_grad_enabled())
        out.append(torch.is_grad_enabled())
    return out, x + 1


@program(X, grad=True)
def grad_mode_restored_by_an_exception(x):
    try:
        with torch.no_grad():
            x = x + 1
            raise ValueError("inside")
    except ValueError as e:
        return x, str(e), torch.is_grad_enabled()


@program(X, grad=True, raises=ValueError)
def grad_mode_left_by_an_exception(x):
    torch.set_grad_enabled(False)
    raise ValueError(f"{x.shape}")


@program(X, grad=True, breaks=True)
def grad_mode_across_a_break(x):
    with torch.no_grad():
        y = x + 1
        framesmith.graph_break()
        inside = torch.is_grad_enabled()
    return y * 2, inside, torch.is_grad_enabled()


@program(X, grad=True)
def manager_kept(x):
    m = torch.no_grad()
    with m:
        a = torch.is_grad_enabled()
    with m:
        b = torch.is_grad_enabled()
    return a, b, torch.is_grad_enabled(), x + 1


@program(torch.randn(4, requires_grad=True), X)
def under_no_grad_with_parameters(w, x):
    with torch.no_grad():
        y = w * x
    return y, y.requires_grad, y.is_leaf


@program(torch.randn(4, requires_grad=True), X, grad=True)
def grad_mode_with_parameters_inside_no_grad(w, x):
    with torch.no_grad():
        return w * x


@program(torch.randn(4, requires_grad=True), X)
def grad_turned_on_with_parameters(w, x):
    with torch.enable_grad():
        y = w * x
    return y, y.requires_grad


# --- inference mode ---------------------------------------------------------------------------------------------------
@program(X)
def inference_mode(x):
    with torch.inference_mode():
        y = x + 1
        inside = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    return y, inside, torch.is_inference_mode_enabled(), y.is_inference()


@torch.inference_mode()
def inferred(x):
    return x * 2


@program(X)
def inference_decorator(x):
    return inferred(x)


program(X, grad=True)(inferred)


@program(X, grad=True)
def inference_mode_from_grad_mode(x):
    with torch.inference_mode():
        return x + 1


@program(X)
def inference_mode_then_normal(x):
    with torch.inference_mode():
        y = x + 1
    z = y * 2
    return y, z, y.is_inference(), z.is_inference()


@program(X)
def inference_mode_off(x):
    with torch.inference_mode(False):
        y = x + 1
    with torch.inference_mode(mode=True):
        z = x + 2
        with torch.inference_mode(False):
            w = x + 3
    return y, z, w, y.is_inference(), z.is_inference(), w.is_inference()


@program(X)
def inference_view_of_normal(x):
    with torch.inference_mode():
        y = x[0]
    return y, y.is_inference()


@program(nn.Linear(4, 5), X)
def inference_module(m, x):
    with torch.inference_mode():
        return m(x)


@program(X, raises=RuntimeError)
def inference_tensor_written_outside(x):
    with torch.inference_mode():
        y = x * 2
    return y.add_(1)


@program(X, raises=RuntimeError)
def view_of_an_inference_tensor_written_outside(x):
    with torch.inference_mode():
        y = x * 2
    y[0] = 1
    return y


# --- autocast ---------------------------------------------------------------------------------------------------------
@program(X, W)
def autocast(x, w):
    with torch.autocast("cpu"):
        y = F.linear(x, w)
        z = y + x[:, :1]
        s = z.softmax(-1)
        inside = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled()
    return y, z, s, inside, torch.is_autocast_enabled("cpu"), x @ w.T


@program(X, W)
def autocast_half(x, w):
    with torch.autocast("cpu", dtype=torch.float16):
        return x @ w.T, F.linear(x, w), torch.mm(x, w.T), x.exp(), torch.matmul(x, w.T).sum()


@program(X, W)
def autocast_nested(x, w):
    with torch.autocast("cpu", torch.bfloat16):
        a = x @ w.T
        with torch.autocast("cpu", enabled=False):
            b = x @ w.T
            c = a.float() @ w
        d = x @ w.T
        with torch.autocast("cpu", torch.float16):
            e = x @ w.T
    return a, b, c, d, e


@torch.autocast("cpu")
def cast(x, w):
    return x @ w.T


@torch.autocast("cpu", dtype=torch.float16)
def cast_half(x, w):
    return x @ w.T


@program(X, W)
def autocast_decorator(x, w):
    return cast(x, w), x @ w.T, cast_half(x, w)


program(X, W)(cast)


@program(X, W)
def autocast_left_on(x, w):
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", torch.float16)
    return x @ w.T


@program(X, W)
def autocast_for_another_device(x, w):
    with torch.autocast("cuda", enabled=False):
        return x @ w.T


@program(X, W)
def autocast_old_names(x, w):
    with torch.amp.autocast("cpu", dtype=torch.bfloat16):
        a = x @ w.T
    with torch.amp.autocast_mode.autocast(device_type=x.device.type):
        b = x @ w.T
    return a, b


@program(X, W)
def autocast_policies(x, w):
    with torch.autocast("cpu"):
        return (torch.cat([x @ w.T, torch.ones(3, 5)]), F.layer_norm(x.bfloat16(), (4,)), F.mse_loss(x.bfloat16(), x),
            x.bfloat16() + x, torch.stack([x.bfloat16(), x]), F.conv1d(x[None], torch.ones(2, 3, 1)),
                torch.bmm(x[None], w.T[None]), torch.baddbmm(torch.ones(1, 3, 5), x[None], w.T[None]),
                torch.addmm(torch.ones(5), x,
                w.T), F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
                torch.linalg.vector_norm(x.bfloat16()),
                F.gelu(x.bfloat16()), x.bfloat16().cumsum(0), x.bfloat16().norm(), torch.einsum("ij,kj->ik", x, w))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        # without, eager's LSTM takes no halves
        cell = nn.LSTM if torch.ops.mkldnn._is_mkldnn_bf16_supported() else nn.GRU
        self.cell = cell(4, 3, batch_first=True)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y, _ = self.cell(x)
            return self.head(self.norm(y[:, -1])), y


@program(Recurrent().eval(), X[None])
def autocast_module(m, x):
    return m(x)


@program(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)).eval(),
         torch.randn(1, 1, 4, 4))
def autocast_convolution(m, x):
    with torch.autocast("cpu"):
        return m(x)


@program(X, W, breaks=True)
def autocast_across_a_break(x, w):
    with torch.autocast("cpu"):
        y = x @ w.T
        n = y.sum().tolist()
        z = y @ w
    return z, n, x @ w.T


def called_under_modes(x):
    return x @ x.T, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled()


def test_modes_of_the_caller_are_guarded() -> None:
    fast = framesmith.compile(called_under_modes, backend="eager", fullgraph=True)
    for manager in (torch.no_grad(), torch.enable_grad(), torch.inference_mode(), torch.autocast("cpu"),
                    torch.autocast("cpu",
        torch.float16)):
        for _ in range(2):
            with manager:
                want, got = called_under_modes(X), fast(X)
            assert want[1:] == got[1:]
            assert want[0].dtype == got[0].dtype and want[0].is_inference() == got[0].is_inference()
            assert torch.equal(want[0], got[0])
