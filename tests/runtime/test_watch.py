"""`_C.watch`: what is computed from tensors' data is never used after a write, however it was written."""

import ctypes
import mmap
import os
import tempfile
import threading

import numpy
import pytest
import torch
import torch.multiprocessing
from torch.utils import dlpack

from framesmith import _C

SIZES = {"few": (64, 64), "many": (1024, 1024)}
HOOKED = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
HOW = ("automatic", "copy", "tracking", "digest")


@pytest.fixture(params=HOW)
def how(request):
    if request.param == "accesses" and not HOOKED:
        pytest.skip("storages of this PyTorch have no hook for accesses")
    before = _C.detect_writes_by(request.param)
    yield request.param
    _C.detect_writes_by(before)


def numpy_element(w):
    w.detach().numpy()[-1, -1] += 1


def lora_rows(w):
    w.data[5:7] += torch.ones(2, 4) @ torch.ones(4, w.shape[1])


def by_address(w):
    ctypes.cast(w.data_ptr() + 4 * (w.numel() // 2 + 3), ctypes.POINTER(ctypes.c_float))[0] = 5.5


def storage_element(w):
    w.untyped_storage()[4 * 77 + 3] = 66


def imported(w):
    dlpack.from_dlpack(w.detach())[3, 3] = 7


def read_into(w):
    with open("/dev/urandom", "rb") as file:
        file.readinto(memoryview(w.detach().numpy()).cast("B")[40:44])


def other_thread(w):
    thread = threading.Thread(target=lambda: w.data[2].zero_())
    thread.start()
    thread.join()


def kept_version(w):
    with torch.autograd._unsafe_preserve_version_counter(w), torch.no_grad():
        w[0, 0] = 9


WRITES = [
    lambda w: w.data[:, 7].zero_(), lambda w: w.data[3].zero_(), lambda w: w.data[3, 4].fill_(2),
    lambda w: w.data[0, 0].fill_(2),
    lambda w: w.data[-1, -1].fill_(2), lambda w: w.data.clamp_(max=float(w.data.max()) - 1e-3), lora_rows,
    numpy_element, by_address,
    storage_element, imported, read_into, other_thread, kept_version, lambda w: w.data[1].neg_(),
    lambda w: w.data.view(torch.int32)[2:4].bitwise_xor_(-0x80000000),
]  # fmt: skip


@pytest.mark.parametrize("how", [*HOW, "accesses"], indirect=True)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("write", WRITES)
def test_a_write_is_seen(how, size, write):
    w = torch.nn.Parameter(torch.randn(SIZES[size]))
    for _ in range(2):
        w.data.normal_()
        holds = _C.watch([w])
        assert holds([w]) and holds([w])
        write(w)
        assert not holds([w]) and not holds([w])


@pytest.mark.parametrize("size", SIZES)
def test_an_older_alias(how, size):
    w = torch.nn.Parameter(torch.randn(SIZES[size]))
    alias, array, storage = w.data, w.detach().numpy(), w.untyped_storage()
    for write in (lambda: alias[2, 2].fill_(1), lambda: array.__setitem__((5, 5), 2),
                  lambda: storage.__setitem__(500, storage[500] ^ 1)):
        holds = _C.watch([w])
        assert holds([w])
        write()
        assert not holds([w])


def test_any_page(how):
    w = torch.zeros(40 * 1024 + 13)
    for i in [*range(0, w.numel(), 511), w.numel() - 1]:
        holds = _C.watch([w])
        w.numpy()[i] += 1
        assert not holds([w]), i


def test_several_watch_the_same(how):
    whole = torch.zeros(300, 1024)
    parts = [whole, whole[10:200], whole[150:], whole[::2], whole.t()]
    watched = [_C.watch([part]) for part in parts]
    others = [_C.watch([part]) for part in parts]
    whole.numpy()[180, 3] = 1
    for holds in (watched, others):
        assert [h([part]) for h, part in zip(holds, parts, strict=True)] == [False] * 5
    watched = [_C.watch([part]) for part in parts]
    whole.numpy()[5, 3] = 1
    seen = [h([part]) for h, part in zip(watched, parts, strict=True)]
    assert not seen[0] and not seen[4] and seen[1] and seen[2]


@pytest.mark.parametrize("how", ["automatic", "tracking"], indirect=True)
def test_neighbours_are_not_mistaken(how):
    memory = torch.zeros(1 << 20)
    w, before, behind = memory[1000:200000], memory[:1000].numpy(), memory[200000:].numpy()
    holds = _C.watch([w])
    for k in range(3):
        before[:], behind[:] = k + 1, k + 1
        assert holds([w])
    w.numpy()[0] = 1
    assert not holds([w])
    holds = _C.watch([w])
    before[:] = 9
    assert holds([w])
    w.numpy()[-1] = 1
    assert not holds([w])


def test_many_written_pages(how):
    tensors = [torch.zeros(9000) for _ in range(300)]
    holds = _C.watch(tensors)
    assert holds(tensors)
    for t in tensors[::2]:
        t.data[::1024] = 1
    assert not holds(tensors)
    for last in (0, 150, 299):
        holds = _C.watch(tensors)
        tensors[last].data[4000] += 1
        assert not holds(tensors)


def shared(kind):
    if kind == "share_memory_":
        return torch.zeros(512, 512).share_memory_()
    memory = mmap.mmap(-1, 1 << 20)
    return torch.frombuffer(memory, dtype=torch.float32).view(512, 512)


@pytest.mark.parametrize("kind", ["share_memory_", "mmap"])
def test_another_process_writes(how, kind):
    w = shared(kind)
    holds = _C.watch([w])
    assert holds([w])
    child = os.fork()
    if not child:
        ctypes.memset(w.data_ptr() + 4 * 5000, 1, 1)
        os._exit(0)
    os.waitpid(child, 0)
    assert not holds([w])


def in_child(check):
    child = os.fork()
    if not child:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_child(how):
    w = torch.randn(1 << 20).sin()[:1 << 18].reshape(512, 512)  # the parent has threads, the child has none
    holds = _C.watch([w])
    assert holds([w])

    def check():
        w.numpy()[300, 300] = 1
        first = not holds([w])
        again = _C.watch([w])
        second = again([w])
        w.numpy()[300, 300] = 2
        return first and second and not again([w])

    assert in_child(check)
    assert holds([w])
    w.numpy()[1, 1] = 3
    assert not holds([w])


@pytest.mark.parametrize("how", ["automatic", "tracking"], indirect=True)
def test_closed_descriptors(how):
    """A daemon closes whatever it has inherited."""
    w = torch.zeros(512, 512)
    holds = _C.watch([w])
    assert holds([w])

    def check():
        again = _C.watch([w])
        if not again([w]):
            return False
        os.closerange(3, 256)
        taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(40)]
        w.numpy()[7, 7] = 1
        if again([w]):
            return False
        again = _C.watch([w])
        if not again([w]):
            return False
        w.numpy()[7, 7] = 2
        return not again([w]) and all(os.fstat(fd) for fd in taken)

    assert in_child(check)


@pytest.mark.gpu
def test_a_forked_child_of_a_process_that_used_a_device(how):
    torch.zeros(1, device="cuda")
    w = torch.zeros(512, 512)

    def check():
        holds = _C.watch([w])
        first = holds([w])
        w.numpy()[7, 7] = 1
        return first and not holds([w])

    assert in_child(check)


def test_a_private_mapping_of_a_file(how):
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(1 << 20))
        file.flush()
        w = torch.from_numpy(numpy.memmap(file.name, dtype=numpy.float32, mode="c"))
        holds = _C.watch([w])
        assert float(w.sum()) == 0 and holds([w])
        w.numpy()[100000] = 1
        assert not holds([w])


