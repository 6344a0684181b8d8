"""`CodeActEnvironment`: an agent acts by writing code, and observes its outcome."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

from envweave.codeact.executors.base import Executor
from envweave.codeact.grading.base import Attempt, Grade, Grader, GradingError
from envweave.codeact.injected.prelude import FILE_TOOLS
from envweave.codeact.models import CodeAction, CodeObservation, CodeState, exit_code_of
from envweave.codeact.tool_state import refuse_state_elsewhere
from envweave.environment import Environment
from envweave.errors import ForkError, OptionError, SessionEndedError, SessionLostError
from envweave.sandbox.execution import ExecutionResult
from envweave.sandbox.host.packages import defining_modules
from envweave.tools import ToolEpisode, ToolRegistry
from envweave.types import EpisodeEnd, Observation, Task, Tasks

GradeWhen = Literal["final", "every_step"]

FINAL_ANSWER = "final_answer"
"""The function that code calls to submit its answer, if there is a grader."""


@dataclass(frozen=True, slots=True)
class CodeActSnapshot:
    """A running episode of a `CodeActEnvironment`, for its `restore`.

    Attributes:
        session: The snapshot of its executor.
        episode: Its task and seed, and what its tools share.
        programs: The code of its successful steps.
        answers: The submitted answers.
        steps: How many steps it took.
        last: The outcome of the last one.
    """

    session: Any
    episode: ToolEpisode
    programs: tuple[str, ...]
    answers: tuple[Any, ...]
    steps: int
    last: ExecutionResult


class CodeActEnvironment(Environment):
    """Runs the code that an agent writes; variables and functions persist for the episode.

    The value of the last expression is the return value. Exceptions and limits are observations
    like any other. Code that ends its session (it does not stop, fills the memory, exits) ends the
    episode: `EpisodeEnd(..., blame="agent")`, with `fatal_reward`.

    Args:
        executor: Runs the code. It is closed with the environment.
        tools: Functions that code may call besides Python's own.
        files: Whether the file tools (`file_read`, …) are added.
        transform: Applied by the session to every observation.
        grader: Grades what the agent submits, on the host. Its score is the part `grade` of the
            reward, and ends the episode.
        grade: When to grade: `"final"`, once code calls `final_answer(…)`; `"every_step"`, after
            each step, until one passes.
        tasks: The tasks of episodes. The `prompt` in a task's data is shown first; what the grader
            expects is in its private part.
        fatal_reward: The reward of a step whose code ended its session.
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
            raise OptionError(f"grade must be 'final' or 'every_step', got {grade!r}.")
        if grader is not None and not isinstance(grader, Grader):
            raise OptionError(f"grader must be a Grader, such as ExactMatch(42), got {grader!r}.")
        if transform is not None and not callable(transform):
            raise OptionError(f"transform must be a function of an observation, got {transform!r}.")
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
        self._fatal_reward = _check_reward("fatal_reward", fatal_reward)
        self._episode = ToolEpisode()
        self._names: list[str] = []
        self._programs: list[str] = []
        self._answers: list[Any] = []
        self._steps = 0
        self._last = ExecutionResult(success=True)
        self._turn = asyncio.Lock()  # held while the executor is used
        self._is_stepping = False
        self._is_grading = False

    async def reset(
        self,
        *,
        seed: int | None = None,
        task: Task | None = None,
    ) -> CodeObservation:
        """Start an episode without variables and files.

        `seed` seeds `random` and numpy in the code; without one they are seeded by the system.
        """
        if task is not None and self._grader is not None:
            self._grader.check_task(task)
        episode = ToolEpisode(task, seed)
        answers: list[Any] = []
        functions = await self._open_tools(episode, answers)
        async with self._turn:
            await self.executor.begin(seed=_limit_seed(seed), tools=functions, files=self._files)
        self._episode, self._names = episode, self.executor.names
        self._programs, self._answers, self._steps = [], answers, 0
        self._last = ExecutionResult(success=True)
        prompt = task.data.get("prompt", "") if task is not None else ""
        return CodeObservation(prompt=str(prompt), available_tools=list(self._names))

    async def _open_tools(
        self, episode: ToolEpisode, answers: list[Any]
    ) -> dict[str, Callable[..., Any]]:
        """Return the functions that code may call in an episode, by name."""
        functions = await self.tools.open(holder=self, episode=episode)
        self._refuse_taken_names(functions)
        if self._grader is not None and self._grade_when == "final":
            functions = {**functions, FINAL_ANSWER: _submit_to(answers)}
        return functions

    def _refuse_taken_names(self, functions: Mapping[str, Any]) -> None:
        """Refuse tools whose name is taken by the environment."""
        taken = list(FILE_TOOLS) if self._files else []
        if self._grader is not None and self._grade_when == "final":
            taken.append(FINAL_ANSWER)
        for name in taken:
            if name in functions:
                raise OptionError(
                    f"The tool name {name!r} is taken by this environment. Rename the tool, or "
                    "exclude it with allow=[…]."
                )

    async def step(self, action: CodeAction) -> CodeObservation:
        """Run the code, and return its outcome."""
        self._steps += 1
        try:
            result = await self._run(action.code)
        except SessionLostError as error:
            self.emit(EpisodeEnd("lost", "infrastructure", str(error)))
            return CodeObservation(code=action.code)
        except SessionEndedError as error:  # a `__repr__` ended it while `state` was read
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
        if self._is_submitted(result):
            await self._grade(observation)
        elif result.session_ended:
            late = "time" in result.limits_hit
            self.emit(EpisodeEnd("timeout" if late else "error", "agent", result.exception_message))
            observation.reward = self._fatal_reward
        return observation

    async def _run(self, code: str) -> ExecutionResult:
        self._is_stepping = True  # before the lock: `state` must not get in between
        try:
            async with self._turn:
                return await self.executor.run(code)
        finally:
            self._is_stepping = False

    def _is_submitted(self, result: ExecutionResult) -> bool:
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
            task=self._episode.task,
            tool_state=self._episode.state,
        )
        self._is_grading = True
        try:
            given: Any = self._grader.grade(attempt)
            grade: Grade = await given if inspect.isawaitable(given) else given
        except GradingError as error:
            self.emit(EpisodeEnd("lost", "infrastructure", str(error)))
            return
        finally:
            self._is_grading = False
        observation.add_reward("grade", grade.score)
        observation.metadata["grade"] = {**grade.details, "passed": grade.passed}
        observation.done = grade.passed or self._grade_when == "final"

    async def snapshot(self) -> CodeActSnapshot:
        """Return the running episode: variables, files, random state, tools' state and answers.

        It is a live copy of the session, which stays in this process, waits without running, and
        ends when nothing refers to the snapshot any more.

        Raises:
            ForkError: A step is under way; the executor cannot copy the session (see
                `Executor.snapshot`); or a tool may keep state outside of `ToolEpisode.state`, as
                MCP servers, methods of objects and closures may.
        """
        refuse_state_elsewhere(self.tools)
        self._refuse_during_step()
        async with self._turn:  # the executor's, which a read of `state` may use
            self._refuse_during_step()
            if self._last.session_ended:
                raise ForkError("The code has ended its session, so nothing is left to copy.")
            # All before the first `await`: a step may begin meanwhile, and wait for its turn.
            episode, answers = self._episode.copied(), tuple(copy.deepcopy(self._answers))
            programs, steps, last = tuple(self._programs), self._steps, self._last
            session = await self.executor.snapshot()
        return CodeActSnapshot(session, episode, programs, answers, steps, last)

    def _refuse_during_step(self) -> None:
        if self._is_stepping or self._is_grading:
            raise ForkError("A step is under way. Take the snapshot when it has returned.")

    async def restore(self, snapshot: CodeActSnapshot) -> None:
        """Continue from a snapshot of this environment, or of one with equal options.

        Raises:
            ForkError: The snapshot was made in another process or with other options, or its
                sandbox has ended.
        """
        episode, answers = snapshot.episode.copied(), copy.deepcopy(list(snapshot.answers))
        functions = await self._open_tools(episode, answers)
        async with self._turn:
            await self.executor.restore(snapshot.session, tools=functions, files=self._files)
        self._episode, self._names = episode, self.executor.names
        self._programs, self._answers = list(snapshot.programs), answers
        self._steps, self._last = snapshot.steps, snapshot.last

    @property
    async def state(self) -> CodeState:
        """The variables of the code with types and short reprs, and its executor.

        While a step runs, `variables` is empty.
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
        """Close the executor, the servers of the tools and the grader."""
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
        """Keep what executors of this kind share; see `Executor.hold`."""
        return self.executor.hold()


def _limit_seed(seed: int | None) -> int | None:
    """Return a seed below 2**63: itself, or a hash of a larger one."""
    if seed is None or seed < 1 << 63:
        return seed
    digest = hashlib.sha256(seed.to_bytes(seed.bit_length() // 8 + 1)).digest()
    return int.from_bytes(digest[:8]) >> 1


def _check_reward(option: str, given: Any) -> float:
    is_number = isinstance(given, Real) and not isinstance(given, bool)
    if not is_number or not math.isfinite(given):
        raise OptionError(f"{option} must be a finite number, got {given!r}.")
    return float(given)


def _submit_to(answers: list[Any]) -> Callable[..., Any]:
    """Return `final_answer` of one episode; a late call does not reach the next one."""

    async def final_answer(answer: Any = None) -> None:
        """Submit the answer to the task. The first one counts, and ends the episode."""
        answers.append(answer)

    return final_answer
