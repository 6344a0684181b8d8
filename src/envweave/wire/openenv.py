"""Results in OpenEnv's dialect.

A result is `{"observation": {…}, "reward": …, "done": …, "metadata": {…}}`. Our additional fields
are beside these, never inside `observation`: typed clients refuse fields that they don't know.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection
from typing import Any

import msgspec

from envweave.codec.containers import NOT_SHOWN
from envweave.types import Observation
from envweave.wire.results import IDENTITY, Wired, result_of

VALUE = "value"
"""The field that holds an observation or action that is not an object."""

END = "episode_end"
"""The key in the metadata of the last step that says how the episode ended."""


def as_openenv(sent: Wired, known: Collection[str] | None = None) -> dict[str, Any]:
    """Return a result as OpenEnv's clients read it.

    A failure has no reward, and `metadata["episode_end"]` says what caused it. With several
    agents the rewards are in `rewards`, because `reward` is one number.

    Args:
        sent: The result.
        known: The fields of the client's class of observations; the others go into the metadata.
            `None` for all.
    """
    result = result_of(sent, IDENTITY)
    end = sent.end
    is_shared = isinstance(sent.reward, dict)
    observation = shown(sent.observation)
    metadata: dict[str, Any] = dict(sent.info)
    if known is not None:
        metadata = {n: one for n, one in observation.items() if n not in known} | metadata
        observation = {name: one for name, one in observation.items() if name in known}
    if end is not None:
        metadata[END] = {"reason": end.reason, "blame": end.blame, "cause": end.cause}
    payload: dict[str, Any] = {
        "observation": observation,
        "reward": None if is_shared else sent.reward,
        "done": result.done,
        "metadata": metadata,
        "terminated": sent.terminated,
        "truncated": sent.truncated,
        "episode_id": sent.episode_id,
        "step_index": sent.step_index,
    }
    if is_shared:
        payload["rewards"] = sent.reward
    if sent.task_id is not None:
        payload["task_id"] = sent.task_id
    if sent.needs is not None or result.events or end is not None:
        payload["requests"] = result.requests
    return payload


def shown(observation: Any) -> dict[str, Any]:
    """Return the fields of an observation; a value without fields becomes the field `value`.

    Reward, flags and metadata, which every `Observation` has, are left out.
    """
    fields = fields_of(observation)
    if fields is None:
        return {VALUE: observation}
    # OpenEnv's own classes have all of these but `truncated`.
    if isinstance(observation, Observation) or fields.keys() >= NOT_SHOWN - {"truncated"}:
        return {name: one for name, one in fields.items() if name not in NOT_SHOWN}
    return {
        name: shown(one) if isinstance(one, Observation) or _carries_more(one) else one
        for name, one in fields.items()
    }


def fields_of(value: Any) -> dict[str, Any] | None:
    """Return the fields of an object by name; `None` if it has none."""
    if isinstance(value, dict):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        return {name: getattr(value, name) for name in names}
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(value, pydantic.BaseModel):
        return dict(value)
    return None


def _carries_more(value: Any) -> bool:
    """Whether it is one agent's observation as plain data."""
    return isinstance(value, dict) and value.keys() >= NOT_SHOWN


def is_bare(schema: Any, root: Any = None) -> bool:
    """Whether the values of a JSON Schema are not objects, so they are sent as `value`."""
    root = schema if root is None else root
    if not isinstance(schema, dict):
        return False
    if "type" in schema:
        return bool(schema["type"] != "object")
    if "enum" in schema or "const" in schema:
        return True
    if "anyOf" in schema:
        return all(is_bare(one, root) for one in schema["anyOf"])
    return False
