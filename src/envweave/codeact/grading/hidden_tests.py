"""`HiddenTests`: runs the agent's program on hidden inputs, and compares outputs on the host."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Any, Literal, final, get_args

from envweave.codeact.executors.base import Functions
from envweave.codeact.executors.sandbox import Lease, SandboxOptions, take_lease
from envweave.codeact.grading.base import NOT_GIVEN, Attempt, Expected, Grade, Grader, GradingError
from envweave.codeact.grading.test_cases import INPUTS, TestCase, read_cases, read_entry
from envweave.codeact.injected.prelude import MODULES, permission_stubs, prelude
from envweave.errors import ClosedError, OptionError, SandboxError, SessionEndedError
from envweave.sandbox.async_session import AsyncSession
from envweave.sandbox.config import WantedIsolation, read_options
from envweave.sandbox.execution import ExecutionResult, Limits
from envweave.sandbox.host.packages import AnyPackages, calling_module
from envweave.sandbox.sandbox import AsyncSandbox
from envweave.types import Task


@final
class FreshSessions:
    """Provides the sandbox that this process shares for these options.

    The sandbox is started for the first session, and kept until `close`.
    """

    def __init__(self, options: SandboxOptions) -> None:
        self._options = options
        self._lease: Lease | None = None

    @contextlib.asynccontextmanager
    async def sandbox(self) -> AsyncIterator[AsyncSandbox]:
        """Return the sandbox, also while another task closes this.

        Raises:
            GradingError: It cannot be started.
        """
        try:
            lease = await asyncio.to_thread(take_lease, self._options)
        except SandboxError as error:
            raise GradingError(f"The sandbox for grading could not be started: {error}") from error
        try:
            yield lease.sandbox
        finally:
            # The new lease is taken before the old one is released: the sandbox stays alive.
            before, self._lease = self._lease, lease
            if before is not None:
                before.release()

    async def close(self) -> None:
        """Release the sandbox. The next use starts it again."""
        kept, self._lease = self._lease, None
        if kept is not None:
            await asyncio.to_thread(kept.release)


@contextlib.asynccontextmanager
async def fresh_session(
    sandbox: AsyncSandbox, seed: int, tools: Functions
) -> AsyncIterator[AsyncSession]:
    """Open a fresh session.

    Raises:
        GradingError: It cannot be made.
    """
    try:
        session = await sandbox.session(seed=seed, tools=tools)
    except (SandboxError, ClosedError) as error:
        raise GradingError(f"A session for grading could not be started: {error}") from error
    try:
        yield session
    finally:
        with contextlib.suppress(SandboxError):
            await session.close()


Outcome = Literal["ok", "failed", "error", "timeout", "ended", "skipped"]
"""The outcome of a case: passed; wrong value; an exception; too slow; the code ended its session;
not run, because an earlier case decided the score. No text of the agent is part of it.
"""

Source = Literal["program", "answer"]
Score = Literal["all", "share"]

_SEED = 0
_MIN_TIMEOUT_S = 0.01
_STDIN = ".stdin"
# The program may call `final_answer`, as in its episode. Here the answer is ignored.
_PREPARE = "def final_answer(answer=None): pass\n"
_FEED = f"""
def _feed():
    import os
    file = os.open({_STDIN!r}, os.O_RDONLY)
    os.unlink({_STDIN!r})
    os.dup2(file, 0)
    os.close(file)
