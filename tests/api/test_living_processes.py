"""Compiled code in child processes, beside torch.compile, and in DataLoader workers."""

import multiprocessing
import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import framesmith
from framesmith.testing import CompileCounter
from tests.api.nets import Net, X, assert_close


def scaled(x):
    return (x * 2).relu() + 1


@framesmith.compile(backend="eager")
def decorated(x):
    return (x * 3).relu() + 1


def child(model, x, queue):
    torch.set_num_threads(1)
    with torch.no_grad():
        queue.put(model(x).tolist())


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("called", [False, True])
def test_a_child_process(method, called):
    context = multiprocessing.get_context(method)
    torch.manual_seed(0)
    compiled = framesmith.compile(Net().eval(), backend="eager")
    if called:
        compiled(X)
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(compiled, X, queue))
    process.start()
    result = queue.get()
    process.join(60)
    assert process.exitcode == 0
    assert_close(torch.tensor(result), compiled(X))


def test_a_fork_while_another_thread_compiles():
    """The child must not wait for a lock that a thread of the parent held."""
    pid = None

    def backend(gm, inputs):
        nonlocal pid
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                fresh = framesmith.compile(lambda x: x + 5, backend="eager")
                status = int(not torch.equal(fresh(X), X + 5))
            finally:
                os._exit(status)
        return gm.forward

    framesmith.compile(lambda x: x - 1, backend=backend)(X)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


FORKED = """
import gc, os, threading, time, torch, framesmith
torch.set_num_threads(1)
X = torch.ones(3)
inside, go = threading.Event(), threading.Event()
def slow(gm, inputs):
    inside.set()
    go.wait(60)
    return gm.forward
def body():
    with torch.no_grad():
        framesmith.compile(lambda x: x + 1, backend=slow)(X)
t = threading.Thread(target=body)
t.start()
inside.wait()
pid = os.fork()
if pid == 0:
    with torch.no_grad():
        ok = torch.equal(framesmith.compile(lambda x: x * 2, backend="eager")(X), X * 2) and gc.isenabled()
    os._exit(0 if ok else 1)
deadline = time.time() + 60
while True:
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
        print("status", os.waitstatus_to_exitcode(status))
        break
    if time.time() > deadline:
        os.kill(pid, 9)
        print("stuck")
        break
    time.sleep(0.05)
go.set()
t.join()
"""


def test_a_fork_while_a_thread_holds_the_compiler():
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.strip() == "status 0", done.stdout + done.stderr[-1000:]


class Rows(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, i):
        with torch.no_grad():
            return decorated(torch.full((3,), float(i)))


def collate(rows):
    with torch.no_grad():
        return decorated(torch.stack(rows))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_loader_workers(workers, context):
    if workers == 0 and context == "spawn":
        pytest.skip("no worker to spawn")
    loader = DataLoader(Rows(), batch_size=2, num_workers=workers, collate_fn=collate,
                        multiprocessing_context=context if workers else None)
    expected = [collate([Rows()[i], Rows()[i + 1]]) for i in (0, 2, 4)]
    for got, want in zip(loader, expected, strict=True):
        assert torch.equal(got, want)


def test_torch_compile_before_after_and_around():
    counter = CompileCounter()

    def theirs_first(x):
        return x.sin() + 1

    theirs = torch.compile(theirs_first, backend="eager")
    assert torch.equal(theirs(X), theirs_first(X))
    ours = framesmith.compile(scaled, backend=counter)
    assert torch.equal(ours(X), scaled(X)) and counter.frame_count == 1
    assert torch.equal(theirs(X), theirs_first(X)) and torch.equal(ours(X), scaled(X))

    net = Net().eval()
    a, b = torch.compile(net, backend="eager"), framesmith.compile(net, backend=counter)
    for _ in range(2):
        assert_close(a(X), net(X))
        assert_close(b(X), net(X))
    assert counter.frame_count == 2

    def calls_theirs(x):
        return theirs(x) * 2

    def calls_ours(x):
        return ours(x) * 2

    around = framesmith.compile(calls_theirs, backend="eager")
    within = torch.compile(calls_ours, backend="eager")
    for x in (X, X[:2], X):
        assert torch.equal(around(x), theirs_first(x) * 2)
        assert torch.equal(within(x), scaled(x) * 2)
    torch._dynamo.reset()
    framesmith.reset()
    assert torch.equal(around(X), theirs_first(X)
                       * 2) and torch.equal(theirs(X), theirs_first(X)) and torch.equal(ours(X), scaled(X))


def test_one_function_compiled_by_both():
    counter = CompileCounter()
    both = framesmith.compile(torch.compile(scaled, backend="eager"), backend=counter)
    other = torch.compile(framesmith.compile(scaled, backend=counter), backend="eager")
    for _ in range(2):
        assert torch.equal(both(X), scaled(X))
        assert torch.equal(other(X), scaled(X))


def test_a_module_with_torch_compiles_own_method():
    net = nn.Sequential(nn.Linear(X.shape[1], 4), nn.ReLU()).eval()
    net.compile(backend="eager")
    compiled = framesmith.compile(net, backend="eager")
    plain = nn.Sequential(*net)
    for _ in range(2):
        assert_close(net(X), plain(X))
        assert_close(compiled(X), plain(X))


LOADING = """
import gc
import torch

found = []
gc.callbacks.append(lambda phase, info: found.append(info["generation"]))
import framesmith
framesmith.compile
print(max(found, default=0), gc.isenabled())
"""


def test_the_compiler_is_loaded_without_full_collections():
    done = subprocess.run([sys.executable, "-c", LOADING], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.split() == ["0", "True"]
