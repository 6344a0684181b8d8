"""A spec that somebody else declares, and that nobody keeps him to."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from envweave.codec.spec import Mismatch, Spec


@final
class Declared(Spec):
    """Values as they are declared elsewhere; what does not fit is taken as it comes.

    Attributes:
        spec: What is declared, as far as it is known by now.
    """

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.can_sample = spec.can_sample

    def read(self, value: Any) -> Any:
        """Take every value, in the declared form if it fits."""
        try:
            return self.spec.read(value)
        except Mismatch:
            return value

    def sample(self, rng: np.random.Generator) -> Any:
        """Draw what is declared."""
        return self.spec.sample(rng)

    def json_schema(self) -> dict[str, Any]:
        """Describe what is declared."""
        return self.spec.json_schema()

    def __repr__(self) -> str:
        return f"Declared({self.spec!r})"
