"""What the `reset` of a Gymnasium vector is asked for: seeds, options, and which rows."""

from __future__ import annotations

import secrets
from typing import Any, final

import numpy as np

from envweave.adapters.gymnasium_modes import Abilities
from envweave.environment import Interface
from envweave.errors import OptionError, SeedError, TaskError
from envweave.session.seeds import draw_seed, episode_seed, read_seed
from envweave.vector.choices import Wanted

MASK = "reset_mask"
"""The option by which Gymnasium's `reset` is told which environments are meant."""


@final
class _Seeds:
    """A stream of seeds: a caller's begins it, and without one it begins with one drawn."""

    def __init__(self) -> None:
        self._base: int | None = None
        self._k = -1

    def next(self, wanted: int | None) -> int:
        """Return the seed of the next episode."""
        if wanted is not None:
            self._base, self._k = read_seed(wanted), 0
        else:
            self._base = draw_seed() if self._base is None else self._base
            self._k += 1
        return episode_seed(self._base, self._k)


@final
class ResetPlan:
    """The episodes of each environment of a vector, and how to ask for the next ones.

    Where the vector takes one seed an environment, these form streams, as for single
    environments. Where it takes one for the batch, that one begins a stream of the batch's
    own, and what is reset in between goes on with the vector's own generator.
    """

    def __init__(self, interface: Interface, abilities: Abilities, count: int) -> None:
        self._name, self._abilities, self._count = interface.name, abilities, count
        self._takes = interface.reset_takes
        self._seeds = [_Seeds() for _ in range(count if abilities.seeding == "each" else 1)]
        self._prefix = secrets.token_hex(6)
        self._begun = [-1] * count

    def check(self, wanted: Wanted) -> None:
        """Refuse what cannot be honoured; nothing changes.

        Raises:
            SeedError, TaskError, OptionError: What cannot be, and what can.
        """
        wishes = next(iter(wanted.values()), None)
        if wishes is None:
            return
        for i, one in wanted.items():
            if one["task"] is not None:
                raise TaskError(
                    f"Environment {i}: {self._name}.reset() takes no task, but was given "
                    f"{one['task']!r}."
                )
        options = wishes["options"]
        if options is not None and "options" not in self._takes:
            raise OptionError(
                f"options={options!r} cannot be honoured: {self._name}.reset() takes no options."
            )
        if MASK in (options or ()):
            raise OptionError(f"options[{MASK!r}] is ours to set. Use ids=[…].")
        self._check_seeds([one["seed"] for one in wanted.values()])
        if len(wanted) < self._count and not self._abilities.resets_some:
            raise OptionError(
                f"ids={list(wanted)[:8]} cannot be honoured: {self._name} resets all its "
                "environments at once. Leave out `ids`."
            )

    def _check_seeds(self, seeds: list[Any]) -> None:
        given = [read_seed(seed) for seed in seeds if seed is not None]
        if not given:
            return
        if self._abilities.seeding == "none":
            raise SeedError(
                f"seed={given[0]} cannot be honoured: {self._name} takes its seed where it is "
                "made, as in envpool.make_gymnasium(…, seed=0). Reset without one."
            )
        if "seed" not in self._takes:
            raise SeedError(
                f"seed={given[0]} cannot be honoured: {self._name}.reset() takes no seed. "
                "Reset without one."
            )
        if self._abilities.seeding == "batch":
            if len(seeds) < self._count:
                raise SeedError(
                    f"A seed for some environments cannot be honoured: {self._name} takes one "
                    "seed for the whole batch. Reset all, or these without a seed."
                )
            if given != list(range(given[0], given[0] + self._count)):
                raise SeedError(
                    f"One seed an environment cannot be honoured: {self._name} takes one seed "
                    "for the whole batch. Pass one number, such as seed=0."
                )

    def choose(self, wanted: Wanted) -> tuple[dict[str, Any], dict[int, dict[str, int]]]:
        """Return the keywords for the vector's `reset`, and what is known of each seed.

        An environment's own seed is its `seed`; one that all share is the `batch_seed`.
        """
        keywords: dict[str, Any] = {}
        known: dict[int, dict[str, int]] = {}
        is_whole = len(wanted) == self._count
        if "seed" in self._takes and self._abilities.seeding == "each":
            seeds = {i: self._seeds[i].next(one["seed"]) for i, one in wanted.items()}
            keywords["seed"] = [seeds.get(i) for i in range(self._count)]
            known = {i: {"seed": seed} for i, seed in seeds.items()}
        elif "seed" in self._takes and is_whole:
            keywords["seed"] = self._seeds[0].next(wanted[0]["seed"])
            known = {i: {"batch_seed": keywords["seed"]} for i in wanted}
        options = next(iter(wanted.values()))["options"]
        if options is not None:
            keywords["options"] = dict(options)
        if not is_whole:
            mask = np.zeros(self._count, np.bool_)
            mask[list(wanted)] = True
            keywords["options"] = {**keywords.get("options", {}), MASK: mask}
        return keywords, known

    def begin(self, i: int) -> str:
        """Return the id of an environment's next episode."""
        self._begun[i] += 1
        return f"{self._prefix}-{i}-{self._begun[i]}"
