"""Environments at the edges of the contract: coroutine states, refused actions, odd signatures.

Worker processes and servers import them by name. Those outside the contract are in
`nonconforming.py`, and those whose process dies or hangs in `crashing.py`.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import envweave as ew
from envweave.errors import ActionError
from envweave.testing import ScriptedAction, ScriptedObservation


@dataclass
class LastAction(ew.State):
    last_action: str = ""


class AsyncState(ew.Environment):
    """Its state is the last action, after a while; after the action `hang` it has no state."""

    def __init__(self) -> None:
        self.last_action = ""

    async def reset(self, *, seed: int | None = None) -> ew.Observation:
        self.last_action = ""
        return ew.Observation()

    async def step(self, action: str) -> ew.Observation:
        self.last_action = action
        return ew.Observation(reward=1.0)

    @property
    async def state(self) -> LastAction:
        await asyncio.sleep(0)
        if self.last_action == "raise":
            raise RuntimeError("not in the mood")
        if self.last_action == "hang":
            await asyncio.Event().wait()
        self.emit(ew.LogEvent("looked"))
        return LastAction(last_action=self.last_action)


class SyncWithAsyncState(ew.Environment):
    """The same, but for its `state` in plain functions."""

    def __init__(self) -> None:
        self.inside = AsyncState()

    def reset(self, *, seed: int | None = None) -> ew.Observation:
        self.inside.last_action = ""
        return ew.Observation()

    def step(self, action: str) -> ew.Observation:
        self.inside.last_action = action
        return ew.Observation(reward=1.0)

    @property
    async def state(self) -> LastAction:
        return await self.inside.state


def wrapped() -> Any:
    """Return one inside a wrapper."""
    return ew.wrappers.TimeLimit(AsyncState(), max_steps=100)


TAKEN = 13


@dataclass
class Move(ew.Action):
    square: int = 0


@dataclass
class Board(ew.Observation):
    moves: int = 0


class PickyError(ActionError):
    """A refusal of the author's own, which cannot be unpickled."""

    def __init__(self, square: int, why: str) -> None:
        super().__init__(f"square {square} {why}")


class Refusing(ew.Environment):
    """Pays the number of the move, and refuses square 13."""

    def __init__(self, *, last: int = 100, error: Any = None, says: bool = False) -> None:
        self.last, self.error, self.says = last, error, says
        self.moves = 0

    def reset(self, *, seed: int | None = None) -> Board:
        self.moves = 0
        return Board(0, metadata={"action_mask": [True, False]})

    def step(self, action: Move) -> Board:
        if self.says:
            self.emit(ew.LogEvent(f"looking at {action.square}"))
        if action.square == TAKEN:
            if self.says:
                self.emit(ew.ToolCallRequest("call", "ask"))
                self.emit(ew.EpisodeEnd("terminated"))
            if self.error is not None:
                raise self.error(action.square, "is taken")
            raise ActionError(f"square {action.square} is taken")
        self.moves += 1
        return Board(
            self.moves,
            reward=float(self.moves),
            done=self.moves >= self.last,
            metadata={"action_mask": [True, False]},
        )


class AsyncRefusing(ew.Environment):
    def __init__(self, **kwargs: Any) -> None:
        self.inner = Refusing(**kwargs)

    async def reset(self, *, seed: int | None = None) -> Board:
        return self.inner.reset(seed=seed)

    async def step(self, action: Move) -> Board:
        return self.inner.step(action)


class RefusingInGymnasiumsWay(ew.Environment):
    """The same, with tuples, so that a vector books it by column."""

    def __init__(self, *, last: int = 100) -> None:
        self.last, self.moves = last, 0

    def reset(self, *, seed: int | None = None) -> tuple[int, dict[str, Any]]:
        self.moves = 0
        return 0, {"action_mask": [True, False]}

    def step(self, action: Move) -> tuple[int, float, bool, bool, dict[str, Any]]:
        if action.square == TAKEN:
            raise ActionError(f"square {action.square} is taken")
        self.moves += 1
        mask = {"action_mask": [True, False]}
        return self.moves, float(self.moves), self.moves >= self.last, False, mask


class RefusingAgents(ew.MultiAgentEnvironment):
    """Two at once; a square of 13 is refused."""

    possible_agents = ("a", "b")

    def reset(self, *, seed: int | None = None) -> dict[str, Board]:
        self.moves = 0
        return {agent: Board(0) for agent in self.possible_agents}

    def step(self, actions: dict[str, int]) -> dict[str, Board]:
        if TAKEN in actions.values():
            raise ActionError("square 13 is taken")
        self.moves += 1
        return {agent: Board(self.moves, reward=1.0) for agent in actions}


class RefusingTool(ew.Environment):
    """Asks for a page with every move, and refuses the 13th."""

    def reset(self) -> Board:
        self.moves = 0
        return Board(0)

    def step(self, action: Move) -> Board:
        self.moves += 1
        self.emit(ew.ToolCallRequest(f"call-{self.moves}", "page"))
        return Board(self.moves)

    def answer(self, result: ew.ToolResult) -> Board:
        if result.value == "13":
            raise ActionError("there is no such page")
        return Board(self.moves, reward=1.0)


class Colliding(ew.Environment):
    """Shows what it was made with."""

    def __init__(
        self,
        *,
        backend: str = "cpu",
        timeout_s: float = 0,
        size: int = 0,
        num_envs: int = 0,
        **more: Any,
    ) -> None:
        given = {"backend": backend, "timeout_s": timeout_s, "size": size, "num_envs": num_envs}
        self.given = json.dumps({**given, **more})

    def reset(self) -> str:
        return self.given

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return self.given, 0.0, True, False, {}


class Needy(Colliding):
    def __init__(self, *, backend: str) -> None:
        super().__init__(backend=backend)


class Seedless(ew.Environment):
    """Takes no seed, and ends after one step."""

    def reset(self) -> ScriptedObservation:
        return ScriptedObservation(0)

    def step(self, action: ScriptedAction) -> ScriptedObservation:
        return ScriptedObservation(1, action.text, reward=1.0, done=True)
