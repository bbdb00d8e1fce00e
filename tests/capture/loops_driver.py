"""What the tests of loops share: programs with their gradients, compiled and eager, for several numbers of rounds."""

import torch

import framesmith

W = (torch.randn(4, 4, dtype=torch.double, generator=torch.Generator().manual_seed(3)) / 2).requires_grad_()


def outcome(run, n, grad):
    """Return the results of a program of a tensor of n slices and of n, with their gradients; or the kind of error."""
    x = torch.linspace(-1, 2, n * 12, dtype=torch.double).view(n, 3, 4).sin().requires_grad_(grad)
    try:
        with torch.set_grad_enabled(grad):
            out = run(x, n)
    except Exception as e:
        return type(e).__name__, None
    leaves = [y for y in torch.utils._pytree.tree_leaves(out) if isinstance(y, torch.Tensor) and y.requires_grad]
    if not leaves:
        return out, None
    return out, torch.autograd.grad(sum(y.pow(2).sum() for y in leaves), [x, W], allow_unused=True)


def check(program, grad, sizes, captures=None, variants=None):
    """Compare with eager, and the number of captures with `variants`."""
    compiled = framesmith.compile(program)
    for n in sizes:
        (got, mine), (want, theirs) = outcome(compiled, n, grad), outcome(program, n, grad)
        if isinstance(want, str) or isinstance(got, str):
            assert got == want
            continue
        torch.testing.assert_close(got, want, check_stride=True)
        assert (mine is None) is (theirs is None)
        if theirs is not None:
            assert [g is None for g in mine] == [g is None for g in theirs]
            torch.testing.assert_close(mine, theirs)
    if variants is not None:
        assert len(captures) <= variants
