"""The results of all runs in one JSON file: a row is replaced by a later measurement of the same, and says when and on what it was made."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from benchmarks.gpu.row import Row, in_mode

Entry = dict[str, Any]


def device() -> dict[str, object]:
    properties = torch.cuda.get_device_properties(0)
    return {**machine.describe(), "device": properties.name, "memory": properties.total_memory,
            "multiprocessors": properties.multi_processor_count, "cuda": torch.version.cuda}


class Results:
    """The rows in `path`, by key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        held = json.loads(path.read_text()) if path.exists() else {}
        self.rows: dict[str, Entry] = held.get("rows", {})
        self.kernels: list[Entry] = held.get("kernels", [])

    def has(self, row: Row) -> bool:
        """Whether the row was measured in all its modes, beside torch.compile if it is asked for."""
        found = [self.rows.get(row.key(mode), {}).get("peers", {}) for mode in row.modes]
        return all(peers and (not row.peers or mode == "ablation" or "torch.compile" in peers) for mode, peers in zip(row.modes, found))

    def add(self, row: Row, found: dict[str, Any]) -> None:
        """Keep what was measured; a first call in a second process joins the row of the first."""
        for mode in row.modes:
            self._add(row, mode, in_mode(found, mode))
        self.write()

    def _add(self, row: Row, mode: str, found: dict[str, Any]) -> None:
        old = self.rows.get(row.key(mode))
        if row.warm:
            first = found.get("peers", {}).get("framesmith", {}).get("first")
            if old is not None and first is not None and "framesmith" in old["peers"]:
                old["peers"]["framesmith"]["warm"] = first
        elif old is None or "peers" not in old or "peers" in found:
            about = {"model": row.model, "training": row.training, "precision": row.precision, "mode": mode}
            self.rows[row.key(mode)] = {**about, "date": datetime.date.today().isoformat(), "machine": device(), **found}

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({"rows": self.rows, "kernels": self.kernels}, indent=1) + "\n")

    def join(self, other: Path) -> None:
        """Take the rows of another file, over our own of the same key."""
        found = Results(other)
        self.rows |= found.rows
        self.kernels = found.kernels or self.kernels
        self.write()

    def of(self, **fields: Any) -> list[Entry]:
        """The rows with these fields that were measured, in the order of the models."""
        return [row for row in self.rows.values() if all(row[k] == v for k, v in fields.items()) and "peers" in row]
