"""Named dimensions, their ranges, and what a program asks of them."""

import pytest
import torch
from torch import nn

import framesmith
from framesmith.exc import ExportError
from framesmith.export import AUTO, DYNAMIC, Dim


class Of(nn.Module):
    """A module whose forward is a function."""

    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x, y=None):
        return self.fn(x) if y is None else self.fn(x, y)


def export(fn, *shapes, dims, **options):
    return framesmith.export(Of(fn), tuple(torch.randn(s) for s in shapes), dynamic_shapes=dims, **options)


def test_one_name_is_one_size_everywhere():
    n = Dim("n")
    program = export(lambda x, y: x + y, (3, 4), (3, 4), dims=({0: n}, {0: n}))
    assert program(torch.ones(5, 4), torch.ones(5, 4)).sum() == 40
    with pytest.raises(ValueError, match="n is 5, and 6 by dimension 0 of y"):
        program(torch.ones(5, 4), torch.ones(6, 4))


def test_two_names_that_are_one_are_an_error_with_a_proposal():
    with pytest.raises(ExportError, match=r"a == b is taken to hold.*\n.*\n.*use one Dim for both"):
        export(lambda x, y: x + y, (3, 4), (3, 4), dims=({0: Dim("a")}, {0: Dim("b")}))


def test_all_violations_are_named_at_once():
    def fn(x):
        y = x + torch.ones(6, 1)
        return y @ torch.ones(4, 2)

    with pytest.raises(ExportError) as error:
        export(fn, (6, 4), dims=({0: Dim("rows"), 1: Dim("columns")},))
    assert len(error.value.violations) == 2
    assert "columns is always 4" in str(error.value) and "rows is always 6" in str(error.value)


def test_a_multiple_is_declared_as_one():
    with pytest.raises(ExportError, match=r'declare n as 2 \* Dim\("n_2"\)'):
        export(lambda x: x.reshape(-1, 2, 4), (6, 4), dims=({0: Dim("n")},))
    program = export(lambda x: x.reshape(-1, 2, 4), (6, 4), dims=({0: 2 * Dim("half")},))
    assert program(torch.randn(10, 4)).shape == (5, 2, 4)
    with pytest.raises(ValueError, match=r"dimension 0 of x is 7, which is to be 2\*half"):
        program(torch.randn(7, 4))


def test_ranges_hold_at_run_time():
    program = export(lambda x: x * 2, (3, 4), dims=({0: Dim("n", min=2, max=8)},))
    assert program.dimensions == {"n": (2, 8)}
    with pytest.raises(ValueError, match=r"n is 9; the program was exported for n: 2\.\.8"):
        program(torch.randn(9, 4))
    with pytest.raises(ExportError, match="out of its range"):
        export(lambda x: x * 2, (9, 4), dims=({0: Dim("n", min=2, max=8)},))


def test_a_bound_of_the_program_is_proposed_or_refined():
    def fn(x):
        return x + 1 if x.shape[0] <= 16 else x

    with pytest.raises(ExportError, match=r'at most 16 here, at .*\n.*\n.*declare Dim\("n", max=16\)'):
        export(fn, (3, 4), dims=({0: Dim("n")},))
    assert export(fn, (3, 4), dims=({0: Dim("n", max=16)},)).dimensions == {"n": (1, 16)}
    assert list(export(fn, (3, 4), dims=({0: DYNAMIC},)).dimensions.values()) == [(1, 16)]


def test_a_branch_on_one_is_a_bound_where_none_was_declared():
    def fn(x):
        return x.squeeze(0) if x.shape[0] == 1 else x

    assert export(fn, (3, 4), dims=({0: Dim("n")},)).dimensions == {"n": (2, None)}
    with pytest.raises(ExportError, match=r'declare Dim\("n", min=2\)'):
        export(fn, (3, 4), dims=({0: Dim("n", min=1)},))


def test_an_example_of_one_row_is_as_good_as_another():
    program = export(lambda x: x @ x.T, (1, 4), dims=({0: Dim("n")},))
    for n in (1, 2, 5):
        x = torch.randn(n, 4)
        torch.testing.assert_close(program(x), x @ x.T)


def test_auto_is_as_dynamic_as_the_program_lets_it():
    program = export(lambda x: x + torch.ones(3, 1), (3, 4), dims=({0: AUTO, 1: AUTO},))
    assert program.dimensions == {"x_0": (3, 3), "x_1": (1, None)}
    with pytest.raises(ExportError, match="is always 3"):
        export(lambda x: x + torch.ones(3, 1), (3, 4), dims=({0: DYNAMIC},))


def test_dims_of_torch_export_are_taken():
    n = torch.export.Dim("n", min=2, max=64)
    program = export(lambda x, y: torch.cat([x, y]), (3, 4), (7, 4), dims={"x": {0: n}, "y": {0: 2 * n + 1}})
    assert program.dimensions == {"n": (2, 64)}
    assert program(torch.randn(5, 4), torch.randn(11, 4)).shape == (16, 4)
    program = export(lambda x: x + 1, (3, 4), dims=((torch.export.Dim.AUTO, torch.export.Dim.STATIC),))
    assert list(program.dimensions.values()) == [(1, None)]


def test_nested_arguments():
    class Nested(nn.Module):
        def forward(self, pair, named, *rest, scale):
            return pair[0] + named["a"] + rest[0] * scale

    n = Dim("n")
    x = torch.randn(3, 4)
    dims = {"pair": ({0: n}, None), "named": {"a": {0: n}}, "rest": ({0: n},), "scale": None}
    program = framesmith.export(Nested(), ((x, x), {"a": x}, x), {"scale": 2.0}, dynamic_shapes=dims)
    y = torch.randn(5, 4)
    torch.testing.assert_close(program((y, x), {"a": y}, y, scale=2.0), y + y + y * 2)
    with pytest.raises(ValueError, match=r"is 3.0; the program was exported for 2.0"):
        program((y, x), {"a": y}, y, scale=3.0)
    with pytest.raises(TypeError, match="was exported for arguments"):
        program((y, x), [y], y, scale=2.0)


def test_names_that_do_not_fit():
    with pytest.raises(ExportError, match="names 'z', which is no argument"):
        export(lambda x: x, (3, 4), dims={"z": {0: Dim("n")}})
    with pytest.raises(ExportError, match="names dimension 2 of 2"):
        export(lambda x: x, (3, 4), dims=({2: Dim("n")},))
