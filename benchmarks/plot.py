"""Bars of the speed-ups: one group a model, one bar a peer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def bars(results: dict[str, Any], path: Path) -> None:
    """Draw `results` (see benchmarks.__main__) into the PNG `path`; the line at 1 is eager."""
    names = [n for n in results["peers"] if n != "eager"]
    shown = results["models"]
    width = 0.8 / max(1, len(names))
    figure, axes = plt.subplots(figsize=(1.2 * len(shown) + 3, 4))
    for i, name in enumerate(names):
        heights = [one["peers"].get(name, {}).get("speedup", 0.0) for one in shown]
        axes.bar([x + i * width for x in range(len(shown))], heights, width, label=name)
    axes.axhline(1.0, color="black", linewidth=1)
    axes.set_xticks([x + 0.4 - width / 2 for x in range(len(shown))], [one["model"] for one in shown], rotation=30, ha="right")
    axes.set_ylabel("speed-up over eager")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
