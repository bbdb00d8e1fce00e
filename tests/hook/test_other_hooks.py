"""Another user of PEP 523 in the same process: torch.compile's own hook, outside, inside and around ours."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import torch
from framesmith import _C
from framesmith.capture.guards import compile_guards
from framesmith.capture.sources import Guard, Local

graphs = []
def backend(gm, inputs):
    graphs.append(gm)
    return gm.forward

def inner(a):
    return a + 1
def ours(a):
    return inner(a) * 2
def callback(code, func, f_locals):
    if code.co_name != "ours":
        return None
    tree = compile_guards([Guard(Local("a"), "type", torch.Tensor)], [])
    return _C.Entry(tree, code, (lambda a, i: inner(a) * 3).__code__, callback)

theirs = torch.compile(inner, backend=backend)
mine = _C.CompiledFunction(ours, callback)
around = _C.CompiledFunction(lambda a: theirs(a) + 1, lambda *a: None)

@torch.compile(backend=backend)
def broken(a):
    a = a + 1
    torch._dynamo.graph_break()
    return mine(a)

def deep(n, a):
    if n == 0:
        return a
    if n % 2:
        return torch.compile(deep, backend=backend)(n - 1, a)
    return _C.CompiledFunction(deep, callback)(n - 1, a)

x = torch.ones(2)
for _ in range(3):
    assert theirs(x).tolist() == [2, 2] and around(x).tolist() == [3, 3]
    assert mine(x).tolist() == [6, 6] and broken(x).tolist() == [9, 9] and deep(5, x).tolist() == [1, 1]
    assert not _C.hook_installed() and _C.get_callback() is None
assert graphs
"""


def test_beside_torch_compile():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
