"""`CodeActEnvironment`: an agent acts by writing code, and sees what came of it."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any, Literal

from envweave.codeact.executors.base import Executor
from envweave.codeact.grading.base import Attempt, Grade, Grader, GradingError
from envweave.codeact.injected.files import FILE_TOOLS
from envweave.codeact.models import CodeAction, CodeObservation, CodeState, exit_code_of
from envweave.environment import Environment
from envweave.errors import OptionError, SessionEndedError, SessionLostError
from envweave.sandbox.host.packages import defining_modules
from envweave.sandbox.results import ExecutionResult
from envweave.tools import ToolRegistry
from envweave.types import EpisodeEnd, Observation, Task, Tasks

GradeWhen = Literal["final", "every_step"]

FINAL_ANSWER = "final_answer"
"""What code calls to hand in its answer, where there is a grader."""


class CodeActEnvironment(Environment):
    """Runs the code that an agent writes; variables and functions last for the episode.

    The last expression is the return value. An exception is an observation like any other, and
    so is a limit that was hit. Code that ended its session (it would not stop, filled the memory,
    exited) has ended the episode: `EpisodeEnd(..., blame="agent")`, with `fatal_reward`.

    Args:
        executor: What runs the code. It is closed with the environment.
        tools: What code may call besides Python's own.
        files: Whether `file_read` and its kind are among it.
        transform: Applied by the session to every observation.
        grader: Judges what the agent hands in, on the host; its score is the part `grade` of the
            reward, and the episode is over.
        grade: When: `"final"`, once code calls `final_answer(…)`; `"every_step"`, after each,
            until one passes.
        tasks: What episodes can be about. The text `prompt` of a task's data is shown first; what
            the grader expects of each stands in its private part.
        fatal_reward: What a step earns whose code ended its session.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        tools: ToolRegistry | Mapping[str, Callable[..., Any]] | Iterable[Any] | None = None,
        files: bool = False,
        transform: Callable[[Observation], Observation] | None = None,
        grader: Grader | None = None,
        grade: GradeWhen = "final",
        tasks: Tasks | None = None,
        fatal_reward: float = 0.0,
    ) -> None:
        if grade not in ("final", "every_step"):
            raise OptionError(f"grade={grade!r} is neither 'final' nor 'every_step'.")
        if grader is not None and not isinstance(grader, Grader):
            raise OptionError(f"grader={grader!r} is no Grader, such as ExactMatch(42).")
        if transform is not None and not callable(transform):
            raise OptionError(f"transform={transform!r} cannot be called with an observation.")
        if tasks is not None and not isinstance(tasks, Tasks):
            raise OptionError(
                f"tasks must be Tasks, such as Tasks({{'train': […]}}), got a "
                f"{type(tasks).__name__}."
            )
        if tasks is not None and grader is not None:
            for split in tasks.splits:
                count = 1 if tasks.length(split) is None else None  # all that are listed
                for task in itertools.islice(tasks.split(split), count):
                    grader.check_task(task)
        self.executor = executor
        source = None if tasks is None else tasks.source
        executor.keep_private(defining_modules(self, transform, grader, tasks, source))
        self.tools = tools if isinstance(tools, ToolRegistry) else ToolRegistry(tools)
        self.transform = transform
        self.tasks = tasks
        self._files = files
        self._grader = grader
        self._grade_when = grade
        self._fatal_reward = _reward("fatal_reward", fatal_reward)
        self._task: Task | None = None
        self._names: list[str] = []
        self._programs: list[str] = []
        self._answers: list[Any] = []
        self._steps = 0
        self._last = ExecutionResult(success=True)
        self._turn = asyncio.Lock()  # held by whoever uses the executor
        self._is_stepping = False

    async def reset(
        self,
        *,
        seed: int | None = None,
        task: Task | None = None,
    ) -> CodeObservation:
        """Forget all variables and files, and begin anew.

        The seed is that of `random` and numpy in the code; without one they follow the system.
        """
        if task is not None and self._grader is not None:
            self._grader.check_task(task)
        functions = await self.tools.open(holder=self)
        self._refuse_own(functions)
        answers: list[Any] = []
        if self._grader is not None and self._grade_when == "final":
            functions = {**functions, FINAL_ANSWER: _hand_in_to(answers)}
        async with self._turn:
            await self.executor.begin(seed=_bounded(seed), tools=functions, files=self._files)
        self._task = task
        self._names = self.executor.names
        self._programs, self._answers, self._steps = [], answers, 0
        self._last = ExecutionResult(success=True)
        prompt = task.data.get("prompt", "") if task is not None else ""
        return CodeObservation(prompt=str(prompt), available_tools=list(self._names))

    def _refuse_own(self, functions: Mapping[str, Any]) -> None:
        """Refuse tools that have the name of something that is here already."""
        taken = list(FILE_TOOLS) if self._files else []
        if self._grader is not None and self._grade_when == "final":
            taken.append(FINAL_ANSWER)
        for name in taken:
            if name in functions:
                raise OptionError(
                    f"A tool is called {name!r}, which this environment has already. Call it "
                    "something else, or leave it out by allow=[…]."
                )

    async def step(self, action: CodeAction) -> CodeObservation:
        """Run the code, and show what it came to."""
        self._steps += 1
        try:
            result = await self._run(action.code)
        except SessionLostError as error:
            self.emit(EpisodeEnd("lost", "infrastructure", str(error)))
            return CodeObservation(code=action.code)
        except SessionEndedError as error:  # its own values did, when `state` had them shown
            result = ExecutionResult(
                success=False,
                exception_type="SessionEnded",
                exception_message=str(error),
                session_ended=True,
            )
        self._last = result
        observation = CodeObservation(
            execution_result=result, code=action.code, available_tools=list(self._names)
        )
        if result.success:
            self._programs.append(action.code)
        if self._is_handed_in(result):
            await self._grade(observation)
        elif result.session_ended:
            late = "time" in result.limits_hit
            self.emit(EpisodeEnd("timeout" if late else "error", "agent", result.exception_message))
            observation.reward = self._fatal_reward
        return observation

    async def _run(self, code: str) -> ExecutionResult:
        self._is_stepping = True  # from now on nobody else gets in between
        try:
            async with self._turn:
                return await self.executor.run(code)
        finally:
            self._is_stepping = False

    def _is_handed_in(self, result: ExecutionResult) -> bool:
        if self._grader is None:
            return False
        if self._grade_when == "every_step":
            return not result.session_ended
        return bool(self._answers)

    async def _grade(self, observation: CodeObservation) -> None:
        assert self._grader is not None
        result = observation.execution_result
        attempt = Attempt(
            code=observation.code,
            program="\n".join([*self._programs, *([] if result.success else [observation.code])]),
            result=result,
            answer=self._answers[0] if self._answers else result.return_value,
            answered=bool(self._answers) or result.return_value is not None,
            task=self._task,
        )
        try:
            given: Any = self._grader.grade(attempt)
            grade: Grade = await given if inspect.isawaitable(given) else given
        except GradingError as error:
            self.emit(EpisodeEnd("lost", "infrastructure", str(error)))
            return
        observation.add_reward("grade", grade.score)
        observation.metadata["grade"] = {**grade.details, "passed": grade.passed}
        observation.done = grade.passed or self._grade_when == "final"

    @property
    async def state(self) -> CodeState:
        """Names, types and short reprs of what the code has bound, and who runs it.

        While a step runs, nothing is known of what its code binds.
        """
        variables = {}
        if not self._is_stepping:
            async with self._turn:
                variables = await self.executor.variables()
        return CodeState(
            step_count=self._steps,
            variables=variables,
            tools=list(self._names),
            executor=self.executor.name,
            isolation=self.executor.isolation,
            last_exit_code=exit_code_of(self._last),
        )

    async def close(self) -> None:
        """End what runs the code, the tools' servers and the grader."""
        try:
            async with self._turn:
                await self.executor.close()
        finally:
            try:
                await self.tools.close(holder=self)
            finally:
                if self._grader is not None:
                    await self._grader.close()

    def hold(self) -> Callable[[], None]:
        """Keep what executors of this kind share."""
        return self.executor.hold()


def _bounded(seed: int | None) -> int | None:
    """Return a seed that generators of every kind can take: its own, unless it is very large."""
    if seed is None or seed < 1 << 63:
        return seed
    digest = hashlib.sha256(seed.to_bytes(seed.bit_length() // 8 + 1)).digest()
    return int.from_bytes(digest[:8]) >> 1


def _reward(option: str, given: Any) -> float:
    is_number = isinstance(given, Real) and not isinstance(given, bool)
    if not is_number or not math.isfinite(given):
        raise OptionError(f"{option}={given!r} is no reward: expected a finite number.")
    return float(given)


def _hand_in_to(answers: list[Any]) -> Callable[..., Any]:
    """Return the function that hands in. It belongs to one episode, and a late call to no other."""

    async def final_answer(answer: Any = None) -> None:
        """Hand in the answer to the task. The first one counts, and ends the episode."""
        answers.append(answer)

    return final_answer
