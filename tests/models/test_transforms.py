"""A compiled function under a function transform gets wrapped tensors: it runs in eager."""

from __future__ import annotations

import torch

import framesmith


def test_vmap_of_a_compiled_function() -> None:
    compiled = framesmith.compile(lambda x: x.sin() + 1)
    x = torch.randn(3, 4)
    assert torch.equal(torch.vmap(compiled)(x), x.sin() + 1)
    torch.testing.assert_close(compiled(x), x.sin() + 1)
