"""The directory of a training run, its log `metrics.jsonl`, and its checkpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

import envweave as ew

METRICS = "metrics.jsonl"

CHANGEABLE = {
    "backend",
    "docker_image",
    "env_backend",
    "episodes",
    "service_timeout_s",
    "target_success_rate",
}
"""Settings that may differ in a resumed run: they don't affect earlier episodes."""


@final
class RunLog:
    """Appends one JSON object per line, with its `type` and `time_s`, seconds since the start.

    The first line has the type `run` and the settings. Every line is flushed before the next one
    is started, so an interrupted or killed run keeps everything written so far.

    A resumed run keeps the first `keep_lines` lines, those that were there when its checkpoint was
    written, and drops the later ones, so that its log equals that of an uninterrupted run.

    Raises:
        OptionError: The run to resume has other settings, or fewer lines than `keep_lines`.
    """

    def __init__(self, run_dir: Path, settings: Mapping[str, Any], *, keep_lines: int = 0) -> None:
        self.path = run_dir / METRICS
        kept = _lines(self.path) if self.path.exists() else []
        _check_resumable(run_dir, kept, settings, keep_lines)
        kept = kept[:keep_lines]
        before_s = json.loads(kept[-1])["time_s"] if kept else 0.0
        self._began_s = time.perf_counter() - before_s
        first = json.dumps({"type": "run", **settings, "time_s": 0.0}, allow_nan=False)
        replace_file(
            self.path, lambda path: path.write_text("".join([first + "\n", *kept[1:]]), "utf-8")
        )
        self.num_lines = max(1, len(kept))
        self._file = self.path.open("a", encoding="utf-8", buffering=1)

    def write(self, kind: str, **fields: Any) -> None:
        """Append an object of this `type`."""
        time_s = round(time.perf_counter() - self._began_s, 4)
        line = json.dumps({"type": kind, **fields, "time_s": time_s}, allow_nan=False)
        self._file.write(line + "\n")
        self.num_lines += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def replace_file(path: Path, write: Callable[[Path], Any]) -> None:
    """Replace a file atomically: let `write` fill a temporary file, then rename it."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        write(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def open_run_dir(run_dir: Path | None, name: str, *, resume: bool) -> Path:
    """Return the directory of a run: a new or empty one, or with `resume` an existing run's.

    Args:
        run_dir: `None` makes a fresh one, `runs/NAME`, or if that exists `runs/NAME-2`, ….
        name: The name of a fresh one.
        resume: Whether `run_dir` may contain a run. If it does not, the run starts from the
            beginning, so that the same command can be repeated until it is done.

    Raises:
        OptionError: It is not empty, cannot be made, or there is no run to resume.
    """
    if run_dir is None:
        if resume:
            raise ew.errors.OptionError("--resume needs the run to continue. Add --run-dir DIR.")
        return claim_fresh_run_dir(Path("runs"), name)
    if resume and (run_dir / METRICS).is_file():
        return run_dir
    return claim_run_dir(run_dir)


def claim_run_dir(run_dir: Path) -> Path:
    """Make the directory of a run, and return it. An empty one may already exist.

    Raises:
        OptionError: It is not empty, or cannot be made.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        is_free = not any(run_dir.iterdir())
    except OSError as error:
        raise ew.errors.OptionError(
            f"The run directory {str(run_dir)!r} cannot be made: {error.strerror}."
        ) from error
    if not is_free:
        raise ew.errors.OptionError(
            f"The run directory {str(run_dir)!r} is not empty, and runs are never overwritten. "
            "Choose another --run-dir, or omit it for a fresh name under runs/."
        )
    return run_dir


def claim_fresh_run_dir(parent: Path, name: str) -> Path:
    """Make `parent/name`, or if that exists `name-2`, `name-3`, …, and return it.

    Raises:
        OptionError: It cannot be made.
    """
    number = 1
    while True:
        run_dir = parent / (name if number == 1 else f"{name}-{number}")
        try:
            run_dir.mkdir(parents=True)
        except FileExistsError:
            number += 1
            if parent.exists() and not parent.is_dir():
                raise ew.errors.OptionError(
                    f"Runs are kept in {str(parent)!r}, which is not a directory. "
                    "Choose a --run-dir."
                ) from None
        except OSError as error:
            raise ew.errors.OptionError(
                f"The run directory {str(run_dir)!r} cannot be made: {error.strerror}. "
                "Choose a --run-dir."
            ) from error
        else:
            return run_dir


def read_run_log(run_dir: Path) -> list[dict[str, Any]]:
    """Return the objects of a run's log, without a truncated last line.

    Raises:
        OptionError: There is no log in this directory.
    """
    try:
        return [json.loads(line) for line in _lines(run_dir / METRICS)]
    except OSError as error:
        raise ew.errors.OptionError(
            f"{str(run_dir)!r} has no run: {METRICS} cannot be read ({error.strerror})."
        ) from error


@final
@dataclass(frozen=True)
class RunHistory:
    """The content of a run's log, for its summary and its picture.

    Attributes:
        settings: The line `run`.
        points: Lines with an `episode` number, a `return` and a `success`, by that number: one
            per episode, or one per update whose figures are means over its batch.
        evaluations: The lines `evaluation` of a whole policy, by its name, such as `random`.
        checks: The lines `evaluation` during training, which have an `episode` number.
        updates: How often the learner was updated.
        duration_s: The `time_s` of the last line.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    points: list[dict[str, Any]] = field(default_factory=list)
    evaluations: dict[str, dict[str, Any]] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)
    updates: int = 0
    duration_s: float = 0.0

    @classmethod
    def read(cls, run_dir: Path) -> RunHistory:
        """Read the log of a run.

        Raises:
            OptionError: The directory has no run.
        """
        log = read_run_log(run_dir)
        points = [line for line in log if line["type"] == "episode"] or [
            line for line in log if line["type"] == "update" and "success" in line
        ]
        points = [line for line in points if line["success"] is not None]
        evaluations = [line for line in log if line["type"] == "evaluation"]
        return cls(
            settings=next((line for line in log if line["type"] == "run"), {}),
            points=sorted(points, key=lambda line: int(line["episode"])),
            evaluations={line["policy"]: line for line in evaluations if "episode" not in line},
            checks=[line for line in evaluations if "episode" in line],
            updates=sum(line["type"] == "update" for line in log),
            duration_s=log[-1]["time_s"] if log else 0.0,
        )

    @property
    def title(self) -> str:
        """The environment that was trained on, such as `LineWorld`."""
        return str(self.settings.get("title", "Training"))

    @property
    def episodes(self) -> int:
        """How many episodes were trained on."""
        return int(self.points[-1]["episode"]) if self.points else 0


def _lines(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [line for line in lines if line.endswith("\n")]


def _check_resumable(
    run_dir: Path, lines: list[str], settings: Mapping[str, Any], keep_lines: int
) -> None:
    if len(lines) < keep_lines:
        raise ew.errors.OptionError(
            f"The log in {str(run_dir)!r} has {len(lines)} lines, but its checkpoint was written "
            f"after {keep_lines}. Lines are missing; start over with another --run-dir."
        )
    if not lines:
        return
    logged = json.loads(lines[0])
    for name, value in settings.items():
        if name not in CHANGEABLE and logged.get(name) != value:
            raise ew.errors.OptionError(
                f"The run in {str(run_dir)!r} has {name}={logged.get(name)!r}, not {value!r}. "
                "Resume it with the options it was started with, or choose another --run-dir."
            )
