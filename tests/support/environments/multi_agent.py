"""Environments whose agents come and go at random, and the expected contents of their columns."""

from __future__ import annotations

import math
import os
import random
from dataclasses import dataclass
from typing import Any

import numpy as np

import envweave as ew
from envweave.codec import AnySpec, spec_from_hint
from envweave.codec.arrays import ArraySpec
from envweave.testing import ScriptedAgents


@dataclass
class Note(ew.Observation):
    """What the third agent sees."""

    text: str
    level: float
    cells: Any


class RandomAgents(ew.MultiAgentEnvironment):
    """Agents that join, leave and stay unseen; ends and faults of every kind.

    All is drawn from an episode's seed, so that every object of a case plays the same.
    """

    possible_agents = ("array", "number", "note", "text", "late")
    action_spec = spec_from_hint(int)
    observation_spec = {  # noqa: RUF012
        "array": ArraySpec((2,), "float32"),
        "number": spec_from_hint(int),
        "note": spec_from_hint(Note),
        "text": spec_from_hint(str),
        "late": AnySpec(),
    }

    def __init__(self, case: int) -> None:
        odds = random.Random(case)
        self.by_turns = odds.random() < 0.5
        faults = ("raise", "misfit", "stranger", "reset", "end", "tool", "log", "none", "all")
        self.p = {name: odds.random() ** 3 * 0.3 for name in faults}
        self.p |= {name: odds.random() * 0.4 for name in ("join", "leave", "silent", "unpaid")}

    def reset(self, *, seed: int | None = None) -> Any:
        self.rng, self.at = random.Random(seed), 0
        self.length = self.rng.randint(1, 9)
        if seed is not None and seed > 100_000 and self._chance("reset"):
            raise OSError("reset failed")
        first = self.rng.sample(self.possible_agents[:4], self.rng.randint(1, 4))
        self.living, self.gone = first, set()
        self._choose()
        return {agent: self._show(agent) for agent in first}, self._infos(first)

    def to_act(self) -> list[str] | None:
        return self.asked

    def step(self, actions: dict[str, int]) -> Any:
        assert set(actions) == set(self.asked or self.living)
        self.at += 1
        if self._chance("log"):
            self.emit(ew.LogEvent(f"at {self.at}"))
        if self._chance("raise"):
            raise ValueError(f"step {self.at}")
        if self._chance("tool"):
            self.emit(ew.ToolCallRequest(f"call-{self.at}", "ask"))
        if self._chance("end"):
            self.emit(ew.EpisodeEnd("timeout", self.rng.choice(["agent", "environment"])))
        return self._five(sum(actions.values()))

    def answer(self, result: ew.ToolResult) -> Any:
        return self._five(result.value)

    def _five(self, drawn: int) -> Any:
        shown = [agent for agent in self.living if not self._chance("silent")]
        if self._chance("join"):
            newcomers = set(self.possible_agents) - set(self.living) - self.gone
            for agent in sorted(newcomers)[:1]:
                self.living.append(agent)
                shown.append(agent)
        observations = {agent: self._show(agent) for agent in shown}
        if self._chance("misfit") and shown:
            observations[shown[0]] = np.zeros(9)
        if self._chance("stranger"):
            observations["stranger"] = 1
        rewards: dict[str, Any] = {
            a: drawn + 0.5 for a in self.living if not self._chance("unpaid")
        }
        if self._chance("none"):
            rewards = dict.fromkeys(rewards)
        over = self.at >= self.length
        leaving = set(self.living) if over else {a for a in self.living if self._chance("leave")}
        terminated = {a: self.rng.random() < 0.5 for a in self.living if a in leaving}
        truncated = {a: not one or self.rng.random() < 0.2 for a, one in terminated.items()}
        if self._chance("all"):
            self.rng.choice([terminated, truncated])["__all__"] = True
        self.living = [agent for agent in self.living if agent not in leaving]
        self.gone |= leaving
        self._choose()
        return observations, rewards, terminated, truncated, self._infos(shown)

    def _choose(self) -> None:
        self.asked = [self.rng.choice(self.living)] if self.by_turns and self.living else None

    def _chance(self, name: str) -> bool:
        return self.rng.random() < self.p[name]

    def _show(self, agent: str) -> Any:
        if agent == "array":
            return np.full(2, self.at, np.float32)
        if agent == "number":
            return self.at
        if agent == "note":
            return Note(f"at {self.at}", self.rng.random(), np.full(2, self.at))
        return f"{agent} at {self.at}" if agent == "text" else [self.at]

    def _infos(self, agents: list[str]) -> dict[str, Any]:
        return {a: {"action_mask": np.array([1, self.at % 2])} for a in agents if a != "text"}


@dataclass
class ProcessState(ew.State):
    """In which process an environment runs."""

    pid: int = 0


class AgentsWithPid(ScriptedAgents):
    """Two agents, and a state that says where they are."""

    @property
    def state(self) -> ProcessState:
        return ProcessState(pid=os.getpid())


FILLS = {
    "array": np.zeros(2, np.float32),
    "number": 0,
    "note": {"text": None, "level": 0.0},
    "text": None,
    "late": None,
}
"""What columns hold where an agent is not there; `cells` only where they have been seen."""


class Expected:
    """What one environment's row ought to hold, made up from its results one by one."""

    def __init__(self, agents: tuple[str, ...]) -> None:
        self.agents = agents
        self.seen: dict[str, Any] = {}
        self.paid: dict[str, float] = {}
        self.credited: dict[str, float] = {}
        self.acts: dict[str, int] = {}
        self.outcomes: dict[str, int] = {}

    def begin(self, shown: dict[str, Any]) -> None:
        self.seen = dict(shown)
        for expected_row in (self.paid, self.credited, self.acts, self.outcomes):
            expected_row.clear()

    def count(self, row: ew.StepResult[Any], earned: Any, settled: Any) -> None:
        """Add up the rewards and the settled rewards of a step; at an end, both must agree."""
        for slot, agent in enumerate(self.agents):
            self.paid[agent] = self.paid.get(agent, 0.0) + (row.reward.get(agent) or 0.0)
            credited = 0.0 if math.isnan(earned[slot]) else float(earned[slot])
            self.credited[agent] = self.credited.get(agent, 0.0) + credited
            self.outcomes[agent] = self.outcomes.get(agent, 0) + bool(settled[slot])
        if row.done and row.valid:
            assert {a: round(x, 6) for a, x in self.paid.items()} == {
                a: round(x, 6) for a, x in self.credited.items()
            }
            assert self.outcomes == {a: self.acts.get(a, 0) for a in self.agents}

    def cell(self, agent: str, seen: dict[str, Any]) -> Any:
        """What an agent's columns hold in this row."""
        if agent not in seen:
            return FILLS[agent]
        shown = seen[agent]
        if agent != "note":
            return shown
        return {"text": shown.text, "level": shown.level, "cells": shown.cells}
