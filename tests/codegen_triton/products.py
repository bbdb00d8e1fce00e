"""Contractions of all kinds: name -> (function, what makes its inputs); and the programs in which our own kernels
compute them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.nn.functional as F

from framesmith.loops.ir import Program
from framesmith.loops.nest import LoopGraph
from framesmith.lower.contractions.tiled import contraction_of, is_computed, replaced, ways
from framesmith.schedule.target import GPU
from tests.codegen_triton.graphs import BF16, HALF, x
from tests.schedule.harness import program_of

PRODUCTS: dict[str, tuple[Callable[..., Any], Callable[[], list[Any]]]] = {}
SYMBOLIC: dict[str, set[tuple[int, int]]] = {}


def product(
    name: str, make: Callable[[], list[Any]], dynamic: Collection[tuple[int, int]] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Note the decorated function under `name`."""

    def note(fn: Callable[..., Any]) -> Callable[..., Any]:
        PRODUCTS[name], SYMBOLIC[name] = (fn, make), set(dynamic)
        return fn

    return note


@product("mm", lambda: [x(37, 50), x(50, 29)])
def _(a, b):
    return a @ b


@product("whole tiles", lambda: [x(64, 32), x(32, 64)])
def _(a, b):
    return a @ b


@product("whole halves", lambda: [x(128, 256, dtype=BF16), x(128, 256, dtype=BF16), x(128, dtype=BF16)])
def _(a, w, b):
    return torch.relu(torch.addmm(b, a, w.t()))


@product("transposed operands", lambda: [x(50, 37), x(29, 50)])
def _(a, b):
    return a.t() @ b.t()


@product("linear", lambda: [x(3, 11, 40), x(24, 40), x(24)])
def _(a, w, b):
    return torch.addmm(b, a.reshape(33, 40), w.t()).reshape(3, 11, 24)


@product("bias and activation", lambda: [x(33, 40, dtype=BF16), x(24, 40, dtype=BF16), x(24, dtype=BF16)])
def _(a, w, b):
    return F.gelu(torch.addmm(b, a, w.t()))


@product("activations of the library", lambda: [x(33, 40, dtype=BF16), x(24, 40, dtype=BF16), x(24, dtype=BF16)])
def _(a, w, b):
    ours = torch.ops.aten._addmm_activation
    return ours(b, a, w.t()), ours(b, a, w.t(), use_gelu=True)


@product("residual and norm",
         lambda: [x(33, 40, dtype=HALF), x(24, 40, dtype=HALF), x(24, dtype=HALF), x(33, 24, dtype=HALF)])
def _(a, w, b, r):
    y = torch.addmm(b, a, w.t()) + r
    return F.layer_norm(y, (24,))


@product("gated", lambda: [x(20, 32), x(48, 32), x(48, 32)])
def _(a, w, v):
    return F.silu(torch.mm(a, w.t())) * torch.mm(a, v.t())


@product("result and its activation", lambda: [x(20, 32), x(32, 48)])
def _(a, b):
    y = a @ b
    return y, torch.relu(y), y.to(torch.bfloat16)


@product("other types behind", lambda: [x(20, 32, dtype=BF16), x(32, 48, dtype=BF16), x(20, 48)])
def _(a, b, c):
    return (a @ b).float() * 0.5 + c


@product("batches", lambda: [x(3, 20, 32), x(3, 32, 17)])
def _(a, b):
    return torch.softmax(torch.bmm(a, b) / 4.0, -1)


@product("batches with a sum", lambda: [x(17), x(3, 20, 32), x(3, 32, 17)])
def _(c, a, b):
    return torch.baddbmm(c, a, b)


@product("a batch of one", lambda: [x(1, 20, 32), x(1, 32, 17)])
def _(a, b):
    return torch.bmm(a, b)


@product("one row", lambda: [x(1, 64), x(48, 64), x(48)])
def _(a, w, b):
    return torch.relu(torch.addmm(b, a, w.t()))


