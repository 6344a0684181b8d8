"""Charts as SVG, for light and for dark pages: bars of libraries, and lines that show growth."""

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


@dataclass(frozen=True, slots=True)
class LineChart:
    """How a value grows with a size, for each library.

    Attributes:
        title: What is shown.
        x_axis: What the sizes are.
        axis: What the values are, and which are better.
        lines: The points of each library, as pairs of size and value.
        format_x: Returns a size as text.
        format: Returns a value as text.
    """

    title: str
    x_axis: str
    axis: str
    lines: dict[str, list[tuple[float, float]]]
    format_x: Callable[[float], str]
    format: Callable[[float], str]


def draw(chart: BarChart | LineChart, theme: str) -> str:
    """Return the chart as SVG text with a transparent background."""
    return _draw_lines(chart, theme) if isinstance(chart, LineChart) else _draw_bars(chart, theme)


def _draw_bars(chart: BarChart, theme: str) -> str:
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


def _draw_lines(chart: LineChart, theme: str) -> str:
    colors = THEMES[theme]
    left, right, top, bottom = 78.0, _WIDTH - 190.0, 64.0, 330.0
    points = [point for line in chart.lines.values() for point in line]
    x_ticks = sorted({x for x, _ in points})
    low_x, high_x = math.log10(x_ticks[0]), math.log10(x_ticks[-1])
    y_ticks, position = _log_axis([y for _, y in points], bottom, top)

    def place(x: float) -> float:
        return left + (right - left) * (math.log10(x) - low_x) / (high_x - low_x)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} 390" width="{_WIDTH}" '
        f'role="img" font-family="{_FONT}" font-size="14">',
        f"<title>{escape(chart.title)}</title>",
        _text(0, 22, chart.title, colors["text"], 'font-size="17" font-weight="600"'),
        _text(0, 44, chart.axis, colors["muted"], 'font-size="12"'),
    ]
    for value in y_ticks:
        y = position(value)
        parts.append(f'<path d="M{left} {y:.1f}H{right}" stroke="{colors["grid"]}"/>')
        label = chart.format(value)
        parts.append(
            _text(left - 8, y + 4, label, colors["muted"], 'text-anchor="end" font-size="12"')
        )
    for x in x_ticks:
        middle = 'text-anchor="middle" font-size="12"'
        parts.append(_text(place(x), bottom + 18, chart.format_x(x), colors["muted"], middle))
    middle = 'text-anchor="middle" font-size="12"'
    parts.append(_text((left + right) / 2, bottom + 42, chart.x_axis, colors["muted"], middle))
    dashes = iter(("", "7 4", "2 3", "9 3 2 3"))
    labels = _spread([position(line[-1][1]) for line in chart.lines.values()])
    for (name, line), label_y in zip(chart.lines.items(), labels, strict=True):
        is_ours = name.startswith("envweave")
        color = TEAL if is_ours else colors["muted"]
        path = "L".join(f"{place(x):.1f} {position(y):.1f}" for x, y in line)
        parts.append(
            f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="2.5" '
            f'stroke-dasharray="{next(dashes)}"/>'
        )
        parts += [
            f'<circle cx="{place(x):.1f}" cy="{position(y):.1f}" r="3.5" fill="{color}"/>'
            for x, y in line
        ]
        bold = 'font-size="13"' + (' font-weight="600"' if is_ours else "")
        parts.append(_text(place(line[-1][0]) + 10, label_y + 4, name, colors["text"], bold))
    return "\n".join([*parts, "</svg>", ""])


def _spread(heights: list[float], gap: float = 18.0) -> list[float]:
    """Return the heights of labels, moved down where they would overlap."""
    placed: dict[int, float] = {}
    last = -math.inf
    for index in sorted(range(len(heights)), key=heights.__getitem__):
        last = placed[index] = max(heights[index], last + gap)
    return [placed[index] for index in range(len(heights))]


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
    return f'<text x="{x:.1f}" y="{y:g}" fill="{color}" {attributes}>{escape(text)}</text>'
