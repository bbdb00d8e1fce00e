"""Plots of a report as inline SVG, coloured by the classes of the page's style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

STAGES = {
    "total": "capture", "guards": "guards", "back end": "joint", "rewrite": "rewrite", "freeze": "rewrite",
    "decompose": "lower", "lower": "lower", "schedule": "lower", "codegen": "codegen", "cache": "load",
    "build": "build", "load": "load",
}
"""The colour of each stage."""
GROUPS = {
    "capture": "capture", "guards": "guards", "joint": "autograd", "rewrite": "rewrite, freeze",
    "lower": "decompose, lower, schedule", "codegen": "code generation", "build": "C++ compiler", "load": "cache, load",
}
"""The legend of the timeline, which the template reads: what each color stands for."""
ROW, LABEL, WIDTH, RIGHT = 26, 250, 980, 74


def timeline(compiles: Sequence[dict[str, Any]], most: int = 60) -> str:
    """Return each compile as a bar of its stages, all to one scale. The longest `most` of them, in order."""
    kept = {id(c) for c in sorted(compiles, key=lambda c: -c["seconds"])[:most]}
    rows = [c for c in compiles if id(c) in kept]
    longest = max([c["seconds"] for c in rows], default=0.0) or 1.0
    height = ROW * len(rows) + 24
    scale = (WIDTH - LABEL - RIGHT) / longest
    out = [f'<svg class="plot" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="timeline of compiles">']
    for tick in _ticks(longest):
        x = LABEL + tick * scale
        out.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - 20}"/>'
                   f'<text class="axis" x="{x:.1f}" y="{height - 6}" text-anchor="middle">{seconds(tick)}</text>')
    for k, c in enumerate(rows):
        y = k * ROW + 4
        out.append(f'<text class="label" x="0" y="{y + 13}">{escape(_cut(c["function"], 24))}'
                   f'<tspan class="faint" dx="6">{escape(c["why"])}</tspan></text>')
        width = max(c["seconds"] * scale, 1.0)
        out.append(f'<g><title>{escape(c["function"])}: {seconds(c["seconds"])}, {escape(c["outcome"])}</title>'
                   f'<rect class="track" x="{LABEL}" y="{y}" width="{width:.1f}" height="17" rx="2"/></g>')
        for s in sorted(c["spans"], key=lambda s: s["depth"]):
            x, w = LABEL + s["start"] * scale, s["seconds"] * scale
            if w >= 0.3:
                out.append(f'<rect class="s-{STAGES.get(s["stage"], "joint")}" x="{x:.1f}" y="{y}" width="{w:.1f}" '
                           f'height="17"><title>{escape(s["stage"])}: {seconds(s["seconds"])}</title></rect>')
        out.append(f'<text class="value" x="{LABEL + width + 6:.1f}" y="{y + 13}">{seconds(c["seconds"])}</text>')
    return "".join([*out, "</svg>"])


def memory(graph: dict[str, Any]) -> str:
    """Bytes of results that are alive over a graph: operator by operator, and as planned for its kernels."""
    eager, planned = graph["memory"]["eager"], graph["memory"]["planned"]
    top = max([*eager, *planned], default=0)
    if not top:
        return ""
    width, height, left = 980, 120, 64
    out = [f'<svg class="plot" viewBox="0 0 {width} {height + 22}" role="img" aria-label="memory over time">']
    for part in (0.0, 0.5, 1.0):
        y = 6 + (height - 6) * (1 - part)
        out.append(f'<line class="grid" x1="{left}" x2="{width}" y1="{y:.1f}" y2="{y:.1f}"/>'
                   f'<text class="axis" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{size(top * part)}</text>')
    for values, name in ((eager, "eager"), (planned, "planned")):
        if values:
            line = _steps(values, top, left, width - left, height)
            out.append(f'<path class="m-{name} area" d="{line} V{height} H{left} Z"/><path class="m-{name} line" '
                       f'd="{line}"><title>{name}: at most {size(max(values))}</title></path>')
    out.append(f'<text class="axis" x="{left}" y="{height + 16}">first operator</text>'
               f'<text class="axis" x="{width}" y="{height + 16}" text-anchor="end">last</text>')
    return "".join([*out, "</svg>"])


def _steps(values: Sequence[int], top: int, left: float, width: float, height: float) -> str:
    """Return the path of a line that keeps each value for an equal share of the width."""
    each = width / len(values)
    heights = [6 + (height - 6) * (1 - v / top) for v in values]
    lines = [f"V{y:.1f}H{left + (k + 1) * each:.1f}" for k, y in enumerate(heights)]
    return f"M{left},{heights[0]:.1f}" + "".join(lines)


def _ticks(longest: float) -> list[float]:
    for step in (m * 10.0**e for e in range(-6, 6) for m in (1, 2, 5)):
        if longest / step <= 5:
            return [k * step for k in range(int(longest / step) + 1)]
    return [0.0]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else "…" + text[1 - most:]


def seconds(value: float | None) -> str:
    """Return a time as people write it: 1.20 s, 34 ms, 5.6 µs."""
    if value is None:
        return "–"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale:
            return _three(value / scale) + " " + unit
    return "0" if not value else _three(value / 1e-9) + " ns"


def size(value: float | None) -> str:
    """Bytes as people write them: 12 B, 3.4 KB, 56 MB."""
    return _scaled(value, ("B", "KB", "MB", "GB", "TB"))


def count(value: float | None) -> str:
    """Return a number as people write it: 950, 12 k, 3.4 M."""
    return _scaled(value, ("", "k", "M", "G", "T"))


def _scaled(value: float | None, units: Sequence[str]) -> str:
    if value is None:
        return "–"
    power = 0
    while value >= 1000 and power < len(units) - 1:
        value, power = value / 1000, power + 1
    return f"{_three(value)} {units[power]}".strip()


def _three(value: float) -> str:
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
