"""Runs a package by ctypes alone: run.py libframesmith.so model.fsm. Inputs are zeros, sizes that vary their least."""

import ctypes
import sys


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int32), ("rank", ctypes.c_int32),
                ("size", ctypes.c_int64 * 8), ("stride", ctypes.c_int64 * 8)]


class Range(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("least", ctypes.c_int64), ("most", ctypes.c_int64)]


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
sizes = (ctypes.c_int64 * library.framesmith_dimensions(model))()
for i in range(len(sizes)):
    dimension = Range()
    check(library.framesmith_dimension(model, i, ctypes.byref(dimension)))
    sizes[i] = dimension.least
check(library.framesmith_input_shapes(model, sizes, len(sizes), inputs, len(inputs)))
alive = [fill(tensor) for tensor in inputs]
check(library.framesmith_shapes(model, inputs, len(inputs), outputs, len(outputs)))
alive += [fill(tensor) for tensor in outputs]
check(library.framesmith_run(model, inputs, len(inputs), outputs, len(outputs)))
for tensor in outputs:
    print(tuple(tensor.size[: tensor.rank]), list((ctypes.c_float * 4).from_address(tensor.data)))
library.framesmith_free(model)
