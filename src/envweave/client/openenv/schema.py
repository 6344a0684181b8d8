"""What an OpenEnv server says of its environment, before anything is begun.

Its schemas are pydantic's. What in them is not understood allows anything: the server has the
last word on every action.
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
    """How to talk to the environments of one server.

    Attributes:
        interface: What a session must know.
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

        A server may show other fields there than it declares, which are those of its steps. So
        the fields of the first reset of all are added to these.
        """
        with self._lock:
            if not self._has_begun and isinstance(shown, dict):
                self._observation.spec = _spec(_widened(self._schema, shown), None)
            self._has_begun = True
        return self.rebuild(shown)

    def rebuild(self, shown: Any) -> Any:
        """Return an observation made from what came; as it came, if it does not fit its schema."""
        if self._is_bare and isinstance(shown, dict) and shown.keys() == {VALUE}:
            shown = shown[VALUE]
        return self._observation.read(shown)

    def rebuild_state(self, fields: dict[str, Any]) -> State:
        """Return a state with the fields that came."""
        with contextlib.suppress(Mismatch):
            read = self._state.read(fields)
            if isinstance(read, State):
                return read
        state = State()
        state.__dict__.update(fields)  # OpenEnv's states may have fields that no schema names
        return state


def look_up(address: Address, headers: Mapping[str, str]) -> SchemaTypes:
    """Ask a server for its schemas. It makes no environment for that, as for most questions.

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
    """Return the schema of the observation itself: reward, done and metadata travel beside it."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return schema
    kept = {name: one for name, one in properties.items() if name not in _CARRIED}
    needed = [name for name in schema.get("required", ()) if name not in _CARRIED]
    return {**schema, "properties": kept, "required": needed}


def _joined(step: dict[str, Any], reset: dict[str, Any]) -> dict[str, Any]:
    """Return one schema for what steps and resets show, where a server declares both."""
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
    """Return a schema with all that was shown: what it lacks is added, what was not need not be."""
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
    """Return the schema of a field that some observations don't have: that is no default."""
    if not isinstance(schema, dict):
        return schema
    return {name: one for name, one in schema.items() if name != "default"}


def _get(address: Address, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON object at a path; an empty one where there is none."""
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
            "token=… with the token that it asks for."
        )
    try:
        plain = PLAIN_JSON.decode(body) if response.status == 200 else {}
    except WireError:
        plain = {}
    return plain if isinstance(plain, dict) else {}


def _connection(address: Address) -> http.client.HTTPConnection:
    if address.is_secure:
        import ssl  # takes a while, and few need it

        context = ssl.create_default_context()
        return http.client.HTTPSConnection(
            address.host, address.port, timeout=CONNECT_S, context=context
        )
    return http.client.HTTPConnection(address.host, address.port, timeout=CONNECT_S)
