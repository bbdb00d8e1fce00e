"""Runs a package by ctypes alone: run.py libframesmith.so model.fsm. Inputs are zeros, and sizes that vary are 1."""

import ctypes
import sys


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int32), ("rank", ctypes.c_int32),
                ("size", ctypes.c_int64 * 8), ("stride", ctypes.c_int64 * 8)]


class Info(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_int32), ("rank", ctypes.c_int32),
                ("size", ctypes.c_int64 * 8), ("written", ctypes.c_int32)]


library = ctypes.CDLL(sys.argv[1])
library.framesmith_error.restype = ctypes.c_char_p
model = ctypes.c_void_p()


def check(status):
    if status:
        sys.exit(library.framesmith_error().decode())


def fill(tensor):
    count = 1
    for size in tensor.size[: tensor.rank]:
        count *= size
    memory = (ctypes.c_double * max(count, 1))()
    tensor.data = ctypes.addressof(memory)
    return memory


check(library.framesmith_load(sys.argv[2].encode(), None, ctypes.byref(model)))
inputs = (Tensor * library.framesmith_inputs(model))()
outputs = (Tensor * library.framesmith_outputs(model))()
for i, tensor in enumerate(inputs):
    info = Info()
    check(library.framesmith_input(model, i, ctypes.byref(info)))
    tensor.dtype, tensor.rank = info.dtype, info.rank
    for d in range(info.rank):
        tensor.size[d] = max(info.size[d], 1)
alive = [fill(tensor) for tensor in inputs]
check(library.framesmith_shapes(model, inputs, len(inputs), outputs, len(outputs)))
alive += [fill(tensor) for tensor in outputs]
check(library.framesmith_run(model, inputs, len(inputs), outputs, len(outputs)))
for tensor in outputs:
    print(tuple(tensor.size[: tensor.rank]), list((ctypes.c_float * 4).from_address(tensor.data)))
library.framesmith_free(model)
