"""Recurrent layers. Under autograd: oneDNN's layer and its backward, recorded as the operators of csrc/training.cpp,
which work with grad mode off (a graph that contains its own derivative runs so), and accept arguments of any strides.
Under autocast on a CUDA device: the layer on cast arguments, without autocast's buffer for them."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from framesmith import _C
from framesmith.fake.handlers import classify, functional, handles
from framesmith.fake.infer import rule
from framesmith.fake.recording import Recording
from framesmith.fake.tensor import FakeTensor, dense
from framesmith.util.errors import DataDependent, Unsupported

assert _C.LANES  # importing the core registers the operators
aten = torch.ops.aten
LAYER = torch.ops.framesmith.mkldnn_rnn_layer.default
BACKWARD = torch.ops.framesmith.mkldnn_rnn_layer_backward.default


@handles(aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input)
def recurrence(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record cuDNN's layer, which under autograd inspects the memory of its weights."""
    if rec.follows_grad and torch.is_grad_enabled() and args[0].device.type == "cuda":
        raise Unsupported(f"{func} on a CUDA device where gradients are asked for")
    if args[0].device.type != "cuda":
        return classify(func)(rec, func, args, kwargs)
    if "cuda" not in rec.autocast:
        return functional(rec, func, args, kwargs)
    dtype = _under_autocast(func, torch.get_autocast_dtype("cuda"))
    devices, rec.autocast = rec.autocast, ()
    try:
        return functional(rec, func, tuple(tree_map_only(FakeTensor, lambda t: t.to(dtype), list(args))), kwargs)
    finally:
        rec.autocast = devices


@handles(aten.lstm.data, aten.gru.data, aten.rnn_tanh.data, aten.rnn_relu.data)
def of_packed_sequence(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Refuse a layer over a packed sequence: its kernel reads the batch sizes at an address, which a fake has not."""
    raise DataDependent(f"{func} reads the lengths of a packed sequence", hint="the module runs in plain Python")


@cache
def _under_autocast(func: Any, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to which autocast in `dtype` casts a layer's arguments: for cuDNN's layers always float16 in
    some versions."""
    gates = {aten.lstm.input: 4, aten.gru.input: 3}.get(func, 1)
    x = torch.zeros(1, 1, 8, device="cuda")
    weight = torch.zeros(gates * 8, 8, device="cuda")
    state = [x, x] if func is aten.lstm.input else x
    with torch.no_grad(), torch.autocast("cuda", dtype):
        out = func(x, state, [weight, weight], False, 1, 0.0, False, False, False)
    return out[0].dtype


@handles(aten.mkldnn_rnn_layer.default)
def rnn_layer(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    return functional(rec, LAYER, args, kwargs)


@handles(aten.mkldnn_rnn_layer_backward.default)
def rnn_layer_backward(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    return functional(rec, BACKWARD, args, kwargs)


@rule(LAYER)
def layer_results(x: FakeTensor, w0: FakeTensor, w1: FakeTensor, w2: Any, w3: Any, hidden: FakeTensor, cell: FakeTensor,
                  *args: Any) -> Any:
    """Return the layer's results; only the kernel knows the size of its workspace, so it runs once for each
    geometry."""
    if any(type(n) is not int for t in (x, w0, hidden) for n in t.shape):
        raise Unsupported("a recurrent layer of symbolic sizes under autograd")
    geometry = tuple([tuple(t.shape) for t in (x, w0, w1, hidden)])
    kept = _workspace(x.dtype, geometry, tuple([tuple(a) if isinstance(a, list) else a for a in args]))
    out = (*x.shape[:2], hidden.shape[-1])
    return dense(x, out), dense(x, tuple(hidden.shape)), dense(x, tuple(cell.shape)), dense(x, (kept,), torch.uint8)


@cache
def _workspace(dtype: torch.dtype, geometry: tuple, args: tuple) -> int:
    x, w0, w1, hidden = [torch.zeros(size, dtype=dtype) for size in geometry]
    bias = torch.zeros(w0.shape[0], dtype=dtype)
    return LAYER(x, w0, w1, bias, bias, hidden, hidden, *args)[3].numel()


@rule(BACKWARD)
def layer_gradients(
    x: FakeTensor, w0: FakeTensor, w1: FakeTensor, w2: FakeTensor, w3: FakeTensor, hidden: FakeTensor, cell: FakeTensor,
    *args: Any
) -> Any:
    """Return the gradients, in float32 for any dtype of the layer; of biases even if there are none (zeros of the
    weights' shapes represent them)."""
    bias = tuple(w0.shape[:1])
    shapes = (tuple(x.shape), tuple(w0.shape), tuple(w1.shape), bias, bias, tuple(hidden.shape), tuple(cell.shape))
    return tuple([dense(x, shape, torch.float32) for shape in shapes])
