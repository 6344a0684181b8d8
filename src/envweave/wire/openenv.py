"""What OpenEnv's dialect calls things, and results as it has them.

A result is `{"observation": {…}, "reward": …, "done": …, "metadata": {…}}`. What we say besides
stands beside these, never inside `observation`: typed clients refuse a field they don't know.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection
from typing import Any

import msgspec

from envweave.codec.spaces import NOT_SHOWN
from envweave.types import Observation
from envweave.wire.results import AS_IT_IS, Wired, result_of

VALUE = "value"
"""The field of an observation, or of an action, that is no object by itself."""

END = "episode_end"
"""Where the metadata of a last step say how the episode ended."""


def as_openenv(sent: Wired, known: Collection[str] | None = None) -> dict[str, Any]:
    """Return a result as OpenEnv's clients read it.

    A failure has no reward, and `metadata["episode_end"]` says whose it was. With several agents
    the rewards stand in `rewards`, for `reward` is one number.

    Args:
        sent: The result.
        known: The fields that a client's class of observations has; the others are told in the
            metadata. `None` for all.
    """
    result = result_of(sent, AS_IT_IS)
    end = sent.end
    is_shared = isinstance(sent.reward, dict)
    observation = shown(sent.observation)
    metadata: dict[str, Any] = dict(sent.info)
    if known is not None:
        metadata = {n: one for n, one in observation.items() if n not in known} | metadata
        observation = {name: one for name, one in observation.items() if name in known}
    if end is not None:
        metadata[END] = {"reason": end.reason, "blame": end.blame, "cause": end.cause}
    said: dict[str, Any] = {
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
        said["rewards"] = sent.reward
    if sent.task_id is not None:
        said["task_id"] = sent.task_id
    if sent.asked is not None or result.events or end is not None:
        said["requests"] = result.requests
    return said


def shown(observation: Any) -> dict[str, Any]:
    """Return the fields of an observation; what has none is the field `value`.

    What every `Observation` carries besides, reward and flags, is left out.
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
    """Return what an object consists of, by name; `None` if it is none."""
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
    """Whether it is one agent's observation that has travelled already."""
    return isinstance(value, dict) and value.keys() >= NOT_SHOWN


def is_bare(schema: Any, root: Any = None) -> bool:
    """Whether the values of a JSON Schema are no objects, so that they travel as `value`."""
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
