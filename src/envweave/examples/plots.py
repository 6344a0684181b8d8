"""Curves of a training run, as a picture and as text on a terminal.

`python -m envweave.examples.plots RUN_DIR` draws the picture of a run again;
`--compare OTHER_RUN_DIR` adds the curve of another run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import envweave as ew
from envweave.examples.training import RunHistory

PICTURE = "metrics.png"
BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-=+*#@"

# From the palette of Okabe and Ito, which color-blind readers can tell apart.
BLUE, GREEN, ORANGE, VERMILLION, GRAY = "#0072B2", "#009E73", "#E69F00", "#D55E00", "#5f5f5f"


def moving_average(values: ArrayLike, window: int) -> NDArray[np.float64]:
    """Return, for each value, the mean of the last `window` up to it (fewer at the start)."""
    sums = np.concatenate([[0.0], np.cumsum(np.asarray(values, np.float64))])
    last = np.arange(1, len(sums))
    first = np.maximum(0, last - window)
    averages: NDArray[np.float64] = (sums[last] - sums[first]) / (last - first)
    return averages


def sparkline(
    values: ArrayLike, *, low: float, high: float, width: int = 60, blocks: str = BLOCKS
) -> str:
    """Draw values between `low` and `high` as one line of at most `width` characters."""
    row = np.asarray(values, np.float64)
    if not len(row):
        return ""
    shown = [float(part.mean()) for part in np.array_split(row, min(width, len(row)))]
    top = len(blocks) - 1
    heights = [(value - low) / (high - low) * top for value in shown]
    return "".join(blocks[min(top, max(0, round(height)))] for height in heights)


def blocks_for(encoding: str | None) -> str:
    """Return the characters that a terminal of this encoding can show."""
    try:
        BLOCKS.encode(encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return ASCII_BLOCKS
    return BLOCKS


def draw(run_dir: Path, *, compare: Sequence[Path] = ()) -> Path:
    """Draw the log of a run as `metrics.png` in its folder, and return the path.

    Args:
        run_dir: The run's directory.
        compare: The directories of other runs, whose curves of success are added.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OptionError: A directory has no run, or one without episodes.
    """
    run, *others = [_read(path) for path in (run_dir, *compare)]
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ew.errors.MissingExtraError.for_extra(
            f"{PICTURE} needs matplotlib.", "train"
        ) from None

    figure = Figure(figsize=(8.4, 6.6), dpi=150, layout="constrained", facecolor="white")
    above, below = figure.subplots(2, 1, sharex=True)
    _dots(above, run)
    _curve(above, run, "return", BLUE)
    _curve(below, run, "success", GREEN)
    _checks(below, run)
    for other in others:
        numbers, average, _ = _average(other, "success")
        below.plot(numbers, average, color=VERMILLION, linewidth=1.8, label=_setting(other, run))
    for axes in (above, below):
        _decorate(axes, run)
    title = _title(run)
    # A title longer than about 65 characters would be cut off on both sides.
    figure.suptitle(title + "\n", fontsize=min(13, 850 / len(title)), fontweight="bold")
    figure.text(0.5, 0.945, _setting(run), ha="center", fontsize=9, color=GRAY)
    above.set_ylabel("return of an episode")
    below.set_ylabel("share of success")
    below.set_ylim(-0.04, 1.06)
    below.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    below.set_xlabel("episode, in the order they began")
    path = run_dir / PICTURE
    figure.savefig(path)
    return path


def _read(run_dir: Path) -> RunHistory:
    run = RunHistory.read(run_dir)
    if not run.points:
        raise ew.errors.OptionError(f"The run in {str(run_dir)!r} has no finished episode yet.")
    return run


def _dots(axes: Any, run: RunHistory) -> None:
    """Every episode, with a color and shape for its end; or the mean of each batch."""
    looks = {
        "success": (BLUE, "o", 0.45),
        "out of steps": (ORANGE, "^", 0.75),
        "failure": (VERMILLION, "x", 0.75),
        "batch of one update": (BLUE, "o", 0.2),
    }
    for name, (color, marker, alpha) in looks.items():
        chosen = [point for point in run.points if _outcome(point) == name]
        if chosen:
            axes.scatter(
                [point["episode"] for point in chosen],
                [point["return"] for point in chosen],
                s=16 if len(run.points) < 800 else 8,
                color=color,
                marker=marker,
                alpha=alpha,
                linewidths=1.2 if marker == "x" else 0,
                label=name,
                zorder=2,
            )


def _outcome(point: dict[str, Any]) -> str:
    if point["type"] != "episode":
        return "batch of one update"
    if point["success"]:
        return "success"
    return "out of steps" if point.get("truncated") else "failure"


def _average(run: RunHistory, name: str) -> tuple[NDArray[Any], NDArray[np.float64], int]:
    numbers = np.array([point["episode"] for point in run.points])
    values = np.array([point[name] for point in run.points], np.float64)
    window = max(1, min(40, len(values) // 4))
    # A mean of two or three values says little, so the line begins a little later.
    start = window // 2
    return numbers[start:], moving_average(values, window)[start:], window


def _curve(axes: Any, run: RunHistory, name: str, color: str) -> None:
    """One figure over episodes: its moving average, with the evaluation results."""
    numbers, average, window = _average(run, name)
    label = f"training, mean of the last {window}"
    axes.plot(numbers, average, color=color, linewidth=2.4, label=label, zorder=3)
    for policy, line in run.evaluations.items():
        is_trained = policy == "trained"
        shown = f"{line[name] * 100:.1f} %" if name == "success" else f"{line[name]:+.2f}"
        axes.axhline(
            line[name],
            color="black" if is_trained else GRAY,
            linestyle=(0, (1, 2)) if is_trained else (0, (5, 3)),
            linewidth=1.5,
            label=f"{policy} policy: {shown}",
            zorder=4 if is_trained else 1,
        )


def _checks(axes: Any, run: RunHistory) -> None:
    """The evaluations during training."""
    if run.checks:
        axes.plot(
            [line["episode"] for line in run.checks],
            [line["success"] for line in run.checks],
            color="black",
            marker="D",
            markersize=4,
            linewidth=0,
            label="held-out, during training",
            zorder=5,
        )


def _decorate(axes: Any, run: RunHistory) -> None:
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(0, run.episodes * 1.005 + 1)
    legend = axes.legend(
        loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9, frameon=False, labelspacing=0.7
    )
    for handle in legend.legend_handles:
        handle.set_alpha(1.0)


def _title(run: RunHistory) -> str:
    reached = [
        f"{line['success'] * 100:.1f} % {policy}" for policy, line in run.evaluations.items()
    ]
    if len(reached) < 2:
        return f"{run.title}, policy gradient"
    return f"{run.title}: success {', '.join(reached)}"


def _setting(run: RunHistory, other: RunHistory | None = None) -> str:
    """Return the settings of a run, or those in which it differs from `other`."""
    names = {
        "seed": "seed",
        "num_envs": "environments",
        "learning_rate": "learning rate",
        "backend": "backend",
    }
    parts = []
    if run.settings.get("reward_sign") == -1:
        parts.append("reward's sign flipped")
    for name, label in names.items():
        value = run.settings.get(name)
        if value is not None and (other is None or other.settings.get(name) != value):
            parts.append(f"{label} {value}")
    return ",  ".join(parts) or "another run"


def main(argv: list[str] | None = None) -> int:
    """Draw the picture of a run again, for example of an interrupted one."""
    parser = argparse.ArgumentParser(
        prog="python -m envweave.examples.plots", description="Draw the picture of a training run."
    )
    parser.add_argument("run_dir", type=Path, help="the directory with the run's metrics.jsonl")
    parser.add_argument(
        "--compare",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="another run, whose success curve is added; may be repeated",
    )
    options = parser.parse_args(argv)
    try:
        path = draw(options.run_dir, compare=options.compare)
    except ew.EnvWeaveError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
