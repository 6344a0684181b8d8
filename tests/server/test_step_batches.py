"""Calls of one frame: each carried out exactly once, whatever the others do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from environments.served import Tally, TallyAction, TallyObservation
from server_runtimes import code, run

import envweave as ew
from envweave.wire.encoding import MSGPACK
from envweave.wire.messages import Call, Reply, Stepped, Steps, read_replies
from envweave.wire.results import decode_result

STEP = {"action": {"do": "step"}}


def with_service(scene: Callable[[Any], Awaitable[None]], env: Any = Tally, **options: Any) -> None:
    async def within() -> None:
        service = ew.create_fastapi_app(env, **options).state.envweave.service
        await service.start()
        try:
            await scene(service)
        finally:
            await service.stop()

    run(within())


async def open_sessions(service: Any, count: int, **session_options: Any) -> list[str]:
    names = [f"session-{i}" for i in range(count)]
    for number, method in enumerate(("open", "reset"), 1):
        params = session_options if method == "open" else {}
        calls = [Call(id=number, session=n, method=method, params=params) for n in names]
        replies = await service.call_many(calls, object())
        assert [code(reply) for reply in replies] == [None] * count
    return names


def steps(names: list[str], number: int, **others: dict[str, Any]) -> list[Call]:
    return [
        Call(id=number, session=name, method="step", params=others.get(name, STEP))
        for name in names
    ]


def seen(replies: list[Reply]) -> list[Any]:
    return [
        reply.result.observation.at if reply.fault is None else code(reply) for reply in replies
    ]


def test_a_repeated_frame_takes_no_step_twice() -> None:
    async def scene(service: Any) -> None:
        names = await open_sessions(service, 8)
        first = await service.call_many(steps(names, 3), object())

        again = await service.call_many(steps(names, 3), object())

        assert again == first
        assert seen(await service.call_many(steps(names, 4), object())) == [2] * 8

    with_service(scene)


def test_a_frame_that_is_repeated_in_part_steps_the_others_once() -> None:
    async def scene(service: Any) -> None:
        names = await open_sessions(service, 4)
        await service.call_many(steps(names[:2], 3), object())

        replies = await service.call_many(steps(names, 3), object())

        assert seen(replies) == [1] * 4
        assert seen(await service.call_many(steps(names, 4), object())) == [2] * 4

    with_service(scene)


def test_one_that_is_refused_does_not_keep_the_others_from_stepping() -> None:
    async def scene(service: Any) -> None:
        names = await open_sessions(service, 3)
        wrong = {"session-1": {"action": {"od": "step"}}, "session-2": {"deed": 1}}

        replies = await service.call_many(steps([*names, "nobody"], 3, **wrong), object())

        assert seen(replies) == [1, "action_refused", "option_refused", "session_gone"]

    with_service(scene)


class Leaving(Tally):
    """Tries to end the server."""

    made = open = 0

    def step(self, action: TallyAction) -> TallyObservation:
        if action.do == "end":
            raise SystemExit(3)
        return super().step(action)


@pytest.mark.parametrize("autoreset", [False, True])
def test_one_that_tries_to_end_the_server_ends_only_its_own_episode(autoreset: bool) -> None:
    async def scene(service: Any) -> None:
        names = await open_sessions(service, 3, autoreset=autoreset)

        replies = await service.call_many(
            steps(names, 3, **{"session-1": {"action": {"do": "end"}}}), object()
        )

        assert seen(replies) == [1, 0, 1]
        result = replies[1].result
        assert (result.end.reason, result.end.blame) == ("error", "environment")
        assert (result.ready is not None) == autoreset
        after = await service.call_many(steps(names, 4), object())
        assert seen(after) == [2, 1 if autoreset else "reset_needed", 2]

    with_service(scene, Leaving)


def test_steps_of_a_frame_are_taken_in_the_threads_of_their_environments() -> None:
    threads: dict[int, set[int]] = {}

    class Watched(Tally):
        def step(self, action: TallyAction) -> TallyObservation:
            threads.setdefault(id(self), set()).add(threading.get_ident())
            return super().step(action)

    async def scene(service: Any) -> None:
        names = await open_sessions(service, 16)
        for number in range(3, 13):
            await service.call_many(steps(names, number), object())

        assert len(threads) == 16
        assert all(len(used) == 1 for used in threads.values())
        assert threading.get_ident() not in set.union(*threads.values())

    with_service(scene, Watched)


class Hanging(Tally):
    """Is not counted with the others: one that hangs when the server stops is never closed."""

    made = open = 0


def test_a_deadline_holds_for_each_step_of_a_frame() -> None:
    async def scene(service: Any) -> None:
        names = await open_sessions(service, 4, timeout_s=0.3)

        replies = await service.call_many(
            steps(names, 3, **{"session-2": {"action": {"do": "hang"}}}), object()
        )

        assert seen(replies) == [1, 1, 0, 1]
        assert replies[2].result.end.reason == "timeout"

    Tally.hung.clear()
    try:
        with_service(scene, Hanging)
    finally:
        Tally.hung.set()


def frame_of(names: list[str], number: int, *actions: dict[str, Any]) -> Steps:
    given = list(actions) or [{"do": "step"}] * len(names)
    return Steps(sessions=names, numbers=[number] * len(names), actions=given)


async def stepped(service: Any, frame: Steps, connection: object) -> Stepped:
    replied: asyncio.Future[Stepped] = asyncio.get_running_loop().create_future()
    assert service.step_many(frame, connection, replied.set_result)
    return await replied


def replies_of(sent: Any) -> dict[str, Any]:
    """What a client makes of it, by session: the number, the step, or the fault."""
    replies = read_replies(MSGPACK.decode(MSGPACK.encode(sent)))
    return {
        one.session: code(one)
        or (one.id, one.result["observation"]["at"], one.result["step_index"])
        for one in replies
    }


def test_a_frame_of_steps_has_the_same_results_as_single_replies() -> None:
    async def scene(service: Any) -> None:
        names = await open_sessions(service, 3)

        sent = await stepped(service, frame_of(names, 3), object())
        again = await stepped(service, frame_of(names, 3), object())
        alone = [await service.call(call, object()) for call in steps(names, 3)]

        assert replies_of(sent) == replies_of(again) == dict.fromkeys(names, (3, 1, 1))
        first = {one.session: one for one in read_replies(MSGPACK.decode(MSGPACK.encode(sent)))}
        for reply in alone:
            (one,) = read_replies(MSGPACK.decode(MSGPACK.encode(reply)))
            assert decode_result(first[one.session].result) == decode_result(one.result)

    with_service(scene)


def test_steps_in_several_threads_are_answered_in_columns_in_the_order_of_the_frame() -> None:
    async def scene(service: Any) -> None:
        names = await open_sessions(service, 4)
        actions = [{"do": "hang"}, *[{"do": "step"}] * 3]
        first = asyncio.ensure_future(stepped(service, frame_of(names, 3, *actions), object()))
        await asyncio.sleep(0)
        while service.table.get(names[3]).is_busy:
            await asyncio.sleep(0.01)
        Tally.hung.set()

        sent = await first

        assert (sent.sessions, sent.numbers, sent.rest) == (names, [3] * 4, [])
        assert sent.observations["at"] == [1] * 4

    Tally.hung.clear()
    try:
        with_service(scene)
    finally:
        Tally.hung.set()


def test_actions_in_columns_have_the_same_results_as_actions_in_rows() -> None:
    async def scene(service: Any) -> None:
        names = await open_sessions(service, 3)
        columns = {"do": ["step", "end", "step"]}

        rows = await stepped(service, frame_of(names[:1], 3), object())
        sent = await stepped(
            service, Steps(sessions=names, numbers=[4, 3, 3], actions=columns), object()
        )
        wrong = await stepped(
            service, Steps(sessions=names[:1], numbers=[5], actions={"od": ["step"]}), object()
        )

        assert replies_of(rows) == {names[0]: (3, 1, 1)}
        assert replies_of(sent) == {names[0]: (4, 2, 2), names[1]: (3, 1, 1), names[2]: (3, 1, 1)}
        assert replies_of(wrong) == {names[0]: "action_refused"}

    with_service(scene)


def test_in_a_frame_of_steps_an_unusual_outcome_is_a_separate_reply() -> None:
    async def scene(service: Any) -> None:
        names = await open_sessions(service, 3)
        actions = [{"do": "step"}, {"do": "end"}, {"od": "step"}, {"do": "step"}]

        sent = await stepped(service, frame_of([*names, "nobody"], 3, *actions), object())

        assert isinstance(sent, Stepped)
        assert sent.sessions == names[:1]
        assert replies_of(sent) == {
            names[0]: (3, 1, 1),
            names[1]: (3, 1, 1),
            names[2]: "action_refused",
            "nobody": "session_gone",
        }
        ended = next(one for one in sent.rest if one.session == names[1])
        assert ended.result.end.reason == "terminated"

    with_service(scene)


def test_a_repeat_that_comes_while_the_frame_is_under_way_gets_its_replies() -> None:
    async def scene(service: Any) -> None:
        names = await open_sessions(service, 2)
        actions = [{"do": "hang"}, {"do": "step"}]
        first = asyncio.ensure_future(stepped(service, frame_of(names, 3, *actions), object()))
        while not Tally.hanging.is_set():
            await asyncio.sleep(0.01)

        again = asyncio.ensure_future(stepped(service, frame_of(names, 3, *actions), object()))
        await asyncio.sleep(0)
        Tally.hung.set()

        assert replies_of(await first) == replies_of(await again)
        assert replies_of(await again) == dict.fromkeys(names, (3, 1, 1))

    Tally.hung.clear()
    Tally.hanging.clear()
    try:
        with_service(scene)
    finally:
        Tally.hung.set()


def test_a_step_that_hangs_does_not_block_others_of_the_same_frame() -> None:
    async def scene(service: Any) -> None:
        names = await open_sessions(service, 5)
        calls = steps(names, 3, **{"session-2": {"action": {"do": "hang"}}})
        replied: asyncio.Queue[Reply] = asyncio.Queue()

        others = service.start_calls(calls, object(), replied.put_nowait)
        received = [await replied.get() for _ in range(4)]
        Tally.hung.set()
        last = await replied.get()

        assert others == []
        assert {reply.session for reply in received} == {*names} - {"session-2"}
        assert seen([*received, last]) == [1] * 5
        assert last.session == "session-2"
        assert seen(await service.call_many(steps(names, 4), object())) == [2] * 5

    Tally.hung.clear()
    try:
        with_service(scene)
    finally:
        Tally.hung.set()


def test_in_a_frame_of_steps_one_that_takes_long_is_waited_for() -> None:
    async def scene(service: Any) -> None:
        names = await open_sessions(service, 4)
        actions = [{"do": "step"}, {"do": "hang"}, {"do": "end"}, {"do": "step"}]
        first = asyncio.ensure_future(stepped(service, frame_of(names, 3, *actions), object()))
        await asyncio.sleep(0)
        while service.table.get(names[3]).is_busy:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
        Tally.hung.set()

        assert replies_of(await first) == dict.fromkeys(names, (3, 1, 1))

    Tally.hung.clear()
    try:
        with_service(scene)
    finally:
        Tally.hung.set()


def test_calls_other_than_steps_take_the_slow_path() -> None:
    async def scene(service: Any) -> None:
        names = await open_sessions(service, 3)
        calls = [
            Call(id=3, session=names[0], method="state"),
            Call(id=3, session=names[1], method="step", params={"answer": {"call_id": "x"}}),
            Call(id=7, session=names[2], method="step", params=STEP),
            Call(id=1, session="nobody", method="step", params=STEP),
        ]

        assert service.start_calls(calls, object(), print) == calls

    with_service(scene)
