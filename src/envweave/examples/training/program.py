"""Shared by the training programs: settings, command line, progress, summary, exit codes."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeAlias, TypeVar

import envweave as ew
from envweave.examples.plots import blocks_for, draw, moving_average, sparkline
from envweave.examples.training.run_log import METRICS, RunHistory, open_run_dir
from envweave.providers.docker.options import image_of

INTERRUPTED = 130
"""The exit code of a program that Ctrl-C ended."""

RECENT = 40
"""How many points the live figures and the curves average over."""

ShowProgress: TypeAlias = Callable[[int, float, float], None]
"""Takes the number of finished episodes, their recent mean return and success rate."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """The settings that every training program has; each adds its own.

    Attributes:
        num_envs: How many environments are stepped together.
        episodes: How many episodes to train on.
        seed: The seed of the environments and the learner: the same seed gives the same run.
        backend: Where the environments run.
        docker_image: The image for `docker_http`; `None` for the program's default.
        run_dir: The directory to write to; must be new or empty. `None` makes one under `runs/`.
        resume: Whether to continue the run in `run_dir` from its last checkpoint.
        record: Whether to record every episode into the run's directory; see `ew.load`.
    """

    num_envs: int
    episodes: int
    seed: int = 0
    backend: str = "inproc"
    docker_image: str | None = None
    run_dir: Path | None = None
    resume: bool = False
    record: bool = False

    def make_vector(self, env_id: str, **options: Any) -> ew.VectorEnv:
        """Make the environments on the configured backend.

        Raises:
            OptionError: There is an image, but the backend runs no containers.
        """
        return ew.make_vector(env_id, num_envs=self.num_envs, **self.placement(), **options)

    def make_pool(self, env_id: str, **options: Any) -> ew.Pool:
        """Make a pool of the environments on the configured backend.

        Raises:
            OptionError: There is an image, but the backend runs no containers.
        """
        return ew.pool(env_id, size=self.num_envs, **self.placement(), **options)

    def placement(self) -> dict[str, Any]:
        """Return the options of `make` that say where environments run.

        Raises:
            OptionError: There is an image, but the backend runs no containers.
        """
        image = self.docker_image
        if image is not None and self.backend in ("inproc", "process", "http"):
            raise ew.errors.OptionError(
                f"--docker-image {image} needs a backend with containers, not {self.backend!r}. "
                "Add --backend docker_http."
            )
        return {"backend": self.backend, "docker_image": image}

    def open_run_dir(self, name: str) -> Path:
        """Return the configured directory, or a fresh `runs/NAME-seedN`."""
        return open_run_dir(self.run_dir, f"{name}-seed{self.seed}", resume=self.resume)

    def open_recorded_dir(self, name: str) -> Path | None:
        """Return the same directory if episodes are recorded, before there are environments."""
        return self.open_run_dir(name) if self.record else None

    def logged(self, title: str) -> dict[str, Any]:
        """Return the first line of the log; `title` names the environment."""
        settings = dataclasses.asdict(self)
        del settings["run_dir"], settings["resume"], settings["record"]
        return {"title": title, "version": ew.__version__, **settings}


ConfigT = TypeVar("ConfigT", bound=TrainingConfig)


class TrainingInterrupted(KeyboardInterrupt):
    """Training was interrupted; the log so far is in `run_dir`."""

    def __init__(self, run_dir: Path, episodes: int, *, can_resume: bool = False) -> None:
        super().__init__(f"interrupted after {episodes} episodes; the log is in {run_dir}")
        self.run_dir = run_dir
        self.episodes = episodes
        self.can_resume = can_resume


AddOption: TypeAlias = Callable[..., None]
"""`ArgumentParser.add_argument`, with the default taken from the settings and shown in the help."""


def training_parser(
    program: str, description: str, default: TrainingConfig, env_id: str, *, can_resume: bool
) -> tuple[argparse.ArgumentParser, AddOption]:
    """Return a parser with the options that every program has, and a function to add others."""
    parser = argparse.ArgumentParser(prog=program, description=description)

    def add(name: str, *flags: str, help: str, **how: Any) -> None:  # noqa: A002 - argparse's word
        value = getattr(default, name.removeprefix("--").replace("-", "_"))
        shown = "" if value is None else " (default: %(default)s)"
        parser.add_argument(name, *flags, default=value, help=help + shown, **how)

    add(
        "--backend",
        metavar="NAME",
        help="where the environments run: inproc, process, http, docker_http or ray",
    )
    add("--num-envs", type=positive_int, metavar="N", help="environments stepped together")
    image = (image_of(env_id) or "").removesuffix(":latest")
    add("--docker-image", metavar="TAG", help=f"image for docker_http (default: {image})")
    add("--episodes", type=positive_int, metavar="N", help="episodes to train on")
    add("--seed", type=seed_number, metavar="N", help="same seed, same run")
    where = "a new or empty directory (default: a fresh one under runs/)"
    add("--run-dir", type=Path, metavar="DIR", help=where)
    parser.add_argument(
        "--record",
        action=argparse.BooleanOptionalAction,
        default=default.record,
        help="record every episode into the run's directory, for `envweave replay` and `ew.load`",
    )
    if can_resume:
        parser.add_argument(
            "--resume",
            action="store_true",
            help="continue the run in --run-dir from its last checkpoint",
        )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    return parser, add


def run_program(
    parser: argparse.ArgumentParser,
    argv: list[str] | None,
    make_config: Callable[..., ConfigT],
    train: Callable[[ConfigT, ShowProgress], Path],
) -> int:
    """Parse the options, train with a progress bar, draw and summarize the run.

    `train` returns the run's directory.

    Returns:
        The exit code: 130 after Ctrl-C, 2 for an error of ours, 1 if the run could not be written.

    Raises:
        SystemExit: An option is wrong (2), or help was requested (0).
    """
    options = vars(parser.parse_args(argv))
    as_json = options.pop("json")
    config = make_config(**options)
    try:
        with training_progress(config.episodes, sys.stderr) as show:
            run_dir = train(config, show)
        picture, missing = _draw(run_dir)
    except TrainingInterrupted as interruption:
        run_dir = interruption.run_dir
        sys.stderr.write(
            f"Interrupted after {interruption.episodes} episodes. The log is kept in {run_dir}; "
            f"draw it with: python -m envweave.examples.plots {run_dir}\n"
        )
        if interruption.can_resume:
            sys.stderr.write(
                f"Continue it with the same command and: --run-dir {run_dir} --resume\n"
            )
        return INTERRUPTED
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        return INTERRUPTED
    except ew.EnvWeaveError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(
            f"Error: the run could not be written: {error.strerror}. What was written before is "
            "kept; make room, or choose another --run-dir.\n"
        )
        return 1
    if as_json:
        sys.stdout.write(json.dumps(summary(run_dir, picture)) + "\n")
    else:
        blocks = blocks_for(sys.stdout.encoding)
        files = f"\n  {run_dir / METRICS}\n  {picture or missing}\n"
        sys.stdout.write(summary_text(RunHistory.read(run_dir), blocks) + files)
    return 0


def summary(run_dir: Path, picture: Path | None) -> dict[str, Any]:
    """Return the results of a run as plain data."""
    run = RunHistory.read(run_dir)
    return {
        **{k: v for k, v in run.settings.items() if k not in ("type", "time_s")},
        "episodes": run.episodes,
        "updates": run.updates,
        "duration_s": run.duration_s,
        **{
            policy: {name: line[name] for name in ("episodes", "success", "return")}
            for policy, line in run.evaluations.items()
        },
        "metrics": str(run_dir / METRICS),
        "picture": None if picture is None else str(picture),
    }


def summary_text(run: RunHistory, blocks: str) -> str:
    """Return the results of a run as text, with its curves."""
    window = max(1, min(RECENT, len(run.points) // 4))
    success = moving_average([point["success"] for point in run.points], window)
    earned = moving_average([point["return"] for point in run.points], window)
    lines = [
        "",
        f"{run.title}, seed {run.settings['seed']}: {run.episodes:,} episodes, "
        f"{run.updates} updates in {run.duration_s:.1f} s",
        "",
        f"  success  {sparkline(success, low=0, high=1, blocks=blocks)}  {success[-1]:.0%}",
        f"  return   {sparkline(earned, low=-1, high=1, blocks=blocks)}  {earned[-1]:+.2f}",
        "",
        f"  {'evaluation':<26} episodes  success  return",
    ]
    lines += [
        f"  {policy + ' policy':<26} {line['episodes']:>8}  {line['success']:>7.1%} "
        f"{line['return']:>+7.2f}"
        for policy, line in run.evaluations.items()
    ]
    if run.settings.get("reward_sign") == -1:
        lines.insert(2, "The reward's sign was flipped for the learner, so success must fall.")
    return "\n".join(lines) + "\n"


@contextmanager
def training_progress(total: int, stream: TextIO) -> Iterator[ShowProgress]:
    """Show how far a run of `total` episodes is, and its recent return and success rate."""
    from envweave.rollouts.progress import show_progress  # after the options were parsed

    every = max(1, total // 10)
    with show_progress("training", total, stream, lines=True, every=every) as show:
        yield lambda finished, mean_return, success: show(
            finished, f"return {mean_return:+.2f}  success {success:4.0%}"
        )


def _draw(run_dir: Path) -> tuple[Path | None, str]:
    try:
        return draw(run_dir), ""
    except ew.errors.MissingExtraError as error:
        return None, str(error)


def positive_int(text: str) -> int:
    """Parse an integer >= 1."""
    return _whole(text, low=1)


def seed_number(text: str) -> int:
    """Parse a seed."""
    return _whole(text, low=0, high=2**31 - 1)


def _whole(text: str, *, low: int, high: int | None = None) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None
    if value < low:
        raise argparse.ArgumentTypeError(f"{value} is too small; use {low} or more")
    if high is not None and value > high:
        raise argparse.ArgumentTypeError(f"{value} is too large; use {high} or less")
    return value


def positive_float(text: str) -> float:
    """Parse a number greater than 0."""
    value = _number(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0")
    return value


def fraction(text: str) -> float:
    """Parse a number from 0 to 1."""
    value = _number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return value
