"""Sessions of a server: each call exactly once, retries, and closing."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from server_runtimes import Caller, code, counting_table, run


def test_a_repeated_call_gets_the_first_reply_and_is_not_run_again() -> None:
    async def scene() -> None:
        table, runtime = counting_table()
        first, second = object(), object()
        caller = Caller(table, "a", first)
        await caller("open")
        await caller("reset")
        reply = await caller("step", action=1)
        table.disconnect(first)
        caller.connection = second

        again = await caller("step", again=3, action=1)

        assert again == reply
        assert runtime.runners[0].steps == 1

    run(scene())


def test_a_call_repeated_while_it_runs_waits_for_the_same_reply() -> None:
    async def scene() -> None:
        table, runtime = counting_table()
        caller = Caller(table, "a", object())
        await caller("open")
        stepping = asyncio.ensure_future(caller("step", action="wait"))
        await asyncio.sleep(0)
        repeating = asyncio.ensure_future(caller("step", again=2, action="wait"))
        await asyncio.sleep(0)

        runtime.runners[0].go_on.set()

        assert await stepping == await repeating
        assert runtime.runners[0].steps == 1

    run(scene())


def test_a_caller_that_goes_away_in_mid_call_finds_the_reply_when_it_comes_back() -> None:
    async def scene() -> None:
        table, runtime = counting_table()
        caller = Caller(table, "a", object())
        await caller("open")
        stepping = asyncio.ensure_future(caller("step", action="wait"))
        await asyncio.sleep(0)
        table.disconnect(caller.connection)
        runtime.runners[0].go_on.set()
        reply = await stepping

        caller.connection = object()

        assert await caller("step", again=2, action="wait") == reply

    run(scene())


def test_without_kept_replies_a_repeated_call_is_refused_and_never_run_again() -> None:
    async def scene() -> None:
        table, runtime = counting_table(replies_kept=0)
        caller = Caller(table, "a", object())
        await caller("open")
        await caller("step", action=1)

        again = await caller("step", again=2, action=1)

        assert code(again) == "session_gone"
        assert runtime.runners[0].steps == 1

    run(scene())


def test_a_reply_that_was_read_is_kept_no_longer() -> None:
    async def scene() -> None:
        table, _ = counting_table()
        caller = Caller(table, "a", object())
        for method in ("open", "reset", "state"):
            await caller(method)

        assert code(await caller("reset", again=2)) == "session_gone"
        assert code(await caller("state", again=3)) is None

    run(scene())


def test_callers_without_a_connection_may_repeat_an_earlier_call() -> None:
    async def scene() -> None:
        table, runtime = counting_table(replies_kept=3)
        caller = Caller(table, "a")
        await caller("open")
        replies = [await caller("step", action=1) for _ in range(4)]

        assert await caller("step", again=3, action=1) == replies[1]
        assert code(await caller("step", again=2, action=1)) == "session_gone"
        assert runtime.runners[0].steps == 4

    run(scene())


def test_calls_out_of_order_are_refused_without_side_effects() -> None:
    async def scene() -> None:
        table, runtime = counting_table()
        caller = Caller(table, "a", object())
        await caller("open")
        stepping = asyncio.ensure_future(caller("step", action="wait"))
        await asyncio.sleep(0)

        assert code(await caller("step", again=3, action=1)) == "busy"
        runtime.runners[0].go_on.set()
        await stepping
        assert code(await caller("step", again=9, action=1)) == "out_of_order"
        assert code(await Caller(table, "b")("open", again=4)) == "out_of_order"
        assert code(await caller("step", action=1)) is None

    run(scene())


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(["step", "again", "cut", "older"]), max_size=30))
def test_a_call_repeated_in_any_way_is_run_once(plan: list[str]) -> None:
    async def scene() -> None:
        table, runtime = counting_table()
        caller = Caller(table, "a", object())
        last = await caller("open")
        wanted = 0
        for event in plan:
            if event == "step":
                last = await caller("step", action=1)
                wanted += 1
            elif event == "again":
                assert await caller("step", again=caller.number, action=1) == last
            elif event == "older" and caller.number > 2:
                await caller("step", again=caller.number - 2, action=1)
            elif event == "cut":
                table.disconnect(caller.connection)
                caller.connection = object()

            assert runtime.runners[0].steps == wanted

    run(scene())


def test_an_unknown_session_is_gone_and_may_be_closed() -> None:
    async def scene() -> None:
        table, _ = counting_table()
        caller = Caller(table, "nobody")

        assert code(await caller("step", action=1)) == "session_gone"
        assert code(await caller("close")) is None

    run(scene())


def test_a_failure_at_the_server_reveals_no_details() -> None:
    async def scene() -> None:
        table, runtime = counting_table()
        runtime.fails = True

        reply = await Caller(table, "a")("open")

        assert reply.fault is not None
        assert reply.fault.code == "internal"
        assert "no more" not in reply.fault.message
        assert table.count == 0

    run(scene())


def test_unavailable_session_options_are_refused_by_name() -> None:
    async def scene() -> None:
        table, _ = counting_table()
        wrong: list[dict[str, Any]] = [
            {"autoreset": 1},
            {"timeout_s": 0},
            {"timeout_s": "soon"},
            {"position": [1, 2]},
            {"position": [1, "two", 3, "x"]},
            {"colour": "red"},
        ]
        for i, params in enumerate(wrong):
            reply = await Caller(table, f"s{i}")("open", **params)

            assert reply.fault is not None
            assert reply.fault.code == "option_refused"
            assert next(iter(params)) in reply.fault.message
        assert table.count == 0

    run(scene())


def test_the_shortest_of_the_time_limits_holds() -> None:
    async def scene() -> None:
        table, _ = counting_table(timeout_s=5.0)
        caller = Caller(table, "a")
        await caller("open", timeout_s=9.0)

        assert (await caller("step", action=1)).result["timeout_s"] == 5.0
        assert (await caller("step", action=1, timeout_s=2)).result["timeout_s"] == 2.0
        assert code(await caller("step", action=1, timeout_s=-2)) == "option_refused"

    run(scene())
