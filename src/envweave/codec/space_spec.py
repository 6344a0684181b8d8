"""Where specs and Gymnasium spaces have no exact counterpart: one of each that fills the gap.

Only `spaces.py` and `space_values.py` import this, after a check that Gymnasium is there.
"""

from __future__ import annotations

import copy
import string
from typing import Any, final

import numpy as np
from gymnasium import spaces

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
