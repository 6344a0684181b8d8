"""A call that takes too long is cancelled, and its caller continues."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Coroutine
from typing import Any, ClassVar, TypeVar

import pytest

import envweave as ew
from envweave.errors import DeadlineError, OptionError, ResetFailedError, ResetNeededError
from envweave.examples import CounterEnv
from envweave.session import Deadline, PrivateLoop

T = TypeVar("T")


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to what is due next, so that no test waits for time."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        wait = self._selector.select

        def jump(timeout: float | None = None) -> Any:
            if timeout is None:
                return wait(5.0)  # for a thread; longer than any takes
            self.now_s += timeout
            return wait(0)

        self._selector.select = jump

    def time(self) -> float:
        return self.now_s


def play(scenario: Coroutine[Any, Any, T]) -> T:
    """Run a scenario to its end on a loop whose clock jumps."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(scenario)


class Sleepy(ew.Environment):
    """Sleeps for as many seconds as its action says, or its class for reset and close."""

    made: ClassVar[list[Sleepy]] = []
    naps: ClassVar[dict[str, float]] = {}

    def __init__(self) -> None:
        self.log: list[str] = []
        self.at = 0
        Sleepy.made.append(self)

    async def reset(self, *, seed: int | None = None) -> Any:
        await asyncio.sleep(self.naps.pop("reset", 0))
        self.at = 0
        return self.at, {}

    async def step(self, action: float) -> Any:
        await self._nap(action)
        self.at += 1
        if action < 0:
            self.emit(ew.ToolCallRequest("call", "ask"))
        return self.at, 1.0, False, False, {}

    async def answer(self, result: ew.ToolResult) -> Any:
        return await self.step(result.value)

    async def close(self) -> None:
        await asyncio.sleep(self.naps.pop("close", 0))
        self.log.append("closed")

    async def _nap(self, seconds: float) -> None:
        try:
            await asyncio.sleep(max(0, seconds))
        except asyncio.CancelledError:
            self.log.append("cancelled")
            raise


