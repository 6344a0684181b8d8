"""The interface of an OpenEnv server's environment, read from its schemas.

They are pydantic's. Parts that are not understood allow anything: the server has the last word on
every action.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Mapping
from typing import Any, final

from envweave.client.address import Address
from envweave.client.openenv.connection import unreachable
from envweave.codec import AnySpec, Mismatch, Spec
from envweave.codec.hints import Declared
from envweave.environment import Interface
from envweave.errors import AccessError, WireError
from envweave.types import State
from envweave.wire.encoding import PLAIN_JSON
from envweave.wire.openenv import VALUE, is_bare
from envweave.wire.schema_read import spec_of

CONNECT_S = 10.0
_MAX_BYTES = 16 * 2**20
_CARRIED = ("reward", "done", "metadata")


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
            f"The server at {address.url} refuses this caller (HTTP {response.status}). Pass "
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
