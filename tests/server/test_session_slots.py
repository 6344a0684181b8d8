"""Session slots: the limit, the queue and expiry."""

from __future__ import annotations

import asyncio

from server_runtimes import Caller, code, counting_table, run


def test_beyond_its_capacity_callers_wait_and_beyond_its_queue_they_are_refused() -> None:
    async def scene() -> None:
        table, runtime = counting_table(max_sessions=1, queue_size=1)
        first, second, third = (Caller(table, name, object()) for name in "abc")
        await first("open")
        waiting = asyncio.ensure_future(second("open", wait_s=20))
        await asyncio.sleep(0)

        refused = await third("open", wait_s=20)

        assert code(refused) == "no_capacity"
        assert refused.fault is not None
        assert "max_sessions" in refused.fault.message
        await first("close")
        assert code(await waiting) is None
        assert [runner.is_closed for runner in runtime.runners] == [True, False]
        assert table.count == 1

    run(scene())


def test_a_caller_waits_no_longer_than_it_may() -> None:
    async def scene() -> None:
        table, _ = counting_table(max_sessions=1, queue_timeout_s=0.01)
        await Caller(table, "a")("open")

        assert code(await Caller(table, "b")("open", wait_s=20)) == "no_capacity"
        assert (table.count, table.waiting) == (1, 0)

    run(scene())


def test_a_caller_that_disconnects_while_waiting_takes_no_slot() -> None:
    async def scene() -> None:
        table, runtime = counting_table(max_sessions=1)
        first, second = Caller(table, "a", object()), Caller(table, "b", object())
        await first("open")
        waiting = asyncio.ensure_future(second("open", wait_s=20))
        await asyncio.sleep(0)

        table.disconnect(second.connection)

        assert code(await waiting) == "no_capacity"
        await first("close")
        assert (table.count, table.waiting, len(runtime.runners)) == (0, 0, 1)

    run(scene())


def test_a_repeated_open_takes_one_slot() -> None:
    async def scene() -> None:
        table, runtime = counting_table(max_sessions=1)
        first, second = Caller(table, "a", object()), Caller(table, "b", object())
        await first("open")
        waiting = [
            asyncio.ensure_future(second("open", wait_s=20)),
            asyncio.ensure_future(second("open", again=1, wait_s=20)),
        ]
        await asyncio.sleep(0)

        await first("close")

        assert [code(await one) for one in waiting] == [None, None]
        assert len(runtime.runners) == 2

    run(scene())


def test_a_session_without_its_connection_is_closed_when_the_client_does_not_return() -> None:
    async def scene() -> None:
        table, runtime = counting_table(resume_ttl_s=0.05)
        caller = Caller(table, "a", object())
        await caller("open")
        sweeping = asyncio.ensure_future(table.sweep())

        table.disconnect(caller.connection)
        while table.count:
            await asyncio.sleep(0.01)

        assert runtime.runners[0].is_closed
        assert code(await caller("reset")) == "session_gone"
        sweeping.cancel()

    run(scene())


def test_a_session_is_not_closed_in_mid_call_however_long_that_takes() -> None:
    async def scene() -> None:
        table, runtime = counting_table(resume_ttl_s=0.02, session_ttl_s=0.02)
        caller = Caller(table, "a", object())
        await caller("open")
        stepping = asyncio.ensure_future(caller("step", action="wait"))
        sweeping = asyncio.ensure_future(table.sweep())
        await asyncio.sleep(0)
        table.disconnect(caller.connection)
        other = Caller(table, "b", object())
        await other("open")
        while table.count == 2:  # the other one goes, being idle
            await asyncio.sleep(0.01)

        assert not runtime.runners[0].is_closed
        runtime.runners[0].go_on.set()
        assert code(await stepping) is None
        while table.count:
            await asyncio.sleep(0.01)
        sweeping.cancel()

    run(scene())


def test_a_draining_server_finishes_episodes_and_begins_none() -> None:
    async def scene() -> None:
        table, runtime = counting_table()
        playing, idle = Caller(table, "a", object()), Caller(table, "b", object())
        for caller in (playing, idle):
            await caller("open")
        await playing("reset")

        draining = asyncio.ensure_future(table.drain(10.0))
        while not runtime.runners[1].is_closed:
            await asyncio.sleep(0.01)

        assert code(await Caller(table, "c")("open")) == "connection_lost"
        assert code(await playing("step", action=1)) is None
        assert not runtime.runners[0].resets_itself
        assert code(await playing("reset")) == "connection_lost"
        assert code(await playing("step", action="end")) is None
        await draining
        assert runtime.runners[0].is_closed
        assert table.count == 0

    run(scene())


def test_episodes_that_outlast_the_drain_are_closed() -> None:
    async def scene() -> None:
        table, runtime = counting_table()
        caller = Caller(table, "a", object())
        await caller("open")
        await caller("reset")

        await table.drain(0.02)

        assert runtime.runners[0].is_closed

    run(scene())


def test_a_session_closed_during_a_call_frees_its_slot_after_the_call() -> None:
    async def scene() -> None:
        table, runtime = counting_table(max_sessions=1)
        caller = Caller(table, "a", object())
        await caller("open")
        stepping = asyncio.ensure_future(caller("step", action="wait"))
        await asyncio.sleep(0)

        assert code(await caller("close")) is None
        assert not runtime.runners[0].is_closed
        runtime.runners[0].go_on.set()
        await stepping
        assert code(await Caller(table, "b", object())("open")) is None

        assert runtime.runners[0].is_closed

    run(scene())


def test_a_slot_granted_at_the_moment_of_a_timeout_is_not_lost() -> None:
    async def scene() -> None:
        for _ in range(30):
            table, _runtime = counting_table(max_sessions=1, queue_timeout_s=0.01)
            first = Caller(table, "a", object())
            await first("open")
            waiting = asyncio.ensure_future(Caller(table, "b", object())("open", wait_s=20))
            await asyncio.sleep(0)
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            while loop.time() < began_s + 0.011:
                pass  # so that the time-out and the place come in one turn of the loop

            await first("close")
            reply = await waiting

            assert table.count == (1 if reply.fault is None else 0)

    run(scene())


def test_a_server_that_stops_while_a_session_is_opened_closes_it() -> None:
    async def scene() -> None:
        table, runtime = counting_table()
        runtime.may_open.clear()
        opening = asyncio.ensure_future(Caller(table, "a", object())("open"))
        await asyncio.sleep(0)

        stopping = asyncio.ensure_future(table.drain(0.0))
        await asyncio.sleep(0.05)
        runtime.may_open.set()
        await stopping

        assert code(await opening) == "connection_lost"
        assert [runner.is_closed for runner in runtime.runners] == [True]
        assert table.count == 0

    run(scene())
