"""`openenv://host:port`: environments at an OpenEnv server, driven like envweave's own.

An envweave session around `OpenEnvEnvironment` enforces the rules of an episode on this side,
because an OpenEnv server does not: it accepts a step before a reset and after the end, drops
seeds, and has no deadlines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, final

from envweave.client.address import Address, parse_address
from envweave.client.openenv.connection import LOOP_SUPERVISOR, OpenEnvConnection
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
"""How long reading the state may take."""

_CARRIED = frozenset({"reward", "done", "metadata"})


@final
class OpenEnvServer:
    """Makes environments at one OpenEnv server. Its schemas are fetched once."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._found: SchemaTypes | None = None

    def __reduce__(self) -> Any:
        return OpenEnvServer, (self._url,)

    def __call__(self, *, token: str | None = None) -> OpenEnvEnvironment:
        """Make the caller's side of an environment; the server makes its own at the first reset.

        Args:
            token: Sent as `Authorization: Bearer …`, if given.

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

    A lost connection is a lost episode, since the server cannot resume it; the next reset
    connects again. The seed is passed on, but the server may ignore it.
    """

    deterministic = False

    def __init__(self, address: Address, headers: Mapping[str, str], found: SchemaTypes) -> None:
        self._found = found
        self._loop = LOOP_SUPERVISOR.acquire()
        self._connection = OpenEnvConnection(address, headers)
        self._is_closed = False
        self._last: Any = None

    def describe(self) -> Interface:
        """Return the interface, read from the server's schemas."""
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
            reply = await self._request({"type": "reset", "data": data}, may_dial=True)
        except ServerError as error:
            raise EnvironmentLostError(str(error)) from None
        observation, info = self._read(reply, self._found.rebuild_first)
        if reply.get("done") is True:
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
            reply = await self._request({"type": "step", "data": data})
        except ServerError as error:
            return self._lost(str(error))
        observation, info = self._read(reply, self._found.rebuild)
        self._last = observation
        truncated = reply.get("truncated") is True
        terminated = reply.get("done") is True and reply.get("terminated") is not False
        if truncated and "terminated" not in reply:
            terminated = False
        self._emit_failure(info.pop(END, None))
        return observation, reply.get("reward"), terminated, truncated, info

    def _lost(self, cause: str) -> Any:
        self.emit(EpisodeEnd("lost", "infrastructure", cause))
        return self._last, None, False, True, {}

    def _emit_failure(self, end: Any) -> None:
        """Pass on why an episode failed, which envweave's own servers report."""
        if isinstance(end, dict) and end.get("blame") in ("environment", "infrastructure"):
            self.emit(EpisodeEnd(end["reason"], end["blame"], end.get("cause")))

    def _read(
        self, reply: dict[str, Any], rebuild: Callable[[Any], Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Return the observation and the info in a reply, wherever they are."""
        shown = reply.get("observation", {})
        info = reply.get("metadata")
        if isinstance(shown, dict):
            info = shown.get("metadata") if info is None else info
            shown = {name: one for name, one in shown.items() if name not in _CARRIED}
        return rebuild(shown), dict(info) if isinstance(info, dict) else {}

    async def _request(self, request: dict[str, Any], *, may_dial: bool = False) -> dict[str, Any]:
        """Make a request on the supervisor's thread; return the data of its reply.

        Raises:
            ConnectionLostError: The connection is lost, or the session behind it.
            ActionError: The server refused the action.
            OptionError: It refused another argument.
            ServerError: It could not carry out the request.
            EnvironmentFailure: The environment's own code failed there.
        """
        coroutine = self._connection.request(request, may_dial=may_dial)
        reply = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))
        return _data(reply, request["type"])

    @property
    def state(self) -> State:
        """The state that the server reports; its own fields are attributes too."""
        request = self._connection.request({"type": "state"})
        reading = asyncio.run_coroutine_threadsafe(request, self._loop)
        try:
            reply = reading.result(STATE_S)
        except BaseException:
            reading.cancel()  # drops the connection: the reply would be taken for the next one's
            raise
        return self._found.rebuild_state(_data(reply, "state"))

    async def close(self) -> None:
        """Disconnect; the server then closes its environment."""
        if self._is_closed:
            return
        self._is_closed = True
        # In a thread, since the last release waits for the supervisor's thread to end; shielded,
        # so that it completes even if the caller is cancelled.
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._release))

    def _release(self) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self._connection.close(), self._loop).result()
        finally:
            LOOP_SUPERVISOR.release()


def _data(reply: dict[str, Any], request_type: str) -> dict[str, Any]:
    """Return the data of a reply, or raise the error that it is."""
    data: dict[str, Any] = reply.get("data", {})
    if reply.get("type") != "error":
        return data
    code, message = str(data.get("code", "")), str(data.get("message", "no reason given"))
    if "errors" in data:
        message = f"{message}: {_first(data['errors'])}"
    if code == "CAPACITY_REACHED":
        raise CapacityError(f"The server has no room for another session: {message}")
    if code == "VALIDATION_ERROR" and request_type == "step":
        raise ActionError(f"action: the server refuses it: {message}")
    if code == "VALIDATION_ERROR":
        raise OptionError(f"the server refuses the arguments of {request_type}: {message}")
    if code in ("SESSION_ERROR", "FACTORY_ERROR"):
        raise ConnectionLostError(f"The server has no session for this connection: {message}")
    if code == "EXECUTION_ERROR":
        raise EnvironmentFailure(f"at the server: {message}")
    raise ServerError(f"The server refused {request_type}: {code}: {message}")


def _first(errors: Any) -> str:
    """Return the first of pydantic's errors as text."""
    error = errors[0] if isinstance(errors, list) and errors else {}
    if not isinstance(error, dict):
        return str(error)
    path = ".".join(str(step) for step in error.get("loc", ()))
    return f"{path}: {error.get('msg', 'invalid')}" if path else str(error.get("msg", error))
