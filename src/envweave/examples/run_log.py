"""The log of a training run: a directory with an append-only `metrics.jsonl`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

import envweave as ew

METRICS = "metrics.jsonl"


@final
class RunLog:
    """Writes one JSON object a line, each with its `type` and `time_s`, seconds since the start.

    Every line is on its way to the disk before the next one is begun, so a run that is
    interrupted keeps all it has written.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.path = run_dir / METRICS
        self._began_s = time.perf_counter()
        self._file = self.path.open("x", encoding="utf-8", buffering=1)

    def write(self, kind: str, **fields: Any) -> None:
        """Append an object of this `type`."""
        time_s = round(time.perf_counter() - self._began_s, 4)
        line = json.dumps({"type": kind, **fields, "time_s": time_s}, allow_nan=False)
        self._file.write(line + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def claim_run_dir(run_dir: Path) -> Path:
    """Make the directory of a run, and return it. An empty one may be there already.

    Raises:
        OptionError: Something is in it, or it cannot be made.
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
            f"The run directory {str(run_dir)!r} is not empty, and no run is written over. "
            "Choose another --run-dir, or leave it out for a fresh name under runs/."
        )
    return run_dir


def claim_fresh_run_dir(parent: Path, name: str) -> Path:
    """Make `parent/name`, or where that is taken `name-2`, `name-3`, …, and return it.

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
                    f"Runs are kept in {str(parent)!r}, which is no directory. Choose a --run-dir."
                ) from None
        except OSError as error:
            raise ew.errors.OptionError(
                f"The run directory {str(run_dir)!r} cannot be made: {error.strerror}. "
                "Choose a --run-dir."
            ) from error
        else:
            return run_dir


def read_run_log(run_dir: Path) -> list[dict[str, Any]]:
    """Return the objects of a run's log. A last line that was cut off is left out.

    Raises:
        OptionError: There is no log in this directory.
    """
    path = run_dir / METRICS
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except OSError as error:
        raise ew.errors.OptionError(
            f"{str(run_dir)!r} holds no run: {METRICS} cannot be read ({error.strerror})."
        ) from error
    return [json.loads(line) for line in lines if line.endswith("\n")]
