"""OpenEnv's classes in envweave, with a stand-in for its base class; see also `tests/interop`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import envweave as ew
from envweave.adapters import adopt
from envweave.errors import OptionError


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> type:
    class Environment:
        SUPPORTS_CONCURRENT_SESSIONS = False

        async def reset_async(self, **given: Any) -> Any:
            raise AssertionError

        async def step_async(self, action: Any) -> Any:
            raise AssertionError

        def close(self) -> None:
            pass

    module: Any = ModuleType("openenv.core.env_server.interfaces")
    module.Environment = Environment
    for name in ("Action", "Observation", "State"):
        setattr(module, name, type(name, (), {}))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return Environment


def unnamed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator without `functools.wraps`."""

    def inner(*args: Any, **keywords: Any) -> Any:
        return function(*args, **keywords)

    return inner


def make_class(base: Any) -> Any:
    class Own(base):  # type: ignore[misc]
        state = None

        def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Any:
            return {"seed": seed, **more}

        def step(self, action: int) -> Any:
            return {"action": action}

    return Own


def test_decorated_methods_are_found_by_the_name_they_have_in_the_class(base: Any) -> None:
    env_class = make_class(base)
    env_class.step = unnamed(env_class.step)

    assert adopt(env_class()).step(3) == {"action": 3}


@pytest.mark.parametrize("name", ["seed", "episode_id"])
def test_an_option_does_not_replace_the_seed_or_the_episode_id(base: Any, name: str) -> None:
    env: ew.Environment = adopt(make_class(base)())

    with pytest.raises(OptionError, match=f"{name}.*keyword of reset"):
        env.reset(seed=3, options={name: 9})

    assert env.reset(seed=3, options={"level": 2}) == {"seed": 3, "level": 2}


def test_a_closed_environment_does_not_count_as_concurrent(
    base: Any, caplog: pytest.LogCaptureFixture
) -> None:
    env_class = make_class(base)
    first = adopt(env_class())
    first.close()

    with caplog.at_level(logging.WARNING, "envweave.adapters"):
        second = adopt(env_class())
        assert caplog.messages == []
        third = adopt(env_class())

    assert len(caplog.messages) == 1
    assert "several Own" in caplog.messages[0]
    second.close()
    third.close()
