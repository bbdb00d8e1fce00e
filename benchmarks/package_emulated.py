"""Packages for aarch64 under an emulator: their answers beside those of the same package on this processor.

    python -m benchmarks.package_emulated [--models M,...] [--out FILE]

Needs Debian's `g++-aarch64-linux-gnu` and `qemu-user`. Differences are relative to the greatest element. Times of an
emulator say nothing of a processor; sizes are those of the file and of the runtime for aarch64.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import framesmith
from benchmarks import machine, models
from benchmarks.package import RESULTS, build, difference, members
from benchmarks.package_models import Made
from benchmarks.package_peers import TensorsOnly
from framesmith.peers import flat_tensors

ARM = "aarch64-linux-gnu"
FLAGS = (f"-DCMAKE_CXX_COMPILER={ARM}-g++", f"-DCMAKE_C_COMPILER={ARM}-gcc", "-DCMAKE_SYSTEM_NAME=Linux",
         "-DCMAKE_FIND_ROOT_PATH_MODE_PACKAGE=BOTH")


def _bert() -> Made:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(num_hidden_layers=2)), (torch.randint(0, 30000, (1, 16)),)


MODELS: dict[str, Callable[[], Made]] = {
    "bert, 2 layers": _bert,
    "mobilenetv3_small_100": models.named()["mobilenetv3_small_100"],
    "resnet18": models.named()["resnet18"],
}


def emulated(program: Path, library: Path, package: Path, inputs: list[torch.Tensor],
             outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Run the C example under the emulator. `outputs`: tensors of the results' sizes and dtypes."""
    manifest = framesmith.load(package).model.manifest
    named = [(manifest["inputs"], inputs), (manifest["outputs"], outputs)]
    files = [[(package.parent / f"{side}{k}", info["name"]) for k, info in enumerate(infos)]
             for side, (infos, _) in zip("io", named)]
    for (path, _), x in zip(files[0], inputs, strict=True):
        path.write_bytes(x.contiguous().numpy().tobytes())
    subprocess.run(["qemu-aarch64", "-L", f"/usr/{ARM}", "-E", f"LD_LIBRARY_PATH={library.parent}", program, package,
                    *(f"{name}={path}" for side in files for path, name in side)], check=True, capture_output=True)
    return [torch.frombuffer(bytearray(path.read_bytes()), dtype=x.dtype).view(x.shape)
            for (path, _), x in zip(files[1], outputs, strict=True)]


def row(name: str, program: Path, library: Path, folder: Path) -> dict[str, Any]:
    """Package one model for both processors and compare the answers."""
    torch.manual_seed(0)
    model, args = MODELS[name]()
    model, path = TensorsOnly(model).eval(), folder / "model.fsm"
    framesmith.package(model, args, path=path, targets=["x86-64-v4", "aarch64"])
    with torch.no_grad():
        eager, here = flat_tensors(model(*args)), flat_tensors(framesmith.load(path)(*args))
    found = emulated(program, library, path, list(args), here)
    return {"model": name, "file_bytes": path.stat().st_size, "runtime_bytes": library.resolve().stat().st_size,
            "code_bytes": sum(i.file_size for i in members(path)
                              if i.filename.endswith("code.so") and "aarch64" in i.filename),
            "from_x86": difference(found, here), "from_eager": difference(found, eager)}


COLUMNS = {"model": "model", "file_bytes": "file, MB", "runtime_bytes": "runtime, MB", "code_bytes": "code, MB",
           "from_x86": "from x86-64", "from_eager": "from eager"}


def rows_of(report: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table."""
    def cell(value: Any) -> str:
        return f"{value / 1e6:.3g}" if isinstance(value, int) else f"{value:.1e}" if isinstance(value, float) else value

    return list(COLUMNS.values()), [[cell(row[c]) for c in COLUMNS] for row in report["rows"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(MODELS), help=", ".join(MODELS))
    parser.add_argument("--out", type=Path, default=RESULTS / "package-aarch64.json")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        library, program = build(Path(name), *FLAGS)
        for model in given.models:
            with tempfile.TemporaryDirectory(dir=name) as folder:
                rows.append(row(model, program, library, Path(folder)))
    report = {"date": datetime.date.today().isoformat(), "machine": machine.describe(), "rows": rows}
    given.out.write_text(json.dumps(report, indent=1) + "\n")
    header, cells = rows_of(report)
    table = Table(*header, title="aarch64 under an emulator")
    for line in cells:
        table.add_row(*line)
    Console().print(table)


if __name__ == "__main__":
    main()
