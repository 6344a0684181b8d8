"""A session as a caller on an event loop sees it, around a real runner without walls."""

import asyncio
import threading

import pytest
import uvloop
from sandbox_sessions import ExitReason, ProcessBody, PuppetBody, SandboxTools

from envweave.errors import (
    BranchError,
    BusyError,
    ClosedError,
    NameNotFoundError,
    OptionError,
    PlainDataError,
    SessionEndedError,
    SessionLostError,
)
from envweave.sandbox import AsyncSession, Limits

LIMITS = Limits(timeout_s=20, grace_s=10)
STUBBORN = "import signal\nsignal.signal(signal.SIGRTMAX, signal.SIG_IGN)\nwhile True: pass"


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def runner(request):
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner


def fresh(limits: Limits = LIMITS, tools: dict | None = None, **options) -> AsyncSession:
    known = SandboxTools(tools)
    return AsyncSession(ProcessBody(limits, known), limits, known, **options)


def add(left: int, right: int = 1) -> int:
    return left + right


async def later(value: int) -> int:
    await asyncio.sleep(0)
    return value


def fail() -> None:
    raise StopIteration("nothing there")


def test_an_async_session_supports_every_call(runner):
    async def main():
        async with fresh(tools={"add": add, "later": later, "fail": fail}) as session:
            first = await session.run("x = 20\nprint('set')\nx + 1")
            called = await session.run("add(1) + later(add(left=2, right=3))")
            refused = await session.run("add('a')")
            failed = await session.run("fail()")
            late = await session.run("while True: pass", timeout_s=0.05)
            await session.put("table", {"a": (1, 2)})
            await session.write_file("data/a.bin", b"0" * (1 << 20))

            assert (first.return_value, first.stdout) == (21, "set\n")
            assert called.return_value == 7
            assert [call.name for call in called.tool_calls] == ["add", "add", "later"]
            assert "argument left: 'a' is not an int" in refused.exception_message
            assert failed.exception_message == "StopIteration: nothing there"
            assert (late.exception_type, late.limits_hit) == ("TimeLimit", ("time",))
            assert await session.get("table") == {"a": (1, 2)}
            assert await session.get("x") == 20
            assert await session.read_file("data/a.bin") == b"0" * (1 << 20)
            assert await session.list_files() == ["data/a.bin"]
            with pytest.raises(NameNotFoundError):
                await session.get("nothing")
            with pytest.raises(PlainDataError):
                await session.put("x", object())
            with pytest.raises(OptionError):
                await session.read_file("../a")
            assert session.alive
            assert repr(session) == "<AsyncSession: idle>"
        assert not session.alive
        await session.close()
        with pytest.raises(ClosedError):
            await session.run("1")

    runner.run(main())


def test_a_session_can_be_used_on_several_event_loops_in_turn():
    session = fresh()

    first = asyncio.run(session.run("x = 1"))
    second = asyncio.run(session.run("x"))
    asyncio.run(session.close())

    assert (first.success, second.return_value) == (True, 1)


@pytest.mark.slow  # starts several sandboxes
def test_many_sessions_run_on_one_loop_at_once(runner):
    met = threading.Barrier(4)

    async def main():
        sessions = [fresh(tools={"meet": lambda: met.wait(20)}) for _ in range(4)]
        results = await asyncio.gather(*(session.run("meet()") for session in sessions))
        for session in sessions:
            await session.close()
        return results

    assert all(result.success for result in runner.run(main()))


def test_a_tool_is_abandoned_at_the_time_limit(runner):
    released = threading.Event()
    cancelled = asyncio.Event()

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def main():
        tools = {"never": never, "block": lambda: released.wait(20)}
        async with fresh(tools=tools) as session:
            awaited = await session.run("never()", timeout_s=0.05)
            await asyncio.wait_for(cancelled.wait(), 20)
            blocked = await session.run("block()", timeout_s=0.05)
            released.set()

            assert (await session.run("1")).return_value == 1
            return awaited, blocked

    for result in runner.run(main()):
        assert (result.exception_type, result.limits_hit) == ("TimeLimit", ("time",))


def test_cancelling_a_run_interrupts_the_code_and_keeps_the_session(runner):
    async def main():
        started = asyncio.Event()

        async def notify() -> None:
            started.set()

        async with fresh(tools={"notify": notify}) as session:
            run = asyncio.create_task(session.run("kept = 1\nnotify()\nwhile True: pass"))
            await started.wait()
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run

            assert await session.get("kept") == 1

    runner.run(main())


def test_cancelling_a_run_cancels_its_tool(runner):
    async def main():
        started, cancelled = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        async with fresh(tools={"wait": wait}) as session:
            run = asyncio.create_task(session.run("wait()"))
            await started.wait()
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run

            assert cancelled.is_set()
            assert (await session.run("1")).return_value == 1

    runner.run(main())


