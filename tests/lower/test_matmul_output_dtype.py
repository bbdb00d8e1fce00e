"""Products whose results leave the graph in float32 are written so; others stay halves."""

import pytest
import torch

from framesmith.graph.verifier import verify
from framesmith.lower.contractions.matmul_output_dtype import widen_matmul_results
from framesmith.lower.lower import lower
from framesmith.prims.decompose import decompose
from tests.fake.harness import record

A, B = (torch.randn(s, generator=torch.Generator().manual_seed(0)).bfloat16() for s in ((4, 6, 8), (4, 8, 6)))
a, b = A[0], B[0]
aten = torch.ops.aten

CASES = {
    "gradient": (lambda a, b, A, B: torch.mm(a, b).float(), 1),
    "turned": (lambda a, b, A, B: torch.mm(a, b).t().t().float(), 1),
    "in another shape": (lambda a, b, A, B: torch.mm(a, b).view(2, 18).float().view(3, 12), 1),
    "batches": (lambda a, b, A, B: torch.bmm(A, B).float(), 1),
    "computed with": (lambda a, b, A, B: torch.mm(a, b).float() + 1, 0),
    "wanted in both": (lambda a, b, A, B: [y := torch.mm(a, b), y.float()], 0),
    "wanted in float64": (lambda a, b, A, B: torch.mm(a, b).double(), 0),
    "of float32": (lambda a, b, A, B: torch.mm(a.float(), b.float()).bfloat16().float(), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_rewriting(name):
    fn, count = CASES[name]
    graph, results = record(fn, [a, b, A, B])
    widen_matmul_results(graph)
    verify(graph)
    found = [n for n in graph.nodes if n.target in (aten.mm.dtype, aten.bmm.dtype)]
    assert len(found) == count
    for node in found:
        assert node.args[2] is torch.float32 and node.meta["val"].dtype is torch.float32
    loops = lower(decompose(graph))
    for ref, want in zip(loops.outputs, results, strict=True):
        storage = loops.storages[ref.name]
        assert (tuple(storage.size), tuple(storage.stride), storage.dtype) == (tuple(want.shape), want.stride(),
                                                                               want.dtype)
    assert not count or not any(hasattr(item, "raxes") for item in loops.items)  # no cast is left
