"""The picture of a training run: `python -m envweave.examples.plots RUN_DIR` draws it again."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

import envweave as ew
from envweave.examples.curves import moving_average
from envweave.examples.run_log import read_run_log

PICTURE = "metrics.png"

# From the palette of Okabe and Ito, which colour-blind readers can tell apart.
BLUE, GREEN, ORANGE, VERMILLION, GREY = "#0072B2", "#009E73", "#E69F00", "#D55E00", "#5f5f5f"


def draw(run_dir: Path) -> Path:
    """Draw the log of a run as `metrics.png` beside it, and return where that is.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OptionError: The directory holds no run, or one without an episode.
    """
    log = read_run_log(run_dir)
    episodes = [line for line in log if line["type"] == "episode" and line["success"] is not None]
    episodes.sort(key=lambda line: int(line["episode"]))
    if not episodes:
        raise ew.errors.OptionError(f"The run in {str(run_dir)!r} has no finished episode yet.")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ew.errors.MissingExtraError.for_extra(
            f"{PICTURE} needs matplotlib.", "train"
        ) from None
    run = next((line for line in log if line["type"] == "run"), {})
    reached = {line["policy"]: line for line in log if line["type"] == "evaluation"}

    figure = Figure(figsize=(8.4, 6.6), dpi=150, layout="constrained", facecolor="white")
    above, below = figure.subplots(2, 1, sharex=True)
    _dots(above, episodes)
    _curve(above, episodes, "return", BLUE, reached)
    _curve(below, episodes, "success", GREEN, reached)
    figure.suptitle(_title(reached) + "\n", fontsize=13, fontweight="bold")
    figure.text(0.5, 0.945, _setting(run), ha="center", fontsize=9, color=GREY)
    above.set_ylabel("return of an episode")
    below.set_ylabel("share of success")
    below.set_ylim(-0.04, 1.06)
    below.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    below.set_xlabel("episode, in the order they began")
    path = run_dir / PICTURE
    figure.savefig(path)
    return path


def _dots(axes: Any, episodes: list[dict[str, Any]]) -> None:
    """Every episode, by how it ended: told apart by colour and by shape."""
    looks = {
        "reached the goal": (BLUE, "o", 0.45),
        "ran out of steps": (ORANGE, "^", 0.75),
        "went to the wrong end": (VERMILLION, "x", 0.75),
    }
    for end, (colour, marker, alpha) in looks.items():
        chosen = [line for line in episodes if _how_it_ended(line) == end]
        axes.scatter(
            [line["episode"] for line in chosen],
            [line["return"] for line in chosen],
            s=16,
            color=colour,
            marker=marker,
            alpha=alpha,
            linewidths=1.2 if marker == "x" else 0,
            label=end,
            zorder=2,
        )


def _how_it_ended(episode: dict[str, Any]) -> str:
    if episode["success"]:
        return "reached the goal"
    return "ran out of steps" if episode["truncated"] else "went to the wrong end"


def _curve(
    axes: Any,
    episodes: list[dict[str, Any]],
    name: str,
    colour: str,
    reached: dict[str, dict[str, Any]],
) -> None:
    """One figure over episodes: its moving average, beside what evaluation found."""
    numbers = np.array([line["episode"] for line in episodes])
    values = np.array([line[name] for line in episodes], np.float64)
    window = max(1, min(40, len(values) // 4))
    # A mean of two or three episodes says nothing, so the line begins a little later.
    start = window // 2
    average = moving_average(values, window)[start:]
    label = f"mean of the last {window}"
    axes.plot(numbers[start:], average, color=colour, linewidth=2.4, label=label, zorder=3)
    lines = {"random": ("random policy", (0, (5, 3))), "trained": ("trained, greedy", (0, (1, 2)))}
    for policy, (label, style) in lines.items():
        if policy in reached:
            level = reached[policy][name]
            shown = f"{level * 100:.0f} %" if name == "success" else f"{level:+.2f}"
            axes.axhline(
                level,
                color=GREY if policy == "random" else "black",
                linestyle=style,
                linewidth=1.5,
                label=f"{label}: {shown}",
                zorder=1 if policy == "random" else 4,
            )
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(0, numbers[-1] * 1.005 + 1)
    legend = axes.legend(
        loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9, frameon=False, labelspacing=0.7
    )
    for handle in legend.legend_handles:
        handle.set_alpha(1.0)


def _title(reached: dict[str, dict[str, Any]]) -> str:
    if not {"random", "trained"} <= set(reached):
        return "LineWorld, policy gradient"
    before, after = reached["random"]["success"], reached["trained"]["success"]
    return f"LineWorld: success {before * 100:.0f} % at random, {after * 100:.0f} % trained"


def _setting(run: dict[str, Any]) -> str:
    said = ["policy gradient"]
    if run.get("reward_sign") == -1:
        said.append("the reward's sign flipped")
    names = {"seed": "seed", "num_envs": "environments", "learning_rate": "learning rate"}
    said += [f"{label} {run[name]}" for name, label in names.items() if name in run]
    return ",  ".join(said)


def main(argv: list[str] | None = None) -> int:
    """Draw the picture of a run again, for instance of one that was interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m envweave.examples.plots", description="Draw the picture of a training run."
    )
    parser.add_argument("run_dir", type=Path, help="the directory with the run's metrics.jsonl")
    try:
        path = draw(parser.parse_args(argv).run_dir)
    except ew.EnvWeaveError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