_feed()
del _feed
"""


@final
class HiddenTests(Grader):
    """Runs the agent's program in fresh sessions, one for each case.

    Nothing that the agent did to its own session affects the cases, and no case affects another.
    Inputs enter a session and plain data leave it. Expected values never leave the host.

    A case is `{"call": "fib(10)", "expected": 55}`; `{"args": [10], "kwargs": {}, "expected": 55}`
    with `entry="fib"`; `{"stdin": "10", "stdout": "55"}` for a whole program; or text with asserts
    such as `assert fib(10) == 55`. The first two may have a `"tolerance"`.

    The program has the modules that it had in its episode, and no tools. Random numbers are the
    same in every case.

    Args:
        cases: The cases: one, or a list of them.
        from_task: Instead, the key of the cases in the task's private part.
        entry: The function that cases with arguments call: `"fib"`, `"Solution().fib"`.
        source: The program: `"program"` is the code of the episode, `"answer"` the submitted
            text.
        score: `"all"` scores 1 if every case passes, else 0, and stops at the first that fails;
            `"share"` scores the share of cases that pass.
        per_case_timeout_s: How long the program and the call of one case may take together.
        files: Whether the program has the file tools, such as `file_read`.
        limits: What a session may use.
        preload: Modules that are imported before a session starts.
        packages: The installed packages that programs can import; usually those of the
            environment. See `Sandbox`.
        isolation: See `Sandbox`.
        visible: Files and folders of the host that programs may read, and import from.

    Raises:
        OptionError: A case cannot be run, or an option is invalid.
    """

    def __init__(
        self,
        cases: Any = NOT_GIVEN,
        *,
        from_task: str | None = None,
        entry: str | None = None,
        source: Source = "program",
        score: Score = "all",
        per_case_timeout_s: float = 5.0,
        files: bool = False,
        limits: Limits | None = None,
        preload: Iterable[str] = (),
        packages: AnyPackages = None,
        isolation: WantedIsolation = "auto",
        visible: Iterable[str | os.PathLike[str]] = (),
    ) -> None:
        for name, value, kind in (("source", source, Source), ("score", score, Score)):
            if value not in get_args(kind):
                known = " or ".join(map(repr, get_args(kind)))
                raise OptionError(f"HiddenTests({name}={value!r}): {name} must be {known}.")
        if isinstance(per_case_timeout_s, bool) or not 0 < per_case_timeout_s < float("inf"):
            raise OptionError(
                f"HiddenTests(per_case_timeout_s={per_case_timeout_s!r}): expected a number > 0."
            )
        entry = read_entry(entry)
        self._cases = Expected(
            "HiddenTests", "cases", cases, from_task, partial(read_cases, entry=entry)
        )
        self._source = source
        self._score = score
        self._timeout_s = float(per_case_timeout_s)
        self._files = files
        checked = read_options(
            limits=limits,
            preload=preload,
            packages=packages,
            private=calling_module(),
            visible=visible,
            profile="python",
            isolation=isolation,
            shards=1,
            warm=0,
            cgroups="auto",
            native=True,
        )
        self._sessions = FreshSessions(
            SandboxOptions(
                limits=checked.limits,
                preload=tuple(dict.fromkeys((*checked.preload, *MODULES))),
                packages=checked.packages,
                private=checked.private,
                isolation=isolation,
                visible=checked.visible,
            )
        )

    def __repr__(self) -> str:
        return f"<HiddenTests: cases {self._cases!r}, score={self._score!r}>"

    def check_task(self, task: Task) -> None:
        """Refuse a task that shows its tests."""
        self._cases.check(task)

    async def grade(self, attempt: Attempt) -> Grade:
        """Run the cases."""
        cases = self._cases.of(attempt.task)
        program = self._get_program(attempt)
        if program is None:
            outcomes: list[Outcome] = ["error"] * len(cases)
        else:
            async with self._sessions.sandbox() as sandbox:
                outcomes = await self._run_cases(sandbox, program, cases)
        passed = Counter(outcomes)["ok"]
        share = passed / len(cases)
        return Grade(
            score=share if self._score == "share" else float(share == 1),
            passed=share == 1,
            details={"ok": passed, "total": len(cases), "cases": outcomes},
        )

    async def close(self) -> None:
        """Release the sandbox."""
        await self._sessions.close()

    def _get_program(self, attempt: Attempt) -> str | None:
        if self._source == "program":
            return attempt.program
        is_text = attempt.answered and type(attempt.answer) is str
        return attempt.answer if is_text else None

    async def _run_cases(
        self, sandbox: AsyncSandbox, program: str, cases: list[TestCase]
    ) -> list[Outcome]:
        tools = permission_stubs() if self._files else {}
        outcomes: list[Outcome] = []
        program_failure: Outcome | None = None  # the outcome of a program that did not complete
        for case in cases:
            if self._score == "all" and outcomes and outcomes[-1] != "ok":
                outcomes.append("skipped")
            elif program_failure is not None and case.call is not None:
                outcomes.append(program_failure)
            else:
                async with fresh_session(sandbox, _SEED, tools) as session:
                    outcome, completed = await self._run_case(session, program, case)
                outcomes.append(outcome)
                program_failure = None if completed else outcome
        return outcomes

    async def _run_case(
        self, session: AsyncSession, program: str, case: TestCase
    ) -> tuple[Outcome, bool]:
        """Return the outcome of a case, and whether the program completed."""
        await _prepare(session, case, prelude(files=self._files))
        try:
            result = await session.run(program, timeout_s=self._timeout_s)
            if case.call is None:
                return _check_output(result, case), True
            if not result.success:
                return _classify_failure(result), False
            left_s = max(self._timeout_s - result.duration_s, _MIN_TIMEOUT_S)
            result = await session.run(case.call, timeout_s=left_s)
        except SessionEndedError:
            return "ended", True
        except SandboxError as error:
            raise GradingError(f"A session for grading was lost: {error}") from error
        return _check_value(result, case), True


async def _prepare(session: AsyncSession, case: TestCase, code: str) -> None:
    """Prepare a session: the prelude, the inputs and the stdin of the case."""
    try:
        result = await session.run(code + _PREPARE)
        if case.inputs is not None:
            await session.put(INPUTS, case.inputs)
        if case.stdin is not None:
            await session.write_file(_STDIN, case.stdin.encode())
            result = await session.run(_FEED)
    except SandboxError as error:
        raise GradingError(f"A session for grading was lost: {error}") from error
    if not result.success:
        raise GradingError(
            f"A session for grading could not be prepared: {result.exception_message}"
        )


def _check_value(result: ExecutionResult, case: TestCase) -> Outcome:
    if not result.success:
        return _classify_failure(result)
    value = result.return_value
    # In a list: a value that is not plain data is also returned as `None`.
    if type(value) is not list or len(value) != 1:
        return "failed"
    return "ok" if case.check.holds(value[0]) else "failed"


def _check_output(result: ExecutionResult, case: TestCase) -> Outcome:
    exited = result.exception_type == "SystemExit" and result.exception_message in ("", "0", "None")
    if not (result.success or exited) or result.session_ended:
        return _classify_failure(result)
    if "output" in result.limits_hit:
        return "failed"
    return "ok" if case.check.holds(result.stdout) else "failed"


def _classify_failure(result: ExecutionResult) -> Outcome:
    if "time" in result.limits_hit:
        return "timeout"
    return "ended" if result.session_ended else "error"
