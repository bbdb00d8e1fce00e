"""Processes that are a world of their own, for tests: `world.run(f, ...)` calls `f` in each and gives the results by
rank."""

import datetime
import faulthandler
import multiprocessing
import tempfile
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

PRELOADED = ["framesmith.compiler", "torch.distributed.fsdp", "torch.distributed.tensor"]
"""Modules that the process imports once of which all processes of worlds are forked; a file of tests adds those that it
needs when it is imported."""
_SERVER = multiprocessing.get_context("forkserver")


class World:
    """`size` processes with a process group. A call of `run` that takes longer than `timeout` seconds fails. With NCCL,
    a process has a CUDA device, on which it makes tensors."""

    def __init__(self, size=2, timeout=120, backend="gloo"):
        self.timeout = timeout
        self.folder = tempfile.TemporaryDirectory()
        self.pipes, self.processes = [], []
        _SERVER.set_forkserver_preload(PRELOADED)
        for rank in range(size):
            ours, theirs = _SERVER.Pipe()
            args = rank, size, str(Path(self.folder.name, "store")), theirs, timeout, backend
            process = _SERVER.Process(target=_serve, args=args, daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, fn, *args):
        for pipe in self.pipes:
            pipe.send((fn, args))
        answers = []
        for rank, pipe in enumerate(self.pipes):
            assert pipe.poll(self.timeout), f"rank {rank} does not answer"
            answers.append(pipe.recv())
        for rank, (_, problem) in enumerate(answers):
            assert problem is None, f"rank {rank}:\n{problem}"
        return [value for value, _ in answers]

    def close(self):
        for process in self.processes:
            process.terminate()
            process.join()
        self.folder.cleanup()


def _serve(rank, size, store, pipe, timeout, backend):
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
        torch.set_default_device(torch.device("cuda", rank))
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size,
                            timeout=datetime.timedelta(seconds=60))
    while True:
        fn, args = pipe.recv()
        faulthandler.dump_traceback_later(timeout - 5)
        try:
            pipe.send((fn(*args), None))
        except Exception:
            pipe.send((None, traceback.format_exc()))
