"""Programs that read memory by `as_strided`: where an input begins in its storage is part of what they compute."""

from __future__ import annotations

import pytest
import torch

import framesmith

CASES = []


def case(fn):
    CASES.append(fn)
    return fn


@case
def without_offset(x):
    return x.as_strided((2, 2), (1, 2)) + 1


@case
def of_a_view(x):
    return x[1].as_strided((3,), (1,)) * 2, x[1].as_strided((2,), (1,))


@case
def with_offset(x):
    return torch.as_strided(x, (2,), (2,), 9) + 1


@case
def written(x):
    y = x.clone()
    x.as_strided((2,), (5,)).add_(y[0, :2])
    return y, x * 2


@case
def beyond_the_input(x):
    return x.as_strided((4,), (1,), 0) + 1


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_same_as_eager_wherever_the_input_begins(fn, backend):
    fast = framesmith.compile(fn, backend=backend)
    for start in (2, 1, 0, 2):
        plain, mine = torch.arange(24.0).reshape(6, 4), torch.arange(24.0).reshape(6, 4)
        want, got = fn(plain[start:start + 3]), fast(mine[start:start + 3])
        for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (want, got)), strict=True):
            assert torch.equal(a, b) and a.stride() == b.stride()
        assert torch.equal(plain, mine)


PARTS = {
    "diagonal": torch.diagonal, "select": lambda y: y[:, 0], "narrow": lambda y: y.narrow(0, 0, 2),
    "step": lambda y: y[::2, ::3], "chunk": lambda y: y.chunk(2, 1)[0], "unfold": lambda y: y.unfold(1, 2, 3),
    "real": lambda y: torch.view_as_complex(y.view(3, 2, 2)).real, "detached": lambda y: y.detach()[:1],
    "transposed": lambda y: y.mT[:3], "as_strided": lambda y: y.as_strided((2,), (3,)), "one": lambda y: y[:1, :1],
}


@pytest.mark.parametrize("grad", [False, True], ids=["plain", "grad"])
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_a_part_of_a_result_lies_in_the_whole(part, grad):
    def leaves(x):
        return part(x + 1),

    def crosses_a_break(x):
        y = part(x + 1)
        return y.as_strided((2, 2), (1, 5)), torch._C._is_alias_of(y, y)

    for fn in (leaves, crosses_a_break):
        shown = []
        for call in (fn, framesmith.compile(fn)):
            x = torch.arange(12.0).reshape(3, 4).requires_grad_(grad)
            y = call(x)[0]
            memory = torch.empty(0).set_(y.untyped_storage())
            shown.append((y.detach(), memory.clone(), y.stride(), y.storage_offset(), y._is_view()))
        (y, memory, *rest), (y2, memory2, *rest2) = shown
        assert torch.equal(y, y2) and torch.equal(memory, memory2) and rest == rest2


@pytest.mark.parametrize("dynamic", [False, True])
def test_memory_beyond_a_result_is_not_read(dynamic):
    def beyond(x):
        return x.exp().as_strided((2, 2), (1, 2)).reshape(-1)

    compiled = framesmith.compile(beyond, dynamic=dynamic)
    for size in ((3, 4), (3, 1), (2, 2), (1, 1)):
        x = torch.randn(size)
        if x.numel() < 4:
            with pytest.raises(RuntimeError, match="out of bounds"):
                compiled(x)
        else:
            torch.testing.assert_close(compiled(x), beyond(x))
