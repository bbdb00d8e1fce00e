"""Complex tensors, which eager's kernels compute: written in place, and with Python's complex numbers."""

import pytest
import torch

import framesmith

PROGRAMS = {
    "product": lambda x: x * (1 + 2j) + x / 3j - (2 + 1j),
    "written": lambda x: x.mul_(1j) + 0,
    "written twice": lambda x: (x.mul_(2j), x.add_(1), x.real.sum())[-1],
    "real part": lambda x: (x.real.mul_(2), x * 1)[-1],
    "pairs of a copy": lambda x: torch.view_as_complex((x.real * 2).reshape(2, 2).t().contiguous()) * 1,
    "numbers compared": lambda x: (x.real * 2 == 1j, x.abs().long() != 2 + 0j),
    "a part": lambda x: (x[:2].mul_(2j), x * 1)[-1],
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", PROGRAMS)
def test_native_code(name):
    x = torch.randn(4, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    own = x.clone()
    got, want = framesmith.compile(PROGRAMS[name], fullgraph=True)(own), PROGRAMS[name](x)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(own, x)
