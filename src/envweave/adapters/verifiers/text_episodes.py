"""Play episodes with text: observations are rendered as text, replies are parsed as actions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, final

from envweave.conversation.rendering import observation_text
from envweave.conversation.replies import ReplyReader, read_message
from envweave.errors import (
    ActionError,
    DefinitionError,
    EnvironmentFailure,
    SeedError,
    ToolCallOpenError,
)
from envweave.types import StepResult

T = TypeVar("T")

EVAL_SPLITS = ("eval", "test", "validation")
"""Names of splits to evaluate on, the likeliest first."""


@final
class TextEpisode:
    """One episode of an environment, played with text.

    Attributes:
        env: The environment.
        total: The sum of the rewards so far.
        parts: The sums of their parts; rewards that name no parts are in the part `"reward"`.
        metrics: The last figures that the environment reported.
        step_reward: The reward of the last action; `None` if the reply was not an action.
        is_over: Whether the episode has ended.
        truncated: Whether a limit ended it.
    """

    def __init__(self, env: Any, actions: ReplyReader) -> None:
        self.env = env
        self._actions = actions
        self.total = 0.0
        self.parts: dict[str, float] = {}
        self.metrics: dict[str, float] = {}
        self.step_reward: float | None = None
        self.is_over = False
        self.truncated = False

    def start(self, row: Mapping[str, Any]) -> str:
        """Begin with the task or seed of a row, and return the first observation."""
        if row.get("task_id") is not None:
            result = self.env.reset(task=row["task_id"])
        else:
            try:
                result = self.env.reset(seed=row["seed"])
            except SeedError:
                result = self.env.reset()  # without randomness every row is the same
        return self._read(result)

    def act(self, reply: str) -> str:
        """Play a reply as an action, and return the next message to the model.

        Raises:
            EnvironmentFailure: The environment failed or was lost; there is no reward.
        """
        self.step_reward = None
        try:
            result = self.env.step(self._actions.read(read_message(reply)))
        except ActionError as error:
            return f"That is not a valid action. {error} {self._actions.instructions}".rstrip()
        shown = self._read(result)
        self.step_reward = result.reward or 0.0
        self.total += self.step_reward
        for name, part in (result.reward_parts or {"reward": self.step_reward}).items():
            self.parts[name] = self.parts.get(name, 0.0) + part
        return shown

    def _read(self, result: StepResult[Any]) -> str:
        if not result.valid:
            assert result.end is not None
            raise EnvironmentFailure(
                f"The episode of {self.env.id} ended by {result.end.reason} "
                f"(blame: {result.end.blame}): {result.end.cause}"
            )
        for call in result.tool_calls:
            raise ToolCallOpenError(
                f"{self.env.id} asks its caller to run {call.name}(), which verifiers cannot do."
            )
        numbers = {n: one for n, one in result.metrics.items() if isinstance(one, int | float)}
        self.metrics |= {name: float(one) for name, one in numbers.items()}
        self.is_over, self.truncated = result.done, result.truncated is True
        return observation_text(result.observation)


@final
class TextEnvironments:
    """Environments of one kind, for episodes that run side by side.

    An environment is reused after its episode ended.

    Args:
        make: Makes one.
        is_one: Whether there is only one, which episodes take in turn.
    """

    def __init__(self, make: Callable[[], Any], *, is_one: bool) -> None:
        self._make = make
        self._turns = asyncio.Semaphore(1) if is_one else None
        self._idle: list[Any] = []
        first = make()
        self._idle.append(first)
        if first.possible_agents is not None:
            self.close()
            raise DefinitionError(
                f"{first.id!r} has several agents. Export an environment with one agent."
            )
        self.tasks = first.tasks
        self.actions = ReplyReader(first.action_spec)

    def rows(self, split: str | None, number: int) -> list[dict[str, Any]]:
        """Return the rows of a dataset: the tasks of a split, or seeds.

        Args:
            split: The first split by default.
            number: How many tasks to take of an endless split, and how many seeds.
        """
        if self.tasks is None:
            return [{"task_id": None, "seed": seed} for seed in range(number)]
        name = self.tasks.splits[0] if split is None else split
        length = self.tasks.length(name)
        indices = range(number if length is None else length)
        return [{"task_id": self.tasks.at(name, index).id, "seed": None} for index in indices]

    def eval_split(self) -> str | None:
        """Return the split to evaluate on, if there is one with such a name."""
        splits = () if self.tasks is None else self.tasks.splits
        return next((name for name in EVAL_SPLITS if name in splits), None)

    async def acquire(self) -> TextEpisode:
        """Return an episode that has not begun; `release` must follow."""
        if self._turns is not None:
            await self._turns.acquire()
        while not self._idle:
            # Through the list, so that one whose caller was cancelled is not lost.
            await in_thread(lambda: self._idle.append(self._make()))
        return TextEpisode(self._idle.pop(), self.actions)

    async def release(self, episode: TextEpisode) -> None:
        """Return an environment; if its episode did not end, it is closed."""
        if self._turns is not None:
            self._idle.append(episode.env)
            self._turns.release()
        elif episode.is_over:
            self._idle.append(episode.env)
        else:
            await asyncio.to_thread(episode.env.close)

    def close(self) -> None:
        """Close the idle environments, unless the caller owns them."""
        idle, self._idle = self._idle, []
        for env in idle if self._turns is None else ():
            env.close()  # not in a thread: at interpreter exit no thread can be started


async def in_thread(call: Callable[..., T], *args: Any) -> T:
    """Run a call in a thread. A cancellation waits for the call, which cannot be interrupted."""
    running = asyncio.ensure_future(asyncio.to_thread(call, *args))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise
