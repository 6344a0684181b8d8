"""Whether private data of tasks is in what an agent can see, and how often by coincidence."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from envweave.testing.audit_policies import texts_of
from envweave.types import Task


@final
@dataclass
class PrivateLeaks:
    """Where texts of a task's results contain values of its private part, or of another task's."""

    texts: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    private: dict[str, dict[str, str]] = field(default_factory=dict)

    def collect(self, task: Task, place: str, value: Any) -> None:
        """Keep the texts of one place, such as `info`, in an episode of a task."""
        self.private.setdefault(task.id, dict(_private_values(task.private)))
        self.texts[task.id, place].extend(texts_of(value))

    def rates(self) -> dict[tuple[str, str], tuple[float, float, str]]:
        """Return by place and key: the share of tasks, that by coincidence, and an example.

        The coincidence is how often the value of another task occurs in the same texts.
        """
        found: dict[tuple[str, str], tuple[float, float, str]] = {}
        places = sorted({place for _, place in self.texts})
        keys = sorted({key for values in self.private.values() for key in values})
        for place in places:
            for key in keys:
                hits, chance, pairs, example = 0, 0, 0, ""
                holders = [task for task in self.private if key in self.private[task]]
                for index, task in enumerate(holders):
                    texts = "\n".join(self.texts.get((task, place), []))
                    value = self.private[task][key]
                    if _contains(texts, value):
                        hits += 1
                        example = example or value
                    for step in range(1, min(5, len(holders))):
                        other = self.private[holders[(index + step) % len(holders)]][key]
                        if other != value:
                            pairs += 1
                            chance += _contains(texts, other)
                if hits:
                    found[place, key] = (
                        hits / len(holders),
                        chance / pairs if pairs else 0.0,
                        example,
                    )
        return found


def _private_values(private: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the texts and numbers in a private part by their path, if they say anything."""
    pairs: Any
    if isinstance(private, Mapping):
        pairs = private.items()
    elif hasattr(private, "keys"):  # a `Private`, which is not a mapping
        pairs = [(key, private[key]) for key in private.keys()]  # noqa: SIM118
    elif isinstance(private, list | tuple):
        pairs = enumerate(private)
    else:
        if isinstance(private, str | int | float):
            for text in texts_of(private):
                if text.strip():
                    yield path, text.strip()
        return
    for key, value in pairs:
        yield from _private_values(value, f"{path}.{key}" if path else str(key))


def _contains(text: str, value: str) -> bool:
    """Whether a text has a value as a whole word."""
    return re.search(rf"(?<![\w.]){re.escape(value)}(?!\w|\.\d)", text) is not None
