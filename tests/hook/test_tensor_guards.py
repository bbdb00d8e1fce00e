"""Guards of tensors, of their storages and sizes, and of torch's global state."""

from __future__ import annotations

import pytest
import torch
from torch.overrides import BaseTorchFunctionMode

from framesmith.capture.guards import compile_guards
from framesmith.capture.sources import GlobalState, Guard, Item, Local, TensorSpec
from framesmith.symbolic.expr import Symbol, and_, eq, le, lt, max_, min_, ne, or_
from tests.hook.helpers import type_of

X = Local("x")


def spec(t, sizes=None, strides=True, keys=None):
    return TensorSpec(type(t), t.dtype, t.device, t.layout, tuple(t.shape) if sizes is None else sizes,
                      tuple(t.stride()) if strides is True else strides, t.requires_grad,
                      torch._C._dispatch_keys(t).raw_repr() if keys is None else keys)


class Child(torch.Tensor):
    pass


OTHERS = {
    "dtype: expected torch.float32, got torch.float64": lambda: torch.zeros(2, 3, dtype=torch.float64),
    "size of dimension 0: expected 2, got 4": lambda: torch.zeros(4, 3),
    "number of dimensions: expected 2, got 1": lambda: torch.zeros(6),
    "stride of dimension 0: expected 3, got 1": lambda: torch.zeros(3, 2).t(),
    "requires_grad: expected False, got True": lambda: torch.zeros(2, 3, requires_grad=True),
    "device: expected cpu, got meta": lambda: torch.zeros(2, 3, device="meta"),
    "layout: expected torch.strided, got torch.sparse_coo": lambda: torch.zeros(2, 3).to_sparse(),
    "Child, expected Tensor": lambda: torch.zeros(2, 3).as_subclass(Child),
    "Parameter, expected Tensor": lambda: torch.nn.Parameter(torch.zeros(2, 3), requires_grad=False),
    "int, expected Tensor": lambda: 3,
    "dispatch keys": lambda: _inference_tensor(),
}


def _inference_tensor():
    with torch.inference_mode():
        return torch.zeros(2, 3)


@pytest.mark.parametrize("keys", [None, -1])
@pytest.mark.parametrize("words", OTHERS)
def test_every_fact_is_compared(words, keys):
    tree = compile_guards([Guard(X, "tensor", spec(torch.zeros(2, 3), keys=keys))], [X])
    good = torch.ones(2, 3)
    assert tree.check({"x": good})[0] is good
    bad = OTHERS[words]()
    if words == "dispatch keys" and keys == -1:
        assert tree.check({"x": bad}) is not None
        return
    assert tree.check({"x": bad}) is None
    assert words in tree.explain_failure({"x": bad})


def test_views_conjugates_and_offsets():
    tree = compile_guards([Guard(X, "tensor", spec(torch.zeros(2, dtype=torch.complex64)))], [])
    assert tree.check({"x": torch.zeros(4, dtype=torch.complex64)[2:]}) == ()
    assert tree.check({"x": torch.zeros(2, dtype=torch.complex64).conj()}) is None


def test_dynamic_dimensions_are_free():
    t = torch.zeros(2, 3)
    tree = compile_guards([Guard(X, "tensor", spec(t, sizes=(None, 3), strides=None))], [])
    assert tree.check({"x": torch.zeros(9, 3)}) == () and tree.check({"x": torch.zeros(3, 9).t()}) == ()
    assert tree.check({"x": torch.zeros(9, 4)}) is None
    tree = compile_guards([Guard(X, "tensor", spec(t, sizes=(None, 3), strides=(None, 1)))], [])
    assert tree.check({"x": torch.zeros(9, 3)}) == () and tree.check({"x": torch.zeros(3, 9).t()}) is None


def test_metadata_that_changes_in_place_is_seen():
    t = torch.zeros(2, 3)
    tree = compile_guards([Guard(X, "tensor", spec(t))], [])
    assert tree.check({"x": t}) == ()
    t.requires_grad_()
    assert tree.check({"x": t}) is None
    t.requires_grad_(False)
    assert tree.check({"x": t}) == ()
    t.data = torch.zeros(5)
    assert tree.check({"x": t}) is None


def test_subclass_that_answers_for_its_own_sizes():
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dispatch_sizes_strides_policy="sizes")

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return func(args[0].inner)

    wrapped = Wrapper(torch.zeros(2, 3))
    tree = compile_guards([Guard(X, "tensor", spec(wrapped))], [])
    assert tree.check({"x": wrapped}) == () and tree.check({"x": Wrapper(torch.zeros(2, 4))}) is None


