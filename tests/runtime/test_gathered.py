"""Constants in few pieces of memory."""

import torch

from framesmith.runtime.coalesced_memory import PIECE, gather


def test_values_and_strides_stay_and_memory_is_shared():
    torch.manual_seed(0)
    own = [torch.randn(600, 700 + k, dtype=torch.float32 if k % 2 else torch.float64) for k in range(16)]
    parameter = torch.randn(800, 800)
    tensors = [*own, own[3].t(), own[4][1:, 5:], torch.randn(3), torch.randn(3000, 1000), parameter.t(),
               torch.arange(10)]
    want, before = [t.clone() for t in tensors], [(t.size(), t.stride(), t.dtype) for t in tensors]
    untouched = [t.data_ptr() for t in tensors[18:]]
    gather(tensors, [parameter])
    for t, w in zip(tensors, want, strict=True):
        torch.testing.assert_close(t, w, rtol=0, atol=0)
    assert [(t.size(), t.stride(), t.dtype) for t in tensors] == before
    assert [t.data_ptr() for t in tensors[18:]] == untouched
    pieces = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors[:18]}
    assert 1 < len(pieces) < 4 and max(pieces.values()) <= PIECE
    assert tensors[3].untyped_storage().data_ptr() == tensors[16].untyped_storage().data_ptr()
    tensors[3][0, 1] = 7.0
    assert tensors[16][1, 0] == 7.0 and all(t.data_ptr() % 16 == 0 for t in tensors[:16])


def test_one_alone_stays_where_it_is():
    tensors = [torch.randn(700, 700), torch.randn(5)]
    places = [t.data_ptr() for t in tensors]
    gather(tensors, [])
    assert [t.data_ptr() for t in tensors] == places
