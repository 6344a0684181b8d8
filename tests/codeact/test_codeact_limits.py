"""Limits show in the observation as such, and only what ends a session ends an episode."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from codeact_environments import LOCAL_CLIENTS, CodeClient, keep_sandbox, open_client

import envweave as ew
from envweave.errors import OptionError

SMALL = {
    "timeout_s": 0.5,
    "grace_s": 1.0,
    "memory_bytes": 256 << 20,
    "output_bytes": 1024,
    "disk_bytes": 256 << 10,
    "message_bytes": 64 << 10,
    "tool_calls": 3,
}
IGNORES_EVERYTHING = "while True:\n try:\n  while True: time.sleep(1)\n except BaseException: 0"


@pytest.fixture(scope="module", autouse=True)
def _kept() -> Iterator[None]:
    with keep_sandbox(limits=SMALL):
        yield


@pytest.fixture(params=["make", "served"])
def way(request: pytest.FixtureRequest) -> Iterator[CodeClient]:
    with open_client(request.param, limits=SMALL) as found:
        found.reset()
        found.step("kept = 1")
        yield found


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize(
    ("code", "limit", "exit_code"),
    [
        ("while True: pass", "time", 124),
        ("time.sleep(60)", "time", 124),
        ("bytearray(1 << 30)", "memory", 1),
        ("open('big', 'wb').write(b'x' * (1 << 20))", "disk", 1),
        ("for _ in range(9): add(1, 1)", "tool_calls", 1),
    ],
)
def test_an_exceeded_limit_is_named_and_the_episode_continues(
    way: CodeClient, code: str, limit: str, exit_code: int
) -> None:
    step = way.step(code)
    after = way.step("kept")

    assert step.limits_hit == (limit,)
    assert step.exit_code == exit_code
    assert (step.done, step.reward) == (False, None)
    assert after.value == 1


def test_output_beyond_the_limit_is_truncated_and_the_code_succeeds(way: CodeClient) -> None:
    step = way.step("print('x' * 5000); print('y' * 10, file=__import__('sys').stderr)\n7")

    assert step.limits_hit == ("output",)
    assert step.exit_code == 0
    assert step.execution.stdout == "x" * 1024 + "\n... [3977 bytes cut]"
    assert step.execution.stderr == "y" * 10 + "\n"
    assert step.value == 7


def test_a_value_too_large_to_send_is_shown_as_its_repr_only(way: CodeClient) -> None:
    step = way.step("'z' * 100_000")

    assert step.value is None
    assert step.execution.success
    assert step.execution.return_repr.startswith("'zzz")


def test_code_that_is_too_long_does_not_run(way: CodeClient) -> None:
    step = way.step("kept = 2\n#" + "x" * (64 << 10))
    after = way.step("kept")

    assert step.limits_hit == ("message",)
    assert not step.done
    assert after.value == 1


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize("name", LOCAL_CLIENTS)
def test_code_that_cannot_be_interrupted_times_out_and_is_to_blame(name: str) -> None:
    with open_client(name, limits=SMALL, fatal_reward=-1.0) as way:
        way.reset()

        last = way.step(IGNORES_EVERYTHING)
        way.reset()
        after = way.step("1 + 1")

    assert last.end is not None
    assert (last.end["reason"], last.end["blame"]) == ("timeout", "agent")
    assert (last.limits_hit, last.exit_code) == (("time",), 124)
    assert (last.done, last.reward) == (True, -1.0)
    assert after.value == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limits": {"timeout": 1}}, "limits has no field 'timeout'"),
        ({"limits": {"timeout_s": -1}}, "expected at least"),
        ({"executor": "sandbax"}, "Did you mean 'sandbox'"),
        ({"executor": "inproc", "profile": "shell"}, "is only supported by executor='sandbox'"),
        ({"executor": "inproc", "visible": ["/etc"]}, "is only supported by executor='sandbox'"),
        ({"preload": "json"}, "preload must be a list"),
        ({"grade": "never"}, "must be 'final' or 'every_step', got 'never'"),
    ],
)
def test_an_invalid_option_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ew.create_codeact_env(**options)  # type: ignore[arg-type]
