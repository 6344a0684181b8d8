"""The picture of the figures: how steps a second grow with N, and how far ahead ours is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# From the palette of Okabe and Ito, which colour-blind readers can tell apart.
LOOKS = {
    "envweave serial": ("#0072B2", "o", "-"),
    "envweave process": ("#D55E00", "s", "-"),
    "gymnasium SyncVectorEnv": ("#56B4E9", "o", "--"),
    "gymnasium AsyncVectorEnv": ("#E69F00", "s", "--"),
    "PufferLib Serial": ("#009E73", "o", ":"),
    "PufferLib Multiprocessing": ("#CC79A7", "s", ":"),
    "stable-baselines3 SubprocVecEnv": ("#5f5f5f", "^", "--"),
}
GREY, REACHED, MISSED = "#5f5f5f", "#0072B2", "#E69F00"


def draw(figures: dict[str, Any], path: Path) -> None:
    """Draw the figures of a run into a PNG file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 11.0), dpi=150, layout="constrained", facecolor="white")
    halves: Any = figure.subfigures(2, 1, height_ratios=[1.0, 1.2])
    above, below = halves
    _growth(above.subplots(), figures["growth"])
    _ratios(below.subplots(), figures["rows"])
    machine = figures["machine"]
    below.supxlabel(
        f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}; median of "
        f"{figures['settings']['repeats']} interleaved turns, bars from the slowest to the "
        "quickest.",
        fontsize=8.5,
        color=GREY,
    )
    figure.savefig(path)


def _growth(axes: Any, growth: list[dict[str, Any]]) -> None:
    for name, (colour, marker, style) in LOOKS.items():
        found = [one for one in growth if one["contender"] == name and one["steps_per_s"]]
        if not found:
            continue
        sizes = [one["num_envs"] for one in found]
        rates = [one["steps_per_s"] for one in found]
        middle = [rate["median"] for rate in rates]
        spread = [
            [rate["median"] - rate["low"] for rate in rates],
            [rate["high"] - rate["median"] for rate in rates],
        ]
        axes.errorbar(
            sizes,
            middle,
            yerr=spread,
            label=name,
            color=colour,
            marker=marker,
            linestyle=style,
            linewidth=2.6 if name.startswith("envweave") else 1.6,
            markersize=6,
            capsize=3,
            zorder=3 if name.startswith("envweave") else 2,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({one["num_envs"] for one in growth})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlabel("environments in the vector (N, log scale)")
    axes.set_ylabel("steps a second, over all environments (log scale)")
    axes.set_title("A near-empty environment, as the vector grows", fontweight="bold", loc="left")
    _tidy(axes, "both")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9, frameon=False)


def _ratios(axes: Any, rows: list[dict[str, Any]]) -> None:
    bars = [
        (row, one)
        for row in rows
        if not row["reads"]
        for one in row["comparisons"]
        if one["ratio"] is not None and one["target"] is not None
    ]
    for place, (_, one) in enumerate(reversed(bars)):
        found, target = one["ratio"], one["target"]
        colour = REACHED if one["reached"] else MISSED
        axes.plot([1, found["median"]], [place, place], color=colour, linewidth=7, alpha=0.35)
        axes.errorbar(
            found["median"],
            place,
            xerr=[[found["median"] - found["low"]], [found["high"] - found["median"]]],
            color=colour,
            marker="o",
            markersize=7,
            capsize=4,
            linewidth=1.8,
            zorder=3,
        )
        axes.plot(target, place, marker="|", color="black", markersize=18, markeredgewidth=2)
        axes.annotate(
            f"{found['median']:.3g}×",
            (max(found["high"], target), place),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    axes.set_xscale("log")
    labels = [f"{row['title']}, N = {row['num_envs']}\nagainst {one['best']}" for row, one in bars]
    axes.set_yticks(range(len(bars)), labels[::-1], fontsize=8.5)
    axes.set_ylim(-0.7, len(bars) - 0.3)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.7), high * 1.6)
    ticks = [tick for tick in (0.5, 1, 2, 5, 10, 20, 50, 100, 200) if low * 0.8 < tick < high * 1.6]
    axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.axvline(1.0, color=GREY, linewidth=1, zorder=0)
    axes.set_xlabel("how many times as fast envweave is (log scale); black: the target")
    axes.set_title("envweave against the best of its peers", fontweight="bold", loc="left")
    _tidy(axes, "x")


def _tidy(axes: Any, grid: str) -> None:
    axes.grid(axis=grid, color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
