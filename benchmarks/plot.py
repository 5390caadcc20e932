"""Draws the figures of docs/performance.md as SVG, readable on a light and on a dark page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from benchmarks.bench import amount

WIDTH, GAP, COLUMNS = 300, 16, 2
_STYLE = """text { font: 12px system-ui, sans-serif; fill: #333 } .title { font-weight: 600 } .small { font-size: 11px }
.ours { fill: #2f6fb3 } .other { fill: #a9b4c0 } .line { fill: none; stroke: #2f6fb3; stroke-width: 2 }
.axis { stroke: #999 } .must { stroke: #b3372f; stroke-width: 1.5 } .aim { stroke: #3a8f4d; stroke-width: 1.5;
stroke-dasharray: 4 2 }"""


@dataclass(frozen=True)
class Panel:
    """One small figure: values by their labels, and marks on their axis (`must`, `aim`)."""

    title: str
    unit: str
    values: Mapping[str, float]
    marks: Mapping[str, float] = field(default_factory=dict)


def lines(panels: Sequence[Panel]) -> str:
    """A curve in each panel, from the smallest size to the largest; each axis begins at 0."""
    return _drawing(panels, 150, _line)


def bars(panels: Sequence[Panel]) -> str:
    """A bar for each label; redrive's stand out among others."""
    longest = max(len(panel.values) for panel in panels)
    return _drawing(panels, 46 + 20 * longest, _bars)


def _drawing(panels: Sequence[Panel], height: int, draw: Callable[[Panel, int], list[str]]) -> str:
    rows = -(-len(panels) // COLUMNS)
    width, tall = GAP + COLUMNS * (WIDTH + GAP), GAP + rows * (height + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {tall}" width="{width}" role="img">',
        f"<title>{escape('; '.join(panel.title for panel in panels))}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect width="{width}" height="{tall}" rx="6" fill="#fff"/>',
    ]
    for number, panel in enumerate(panels):
        x, y = GAP + number % COLUMNS * (WIDTH + GAP), GAP + number // COLUMNS * (height + GAP)
        title = f"{panel.title} ({panel.unit})"
        parts += [f'<g transform="translate({x} {y})">', _text(0, 12, title, "title"), *draw(panel, height), "</g>"]
    return "\n".join([*parts, "</svg>\n"])


def _text(x: float, y: float, said: str, kind: str = "small", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(said)}</text>'


def _line(panel: Panel, height: int) -> list[str]:
    floor, roof, inner = height - 22, 40, WIDTH - 80
    largest = max(panel.values.values()) or 1.0
    steps = max(1, len(panel.values) - 1)
    places = [
        (40 + number * inner / steps, floor - (floor - roof) * value / largest, label, value)
        for number, (label, value) in enumerate(panel.values.items())
    ]
    curve = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in places)
    points = [
        part
        for x, y, label, value in places
        for part in (
            f'<circle class="ours" cx="{x:.1f}" cy="{y:.1f}" r="3"/>',
            _text(x, y - 8, amount(value), anchor="middle"),
            _text(x, height - 6, label, anchor="middle"),
        )
    ]
    axis = f'<line class="axis" x1="20" y1="{floor}" x2="{WIDTH - 20}" y2="{floor}"/>'
    return [axis, f'<polyline class="line" points="{curve}"/>', *points]


def _bars(panel: Panel, height: int) -> list[str]:
    left, inner = 108, WIDTH - 108 - 48
    largest = max(*panel.values.values(), *panel.marks.values(), 0.0) or 1.0
    ours = any(label.startswith("redrive") for label in panel.values)
    parts = []
    for number, (label, value) in enumerate(panel.values.items()):
        y, wide = 28 + 20 * number, inner * value / largest
        kind = "ours" if label.startswith("redrive") or not ours else "other"
        parts += [
            _text(left - 6, y + 12, label, anchor="end"),
            f'<rect class="{kind}" x="{left}" y="{y}" width="{wide:.1f}" height="15"/>',
            _text(left + wide + 4, y + 12, amount(value)),
        ]
    bottom = 28 + 20 * len(panel.values)
    for name, value in panel.marks.items():
        x = left + inner * value / largest
        parts.append(f'<line class="{name}" x1="{x:.1f}" y1="24" x2="{x:.1f}" y2="{bottom}"/>')
    return parts
