"""The file of a package: members in place, equal files of equal models, and damage that is found."""

import mmap
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

import framesmith
from framesmith.package.archive import ALIGNMENT
from framesmith.package.loading import Packaged


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.Linear(32, 3)).eval()


def test_members_are_stored_in_place_and_equal_models_give_equal_files(tmp_path):
    model, x = mlp(), torch.randn(4, 10)
    for name in ("a", "b"):
        framesmith.package(model, (x,), path=tmp_path / name, targets=["x86-64", "x86-64-v3"])
    data = (tmp_path / "a").read_bytes()
    assert data == (tmp_path / "b").read_bytes()
    with zipfile.ZipFile(tmp_path / "a") as archive:
        for info in archive.infolist():
            content = archive.read(info)
            assert info.compress_type == zipfile.ZIP_STORED
            assert content and data.index(content, info.header_offset) % ALIGNMENT == 0


@pytest.mark.parametrize("change", ["code", "constants/", "manifest", "cut", "other"])
def test_a_damaged_file_is_an_error(change, tmp_path):
    framesmith.package(mlp(), (torch.randn(4, 10),), path=tmp_path / "m", targets=["x86-64"])
    data = bytearray((tmp_path / "m").read_bytes())
    with zipfile.ZipFile(tmp_path / "m") as archive:
        info = next(i for i in archive.infolist() if change in i.filename or change in ("cut", "other"))
    if change == "cut":
        del data[-100:]
    else:
        data[info.header_offset + 256] ^= 1
    (tmp_path / "m").write_bytes(bytes(data))
    with pytest.raises(framesmith.exc.PackageError, match="damaged|no package"):
        Packaged(tmp_path / "m").verify()


def huge_pages(path):
    """The bytes of a file that this process has mapped in huge pages."""
    found, own = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        own = line.endswith(str(path)) if "-" in line.split()[0] else own
        found += int(line.split()[1]) << 10 if own and line.startswith("FilePmdMapped:") else 0
    return found


def has_huge_pages(folder):
    """Whether the page cache of this file system has huge pages."""
    (folder / "probe").write_bytes(bytes(8 << 20))
    with (folder / "probe").open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ) as mapped:
        mapped.madvise(mmap.MADV_HUGEPAGE)
        return sum(mapped[:: 1 << 12]) == 0 and huge_pages(folder / "probe") > 0


def test_weights_are_mapped_in_huge_pages(tmp_path):
    """A fault for each of them, not for each 64 KB, at the first run of each process."""
    if not has_huge_pages(tmp_path):
        pytest.skip("no huge pages of files here")
    model, x = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)]), torch.randn(1, 1024)
    framesmith.package(model, (x,), path=tmp_path / "m", targets=["x86-64"])
    loaded = framesmith.load(tmp_path / "m")
    torch.testing.assert_close(loaded(x), model(x).detach())
    assert huge_pages(tmp_path / "m") >= 14 << 20  # of 16
