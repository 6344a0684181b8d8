"""Bar charts as SVG: one bar per library, sorted, on a log axis, for light and for dark pages."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape

THEMES = {
    "light": {"text": "#24292f", "muted": "#57606a", "grid": "#d8dee4", "bar": "#a3abb4"},
    "dark": {"text": "#e6edf3", "muted": "#9aa4ae", "grid": "#3a424b", "bar": "#5c6670"},
}
TEAL = "#009485"

_WIDTH, _RIGHT, _TOP, _BOTTOM = 760, 90, 56, 46
_ROW, _BAR, _CHARACTER = 30, 18, 8.5
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"


@dataclass(frozen=True, slots=True)
class BarChart:
    """Values of libraries.

    Attributes:
        title: What is shown.
        axis: What the values are, and which are better.
        values: By library; those whose name begins with `envweave` are highlighted.
        format: Returns a value as text.
        higher_is_better: Whether the highest value comes first, or the lowest.
    """

    title: str
    axis: str
    values: dict[str, float]
    format: Callable[[float], str]
    higher_is_better: bool = True


def draw(chart: BarChart, theme: str) -> str:
    """Return the chart as SVG text with a transparent background."""
    colors = THEMES[theme]
    bars = sorted(chart.values.items(), key=lambda bar: bar[1], reverse=chart.higher_is_better)
    left = 24 + _CHARACTER * max(len(name) for name in chart.values)
    bottom = _TOP + _ROW * len(bars)
    ticks, position = _log_axis(list(chart.values.values()), left, _WIDTH - _RIGHT)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + _BOTTOM}" '
        f'width="{_WIDTH}" role="img" font-family="{_FONT}" font-size="14">',
        f"<title>{escape(chart.title)}</title>",
        _text(0, 22, chart.title, colors["text"], 'font-size="17" font-weight="600"'),
    ]
    for value in ticks:
        x = position(value)
        parts.append(
            f'<path d="M{x:.1f} {_TOP - 6}V{bottom}" stroke="{colors["grid"]}" stroke-width="1"/>'
        )
        middle = 'text-anchor="middle" font-size="12"'
        parts.append(_text(x, bottom + 16, chart.format(value), colors["muted"], middle))
    for index, (name, value) in enumerate(bars):
        y = _TOP + _ROW * index
        is_ours = name.startswith("envweave")
        bold = ' font-weight="600"' if is_ours else ""
        color = TEAL if is_ours else colors["bar"]
        parts += [
            f'<rect x="{left:.1f}" y="{y}" width="{position(value) - left:.1f}" height="{_BAR}" '
            f'rx="2" fill="{color}"/>',
            _text(left - 10, y + 14, name, colors["text"], f'text-anchor="end"{bold}'),
            _text(position(value) + 8, y + 14, chart.format(value), colors["text"], bold.strip()),
        ]
    middle = 'text-anchor="middle" font-size="12"'
    parts.append(
        _text((left + _WIDTH - _RIGHT) / 2, bottom + 38, chart.axis, colors["muted"], middle)
    )
    return "\n".join([*parts, "</svg>", ""])


def _log_axis(
    values: list[float], left: float, right: float
) -> tuple[list[float], Callable[[float], float]]:
    """Return the powers of ten to mark, and the position of a value.

    The axis begins at a power of ten at least a factor of two below the smallest value, so that
    every bar can be seen.
    """
    low = math.floor(math.log10(min(values) / 2))
    high = math.log10(max(values))

    def position(value: float) -> float:
        return left + (right - left) * (math.log10(value) - low) / (high - low)

    return [10.0**power for power in range(low, math.floor(high) + 1)], position


def _text(x: float, y: float, text: str, color: str, attributes: str) -> str:
    return f'<text x="{x:.1f}" y="{y}" fill="{color}" {attributes}>{escape(text)}</text>'
