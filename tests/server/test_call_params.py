"""Any call of a client is carried out or refused by name, and nothing crashes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server_runtimes import local_runtime, open_sessions, step

import envweave as ew
from envweave.errors import ActionError, EnvWeaveError, OptionError, SeedError, TaskError
from envweave.examples import CounterEnv
from envweave.server.dispatch import PARAMETERS, perform, read_call
from envweave.session import Session, SyncDriver

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)
NAMES = st.sampled_from(sorted({name for names in PARAMETERS.values() for name in names}))


class Tasked(CounterEnv):
    """A counter with tasks and options."""

    tasks = ew.Tasks({"train": [ew.Task("a"), ew.Task("b")]})

    def reset(self, *, task: Any, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)

    def answer(self, result: Any) -> Any:
        raise AssertionError("this must not be called")


@pytest.mark.slow  # starts server processes
@settings(max_examples=300, deadline=None)
@given(
    method=st.sampled_from(["reset", "check_reset", "step", "state", "close", ""]),
    params=st.dictionaries(NAMES | st.text(max_size=5), PLAIN, max_size=3),
)
def test_after_any_call_the_episode_continues_or_another_begins(
    method: str, params: dict[str, Any]
) -> None:
    driver = SyncDriver(Session(Tasked(done_at=10**300)))
    driver.reset()

    try:
        performed = perform(driver, read_call(method, params))
    except EnvWeaveError:
        pass  # refused by name
    else:
        assert performed.is_live
        assert performed.encoded is not None or isinstance(
            performed.value, EnvWeaveError | type(None)
        )

    assert driver.step({"delta": 1}).step_index in (1, 2)


@pytest.mark.parametrize(
    ("method", "params", "error", "message"),
    [
        ("reset", {"sede": 1}, OptionError, "reset takes no parameter 'sede'. Did you mean 'seed'"),
        ("reset", {"seed": "7"}, SeedError, "seed must be an integer >= 0, got '7'"),
        ("reset", {"seed": True}, SeedError, "got True"),
        ("reset", {"seed": -1}, SeedError, "got -1"),
        ("reset", {"options": [1]}, OptionError, r"dict with string keys, got \[1\]"),
        ("reset", {"episode_id": 7}, OptionError, "episode_id must be a string, got 7"),
        ("reset", {"task": 7}, TaskError, "the id of one, got 7"),
        ("reset", {"task": {"id": 7}}, TaskError, "task is invalid"),
        ("reset", {"task": {"id": "a", "dta": {}}}, TaskError, "no field 'dta'. Did you mean 'da"),
        ("check_reset", {"task": {}}, TaskError, "missing required field `id`"),
        ("step", {}, ActionError, "step needs an `action`"),
        ("step", {"action": 1, "answer": {}}, ActionError, "not both"),
        ("step", {"answer": 7}, ActionError, "answer: must be the answer to a tool call, got 7"),
        (
            "step",
            {"answer": {"call_id": 7}},
            ActionError,
            "answer.call_id: must be a string, got 7",
        ),
        (
            "step",
            {"answer": {"call_id": "x", "error": 1}},
            ActionError,
            "answer.error: must be a string, got 1",
        ),
        ("step", {"answer": {"call_id": "x", "vlue": 1}}, ActionError, "Did you mean 'value'"),
        ("state", {"of": "mind"}, OptionError, "state takes no parameter 'of'. It takes none."),
        ("__class__", {}, OptionError, "no method '__class__'"),
    ],
)
def test_an_invalid_call_is_refused_by_name(
    method: str, params: dict[str, Any], error: type[EnvWeaveError], message: str
) -> None:
    with pytest.raises(error, match=message):
        read_call(method, params)


def test_an_error_message_shortens_the_value_that_was_sent() -> None:
    with pytest.raises(SeedError) as refused:
        read_call("reset", {"seed": "9" * 10**6})

    assert len(str(refused.value)) < 300


def test_tasks_travel_as_dicts_and_are_listed_in_pages() -> None:
    async def play() -> tuple[Any, list[Any], Any]:
        runtime = local_runtime(Tasked)
        await runtime.start()
        (runner,) = await open_sessions(runtime)
        began = await runner.call("reset", {"task": {"id": "mine", "data": {"x": 1}}}, None)
        await step(runner, {"delta": 1})
        page, one = await runtime.tasks("train", 1, 5), await runtime.task("a")
        for ask in (runtime.tasks("test", 0, 1), runtime.tasks("train", -1, 1), runtime.task("c")):
            with pytest.raises(TaskError):
                await ask
        await runtime.close()
        return began, page, one

    began, page, one = asyncio.run(play())

    assert began.task_id == "mine"
    assert (page, one) == ([ew.Task("b")], ew.Task("a"))


def test_the_millionth_task_is_read_without_those_before_it() -> None:
    made: list[int] = []

    def make(split: str, index: int) -> ew.Task:
        made.append(index)
        return ew.Task(f"{split}-{index}", split)

    class Endless(Tasked):
        tasks = ew.Tasks.endless(make)

    async def play() -> list[Any]:
        runtime = local_runtime(Endless)
        await runtime.start()
        page = await runtime.tasks("train", 10**6, 2)
        await runtime.close()
        return page

    assert [task.id for task in asyncio.run(play())] == ["train-1000000", "train-1000001"]
    assert len(made) < 10