def test_no_alias():
    many = [Item(X, i) for i in range(3)]
    tree = compile_guards([Guard(None, "no_alias", many)], [])
    a, b = torch.zeros(4), torch.zeros(4)
    assert tree.check({"x": [a, b, torch.zeros(0)]}) == ()
    for c in (a, a[2:], a.view(2, 2), a.detach()):
        assert tree.check({"x": [a, b, c]}) is None
    assert "share memory" in tree.explain_failure({"x": [a, b, a]})
    assert tree.check({"x": [a, b, 3]}) is None
    whole = torch.frombuffer(bytearray(64), dtype=torch.uint8)
    part = torch.frombuffer(whole.numpy()[8:16], dtype=torch.uint8) if hasattr(torch, "frombuffer") else whole
    assert tree.check({"x": [whole, b, part]}) is None


M, N, S, K = Symbol("m"), Symbol("n"), Symbol("s"), Symbol("k", -100, 100)


@pytest.mark.parametrize("relation", [
    le(M, 4), lt(2 * M + 3 * N, 20), eq(M % 3, 0), eq((M * N) % 2, 0), ne(M, N), le(M // 2 + N * N * M, 30),
    or_(eq(M, 1), eq(N, 1)),
    and_(le(2, M), le(M, N)), lt(max_(M, N), 5), lt(min_(M, N, S), 4), eq(S, N), le(K % 7, 3), le(K // 3, -2), lt(K, M),
], ids=str)
def test_shape_relations_agree_with_the_algebra(relation):
    symbols = {"m": (X, "size", 0), "n": (X, "size", 1), "s": (X, "stride", 0), "k": (Local("k"), "value", None)}
    used = {s.name: symbols[s.name] for s in relation.free}
    tree = compile_guards([Guard(None, "shape", (relation, used))], [])
    for m in range(1, 7):
        for n in range(1, 6):
            for k in (-9, -7, -1, 0, 5):
                x = torch.empty(m, n)
                want = relation.evaluate({"m": m, "n": n, "s": x.stride(0), "k": k})
                assert (tree.check({"x": x, "k": k}) == ()) is want
                if not want:
                    assert str(relation) in tree.explain_failure({"x": x, "k": k})


def test_shape_of_no_tensor_fails():
    tree = compile_guards([Guard(None, "shape", (le(M, 4), {"m": (X, "size", 1)}))], [])
    assert [tree.check({"x": x}) for x in (3, torch.zeros(3), torch.zeros(3, 5))] == [None] * 3
    deep = M
    for i in range(40):
        deep = (deep // 2 + N) % (i + 50)
    tree = compile_guards([Guard(None, "shape", (le(deep, 60), {"m": (X, "size", 0), "n": (X, "size", 1)}))], [])
    assert tree.check({"x": torch.zeros(3, 5)}) == ()


STATE = GlobalState(True, False, (("cpu", False, None),), torch.float32, False)


def test_global_state():
    tree = compile_guards([type_of("x"), Guard(None, "globals_state", STATE)], [])
    frame = {"x": 1}
    assert tree.check(frame) == ()
    with torch.no_grad():
        assert tree.check(frame) is None and tree.explain_failure(frame) == "grad mode: expected True, got False"
    with torch.inference_mode(), torch.enable_grad():
        assert tree.check(frame) is None and "inference mode" in tree.explain_failure(frame)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (tree.check(frame) is None
                and "autocast on cpu: expected False, got torch.bfloat16" in tree.explain_failure(frame))
    with torch.device("meta"):
        assert tree.check(frame) is None and tree.explain_failure(frame) == "default device: expected None, got meta"
    with BaseTorchFunctionMode():
        assert tree.check(frame) is None and "mode is active" in tree.explain_failure(frame)
    torch.set_default_dtype(torch.float64)
    try:
        assert tree.check(frame) is None and "default dtype" in tree.explain_failure(frame)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(True)
    try:
        assert tree.check(frame) is None and "deterministic" in tree.explain_failure(frame)
    finally:
        torch.use_deterministic_algorithms(False)
    assert tree.check(frame) == ()


def test_autocast_state():
    on = GlobalState(True, False, (("cpu", True, torch.bfloat16),), torch.float32, False)
    tree = compile_guards([Guard(None, "globals_state", on)], [])
    assert tree.check({}) is None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert tree.check({}) == ()
    with torch.autocast("cpu", dtype=torch.float16):
        assert tree.check({}) is None
