"""Specs: what values an action or an observation may take, and the limits of numbers and lengths.

A spec is a tree. Leaves are numbers, strings, enumerations (`scalars.py`) and arrays
(`arrays.py`); branches are dataclasses (`records.py`), lists, dicts and unions
(`containers.py`). `hints.py` makes one from type hints.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from envweave.errors import DefinitionError, SpecError, suggest


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

    def exact_test(self, value: str) -> str | None:
        """Return Python source that is true only of values that `read` returns unchanged.

        Args:
            value: The source of the value: a name, or an attribute of one.

        Returns:
            An expression, or `None` if there is no test that is cheaper than `read`.
        """
        return None if self.exact is None else f"type({value}) is {self.exact.__name__}"

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
        from envweave.codec.gymnasium_spaces import to_space

        return to_space(self)


@final
class AnySpec(Spec):
    """Any value: the author gave no type."""

    can_sample = False

    def read(self, value: Any) -> Any:
        """Take every value unchanged."""
        return value

    def exact_test(self, value: str) -> str:  # noqa: ARG002 - the spec's signature
        """Return a test that every value passes."""
        return "True"

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


def refuse_empty(low: Any, high: Any) -> None:
    """Refuse bounds with no number between them; `None` is an open end.

    Raises:
        DefinitionError: There is no such number.
    """
    lowest = -math.inf if low is None else low
    highest = math.inf if high is None else high
    # Written this way round so that a NaN bound is refused too.
    fits = np.all((lowest <= highest) & (lowest != math.inf) & (highest != -math.inf))
    if not fits:
        raise DefinitionError(f"No number is {between(low, high)}.")


def between(low: Any, high: Any) -> str:
    """Return "at least 0", "at most 1" or "between 0 and 1"."""
    if low is None or high is None:
        return f"at most {short_repr(high)}" if low is None else f"at least {short_repr(low)}"
    return f"between {short_repr(low)} and {short_repr(high)}"


def bounded(schema: dict[str, Any], low: Any, high: Any) -> dict[str, Any]:
    """Return the schema with its bounds; infinite ones are left out."""
    if low is not None and low != -math.inf:
        schema["minimum"] = low
    if high is not None and high != math.inf:
        schema["maximum"] = high
    return schema


def ends(low: Any, high: Any, reach: Any) -> tuple[Any, Any]:
    """Return the range to sample from: an open end lies `reach` beyond the other one, or 0."""
    low = None if low == -math.inf else low
    high = None if high == math.inf else high
    if low is None:
        return (-reach if high is None else high - reach), (reach if high is None else high)
    return low, low + reach if high is None else high


@dataclass(frozen=True, slots=True)
class Length:
    """Limits of a length, inclusive; a `high` of `None` means no upper limit."""

    low: int = 0
    high: int | None = None

    def __post_init__(self) -> None:
        for name, end in (("min_length", self.low), ("max_length", self.high)):
            if end is not None and (type(end) is not int or end < 0):
                raise DefinitionError(f"{name} must be an integer >= 0, got {end!r}.")
        if self.high is not None and self.high < self.low:
            raise DefinitionError(f"No length is between {self.low} and {self.high}.")

    @property
    def is_open(self) -> bool:
        """Whether every length is allowed."""
        return self.low == 0 and self.high is None

    def check(self, value: Sized) -> None:
        """Raise `Mismatch` unless the value's length is within the limits."""
        count = len(value)
        if count < self.low or (self.high is not None and count > self.high):
            raise Mismatch(f"{short_repr(value)} has a length of {count}, not {self}")

    def draw(self, rng: np.random.Generator, reach: int) -> int:
        """Draw a length; an open end lies `reach` beyond the lowest one."""
        high = self.low + reach if self.high is None else min(self.high, self.low + reach)
        return int(rng.integers(self.low, high, endpoint=True))

    def schema(self, low: str, high: str) -> dict[str, Any]:
        """Return it as JSON Schema keywords."""
        keywords: dict[str, Any] = {} if self.low == 0 else {low: self.low}
        return keywords if self.high is None else {**keywords, high: self.high}

    def __str__(self) -> str:
        if self.high is None:
            return f"at least {self.low}"
        if self.low == 0:
            return f"at most {self.high}"
        return f"{self.low}" if self.low == self.high else f"between {self.low} and {self.high}"


ANY_LENGTH = Length()
