"""`openenv://host:port`: environments at an OpenEnv server, driven like envweave's own.

An envweave session around `OpenEnvEnvironment` enforces the rules of an episode on this side,
because an OpenEnv server does not: it accepts a step before a reset and after the end, drops
seeds, and has no deadlines.

The interface is read from the server's schemas, which are pydantic's. Parts that are not understood
allow anything: the server has the last word on every action.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import threading
from collections.abc import Callable, Mapping
from typing import Any, final

from envweave.client.address import Address, parse_address
from envweave.client.openenv.connection import LOOP_SUPERVISOR, OpenEnvConnection, unreachable
from envweave.codec import AnySpec, Mismatch, Spec
from envweave.codec.hints import Declared
from envweave.environment import Environment, Interface
from envweave.errors import (
    AccessError,
    ActionError,
    CapacityError,
    ConnectionLostError,
    EnvironmentFailure,
    EnvironmentLostError,
    OptionError,
    ServerError,
    WireError,
)
from envweave.types import EpisodeEnd, State
from envweave.wire.encoding import PLAIN_JSON
from envweave.wire.openenv import END, VALUE, fields_of, is_bare
from envweave.wire.schema_read import spec_of

CONNECT_S = 10.0
_MAX_BYTES = 16 * 2**20


@final
class SchemaTypes:
    """The types of one server's environments.

    Attributes:
        interface: The environment's interface.
    """

    def __init__(self, schemas: dict[str, Any], name: str) -> None:
        observation = _part(schemas, "observation")
        self._is_bare = is_bare(observation)
        self._schema = _joined(
            _without_carried(observation), _without_carried(_part(schemas, "reset_observation"))
        )
        self._observation = Declared(_spec(self._schema, None))
        self._lock = threading.Lock()  # protects what follows
        self._has_begun = False
        self._state = _spec(_part(schemas, "state"), "state")
        self.interface = Interface(
            frozenset({"seed", "options", "episode_id"}),
            frozenset({"reset", "step", "close"}),
            _spec(_part(schemas, "action"), "action"),
            self._observation,
            deterministic=False,
            name=name,
        )

    def rebuild_first(self, shown: Any) -> Any:
        """Return the observation of a reset.

        A server may return other fields there than it declares, which are those of its steps. So
        the fields of the first reset are added to the declared ones.
        """
        with self._lock:
            if not self._has_begun and isinstance(shown, dict):
                self._observation.spec = _spec(_widened(self._schema, shown), None)
            self._has_begun = True
        return self.rebuild(shown)

    def rebuild(self, shown: Any) -> Any:
        """Return an observation; as plain data, if it does not fit its schema."""
        if self._is_bare and isinstance(shown, dict) and shown.keys() == {VALUE}:
            shown = shown[VALUE]
        return self._observation.read(shown)

    def rebuild_state(self, fields: dict[str, Any]) -> State:
        """Return a state with these fields."""
        with contextlib.suppress(Mismatch):
            read = self._state.read(fields)
            if isinstance(read, State):
                return read
        state = State()
        state.__dict__.update(fields)  # OpenEnv's states may have fields that no schema names
        return state


def look_up(address: Address, headers: Mapping[str, str]) -> SchemaTypes:
    """Fetch a server's schemas, for which it makes no environment.

    Raises:
        ConnectionLostError: No OpenEnv server answers there.
        AccessError: It refuses this caller.
    """
    schemas = _get(address, "/schema", headers)
    return SchemaTypes(schemas, f"openenv://{address.url.removeprefix('http://')}")


def _spec(schema: dict[str, Any], role: str | None) -> Spec:
    try:
        return spec_of(schema, role)
    except WireError:
        return AnySpec()


def _part(schemas: dict[str, Any], name: str) -> dict[str, Any]:
    found = schemas.get(name)
    return found if isinstance(found, dict) else {}


def _without_carried(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the observation itself: reward, done and metadata are sent beside it."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return schema
    kept = {name: one for name, one in properties.items() if name not in _CARRIED}
    needed = [name for name in schema.get("required", ()) if name not in _CARRIED]
    return {**schema, "properties": kept, "required": needed}


def _joined(step: dict[str, Any], reset: dict[str, Any]) -> dict[str, Any]:
    """Return one schema for the observations of steps and resets, if a server declares both."""
    if reset in ({}, step) or not _has_fields(step) or not _has_fields(reset):
        return step
    definitions = {**reset.get("$defs", {}), **step.get("$defs", {})}
    if any(definitions[name] != one for name, one in reset.get("$defs", {}).items()):
        return step  # two classes of one name
    of_step, of_reset = step["properties"], reset["properties"]
    return {
        **step,
        "properties": {
            name: _without_default(of_step.get(name, of_reset.get(name)))
            if name not in of_step or name not in of_reset
            else of_step[name]
            if of_step[name] == of_reset[name]
            else {"anyOf": [of_step[name], of_reset[name]]}
            for name in {**of_step, **of_reset}
        },
        "required": [one for one in step.get("required", ()) if one in reset.get("required", ())],
        "$defs": definitions,
    }


def _widened(schema: dict[str, Any], shown: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with the fields that were shown added, and those that were not optional."""
    if not _has_fields(schema) or shown.keys() == schema["properties"].keys():
        return schema
    declared = {
        name: one if name in shown else _without_default(one)
        for name, one in schema["properties"].items()
    }
    added = {name: {"anyOf": [{}, {"type": "null"}]} for name in shown if name not in declared}
    needed = [name for name in schema.get("required", ()) if name in shown]
    return {**schema, "properties": {**declared, **added}, "required": needed}


def _has_fields(schema: dict[str, Any]) -> bool:
    return isinstance(schema.get("properties"), dict) and bool(schema.get("title"))


def _without_default(schema: Any) -> Any:
    """Return the schema of a field that some observations lack, without a default."""
    if not isinstance(schema, dict):
        return schema
    return {name: one for name, one in schema.items() if name != "default"}


def _get(address: Address, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON object at a path; an empty one if there is none."""
    connection = _connection(address)
    with contextlib.closing(connection):
        try:
            connection.request("GET", address.prefix + path, headers=dict(headers))
            response = connection.getresponse()
            body = response.read(_MAX_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(address, error) from None
    if response.status in (401, 403):
        raise AccessError(
            f"The server at {address.url} refused access (HTTP {response.status}). Pass "
            "token=… with the token that it expects."
        )
    try:
        plain = PLAIN_JSON.decode(body) if response.status == 200 else {}
    except WireError:
        plain = {}
    return plain if isinstance(plain, dict) else {}


def _connection(address: Address) -> http.client.HTTPConnection:
    if address.is_secure:
        import ssl  # slow to import, and rarely needed

        context = ssl.create_default_context()
        return http.client.HTTPSConnection(
            address.host, address.port, timeout=CONNECT_S, context=context
        )
    return http.client.HTTPConnection(address.host, address.port, timeout=CONNECT_S)


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
