"""The results of all runs in one JSON file: a row is replaced by a later measurement of the same, and says when and on
what it was made."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from benchmarks.gpu.models import named
from benchmarks.gpu.row import ABLATION, KERNELS, Row, in_mode

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

    def missing(self, row: Row) -> Row | None:
        """The row in those of its modes in which it was not measured yet, beside torch.compile if it is asked for; None
        for none."""
        if row.model == KERNELS:
            return None if self.kernels else row
        modes = tuple(mode for mode in row.modes if not self._has(row, mode))
        return replace(row, modes=modes) if modes else None

    def _has(self, row: Row, mode: str) -> bool:
        peers = self.rows.get(row.key(mode), {}).get("peers", {})
        wanted = ("framesmith", "torch.compile") if row.peers else ("framesmith",)
        wanted = tuple(list(peers)[1:]) if mode == ABLATION else wanted
        return bool(peers) and all("late" not in peers.get(peer, {"late": 0}) for peer in wanted)

    def add(self, row: Row, found: dict[str, Any]) -> None:
        """Keep what was measured; a first call in a second process joins the row of the first."""
        if row.model == KERNELS:
            self.kernels = found.get("kernels", self.kernels)
        else:
            for mode in row.modes:
                self._add(row, mode, in_mode(found, mode))
        self.write()

    def _add(self, row: Row, mode: str, found: dict[str, Any]) -> None:
        old = self.rows.get(row.key(mode))
        if row.warm:
            first = found.get("peers", {}).get("framesmith", {}).get("first")
            if old is not None and first is not None and "framesmith" in old["peers"]:
                old["peers"]["framesmith"]["warm"] = first
        elif old is None or "peers" not in old or len(found.get("peers", {})) > 1:
            about = {"model": row.model, "training": row.training, "precision": row.precision, "mode": mode}
            self.rows[row.key(mode)] = {**about, "date": datetime.date.today().isoformat(), "machine": device(),
                                        **found}

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        whole = self.path.with_suffix(".part")  # what ends this process leaves the rows of before
        whole.write_text(json.dumps({"rows": self.rows, "kernels": self.kernels}, indent=1) + "\n")
        whole.replace(self.path)

    def join(self, other: Path) -> None:
        """Take the rows of another file, over our own of the same key."""
        found = Results(other)
        self.rows |= found.rows
        self.kernels = found.kernels or self.kernels
        self.write()

    def of(self, **fields: Any) -> list[Entry]:
        """The rows with these fields that were measured, in the order of the models."""
        found = [row for row in self.rows.values() if all(row[k] == v for k, v in fields.items()) and "peers" in row]
        order = list(named())
        return sorted(found, key=lambda row: (row["training"], order.index(row["model"])))
