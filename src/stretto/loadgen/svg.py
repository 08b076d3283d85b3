"""Charts as SVG text: axes, lines and bars. No library; readable in light and dark mode.

Knows scales and shapes, nothing about runs: `plots` decides what to draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 760, 70, 20, 44, 46
COLOURS = ("#2f6fde", "#d9822b", "#2f9e6b", "#b5455f", "#7a5bc7", "#6b7785")
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#4a5563}.title{font-size:14px;font-weight:600}"
    ".axis{stroke:#8a94a3;stroke-width:1}.grid{stroke:#8a94a3;stroke-opacity:.25;stroke-width:1}"
    "@media(prefers-color-scheme:dark){text{fill:#c5ccd6}}"
)


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers that cover the range."""
    span = high - low if high > low else abs(high) or 1.0
    raw = span / wanted
    base = 10 ** math.floor(math.log10(raw))
    step = next(base * factor for factor in (1, 2, 5, 10) if base * factor >= raw * 0.999)
    first = math.floor(low / step)
    last = math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, max(last, first + 1) + 1)]


class Chart:
    """Axes with a title; lines and bars are added in data coordinates."""

    def __init__(
        self,
        title: str,
        *,
        x: tuple[float, float],
        y: tuple[float, float],
        x_label: str,
        y_label: str,
        height: int = 320,
    ) -> None:
        self._xs, self._ys = ticks(*x), ticks(*y)
        self._height = height
        self._parts: list[str] = [f'<text class="title" x="{LEFT}" y="20">{escape(title)}</text>']
        self._keys = 0
        self._axes(x_label, y_label)

    def place(self, x: float, y: float) -> tuple[float, float]:
        across = (x - self._xs[0]) / (self._xs[-1] - self._xs[0])
        up = (y - self._ys[0]) / (self._ys[-1] - self._ys[0])
        return (
            round(LEFT + across * (WIDTH - LEFT - RIGHT), 1),
            round(self._height - BOTTOM - up * (self._height - TOP - BOTTOM), 1),
        )

    def _axes(self, x_label: str, y_label: str) -> None:
        floor, right = self._height - BOTTOM, WIDTH - RIGHT
        for value in self._xs:
            at, _ = self.place(value, self._ys[0])
            self._parts.append(
                f'<text x="{at}" y="{floor + 16}" text-anchor="middle">{_number(value)}</text>'
            )
        for value in self._ys if y_label else ():
            _, at = self.place(self._xs[0], value)
            self._parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{at}" y2="{at}"/>')
            self._parts.append(f'<text x="{LEFT - 6}" y="{at + 4}" text-anchor="end">{_number(value)}</text>')
        self._parts.append(f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{floor}" y2="{floor}"/>')
        middle = (LEFT + right) / 2
        self._parts.append(
            f'<text x="{middle}" y="{self._height - 8}" text-anchor="middle">{escape(x_label)}</text>'
        )
        turned = f'transform="rotate(-90 16 {self._height / 2})" text-anchor="middle"'
        self._parts.append(f'<text x="16" y="{self._height / 2}" {turned}>{escape(y_label)}</text>')

    def line(self, name: str, points: Sequence[tuple[float, float]], colour: str) -> None:
        placed = [self.place(x, y) for x, y in points]
        path = " ".join(f"{x},{y}" for x, y in placed)
        self._parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        self._parts += [f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in placed]
        self.key(name, colour)

    def bar(self, row: float, start: float, end: float, *, colour: str, thick: float, hint: str) -> None:
        """A bar from `start` to `end` in the row, seen from the top."""
        (left, top), (right, bottom) = self.place(start, row + thick), self.place(end, row)
        width, height = max(right - left, 0.3), max(bottom - top, 0.5)
        self._parts.append(
            f'<rect x="{left}" y="{top}" width="{width:.1f}" height="{height:.1f}" fill="{colour}">'
            f"<title>{escape(hint)}</title></rect>"
        )

    def key(self, name: str, colour: str) -> None:
        at = LEFT + 130 * self._keys
        self._keys += 1
        self._parts.append(f'<rect x="{at}" y="28" width="10" height="10" fill="{colour}"/>')
        self._parts.append(f'<text x="{at + 14}" y="37">{escape(name)}</text>')

    def text(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self._height}" '
            f'width="{WIDTH}" height="{self._height}" role="img">'
        )
        return "\n".join([head, f"<style>{_STYLE}</style>", *self._parts, "</svg>", ""])


def _number(value: float) -> str:
    return f"{value:g}"
