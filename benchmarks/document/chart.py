"""Bars of speed-ups as SVG: a group a line of the README's table, a bar a contender, a rule where eager is."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from benchmarks.document.summary import Line

COLOURS = ("#2b6cb0", "#a0aec0", "#d69e2e", "#38a169", "#805ad5")
LEFT, WIDTH, BAR, GAP, TOP = 270, 420, 13, 12, 34


def bars(lines: Sequence[Line]) -> str:
    """The picture of those lines that are speed-ups."""
    shown = [line for line in lines if line.speed]
    names = list(dict.fromkeys(name for line in shown for name in line.values))
    unit = min(60.0, (WIDTH - 40) / max(value for line in shown for value, _ in line.values.values()))  # for one
    out: list[str] = []
    y = TOP
    for line in shown:
        middle = y + len(line.values) * BAR / 2 + 4
        out.append(f'<text x="{LEFT - 8}" y="{middle:.0f}" text-anchor="end">{escape(line.what)}</text>')
        for name, (value, _) in line.values.items():
            colour = COLOURS[names.index(name) % len(COLOURS)]
            end = LEFT + value * unit
            out.append(f'<rect x="{LEFT}" y="{y}" width="{end - LEFT:.0f}" height="{BAR - 2}" fill="{colour}"/>')
            out.append(f'<text x="{end + 5:.0f}" y="{y + BAR - 4}" class="small">{value:.2f}</text>')
            y += BAR
        y += GAP
    legend = []
    for k, name in enumerate(names):
        x = LEFT + 130 * k
        legend.append(f'<rect x="{x}" y="8" width="11" height="11" fill="{COLOURS[k % len(COLOURS)]}"/>')
        legend.append(f'<text x="{x + 16}" y="18">{escape(name)}</text>')
    one = f"{LEFT + unit:.0f}"
    rule = f'<line x1="{one}" y1="{TOP - 8}" x2="{one}" y2="{y}" stroke="#333" stroke-dasharray="3 3"/>'
    note = f'<text x="{one}" y="{y + 12}" text-anchor="middle" class="small">eager</text>'
    style = "<style>text{font:12px sans-serif;fill:#222}.small{font-size:10px}</style>"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH}" height="{y + 20}" role="img">'
    title = "<title>Speed-up over eager, geometric means</title>"
    ground = '<rect width="100%" height="100%" fill="#fff"/>'
    return "\n".join([head, title, style, ground, *legend, *out, rule, note, "</svg>", ""])
