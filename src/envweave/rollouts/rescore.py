"""Grades recorded episodes again, with another grader."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from envweave.adapters import adopt
from envweave.api.registration import spec
from envweave.codeact import Attempt, Grade, Grader, GradingError
from envweave.errors import EnvWeaveError, OptionError, RecordingError, format_error
from envweave.recording.reader import RecordedRun, Recording, load
from envweave.registry.plugins import load_path
from envweave.registry.spec import build
from envweave.sandbox.execution import ExecutionResult
from envweave.types import Episode, Task, Tasks

_FINAL_ANSWER = "final_answer"


@dataclass(frozen=True, slots=True)
class RescoredEpisode:
    """An episode and its new reward.

    Attributes:
        episode_id: The episode.
        env_id: The ID that it was recorded with.
        task_id: Its task.
        recorded: Its recorded reward; NaN if it is not usable.
        reward: What the grader gave; `None` if it was not graded.
        details: The details of a `Grade`.
        reason: Why it was not graded.
    """

    episode_id: str | None
    env_id: str
    task_id: str | None
    recorded: Any
    reward: float | None = None
    details: Mapping[str, Any] | None = None
    reason: str | None = None

    @property
    def is_changed(self) -> bool:
        """Whether it was graded, and the reward is another than the recorded one."""
        return self.reward is not None and self.reward != self.recorded


def rescore(
    path: str | os.PathLike[str],
    grader: Any,
    *,
    tasks: Tasks | None = None,
    on_episode: Callable[[RescoredEpisode], Any] | None = None,
) -> list[RescoredEpisode]:
    """Grade the episodes of a recording again. The recording is not changed.

    Args:
        path: The directory of the recording.
        grader: A `Grader`, or a function of an `Episode` that returns a number or a `Grade`, also
            as a coroutine; or the import path `"module:name"` of one. A class of graders is
            called without arguments. A `Grader` grades episodes whose actions are code.
        tasks: Where to find the tasks with their private parts, which a recording does not have;
            by default the environment's own, if it can be made here.
        on_episode: Called after each episode.

    Raises:
        RecordingError: There is no recording.
        OptionError: The grader cannot be called.
        PluginError: The grader cannot be imported.
    """
    grade = _grader(grader)
    return asyncio.run(_rescored(load(path), grade, tasks, on_episode))


def _grader(grader: Any) -> Any:
    found = load_path(grader) if isinstance(grader, str) else grader
    if isinstance(found, type) and issubclass(found, Grader):
        found = found()
    if not isinstance(found, Grader) and not callable(found):
        raise OptionError(
            f"grader={grader!r} is neither a Grader nor a function of an Episode. Pass one, or its "
            "import path, such as 'my_module:my_grader'."
        )
    return found


async def _rescored(
    recording: Recording,
    grader: Any,
    tasks: Tasks | None,
    on_episode: Callable[[RescoredEpisode], Any] | None,
) -> list[RescoredEpisode]:
    finder = _TaskFinder(tasks)
    rescored: list[RescoredEpisode] = []
    try:
        for summary in recording.summaries:
            one = RescoredEpisode(summary.id, summary.run.env_id, summary.task_id, summary.reward)
            if not summary.usable:
                why = (
                    "it has no end"
                    if summary.end is None
                    else f"it is not usable: {summary.end.reason}"
                )
                one = dataclasses.replace(one, reason=why)
            else:
                try:
                    episode = recording.load(summary, typed=not isinstance(grader, Grader))
                    episode.task = finder.find(summary.run, episode)
                    one = await _grade(one, grader, episode)
                except (RecordingError, GradingError) as error:
                    one = dataclasses.replace(one, reason=str(error))
            rescored.append(one)
            if on_episode is not None:
                on_episode(one)
    finally:
        if isinstance(grader, Grader):
            await grader.close()
    return rescored


async def _grade(one: RescoredEpisode, grader: Any, episode: Episode) -> RescoredEpisode:
    if isinstance(grader, Grader):
        attempt = attempt_of(episode)
        if attempt is None:
            return dataclasses.replace(one, reason="its actions are not code")
        given: Any = grader.grade(attempt)
    else:
        given = grader(episode)
    if inspect.isawaitable(given):
        given = await given
    if isinstance(given, Grade):
        return dataclasses.replace(one, reward=float(given.score), details=given.details)
    try:
        return dataclasses.replace(one, reward=float(given))
    except (TypeError, ValueError):
        raise OptionError(
            f"The grader returned {given!r} for episode {one.episode_id!r}, which is neither a "
            "number nor a Grade."
        ) from None


def attempt_of(episode: Episode) -> Attempt | None:
    """Return what an agent that writes code submitted at the end of an episode.

    Takes an episode of plain data. Returns `None` if its actions are not code.
    """
    programs: list[str] = []
    attempt: Attempt | None = None
    for step, seen in zip(episode.steps, episode.observations[1:], strict=True):
        code = step.action.get("code") if isinstance(step.action, dict) else None
        ran = seen.get("execution_result") if isinstance(seen, dict) else None
        if not isinstance(code, str) or not isinstance(ran, dict):
            return None
        names = {one.name for one in dataclasses.fields(ExecutionResult)}
        result = ExecutionResult(**{name: one for name, one in ran.items() if name in names})
        programs.append(code)
        answers = [call for call in ran.get("tool_calls") or () if call["name"] == _FINAL_ANSWER]
        answer = _answer(answers[0]) if answers else result.return_value
        attempt = Attempt(
            code=code,
            program="\n".join(programs),
            result=result,
            answer=answer,
            answered=bool(answers) or answer is not None,
            task=episode.task,
        )
        if not result.success:
            programs.pop()
    return attempt


def _answer(call: Mapping[str, Any]) -> Any:
    positional, named = call["arguments"]
    return positional[0] if positional else next(iter(named.values()), None)


class _TaskFinder:
    """Finds tasks with their private parts, which the recorded ones lack."""

    def __init__(self, tasks: Tasks | None) -> None:
        self._given = tasks
        self._of_runs: dict[str, Tasks | None] = {}

    def find(self, run: RecordedRun, episode: Episode) -> Task | None:
        if episode.task_id is None:
            return episode.task
        if self._given is None and run.id not in self._of_runs:
            self._of_runs[run.id] = _tasks_of(run)
        tasks = self._given or self._of_runs.get(run.id)
        if tasks is None:
            return episode.task
        try:
            return tasks.get(episode.task_id)
        except EnvWeaveError as error:
            if episode.task is not None:
                return episode.task
            raise RecordingError(f"Its task cannot be found: {format_error(error)}") from error


def _tasks_of(run: RecordedRun) -> Tasks | None:
    """Return the tasks of a recorded environment, from one that is made for them."""
    definition = run.definition
    if definition is None or definition.get("withheld"):
        return None
    try:
        environment = adopt(build(spec(definition["id"]), definition["kwargs"]))
    except EnvWeaveError:
        return None
    tasks = environment.tasks
    closed = environment.close()
    if inspect.iscoroutine(closed):
        closed.close()
    return tasks
