"""Steps of a remote vector in one frame and row by row give the same results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import app_served, lose_session, served

import envweave as ew
from envweave import create_fastapi_app

ROWS = 3
DEEDS = (
    "step",
    "step",
    "step",
    "tell",
    "end",
    "cut",
    "fail",
    "exit",
    "owe",
    "log",
    "grow",
    "lost",
    "refuse",
)


@dataclass
class Seen(ew.Observation):
    at: int
    text: str
    cells: np.ndarray


class RandomEnv(ew.Environment):
    """Does what its actions say, and shows numbers, strings and arrays."""

    def reset(self, *, seed: int | None = None) -> Seen:
        self.at = 0
        return Seen(0, f"seed {seed}", np.zeros(2))

    def step(self, action: str) -> Seen:
        if action == "refuse":
            raise ew.errors.ActionError(f"not after {self.at} steps")
        self.at += 1
        if action == "fail":
            raise ValueError("as requested")
        if action == "exit":
            raise SystemExit(3)
        if action == "log":
            self.emit(ew.LogEvent("said"))
        shown = Seen(self.at, action, np.full(3 if action == "grow" else 2, self.at, float))
        shown.reward = None if action == "owe" else self.at / 2
        shown.done, shown.truncated = action == "end", action == "cut"
        if action == "tell":
            shown.metadata["at"] = self.at
        return shown


@pytest.fixture(scope="module", params=["fast path", "any server"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with ExitStack() as stack:
        if request.param == "fast path":
            yield stack.enter_context(served(RandomEnv))
        else:
            app = create_fastapi_app(RandomEnv)
            yield stack.enter_context(app_served(app, ws="websockets-sansio"))


def shown(observation: Any) -> Any:
    """An observation in a form that can be compared."""
    return type(observation).__name__, vars(observation)


def rows_of_batch(batch: ew.StepBatch) -> list[Any]:
    """All that a caller can see of a batch, by environment."""
    columns = [batch.successor, batch.current]
    rows: list[Any] = [None] * ROWS
    for k, i in enumerate(batch.ids.tolist()):
        row = batch[k]
        rows[i] = (
            [{name: column[k] for name, column in one.items()} for one in columns],
            shown(row.observation),
            (float(batch.reward[k]), row.reward, row.terminated, row.truncated, row.info),
            (batch.valid[k], batch.needs_reset[k], batch.infos[k]),
            row.end and (row.end.reason, row.end.blame),
            row.ready and shown(row.ready.initial_obs),
            (row.step_index, batch.step_index[k], str(row.episode_id).rpartition("-")[2]),
            [type(one).__name__ for one in row.requests],
        )
    return rows


def play(venv: ew.VectorEnv, deeds: list[list[str]], *, whole: bool) -> list[Any]:
    seen: list[Any] = []
    venv.reset(seed=5)
    for some in deeds:
        for row, deed in enumerate(some):
            if deed == "lost":
                lose_session(venv, row)
        actions = ["step" if deed == "lost" else deed for deed in some]
        if whole:
            batch = venv.step(actions)
        else:
            venv.send(actions)
            batch = venv.drain()
        seen.append(rows_of_batch(batch))
        idle = [int(i) for i in batch.ids[batch.needs_reset]]
        if idle:
            seen.append(venv.reset(ids=idle).current["text"])
    return seen


@pytest.mark.slow  # starts the command line anew
@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    deeds=st.lists(
        st.lists(st.sampled_from(DEEDS), min_size=ROWS, max_size=ROWS), min_size=1, max_size=6
    ),
    autoreset=st.booleans(),
)
def test_steps_in_one_frame_equal_steps_row_by_row(
    url: str, deeds: list[list[str]], autoreset: bool
) -> None:
    came = []
    for whole in (True, False):
        with ew.make_vector(url, num_envs=ROWS, autoreset=autoreset) as venv:
            came.append(play(venv, deeds, whole=whole))

    one, other = came
    np.testing.assert_equal(one, other)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    deeds=st.lists(
        st.lists(
            st.sampled_from([deed for deed in DEEDS if deed not in ("lost", "exit")]),
            min_size=ROWS,
            max_size=ROWS,
        ),
        min_size=1,
        max_size=6,
    )
)
def test_a_remote_vector_equals_an_in_process_vector(url: str, deeds: list[list[str]]) -> None:
    came = []
    for where in ({"env": RandomEnv, "backend": "http", "base_url": url}, {"env": RandomEnv}):
        options: dict[str, Any] = dict(where)
        with ew.make_vector(options.pop("env"), num_envs=ROWS, autoreset=True, **options) as venv:
            came.append(play(venv, deeds, whole=True))

    far, near = came
    np.testing.assert_equal(far, near)


def test_plain_steps_arrive_as_columns_and_the_others_separately(url: str) -> None:
    with ew.make_vector(url, num_envs=ROWS) as venv:
        venv.reset(seed=5)
        transport: Any = venv._transport
        batch = transport._sessions.encode_batch(["step", "end", "tell"])

        sent = transport._sessions.step_batch(batch)

        assert sent.is_implied
        assert {name: type(column) for name, column in sent.observations.items()} == {
            "at": list, "text": list, "cells": np.ndarray,
        }  # fmt: skip
        assert sent.sessions == [batch.steps.sessions[0], batch.steps.sessions[2]]
        assert [reply.session for reply in sent.rest] == [batch.steps.sessions[1]]


@dataclass
class Push(ew.Action):
    by: int
    hard: bool = False


class Pushed(ew.Environment):
    """Counts what its actions say."""

    def reset(self, *, seed: int | None = None) -> Seen:
        self.at = 0
        return Seen(0, "", np.zeros(2))

    def step(self, action: Push) -> Seen:
        assert type(action) is Push
        assert action.metadata in ({}, {"why": "known"})
        self.at += action.by * (10 if action.hard else 1)
        return Seen(self.at, str(action.metadata), np.zeros(2), reward=1.0)


@pytest.mark.parametrize(
    ("actions", "is_in_columns"),
    [
        ([{"by": 1}, {"by": 2}, {"by": 3}], True),
        ([Push(1), Push(2), Push(3, hard=True)], True),
        ([{"by": 1, "hard": True}, {"by": 2, "hard": False}, {"by": 3, "hard": True}], True),
        ({"by": np.array([1, 2, 3])}, True),
        ([{"by": 1}, {"by": 2, "hard": True}, {"by": 3}], False),
        ([{"by": 1}, Push(2), {"by": 3}], False),
        ([{"by": np.int64(1)}, {"by": 2}, {"by": 3}], False),
        ([Push(1, metadata={"why": "known"}), Push(2), Push(3)], True),
    ],
)
def test_actions_that_share_their_fields_are_sent_in_columns(
    actions: Any, is_in_columns: bool
) -> None:
    with (
        served(Pushed) as url,
        ew.make_vector(Pushed, num_envs=ROWS, backend="http", base_url=url) as far,
        ew.make_vector(Pushed, num_envs=ROWS) as near,
    ):
        far.reset()
        near.reset()
        transport: Any = far._transport
        admitted = transport.admit(range(ROWS), far._read(actions, range(ROWS)))
        written = transport._sessions.encode_batch(admitted).steps.actions

        came = [rows_of_batch(venv.step(actions)) for venv in (far, near)]

        assert isinstance(written, dict) is is_in_columns
        np.testing.assert_equal(*came)


@pytest.mark.parametrize("wrong", [{"by": "much"}, {"bye": 1}, {}, {"by": 1, "hard": 2}])
def test_an_action_that_does_not_fit_is_refused_before_anything_is_sent(wrong: Any) -> None:
    with served(Pushed) as url, ew.make_vector(url, num_envs=ROWS) as venv:
        venv.reset()

        with pytest.raises(ew.errors.ActionError, match=r"^actions\[0\]"):
            venv.step([wrong] * ROWS)

        assert venv.step([{"by": 1}] * ROWS).current["at"].tolist() == [1] * ROWS


@dataclass
class Pick(ew.Action):
    number: int

    def __post_init__(self) -> None:
        if self.number > 2:
            raise ValueError("too many")


class Picky(ew.Environment):
    """Has actions whose class checks them itself."""

    def reset(self) -> Seen:
        return Seen(0, "", np.zeros(2))

    def step(self, action: Pick) -> Seen:
        return Seen(action.number, "", np.zeros(2), reward=1.0)


@pytest.mark.parametrize("known", [True, False])
def test_the_authors_own_check_refuses_one_action(known: bool) -> None:
    with served(Picky) as url:
        where: Any = {"env": Picky, "backend": "http", "base_url": url} if known else {"env": url}
        with ew.make_vector(where.pop("env"), num_envs=ROWS, **where) as venv:
            venv.reset()
            actions = [{"number": 1}, {"number": 3}, {"number": 2}]

            if known:
                with pytest.raises(ew.errors.ActionError, match=r"^actions\[1\].*too many"):
                    venv.step(actions)
            else:
                batch = venv.step(actions)
                assert batch.refused.tolist() == [False, True, False]
                assert batch.current["at"].tolist() == [1, 0, 2]
