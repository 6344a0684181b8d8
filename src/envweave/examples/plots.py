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
BLUE, GREEN, GREY = "#0072B2", "#009E73", "#6b6b6b"


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

    figure = Figure(figsize=(8, 6.4), dpi=150, layout="constrained", facecolor="white")
    above, below = figure.subplots(2, 1, sharex=True)
    figure.suptitle(_title(run, reached), x=0.015, ha="left", fontsize=13, fontweight="bold")
    window = max(1, min(40, len(episodes) // 4))
    _panel(above, episodes, "return", window, BLUE, reached.get("random"))
    _panel(below, episodes, "success", window, GREEN, reached.get("random"))
    above.set_title(_setting(run), loc="left", fontsize=9, color=GREY)
    above.set_ylabel("return of an episode")
    below.set_ylabel("share of success")
    below.set_ylim(-0.08, 1.08)
    below.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    below.set_xlabel("episode")
    path = run_dir / PICTURE
    figure.savefig(path)
    return path


def _panel(
    axes: Any,
    episodes: list[dict[str, Any]],
    name: str,
    window: int,
    colour: str,
    random_policy: dict[str, Any] | None,
) -> None:
    """One figure over episodes: each as a dot, their moving average, the random policy."""
    numbers = np.array([line["episode"] for line in episodes])
    values = np.array([line[name] for line in episodes], np.float64)
    # Successes lie on two lines only; without jitter a hundred dots would look like one.
    jitter = np.random.default_rng(0).uniform(-0.035, 0.035, len(values))
    shown = values + jitter if name == "success" else values
    axes.scatter(
        numbers, shown, s=9, color=colour, alpha=0.28, linewidths=0, label="one episode", zorder=2
    )
    axes.plot(
        numbers,
        moving_average(values, window),
        color=colour,
        linewidth=2.4,
        label=f"mean of the last {window}",
        zorder=3,
    )
    if random_policy is not None:
        level = random_policy[name]
        shown_level = f"{level:.0%}".replace("%", " %") if name == "success" else f"{level:+.2f}"
        axes.axhline(
            level,
            color=GREY,
            linestyle=(0, (5, 3)),
            linewidth=1.4,
            label=f"random policy ({shown_level})",
            zorder=1,
        )
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(0, numbers[-1] + 1)
    legend = axes.legend(loc="center right", fontsize=9, framealpha=0.92, edgecolor="#dddddd")
    for handle in legend.legend_handles:
        handle.set_alpha(1.0)


def _title(run: dict[str, Any], reached: dict[str, dict[str, Any]]) -> str:
    title = "LineWorld, policy gradient"
    if run.get("reward_sign") == -1:
        title += ", reward's sign flipped"
    if {"random", "trained"} <= set(reached):
        before, after = reached["random"]["success"], reached["trained"]["success"]
        title += f": success {before * 100:.0f} % at random, {after * 100:.0f} % trained"
    return title


def _setting(run: dict[str, Any]) -> str:
    names = ("seed", "num_envs", "learning_rate", "gamma")
    return "   ".join(f"{name.replace('_', ' ')} {run[name]}" for name in names if name in run)


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
