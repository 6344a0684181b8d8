"""OpenEnv's classes, made and driven by envweave. Run where both are, by `tests/interop`.

Like `openenv_peer.py`, it reads what to do from stdin, and writes the results to stdout.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, sys.prefix)

import openenv_peer
from echo_world.server.echo_world_environment import EchoWorldEnvironment
from openenv.core.env_server import Environment
from openenv_environments import ZOO, Base, Felt, Poke

import envweave as ew
from envweave.cli import main as command
from envweave.testing import iter_checks

sys.path.insert(0, str(Path(__file__).parent))

CLASSES = {"echo": EchoWorldEnvironment, **{name: one[0] for name, one in ZOO.items()}}


class Bracketed(Base, Environment[Poke, Felt, Any]):
    """Has its types between brackets."""

    def reset(self, seed=None, episode_id=None, level=0):  # type: ignore[no-untyped-def]
        self.begin(seed, episode_id)
        return Felt(feeling=level)

    def step(self, action, timeout_s=None):  # type: ignore[no-untyped-def]
        assert type(action) is Poke
        return Felt(feeling=2, reward=1, done=self.count())


CLASSES["bracketed"] = Bracketed


def summary(result: Any) -> dict[str, Any]:
    shown = result.observation
    return {
        "class": type(shown).__name__,
        "observation": shown.model_dump(mode="json") if hasattr(shown, "model_dump") else shown,
        "reward": result.reward,
        "done": result.done,
        "info": result.info,
    }


def play(name: str, actions: list[Any], backend: str = "inproc", **options: Any) -> list[Any]:
    """Play with dicts as actions; return what was shown, or what was refused, and the state."""
    with ew.make(CLASSES[name], backend=backend) as env:
        results = [summary(env.reset(seed=3, episode_id="one", **options))]
        for action in actions:
            try:
                results.append(summary(env.step(action)))
            except ew.EnvWeaveError as error:
                results.append(f"{type(error).__name__}: {error}")
        state = env.state()
        return [*results, {"class": type(state).__name__, **state.model_dump()}]


def play_object() -> Any:
    """Play an environment without hints with an action of its own class."""
    with ew.make(CLASSES["untyped"]) as env:
        env.reset()
        return summary(env.step(Poke()))


def check(name: str) -> list[str]:
    """Return what is broken of the promises."""
    found = iter_checks(f"pkg://openenv_environments:{CLASSES[name].__name__}", max_steps=5)
    return [f"{one.name}: {one.detail}" for one in found if one.status == "failed"]


def run_command(arguments: list[str]) -> dict[str, Any]:
    """Run the command `envweave`."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = command(arguments)
    return {"code": code, "printed": printed.getvalue()}


def vector(name: str, actions: list[Any]) -> dict[str, Any]:
    """Step a vector of three once; return its columns before and after."""
    with ew.make_vector(CLASSES[name], num_envs=3) as envs:
        first = envs.reset(seed=1)
        batch = envs.step(actions)
        columns = [columns_of(one.current) for one in (first, batch)]
    return {"columns": columns, "reward": batch.reward.tolist()}


def columns_of(current: Any) -> Any:
    if not isinstance(current, dict):
        return [type(one).__name__ for one in current]
    return {
        name: one.tolist() if hasattr(one, "tolist") else columns_of(one)
        for name, one in current.items()
    }


def warn() -> list[str]:
    """Make two of a class that does not say that it can bear it; return what is logged."""

    class Lonely(Bracketed):
        SUPPORTS_CONCURRENT_SESSIONS = False

    messages: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    listener = Listener()
    logging.getLogger("envweave.adapters").addHandler(listener)
    with ew.make(Lonely), ew.make(Lonely), ew.make(Lonely):
        return messages


def play_registered() -> Any:
    registry = ew.Registry()
    ew.register("grid-v0", CLASSES["grid"], registry=registry)
    with ew.make("grid-v0", registry=registry) as env:
        env.reset()
        return summary(env.step({"way": "north", "paces": 2}))


def serve_to_their_client(name: str, calls: list[list[Any]]) -> list[Any]:
    """Serve a class by envweave, and play on it with OpenEnv's own client."""
    from servers import served

    with served(CLASSES[name]) as url:
        return openenv_peer.play_sync(url, calls)


openenv_peer.DOES.update(
    play=play,
    play_object=play_object,
    check=check,
    run_command=run_command,
    vector=vector,
    warn=warn,
    play_registered=play_registered,
    serve_to_their_client=serve_to_their_client,
    names=lambda: json.loads(json.dumps(sorted(CLASSES))),
)

if __name__ == "__main__":
    openenv_peer.main()
