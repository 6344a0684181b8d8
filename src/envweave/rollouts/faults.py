"""Faults: episodes that failed through no fault of the agent, counted and retried within limits."""

from __future__ import annotations

import logging
from collections import Counter, deque
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

from envweave.errors import RolloutFailedError
from envweave.types import Blame, Episode, Reason

logger = logging.getLogger(__name__)

OnFault: TypeAlias = Literal["replace", "keep", "raise"]

MOST = 0.5
"""Below this share of usable episodes a rollout warns."""

HOPELESS = 10
"""How many episodes must be given up, at least, before the rollout is."""

REMEMBERED = 1_000
"""How many faults are kept with their causes; the counts cover all of them."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An episode that failed through no fault of the agent.

    Attributes:
        reason: How it ended: `"error"`, `"timeout"` or `"lost"`.
        blame: Who caused it.
        cause: A description of the failure.
        task_id: The task of the episode.
        seed: The seed of its reset.
        group: Which group it belongs to.
        member: Which one of its group it is.
        episode_id: The run that failed.
        replaced: Whether the episode is played again.
    """

    reason: Reason
    blame: Blame | None
    cause: str | None
    task_id: str | None
    seed: int | None
    group: int
    member: int
    episode_id: str | None
    replaced: bool


@final
class FaultStats:
    """Counts the faults of one rollout, and decides how to handle each.

    Attributes:
        counts: How many faults there were, by reason.
        recent: The last of them, with their causes.
        usable: How many episodes could be used.
        restored: How many losses episodes were brought back from.
    """

    def __init__(
        self,
        env_id: str,
        on_fault: OnFault,
        attempts: int,
        max_faults: int | None,
        concurrency: int,
        min_usable: float | None = None,
    ) -> None:
        self._env_id = env_id
        self._on_fault = on_fault
        self._attempts = attempts
        self._max_faults = max_faults
        self._min_usable = min_usable
        self._kept = 0
        self._max_given_up = max(HOPELESS, concurrency)
        self._given_up = 0
        self.counts: Counter[str] = Counter()
        self.recent: deque[Fault] = deque(maxlen=REMEMBERED)
        self.usable = 0
        self.restored = 0

    def record(self, episode: Episode) -> bool:
        """Record how an episode ended, and return whether to play it again.

        Raises:
            RolloutFailedError: It failed and `on_fault` is `"raise"`, or no episode has worked.
        """
        if episode.usable:
            self.usable += 1
            self._kept += 1
            return False
        within = self._max_faults is None or self.counts.total() < self._max_faults
        replaced = self._on_fault == "replace" and within and episode.attempts < self._attempts
        self.counts[episode.end.reason] += 1
        self.recent.append(_fault(episode, replaced=replaced))
        if self._on_fault == "raise":
            raise RolloutFailedError(
                f"An episode of {self._env_id!r} failed ({_describe(self.recent[-1])}). Use "
                "on_fault='replace' to have such episodes played again."
            )
        if not replaced:
            self._kept += 1
            self._given_up += 1
            if self._given_up >= self._max_given_up:
                self.check()
        return replaced

    def conclude(self) -> None:
        """Check the rollout at its end, and warn if most of its episodes cannot be used.

        Raises:
            RolloutFailedError: None is usable, or fewer than `min_usable`.
        """
        self.check()
        share = self.usable / self._kept if self._kept else 1.0
        if share >= (MOST if self._min_usable is None else self._min_usable):
            return
        counts = ", ".join(f"{number} {reason}" for reason, number in self.counts.most_common())
        message = (
            f"Only {self.usable} of {self._kept} episodes of {self._env_id!r} can be used "
            f"({counts}). Those that are left are biased: short episodes are lost less often than "
            f"long ones. The last fault: {_describe(self.recent[-1])}."
        )
        if self._min_usable is not None:
            raise RolloutFailedError(f"{message} min_usable={self._min_usable:g} asks for more.")
        logger.warning(
            "%s Pass min_usable= to have such a rollout fail, or min_usable=0 to accept it.",
            message,
        )

    def check(self) -> None:
        """Fail the rollout if not one of its episodes has worked.

        Raises:
            RolloutFailedError: Episodes were given up, and none is usable.
        """
        if self.usable or not self._given_up or self._on_fault == "keep":
            return
        counts = ", ".join(f"{number} {reason}" for reason, number in self.counts.most_common())
        episodes = "episode" if self._given_up == 1 else f"{self._given_up} episodes"
        raise RolloutFailedError(
            f"Not one episode of {self._env_id!r} could be used: {episodes} given up after "
            f"{self.counts.total()} faults ({counts}). The last: {_describe(self.recent[-1])}. "
            "Play one with make() to look into it, or use on_fault='keep' to get them as they are."
        )


def _fault(episode: Episode, *, replaced: bool) -> Fault:
    return Fault(
        reason=episode.end.reason,
        blame=episode.end.blame,
        cause=episode.end.cause,
        task_id=episode.task_id,
        seed=episode.seed,
        group=episode.group,
        member=episode.member,
        episode_id=episode.episode_id,
        replaced=replaced,
    )


def _describe(fault: Fault) -> str:
    about = "" if fault.task_id is None else f", task {fault.task_id!r}"
    about += "" if fault.seed is None else f", seed {fault.seed}"
    return f"{fault.reason}, blame {fault.blame}{about}: {fault.cause or 'no cause was given'}"