@pytest.mark.parametrize("how", ["automatic", "tracking"], indirect=True)
def test_memory_that_is_mapped_anew(how):
    memory = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    w = torch.frombuffer(memory, dtype=torch.float32)
    w.fill_(1)
    holds = _C.watch([w])
    assert holds([w])
    memory.madvise(mmap.MADV_DONTNEED)
    assert not holds([w]) and float(w.sum()) == 0


def test_inference_tensors(how):
    with torch.inference_mode():
        w = torch.zeros(512, 512)
        holds = _C.watch([w])
        assert holds([w])
        w[5, 5] = 1
        assert not holds([w])


def test_other_metadata(how):
    w = torch.nn.Parameter(torch.zeros(8, 512))
    for change in (lambda: setattr(w, "data", w.data.clone()), lambda: w.data.untyped_storage().resize_(4 * 8 * 1024)):
        holds = _C.watch([w])
        change()
        assert not holds([w])
    assert not _C.watch([w])([torch.nn.Parameter(w.data)])
    assert not _C.watch([w])([])
    holds = _C.watch([torch.zeros(0), torch.zeros(3).to("meta")])
    assert not holds([torch.zeros(0), torch.zeros(3).to("meta")])


@pytest.mark.parametrize("how", ["accesses"], indirect=True)
def test_accesses(how):
    """What a CUDA device's memory is watched by."""
    w = torch.nn.Parameter(torch.randn(64, 64))
    alias, other = w.data, torch.zeros(3)
    watched = [_C.watch([w]), _C.watch([w.t()])]
    for _ in range(3):
        w.t() @ w + w.sum(), w.detach().clone(), torch.equal(w, alias), other.add_(1)
        assert watched[0]([w])
    alias[0, 0] += 1
    assert not watched[0]([w])
    watched = [_C.watch([w]), _C.watch([w])]  # compared from now on: somebody may hold an address
    array = w.detach().numpy()
    assert all(holds([w]) for holds in watched)
    array[5, 5] += 1
    assert not any(holds([w]) for holds in watched)
    assert _C.watch([w])([w])


@pytest.mark.parametrize("how", ["accesses"], indirect=True)
def test_accesses_of_several(how):
    w = torch.zeros(64, 64)
    first, second = _C.watch([w]), _C.watch([w])
    del first
    third = _C.watch([w])
    assert second([w]) and third([w])
    with torch.no_grad():
        w.add_(1)  # by its version: nobody is thought to hold an address
    assert not second([w]) and not third([w])
    again = _C.watch([w])
    assert again([w])
    w.data[3, 3] = 7
    assert not again([w]) and not second([w])


def test_wrong_use():
    with pytest.raises(ValueError):
        _C.detect_writes_by("hearsay")
    with pytest.raises(TypeError):
        _C.watch([3])
