"""Sinks: where metrics are written, each with the library of its format."""

from __future__ import annotations

import json
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

from envweave.errors import ClosedError, MissingExtraError, OptionError


class MetricsSink(ABC):
    """Writes metrics: `sink(step, {"reward": 0.5})`. Use it in a `with` block, or `close` it.

    Values are numbers, of Python, numpy or torch; nested dicts become names such as
    `"reward/mean"`. `None`, infinity and NaN are left out.
    """

    def __init__(self) -> None:
        self._is_closed = False

    def __call__(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write the metrics of a step of the training, such as an update.

        Raises:
            OptionError: A value is not a number.
            ClosedError: It is closed.
        """
        if self._is_closed:
            raise ClosedError(f"This {type(self).__name__} is closed. Make a new one.")
        values = dict(_flatten(metrics, ""))
        if values:
            self._write(int(step), values)

    def close(self) -> None:
        """Write what is buffered, and close it. May be called twice."""
        if not self._is_closed:
            self._is_closed = True
            self._close()

    @abstractmethod
    def _write(self, step: int, values: dict[str, float]) -> None:
        """Write finite numbers by name."""

    @abstractmethod
    def _close(self) -> None:
        """Free what it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def to_jsonl(path: str | os.PathLike[str]) -> MetricsSink:
    """Write to a file of JSON lines, after those that it has: `step`, `time` and the metrics.

    Every line is flushed, so that a killed program keeps all before it.

    Raises:
        OptionError: The file cannot be opened.
    """
    return _JsonLines(Path(path))


def to_tensorboard(folder: str | os.PathLike[str]) -> MetricsSink:
    """Write event files for TensorBoard into a folder. Needs no TensorFlow and no torch.

    Raises:
        MissingExtraError: The extra `tensorboard` is not installed.
    """
    return _EventFiles(Path(folder))


def to_wandb(run: Any = None, **options: Any) -> MetricsSink:
    """Write to a run of Weights & Biases.

    Args:
        run: A run that you began, which you finish. By default one is begun here, and finished by
            `close`.
        **options: Passed to `wandb.init`, such as `project="lineworld"` or `mode="offline"`.

    Raises:
        MissingExtraError: The extra `wandb` is not installed.
        OptionError: There are options for a run that has begun.
    """
    return _WandbRun(run, options)


def to_mlflow(
    experiment: str = "Default", *, tracking_uri: str | None = None, run_id: str | None = None
) -> MetricsSink:
    """Write to a run of MLflow.

    Args:
        experiment: The experiment of a new run; created if there is none of this name.
        tracking_uri: The server, or the place of a local store, such as `"sqlite:///runs.db"`; by
            default MLflow's own setting.
        run_id: A run that you began, which you end. By default one is begun here, and ended by
            `close`.

    Raises:
        MissingExtraError: The extra `mlflow` is not installed.
    """
    return _MlflowRun(experiment, tracking_uri, run_id)


@final
class _JsonLines(MetricsSink):
    def __init__(self, path: Path) -> None:
        super().__init__()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise OptionError(
                f"{str(path)!r} cannot be opened for metrics: {error.strerror}."
            ) from error

    def _write(self, step: int, values: dict[str, float]) -> None:
        line = {"step": step, "time": round(time.time(), 3), **values}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")

    def _close(self) -> None:
        self._file.close()


@final
class _EventFiles(MetricsSink):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise _missing("TensorBoard's event files", "tensorboardX", "tensorboard") from error
        self._writer = SummaryWriter(str(folder))

    def _write(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def _close(self) -> None:
        self._writer.close()


@final
class _WandbRun(MetricsSink):
    def __init__(self, run: Any, options: Mapping[str, Any]) -> None:
        super().__init__()
        if run is not None and options:
            raise OptionError(
                f"{next(iter(options))!r} comes too late for a run that has begun. Pass either a "
                "run, or options for a new one."
            )
        self._is_ours = run is None
        if run is None:
            try:
                import wandb
            except ImportError as error:
                raise _missing("Weights & Biases", "wandb", "wandb") from error
            run = wandb.init(**options)
        self._run = run

    def _write(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def _close(self) -> None:
        if self._is_ours:
            self._run.finish()


@final
class _MlflowRun(MetricsSink):
    def __init__(self, experiment: str, tracking_uri: str | None, run_id: str | None) -> None:
        super().__init__()
        try:
            from mlflow.entities import Metric
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise _missing("MLflow", "mlflow", "mlflow") from error
        self._metric = Metric
        self._client = MlflowClient(tracking_uri)
        self._is_ours = run_id is None
        if run_id is None:
            found = self._client.get_experiment_by_name(experiment)
            named = (
                self._client.create_experiment(experiment) if found is None else found.experiment_id
            )
            run_id = self._client.create_run(named).info.run_id
        self._run_id = run_id

    def _write(self, step: int, values: dict[str, float]) -> None:
        now_ms = int(time.time() * 1000)
        metrics = [self._metric(name, value, now_ms, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def _close(self) -> None:
        if self._is_ours:
            self._client.set_terminated(self._run_id)


def _missing(what: str, package: str, extra: str) -> MissingExtraError:
    return MissingExtraError.for_extra(f"{what} need {package}.", extra)


def _flatten(metrics: Mapping[str, Any], path: str) -> Any:
    for name, value in metrics.items():
        inner = f"{path}{name}"
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{inner}/")
        elif value is not None and math.isfinite(number := _number(inner, value)):
            yield inner, number


def _number(name: str, value: Any) -> float:
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise OptionError(
            f"The metric {name!r} is not a number: {value!r}. Leave it out, or pass a number."
        ) from None