class Stubborn(Sleepy):
    """Goes on when it is cancelled."""

    async def _nap(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().time() + seconds
        while (left := woken - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                self.log.append("shrugged")
        if seconds:
            self.emit(ew.LogEvent("good morning"))
            self.log.append("awake")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Sleepy.made, Sleepy.naps = [], {}


def test_a_step_past_its_deadline_ends_the_episode_as_a_timeout() -> None:
    async def scenario() -> Any:
        async with ew.make_async(Sleepy, timeout_s=5) as env:
            await env.reset()
            return await env.step(4.0), await env.step(6.0)

    in_time, late = play(scenario())

    assert (in_time.observation, in_time.valid) == (1, True)
    assert late.end == ew.EpisodeEnd(
        "timeout", "environment", "DeadlineError: step() took longer than timeout_s=5"
    )
    assert (late.observation, late.valid, late.truncated) == (1, False, True)
    assert math.isnan(late.reward)
    assert Sleepy.made[0].log[0] == "cancelled"


def test_an_answer_past_its_deadline_ends_the_episode_as_a_timeout() -> None:
    async def scenario() -> Any:
        async with ew.make_async(Sleepy, timeout_s=5) as env:
            await env.reset()
            await env.step(-1.0)
            return await env.step(ew.ToolResult("call", 6.0))

    result = play(scenario())

    assert result.end.reason == "timeout"
    assert "answer() took longer than timeout_s=5" in result.end.cause


def test_a_reset_past_its_deadline_fails_and_the_next_one_may_work() -> None:
    async def scenario() -> Any:
        async with ew.make_async(Sleepy, timeout_s=5) as env:
            Sleepy.naps["reset"] = 6.0
            with pytest.raises(ResetFailedError, match=r"reset\(\) took longer than timeout_s=5"):
                await env.reset()
            with pytest.raises(ResetNeededError, match="took longer"):
                await env.step(0.0)
            return await env.reset()

    assert play(scenario()).observation == 0


def test_an_autoreset_past_its_deadline_leaves_the_last_step_whole() -> None:
    async def scenario() -> Any:
        async with ew.make_async(Sleepy, timeout_s=5, autoreset=True, max_episode_steps=1) as env:
            await env.reset()
            Sleepy.naps["reset"] = 6.0
            return await env.step(0.0)

    result = play(scenario())

    assert (result.reward, result.valid, result.ready) == (1.0, True, None)
    assert "reset() took longer than timeout_s=5" in result.info["reset_error"]


@pytest.mark.parametrize("error", [TimeoutError, DeadlineError])
def test_a_timeout_of_the_authors_own_is_an_error_of_the_environment(error: Any) -> None:
    class TimesOut(Sleepy):
        async def step(self, action: float) -> Any:
            raise error("the database is slow")

    class GivesUp(Sleepy):
        async def step(self, action: float) -> Any:
            async with asyncio.timeout(1):
                await asyncio.sleep(2)

    async def reason(kind: Any) -> str:
        async with ew.make_async(kind, timeout_s=5) as env:
            await env.reset()
            return (await env.step(0.0)).end.reason

    assert [play(reason(TimesOut)), play(reason(GivesUp))] == ["error", "error"]


def test_a_cancellation_before_the_deadline_leaves_no_episode() -> None:
    async def scenario() -> None:
        async with ew.make_async(Sleepy, timeout_s=5) as env:
            await env.reset()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await env.step(3.0)
            with pytest.raises(ResetNeededError, match="interrupted"):
                await env.step(0.0)
            await env.reset()
            assert (await env.step(0.0)).observation == 1

    play(scenario())

    assert len(Sleepy.made) == 1, "its caller gave up; it did not fail"


def test_a_call_that_is_cancelled_before_it_begins_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        async with ew.make_async(Sleepy, timeout_s=5) as env:
            await env.reset()
            step = asyncio.create_task(env.step(0.0))
            await asyncio.sleep(0)
            step.cancel()
            with pytest.raises(asyncio.CancelledError):
                await step

    play(scenario())  # a coroutine that was never awaited would be a warning, which is an error


def test_a_call_that_swallows_its_cancellation_is_orphaned_and_the_environment_replaced() -> None:
    async def scenario() -> Any:
        async with ew.make_async(Stubborn, timeout_s=5, autoreset=True) as env:
            await env.reset()
            late = await env.step(60.0)
            after = await env.step(0.0)
            await asyncio.sleep(100)
            return late, after, await env.step(0.0)

    late, after, later = play(scenario())

    assert (late.end.reason, late.ready.initial_obs) == ("timeout", 0)
    assert [after.observation, later.observation] == [1, 2]
    assert later.events == [], "events of an orphaned call are dropped"
    assert Sleepy.made[0].log == ["shrugged", "closed", "awake"]


def test_a_ready_made_environment_is_not_reset_while_its_last_call_still_runs() -> None:
    async def scenario() -> Any:
        async with ew.make_async(Stubborn(), timeout_s=5) as env:
            await env.reset()
            await env.step(60.0)
            with pytest.raises(ResetFailedError, match=r"still runs. Pass make\(\) the class"):
                await env.reset()
            await asyncio.sleep(100)
            return await env.reset()

    assert play(scenario()).observation == 0


def test_a_cancellation_does_not_wait_for_a_call_that_ignores_it() -> None:
    async def scenario() -> None:
        async with ew.make_async(Stubborn, timeout_s=50) as env:
            await env.reset()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await env.step(10_000.0)
            assert asyncio.get_running_loop().time() < 50
            assert (await env.reset()).observation == 0

    play(scenario())

    assert len(Sleepy.made) == 2, "two calls at once on one environment are none"


def test_a_cancelled_replacement_is_done_at_the_next_reset() -> None:
    async def scenario() -> Any:
        async with ew.make_async(Stubborn, timeout_s=50) as env:
            await env.reset()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await env.step(20.0)
            Sleepy.naps["close"] = 40.0
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(30):
                    await env.reset()
            await env.reset()
            return await env.step(0.0)

    assert play(scenario()).observation == 1
    assert [one.log for one in Sleepy.made] == [["shrugged", "awake"], ["closed"]]


def test_a_close_that_hangs_raises_after_its_deadline() -> None:
    async def scenario() -> None:
        env = ew.make_async(Sleepy, timeout_s=5)
        await env.reset()
        Sleepy.naps["close"] = math.inf
        with pytest.raises(DeadlineError, match=r"close\(\) took longer than timeout_s=5"):
            await env.close()
        await env.close()

    play(scenario())


def test_a_failed_close_of_a_failed_environment_is_logged_and_the_reset_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> Any:
        async with ew.make_async(Sleepy, timeout_s=5) as env:
            await env.reset()
            await env.step(6.0)
            Sleepy.naps["close"] = math.inf
            return await env.reset()

    with caplog.at_level(logging.WARNING, "envweave"):
        result = play(scenario())

    assert result.observation == 0
    assert "closing a failed Sleepy raised" in caplog.text


def test_the_clock_stands_still_while_the_loop_does() -> None:
    async def scenario() -> str:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        deadline = Deadline(5.0, lambda: 4.0 if loop.time() > 2 else 0.0)
        with pytest.raises(DeadlineError):
            await deadline.run("step", lambda: asyncio.sleep(10))
        late_s = loop.time()
        return await deadline.run("step", lambda: asyncio.sleep(4, f"late at {late_s:g}"))

    assert play(scenario()) == "late at 9"


def test_a_private_loop_counts_the_seconds_in_which_it_does_not_turn() -> None:
    loop = PrivateLoop()
    loop.run(asyncio.sleep(0))
    before = loop.idle_s()

    loop.run(asyncio.sleep(0))

    assert loop.idle_s() > before
    loop.close()


@pytest.mark.slow  # waits for a deadline
def test_a_sync_caller_has_deadlines_too_and_an_orphaned_call_does_not_hang_close() -> None:
    with ew.make(Stubborn, timeout_s=0.02, autoreset=True) as env:
        env.reset(seed=1)

        result = env.step(3600.0)

        assert (result.end.reason, result.ready.initial_obs) == ("timeout", 0)
        assert env.step(0.0).observation == 1


def test_a_thread_that_the_environment_waits_for_does_not_hang_close(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class InAThread(Sleepy):
        held = threading.Event()

        async def step(self, action: float) -> Any:
            await asyncio.to_thread(self.held.wait)

    with ew.make(InAThread, timeout_s=0.02) as env:
        env.reset()

        result = env.step(0.0)

    InAThread.held.set()
    assert result.end.reason == "timeout"
    assert "still running" in caplog.text


class AsyncReset(CounterEnv):
    async def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed)


@pytest.mark.parametrize("kind", [CounterEnv, AsyncReset])
@pytest.mark.parametrize(
    "make",
    [
        ew.make,
        ew.make_async,
        lambda kind, **options: ew.make_vector(kind, num_envs=2, **options),
        lambda kind, **options: ew.make_vector(kind, num_envs=2, mode="threads", **options),
        lambda kind, **options: ew.make_vector(kind, num_envs=2, mode="async", **options),
    ],
)
def test_plain_functions_cannot_be_interrupted_here_so_a_deadline_is_refused(
    make: Any, kind: Any
) -> None:
    with pytest.raises(OptionError, match=r"plain function.*backend='process'.*async def"):
        make(kind, timeout_s=1.0)


def test_an_environment_that_was_made_for_a_refused_call_is_closed_and_a_callers_own_is_not() -> (
    None
):
    closed: list[str] = []

    class Closes(CounterEnv):
        def close(self) -> None:
            closed.append("once")

    with pytest.raises(OptionError):
        ew.make(Closes(), timeout_s=1.0)
    assert closed == []

    with pytest.raises(OptionError):
        ew.make(Closes, timeout_s=1.0)
    assert closed == ["once"]


@pytest.mark.parametrize("seconds", [0, -1, True, math.nan, math.inf, "5", [5], 10**400])
def test_an_invalid_timeout_is_refused_with_advice(seconds: Any) -> None:
    for make in (ew.make, ew.make_async, lambda *a, **k: ew.make_vector(*a, num_envs=1, **k)):
        with pytest.raises(OptionError, match=r"seconds > 0, such as timeout_s=5.0"):
            make(Sleepy, timeout_s=seconds)
