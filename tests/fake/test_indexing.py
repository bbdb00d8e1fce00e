"""Masks as indices."""

import pytest
import torch

import framesmith


@pytest.mark.parametrize("shape, mask", [((3,), (1,)), ((3, 4), (3, 1)), ((3, 4), (1, 4)), ((3, 4), (1,)),
                                         ((1, 4), (3,)), ((3,), ()), ((3, 4), (3,)), ((3, 4), (3, 4))])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_mask_has_the_shape_of_what_it_indexes(shape, mask, dynamic):
    def put(x, mask):
        x[mask] = 2.0
        return x

    def put_tensor(x, mask):
        return x.index_put((mask,), torch.tensor(3.0))

    for program in (put, put_tensor):
        found = []
        for run in (program, framesmith.compile(program, backend="eager", dynamic=dynamic)):
            try:
                found.append(run(torch.ones(shape), torch.ones(mask) > 0).tolist())
            except IndexError as e:
                found.append(str(e))
        assert found[0] == found[1]
