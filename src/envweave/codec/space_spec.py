"""Where specs and Gymnasium spaces have no exact counterpart: one of each that fills the gap.

Only `spaces.py` and `space_values.py` import this, after a check that Gymnasium is there.
"""

from __future__ import annotations

import copy
import string
from typing import Any, final

import numpy as np
from gymnasium import spaces

from envweave.codec.leaves import Text
from envweave.codec.lengths import Length
from envweave.codec.spec import Mismatch, Spec, short


@final
class SpaceSpec(Spec):
    """The values of a Gymnasium space, sampled and checked by the space itself.

    Attributes:
        space: The space. Its own random state is never touched.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.space = space
        self._drawn_from = copy.deepcopy(space)

    def read(self, value: Any) -> Any:
        """Take what the space contains."""
        try:
            fits = self.space.contains(value)
        except Exception as error:
            # A space may stumble over a value of a kind it was never written for.
            raise Mismatch(f"{short(value)} is not in {self.space!r}: {error}") from error
        if not fits:
            raise Mismatch(f"{short(value)} is not in {self.space!r}")
        return value

    def sample(self, rng: np.random.Generator) -> Any:
        """Draw as the space does."""
        self._drawn_from.seed(int(rng.integers(2**31)))
        return self._drawn_from.sample()

    def json_schema(self) -> dict[str, Any]:
        """Describe texts by their length, anything else in words."""
        if isinstance(self.space, spaces.Text):
            lengths = {"minLength": self.space.min_length, "maxLength": self.space.max_length}
            return {"type": "string", **lengths}
        return {"description": repr(self.space)}

    def __repr__(self) -> str:
        return f"SpaceSpec({self.space!r})"


@final
class AnyText(spaces.Text):
    """Every text, of any length and in any script. It draws short plain ones."""

    def __init__(self) -> None:
        letters = string.ascii_letters + string.digits + " "
        super().__init__(max_length=64, min_length=0, charset=letters)

    def contains(self, x: Any) -> bool:
        """Whether it is a string."""
        return isinstance(x, str)

    def __eq__(self, other: object, /) -> bool:
        return isinstance(other, AnyText)

    def __hash__(self) -> int:
        return hash(AnyText)

    def __repr__(self) -> str:
        return "AnyText()"


@final
class SpecText(spaces.Text):
    """The texts of a spec with limits, sampled and checked by the spec itself.

    Attributes:
        spec: The spec.
    """

    def __init__(self, spec: Text) -> None:
        self.spec = spec
        letters = string.ascii_letters + string.digits + " "
        low, high = spec.length.low, spec.length.high
        super().__init__(
            max_length=low + 64 if high is None else high, min_length=low, charset=letters
        )

    def sample(self, mask: Any = None, probability: Any = None) -> str:  # noqa: ARG002 - Gymnasium's
        """Draw as the spec does; a mask says nothing here."""
        drawn: str = self.spec.sample(self.np_random)
        return drawn

    def contains(self, x: Any) -> bool:
        """Whether the spec takes it."""
        return isinstance(x, str) and self.spec.contains(x)

    def __eq__(self, other: object, /) -> bool:
        return isinstance(other, SpecText) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"SpecText({self.spec!r})"


@final
class SizedSequence(spaces.Sequence):
    """A `Sequence` whose length has limits.

    Attributes:
        length: The limits.
    """

    def __init__(self, space: spaces.Space[Any], length: Length) -> None:
        super().__init__(space)
        self.length = length

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        """Draw a length within the limits, and so many values."""
        if mask is None and probability is None:
            mask = (self.length.draw(self.np_random, 4), None)
        return super().sample(mask, probability)

    def contains(self, x: Any) -> bool:
        """Whether it is a sequence of such a length."""
        if not super().contains(x):
            return False
        try:
            self.length.check(x)
        except Mismatch:
            return False
        return True

    def __eq__(self, other: object, /) -> bool:
        same = isinstance(other, SizedSequence) and self.length == other.length
        return same and bool(super().__eq__(other))

    def __hash__(self) -> int:
        return hash((SizedSequence, self.length))

    def __repr__(self) -> str:
        return f"SizedSequence({self.feature_space!r}, length={self.length})"
