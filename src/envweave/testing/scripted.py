"""Small environments that follow a script.

Scripts are plain data, so that any backend can make the environments:
`make("pkg://envweave.testing.scripted:ScriptedEnvironment", script=[…])`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from envweave.environment import Environment, MultiAgentEnvironment
from envweave.errors import ActionError
from envweave.types import (
    Action,
    Blame,
    EpisodeEnd,
    LogEvent,
    Observation,
    Reason,
    State,
    Task,
    Tasks,
    ToolCallRequest,
    ToolResult,
)


@dataclass
class ScriptedAction(Action):
    """An action with a number and a text."""

    number: int = 0
    text: str = ""


@dataclass
class ScriptedObservation(Observation):
    """The text of the action, the position in the script, and a number drawn from the seed."""

    at: int
    text: str = ""
    noise: float = 0.0


@dataclass
class ScriptedState(State):
    """Number of calls of each method, over all episodes."""

    resets: int = 0
    calls: int = 0
    task: str | None = None
    knows_answer: bool = False


PRIVATE_ANSWER = "known to the environment alone"
"""The private part of the task `"third"`, which no caller may see."""


class ScriptedEnvironment(Environment):
    """Follows a script, one entry per step; after the last entry the episode terminates.

    An entry is a dict with any of: `reward`, `terminated`, `truncated`, `info`, `raise` (a
    message), `log` (a message), `tool` (a name to call), `end` (a reason and a blame),
    `returns` (a value to return unchanged).

    Args:
        script: The entries.
        fail_resets: Indices of resets that raise.
        fail_seeds: Seeds for which a reset raises.
        refuses: `step` refuses an action with this text, before it does anything else.
    """

    copyable = True
    tasks = Tasks(
        {
            "train": [Task("first"), Task("second")],
            "test": [Task("third", "test", private={"answer": PRIVATE_ANSWER})],
        }
    )

    def __init__(
        self,
        script: Sequence[Mapping[str, Any]] = (),
        *,
        fail_resets: Sequence[int] = (),
        fail_seeds: Sequence[int] = (),
        refuses: str | None = None,
    ) -> None:
        self._refuses = refuses
        self.script = list(script) or [{"reward": 1.0}, {"reward": 2.0}, {"reward": 3.0}]
        self._fail_resets = frozenset(fail_resets)
        self._fail_seeds = frozenset(fail_seeds)
        self._state = ScriptedState()
        self._rng = random.Random(0)  # noqa: S311 - a script, not a secret
        self._at = 0

    def reset(
        self,
        *,
        task: Task,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
        episode_id: str | None = None,
    ) -> ScriptedObservation:
        """Go back to the first entry."""
        resets = self._state.resets
        self._state.resets += 1
        if resets in self._fail_resets or seed in self._fail_seeds:
            raise OSError(f"reset {resets} is set to fail")
        self._state.episode_id, self._state.step_count = episode_id, 0
        self._state.task = task.id
        self._state.knows_answer = task.private.get("answer") == PRIVATE_ANSWER
        self._rng = random.Random(seed)  # noqa: S311
        self._at = 0
        return ScriptedObservation(0, str((options or {}).get("text", "")), self._rng.random())

    def step(self, action: ScriptedAction) -> ScriptedObservation:
        """Follow the next entry."""
        self._state.calls += 1
        _refuse(action, self._refuses)
        entry = self.script[self._at]
        self._at += 1
        self._state.step_count += 1
        if "log" in entry:
            self.emit(LogEvent(entry["log"]))
        if "tool" in entry:
            self.emit(ToolCallRequest(f"call-{self._at}", entry["tool"], {"at": self._at}))
        if "raise" in entry:
            raise ValueError(entry["raise"])
        if "returns" in entry:
            return entry["returns"]  # type: ignore[no-any-return] # any value
        if "end" in entry:
            reason, blame = entry["end"]
            assert reason in get_args(Reason)
            assert blame in get_args(Blame)
            self.emit(EpisodeEnd(reason, blame))
        over = self._at >= len(self.script) and not entry.get("truncated") and "tool" not in entry
        return ScriptedObservation(
            self._at,
            action.text,
            self._rng.random(),
            reward=entry.get("reward"),
            done=entry.get("terminated", over and "end" not in entry),
            truncated=entry.get("truncated", False),
            metadata=dict(entry.get("info", {})),
        )

    def answer(self, result: ToolResult) -> ScriptedObservation:
        """Show the answer with a reward of 0.5; end if the script is over."""
        self._state.calls += 1
        return ScriptedObservation(
            self._at, f"{result.value!r}", reward=0.5, done=self._at >= len(self.script)
        )

    @property
    def state(self) -> ScriptedState:
        """Number of calls of each method."""
        return self._state


class SeedlessEnvironment(Environment):
    """Takes no seed, and ends after one step."""

    def reset(self) -> ScriptedObservation:
        """Begin."""
        return ScriptedObservation(0)

    def step(self, action: ScriptedAction) -> ScriptedObservation:
        """End."""
        return ScriptedObservation(1, action.text, reward=1.0, done=True)


class AsyncScriptedEnvironment(Environment):
    """A `ScriptedEnvironment` with async methods."""

    copyable = True
    tasks = ScriptedEnvironment.tasks

    def __init__(
        self,
        script: Sequence[Mapping[str, Any]] = (),
        *,
        fail_resets: Sequence[int] = (),
        fail_seeds: Sequence[int] = (),
        refuses: str | None = None,
    ) -> None:
        self._inner = ScriptedEnvironment(
            script, fail_resets=fail_resets, fail_seeds=fail_seeds, refuses=refuses
        )
        self.closed = 0

    def connect(self, events: list[LogEvent | ToolCallRequest | EpisodeEnd]) -> None:
        """Connect the script as well."""
        self._inner.connect(events)

    async def reset(
        self,
        *,
        task: Task,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
        episode_id: str | None = None,
    ) -> ScriptedObservation:
        """Go back to the first entry."""
        return self._inner.reset(task=task, seed=seed, options=options, episode_id=episode_id)

    async def step(self, action: ScriptedAction) -> ScriptedObservation:
        """Follow the next entry."""
        return self._inner.step(action)

    async def answer(self, result: ToolResult) -> ScriptedObservation:
        """Show the answer."""
        return self._inner.answer(result)

    @property
    def state(self) -> ScriptedState:
        """Number of calls of each method."""
        return self._inner.state

    async def close(self) -> None:
        """Count the calls."""
        self.closed += 1


class ScriptedAgents(MultiAgentEnvironment):
    """Several agents that follow a script, one entry per step.

    An entry is a dict with any of `rewards` (by agent), `leave` (agents that end), `join` (new
    agents), `act` (agents that act next), `cut` (the episode is truncated), `raise`. After the
    last entry all agents terminate. An action whose text is `refuses` is refused.
    """

    copyable = True

    def __init__(
        self,
        agents: Sequence[str] = ("a", "b"),
        script: Sequence[Mapping[str, Any]] = (),
        *,
        possible_agents: Sequence[str] | None = None,
        first: Sequence[str] | None = None,
        refuses: str | None = None,
    ) -> None:
        self._refuses = refuses
        self.possible_agents = list(possible_agents or agents)
        self._begin = list(agents)
        self._first = None if first is None else list(first)
        self.script = list(script) or [
            {"rewards": {agents[0]: 1.0}},
            {"rewards": {agents[-1]: 2.0}},
        ]
        self._living: list[str] = []
        self._act: list[str] | None = None
        self._at = 0

    def reset(self, *, seed: int | None = None) -> dict[str, ScriptedObservation]:
        """Start all agents."""
        self._at, self._living, self._act = 0, list(self._begin), self._first
        noise = random.Random(seed).random()  # noqa: S311
        return {agent: ScriptedObservation(0, agent, noise) for agent in self._living}

    def to_act(self) -> list[str] | None:
        """Return the agents that the script names."""
        return self._act

    def step(self, actions: dict[str, ScriptedAction]) -> dict[str, ScriptedObservation]:
        """Follow the next entry."""
        for action in actions.values():
            _refuse(action, self._refuses)
        entry = self.script[self._at]
        self._at += 1
        if "raise" in entry:
            raise ValueError(entry["raise"])
        self._living += entry.get("join", ())
        over = self._at >= len(self.script)
        leave = set(self._living) if over else set(entry.get("leave", ()))
        rewards = entry.get("rewards", {})
        shown = {
            agent: ScriptedObservation(
                self._at,
                actions[agent].text if agent in actions else agent,
                reward=rewards.get(agent),
                done=agent in leave and not entry.get("cut"),
                truncated=bool(agent in leave and entry.get("cut")),
            )
            for agent in self._living
        }
        self._living = [agent for agent in self._living if agent not in leave]
        self._act = entry.get("act")
        return shown


def _refuse(action: ScriptedAction, text: str | None) -> None:
    if text is not None and action.text == text:
        raise ActionError(f"action.text: {text!r} is refused here")