def test_code_that_ignores_a_cancellation_ends_its_session(runner):
    async def main():
        started = asyncio.Event()

        async def notify() -> None:
            started.set()

        limits = Limits(timeout_s=20, grace_s=0.05)
        code = STUBBORN.replace("while", "try: notify()\nexcept ToolError: pass\nwhile")
        async with fresh(limits, {"notify": notify}) as session:
            run = asyncio.create_task(session.run(code))
            await started.wait()
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run

            assert not session.alive
            with pytest.raises(SessionEndedError, match="interrupted by its caller"):
                await session.run("1")

    runner.run(main())


def test_a_run_cancelled_twice_is_abandoned_at_once(runner):
    async def main():
        started = asyncio.Event()

        async def notify() -> None:
            started.set()

        code = STUBBORN.replace("while", "try: notify()\nexcept ToolError: pass\nwhile")
        async with fresh(tools={"notify": notify}) as session:
            run = asyncio.create_task(session.run(code))
            await started.wait()
            run.cancel()
            await asyncio.sleep(0)
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run

            with pytest.raises(SessionLostError):
                await session.run("1")

    runner.run(main())


@pytest.mark.slow  # starts several sandboxes
def test_code_that_ignores_the_time_limit_ends_its_session(runner):
    async def main():
        async with fresh(Limits(timeout_s=20, grace_s=0.05)) as session:
            return await session.run(STUBBORN, timeout_s=1)

    result = runner.run(main())

    assert (result.exception_type, result.session_ended) == ("TimeLimit", True)


def test_the_result_contains_how_code_ended_its_session(runner):
    async def main():
        async with fresh() as session:
            result = await session.run("import os; os._exit(3)")
            with pytest.raises(SessionEndedError):
                await session.get("x")
            return result

    result = runner.run(main())

    assert (result.exception_type, result.session_ended) == ("SessionEnded", True)
    assert "status 3" in result.exception_message


def test_exceeding_a_limit_that_the_host_checks_ends_the_session(runner):
    async def main():
        async with fresh() as session:
            session._handle.beyond = "memory"
            return await session.run("while True: pass")

    result = runner.run(main())

    assert (result.exception_type, result.limits_hit) == ("MemoryLimit", ("memory",))


def test_another_task_may_interrupt_the_code_but_not_call_the_session(runner):
    async def main():
        started = asyncio.Event()

        async def notify() -> None:
            started.set()

        async with fresh(tools={"notify": notify}) as session:
            run = asyncio.create_task(session.run("notify()\nwhile True: pass"))
            await started.wait()
            with pytest.raises(BusyError, match="another call"):
                await session.run("1")
            session.interrupt()
            return await run

    result = runner.run(main())

    assert (result.exception_type, result.limits_hit) == ("Interrupted", ())


@pytest.mark.parametrize("code", ["notify()\nwhile True: pass", "never()"])
def test_closing_while_code_runs_ends_the_run(runner, code):
    async def main():
        closed = []
        started = asyncio.Event()

        async def notify() -> None:
            started.set()

        async def never() -> None:
            started.set()
            await asyncio.Event().wait()

        tools = {"notify": notify, "never": never}
        session = fresh(tools=tools, on_close=lambda: closed.append(True))
        run = asyncio.create_task(session.run(code))
        await started.wait()
        await session.close()

        assert closed == [True]
        with pytest.raises(SessionLostError, match="closed while a call"):
            await run

    runner.run(main())


def test_a_dropped_session_is_released_with_a_warning():
    closed = []
    dropped = [fresh(on_close=lambda: closed.append(True))]
    asyncio.run(dropped[0].run("1"))

    with pytest.warns(ResourceWarning, match=r"without close\(\)"):
        dropped.clear()

    assert closed == [True]


def test_nothing_stays_registered_with_the_loop_between_calls():
    async def main():
        async with fresh() as session:
            await session.run("1")
            loop = asyncio.get_running_loop()
            return loop.remove_reader(session._descriptor), loop.remove_writer(session._descriptor)

    assert asyncio.run(main()) == (False, False)


def test_sending_code_to_a_session_that_does_not_read_times_out(runner):
    body = PuppetBody(lambda puppet: puppet.killed.wait(20))

    async def main():
        limits = Limits(timeout_s=0.05, grace_s=0.05)
        async with AsyncSession(body, limits, SandboxTools()) as session:
            return await session.run("#" * (8 << 20))

    result = runner.run(main())

    assert (result.exception_type, result.session_ended) == ("TimeLimit", True)


def test_a_branch_is_an_independent_session(runner):
    def echo(puppet):
        puppet.receive()

    async def main():
        body, twin = PuppetBody(echo), PuppetBody(echo)
        body.next_body = twin
        async with AsyncSession(body, LIMITS, SandboxTools()) as session:
            async with await session.branch(seed=3) as branch:
                assert branch is not session
            assert (twin.releases, body.releases) == (1, 0)
            body.next_body = BranchError("no room")
            with pytest.raises(BranchError, match="no room"):
                await session.branch()

    runner.run(main())


def test_a_session_whose_template_is_gone_is_lost(runner):
    body = PuppetBody(lambda puppet: puppet.receive(), death=ExitReason("lost"))

    async def main():
        async with AsyncSession(body, LIMITS, SandboxTools()) as session:
            with pytest.raises(SessionLostError):
                await session.run("1")

    runner.run(main())
