"""`openenv://host:port`: environments that run at an OpenEnv server, driven as our own.

The episode's rules are kept here, by a session of ours around `OpenEnvEnvironment`, because an
OpenEnv server keeps none: it takes a step before a reset and after the end, drops seeds, and
knows no deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, final

from envweave.client.address import Address, parse_address
from envweave.client.openenv.connection import KEEPER, OpenEnvConnection
from envweave.client.openenv.schema import SchemaTypes, look_up
from envweave.environment import Environment, Interface
from envweave.errors import (
    ActionError,
    CapacityError,
    ConnectionLostError,
    EnvironmentFailure,
    EnvironmentLostError,
    OptionError,
    ServerError,
)
from envweave.types import EpisodeEnd, State
from envweave.wire.openenv import END, VALUE, fields_of

STATE_S = 30.0
"""How long a look at the state may take."""

_CARRIED = frozenset({"reward", "done", "metadata"})


@final
class OpenEnvServer:
    """Makes environments that run at one OpenEnv server. It is asked for its schemas once."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._found: SchemaTypes | None = None

    def __reduce__(self) -> Any:
        return OpenEnvServer, (self._url,)

    def __call__(self, *, token: str | None = None) -> OpenEnvEnvironment:
        """Make the caller's side of an environment; the server makes its own at the first reset.

        Args:
            token: Sent as `Authorization: Bearer …`, if it is given.

        Raises:
            ConnectionLostError: No OpenEnv server answers there.
        """
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        address = parse_address(self._url)
        if self._found is None:
            self._found = look_up(address, headers)
        return OpenEnvEnvironment(address, headers, self._found)


@final
class OpenEnvEnvironment(Environment):
    """One environment at an OpenEnv server: one connection, made at the first reset.

    A lost connection is a lost episode, since the server has no way to go on with it; the next
    reset takes a new one. The seed is passed on, and nobody knows whether it is heeded.
    """

    deterministic = False

    def __init__(self, address: Address, headers: Mapping[str, str], found: SchemaTypes) -> None:
        self._found = found
        self._loop = KEEPER.hold()
        self._line = OpenEnvConnection(address, headers)
        self._is_closed = False
        self._last: Any = None

    def describe(self) -> Interface:
        """Return what a session must know, as the server's schemas tell it."""
        return self._found.interface

    async def reset(
        self,
        *,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
        episode_id: str | None = None,
    ) -> Any:
        """Begin an episode; the options become keywords of the server's own `reset`."""
        data = {"seed": seed, "episode_id": episode_id, **(options or {})}
        data = {name: one for name, one in data.items() if one is not None}
        try:
            told = await self._ask({"type": "reset", "data": data}, may_dial=True)
        except ServerError as error:
            raise EnvironmentLostError(str(error)) from None
        observation, info = self._read(told, self._found.rebuild_first)
        if told.get("done") is True:
            raise EnvironmentFailure("the server's reset returned an episode that is over already")
        self._last = observation
        return observation, info

    async def step(self, action: Any) -> Any:
        """Take one step.

        Raises:
            ActionError: The server refused the action.
            EnvironmentFailure: The environment's own code failed there.
        """
        data = {VALUE: action} if fields_of(action) is None else action
        try:
            told = await self._ask({"type": "step", "data": data})
        except ServerError as error:
            return self._lost(str(error))
        observation, info = self._read(told, self._found.rebuild)
        self._last = observation
        truncated = told.get("truncated") is True
        terminated = told.get("done") is True and told.get("terminated") is not False
        if truncated and "terminated" not in told:
            terminated = False
        self._hear_end(info.pop(END, None))
        return observation, told.get("reward"), terminated, truncated, info

    def _lost(self, cause: str) -> Any:
        self.emit(EpisodeEnd("lost", "infrastructure", cause))
        return self._last, None, False, True, {}

    def _hear_end(self, end: Any) -> None:
        """Pass on how an episode ended, if the server is one of ours and it failed there."""
        if isinstance(end, dict) and end.get("blame") in ("environment", "infrastructure"):
            self.emit(EpisodeEnd(end["reason"], end["blame"], end.get("cause")))

    def _read(
        self, told: dict[str, Any], rebuild: Callable[[Any], Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Return the observation and the info in a reply, wherever they are."""
        shown = told.get("observation", {})
        info = told.get("metadata")
        if isinstance(shown, dict):
            info = shown.get("metadata") if info is None else info
            shown = {name: one for name, one in shown.items() if name not in _CARRIED}
        return rebuild(shown), dict(info) if isinstance(info, dict) else {}

    async def _ask(self, request: dict[str, Any], *, may_dial: bool = False) -> dict[str, Any]:
        """Have the keeper's thread make a request; return the data of its reply.

        Raises:
            ConnectionLostError: The connection is lost, or the session behind it.
            ActionError: The server refused the action.
            OptionError: It refused something else that it was given.
            ServerError: It could not do what was asked.
            EnvironmentFailure: The environment's own code failed there.
        """
        asking = self._line.ask(request, may_dial=may_dial)
        reply = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asking, self._loop))
        return _data(reply, request["type"])

    @property
    def state(self) -> State:
        """What the server says of its state; its own fields are attributes too."""
        looking = asyncio.run_coroutine_threadsafe(self._line.ask({"type": "state"}), self._loop)
        try:
            reply = looking.result(STATE_S)
        except BaseException:
            looking.cancel()  # which drops the connection: its reply would be taken for another
            raise
        return self._found.rebuild_state(_data(reply, "state"))

    async def close(self) -> None:
        """Hang up; the server closes its environment then."""
        if self._is_closed:
            return
        self._is_closed = True
        # In a thread, since the last to let go waits for the keeper's own to end; and to its end,
        # also if nobody waits for it any more.
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._let_go))

    def _let_go(self) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self._line.close(), self._loop).result()
        finally:
            KEEPER.release()


def _data(reply: dict[str, Any], asked: str) -> dict[str, Any]:
    """Return the data of a reply, or raise the error that it is."""
    data: dict[str, Any] = reply.get("data", {})
    if reply.get("type") != "error":
        return data
    code, message = str(data.get("code", "")), str(data.get("message", "it does not say why"))
    if "errors" in data:
        message = f"{message}: {_first(data['errors'])}"
    if code == "CAPACITY_REACHED":
        raise CapacityError(f"The server has no room for another session: {message}")
    if code == "VALIDATION_ERROR" and asked == "step":
        raise ActionError(f"action: the server refuses it: {message}")
    if code == "VALIDATION_ERROR":
        raise OptionError(f"the server refuses what {asked} is given: {message}")
    if code in ("SESSION_ERROR", "FACTORY_ERROR"):
        raise ConnectionLostError(f"The server has no session for this connection: {message}")
    if code == "EXECUTION_ERROR":
        raise EnvironmentFailure(f"at the server: {message}")
    raise ServerError(f"The server refused {asked}: {code}: {message}")


def _first(errors: Any) -> str:
    """Return the first of pydantic's errors, in words."""
    one = errors[0] if isinstance(errors, list) and errors else {}
    if not isinstance(one, dict):
        return str(one)
    path = ".".join(str(step) for step in one.get("loc", ()))
    return f"{path}: {one.get('msg', 'it does not fit')}" if path else str(one.get("msg", one))