@product("one column", lambda: [x(37, 64), x(64, 1)])
def _(a, b):
    return a @ b


@product("long sum", lambda: [x(20, 2048), x(17, 2048), x(17)])
def _(a, w, b):
    return torch.tanh(torch.addmm(b, a, w.t()))


@product("windows", lambda: [x(40, 60), x(60, 40)])
def _(a, b):
    return a[3:30, 5:55] @ b[5:55, 1:33]


@product("written into an operand", lambda: [x(24, 24), x(24, 24)])
def _(a, b):
    a.copy_(a @ b)
    return a + 1


def image(*shape: int) -> torch.Tensor:
    return x(*shape, dtype=BF16).to(memory_format=torch.channels_last)


def filters(*shape: int) -> torch.Tensor:
    return x(*shape, dtype=BF16).to(memory_format=torch.channels_last)


@product("convolution", lambda: [image(2, 12, 5, 7), x(20, 12, 1, 1, dtype=BF16), image(2, 20, 5, 7)])
def _(a, w, r):
    return torch.relu(F.conv2d(a, w) + r)


@product("convolution of few channels", lambda: [image(2, 3, 9, 11), filters(20, 3, 5, 3)])
def _(a, w):
    return torch.relu(F.conv2d(a, w, None, 2, (2, 1)))


@product("convolution with steps and gaps", lambda: [image(2, 16, 9, 10), filters(24, 16, 3, 3), image(2, 24, 5, 3)])
def _(a, w, r):
    return F.conv2d(a, w, None, (2, 2), (1, 0), (1, 2)) + r


@product("convolution of one element with steps", lambda: [image(2, 32, 7, 6), filters(16, 32, 1, 1)])
def _(a, w):
    return F.hardswish(F.conv2d(a, w, None, 2))


@product("sum of products", lambda: [x(24, 40), x(40, 24)])
def _(a, b):
    return (a @ b + b.t() @ a.t()) @ a


@product("squares", lambda: [x(24, 24), x(24, 24)])
def _(a, b):
    return torch.relu(torch.tanh(a @ b) @ b) @ b


@product("scores", lambda: [x(3, 20, 16), x(3, 16, 24), x(3, 24, 8)])
def _(q, k, v):
    return torch.bmm(torch.softmax(torch.tanh(torch.bmm(q, k)), -1), v)


@product("symbolic rows", lambda: [x(37, 48), x(24, 48), x(24)], [(0, 0)])
def _(a, w, b):
    return F.gelu(torch.addmm(b, a, w.t()))


@product("symbolic sizes", lambda: [x(3, 21, 34), x(3, 34, 19)], [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)])
def _(a, b):
    return torch.bmm(a, b)


@product("computed operands", lambda: [x(24, 40), x(24, 40), x(48, 40, dtype=torch.int8), x(48, 1)])
def _(a, b, w, scale):
    return (a * torch.sigmoid(b)) @ (w.float() * scale).t()


@product("an operand of many readers", lambda: [x(6, 4, 40), x(48, 40)])
def _(a, w):
    y = torch.exp(a) - 1
    return y.reshape(24, 40) @ w.t(), y.sum(-1)


def size(s: Any) -> int:
    return s if type(s) is int else 64


def program(name: str, number: int = 0, tf32: bool = False) -> Program:
    """The program in which each contraction goes its way `number` (the last one where it has fewer)."""

    def change(graph: LoopGraph) -> LoopGraph:
        chosen = {}
        for place, item in enumerate(graph.items):
            c = contraction_of(item, graph.storages)
            if c is not None:
                names = ways(c, size, is_computed(graph, place, c, size))
                chosen[place] = names[min(number, len(names) - 1)]
        assert chosen, f"{name} has no contraction"
        return replaced(graph, chosen, tf32)

    fn, make = PRODUCTS[name]
    return program_of(fn, *make(), target=GPU, dynamic=SYMBOLIC[name], change=change)
