"""Specs: what values an action or an observation may take.

A spec is a tree. Leaves are numbers, strings, enumerations (`scalars.py`) and arrays
(`arrays.py`); branches are dataclasses (`records.py`), lists, dicts and unions
(`containers.py`). `hints.py` makes one from type hints.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from envweave.errors import SpecError, suggest


class Mismatch(Exception):  # noqa: N818 - never leaves the codec; `Spec.check` says SpecError
    """A value does not fit; the path grows as it travels up the tree."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.path: list[str] = []

    def under(self, step: str) -> Mismatch:
        """Return this mismatch, one level further from the leaf."""
        self.path.append(step)
        return self

    def describe(self, name: str) -> str:
        """Return the whole message, for a value called `name`."""
        return f"{name}{''.join(reversed(self.path))}: {self.message}"


@dataclass(frozen=True)
class Bounds:
    """Limits of a number or an array, for `Annotated` in a type hint. Both ends are included.

    ```python
    force: Annotated[float, Bounds(-1, 1)]
    board: Annotated[np.ndarray, Bounds(0, 2, shape=(3, 3), dtype="int8")]
    ```
    """

    low: float | None = None
    high: float | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None


class Spec(ABC):
    """The allowed values of a type: checks them, samples them, and describes them.

    Attributes:
        can_sample: Whether `sample` can draw a value at all.
        exact: The one type all of whose values fit unchanged, if there is one.
        notes: Further entries of its JSON Schema, such as a description or examples.
    """

    can_sample: bool = True
    exact: type | None = None
    notes: Mapping[str, Any] = {}

    @abstractmethod
    def read(self, value: Any) -> Any:
        """Return `value` in the form that the author's code takes, or raise `Mismatch`."""

    def read_all(self, values: Sequence[Any]) -> list[Any]:
        """Read many values; a `Mismatch` does not say which of them it was."""
        read = self.read
        return [read(value) for value in values]

    @abstractmethod
    def sample(self, rng: np.random.Generator) -> Any:
        """Draw a value that fits. The same generator state draws the same value."""

    @abstractmethod
    def json_schema(self) -> dict[str, Any]:
        """Describe the values as JSON Schema (draft 2020-12)."""

    @final
    def check(self, value: Any, name: str = "value") -> Any:
        """Return `value`, converted where nothing is lost (a dict to its dataclass).

        Raises:
            SpecError: It does not fit; the message begins with `name` and the field's path.
        """
        try:
            return self.read(value)
        except Mismatch as mismatch:
            raise SpecError(mismatch.describe(name)) from None

    @final
    def contains(self, value: Any) -> bool:
        """Whether `value` fits."""
        try:
            self.read(value)
        except Mismatch:
            return False
        return True

    @final
    def to_space(self) -> Any:
        """Return the `gymnasium.Space` of the same values.

        Raises:
            MissingExtraError: Gymnasium is not installed.
            SpecError: Gymnasium has no space for them.
        """
        from envweave.codec.spaces import to_space

        return to_space(self)


@final
class AnySpec(Spec):
    """Any value: the author gave no type."""

    can_sample = False

    def read(self, value: Any) -> Any:
        """Take every value unchanged."""
        return value

    def sample(self, rng: np.random.Generator) -> Any:  # noqa: ARG002 - the spec's signature
        """Refuse, since it is unknown what would fit.

        Raises:
            SpecError: Always.
        """
        raise SpecError(
            "Values of an untyped spec cannot be sampled. Annotate the action parameter of "
            "step(), or set `action_spec` on the environment."
        )

    def json_schema(self) -> dict[str, Any]:
        """Describe anything."""
        return {}

    def __repr__(self) -> str:
        return "AnySpec()"


@final
class AgentsSpec(Spec):
    """One spec for each agent of a multi-agent environment, by agent id."""

    def __init__(self, agents: Mapping[str, Spec]) -> None:
        self.agents = dict(agents)
        self.can_sample = all(spec.can_sample for spec in self.agents.values())

    def __getitem__(self, agent_id: str) -> Spec:
        try:
            return self.agents[agent_id]
        except KeyError:
            hint = suggest(agent_id, self.agents)
            raise SpecError(f"There is no agent {agent_id!r}.{hint}") from None

    def read(self, value: Any) -> Any:
        """Check a dict with any of the agents as keys."""
        if not isinstance(value, Mapping):
            raise Mismatch(f"{short_repr(value)} is not a dict keyed by agent id")
        read = {}
        for agent_id, one in value.items():
            spec = self.agents.get(agent_id)
            if spec is None:
                known = ", ".join(self.agents)
                raise Mismatch(f"there is no agent {agent_id!r}; known: {known}")
            try:
                read[agent_id] = spec.read(one)
            except Mismatch as mismatch:
                raise mismatch.under(f"[{agent_id!r}]") from None
        return read

    def sample(self, rng: np.random.Generator) -> dict[str, Any]:
        """Draw one value for each agent."""
        return {agent_id: spec.sample(rng) for agent_id, spec in self.agents.items()}

    def json_schema(self) -> dict[str, Any]:
        """Describe an object with the agents as properties."""
        properties = {agent_id: described(spec) for agent_id, spec in self.agents.items()}
        return gathered({"type": "object", "properties": properties, "additionalProperties": False})

    def __repr__(self) -> str:
        return f"AgentsSpec({self.agents!r})"


def short_repr(value: Any) -> str:
    """Return a `repr` for messages: on one line, and cut if it is long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # noqa: BLE001 - an author's __repr__, or an int of thousands of digits
        return f"this {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def described(spec: Spec) -> dict[str, Any]:
    """Return the schema of a part, with its notes."""
    schema = spec.json_schema()
    for word, note in spec.notes.items():
        # The title of an object is the name of its class.
        if word != "title" or schema.get("type") not in (None, "object"):
            schema.setdefault(word, note)
    return schema


def gathered(schema: dict[str, Any]) -> dict[str, Any]:
    """Move the definitions of a schema's parts up to it, since a `$ref` counts from the root."""
    parts = [
        *schema.get("properties", {}).values(),
        *schema.get("prefixItems", ()),
        *schema.get("anyOf", ()),
        schema.get("items"),
        schema.get("additionalProperties"),
    ]
    definitions = schema.pop("$defs", {})
    for part in parts:
        if isinstance(part, dict):
            definitions = {**part.pop("$defs", {}), **definitions}
    return {**schema, "$defs": definitions} if definitions else schema
