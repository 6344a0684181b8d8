"""Play episodes with text: observations are rendered as text, replies are parsed as actions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, final

from envweave.codec import AnySpec, Spec, to_plain
from envweave.codec.containers import UnionSpec
from envweave.codec.records import DataclassSpec
from envweave.codec.scalars import is_text
from envweave.errors import (
    ActionError,
    DefinitionError,
    EnvironmentFailure,
    SeedError,
    SpecError,
    ToolCallOpenError,
)
from envweave.types import Observation, StepResult
from envweave.wire.encoding import PLAIN_JSON

_OUTCOME = ("reward", "done", "truncated", "metadata")  # fields of every observation
T = TypeVar("T")

EVAL_SPLITS = ("eval", "test", "validation")
"""Names of splits to evaluate on, the likeliest first."""


def observation_text(observation: Any) -> str:
    """Return an observation as text: a string unchanged, anything else as JSON.

    An `Observation` is shown by its author's own fields; if there is only one, and it is a
    string, by that.
    """
    plain = to_plain(observation)
    if isinstance(observation, Observation) and isinstance(plain, dict):
        plain = {name: one for name, one in plain.items() if name not in _OUTCOME}
        if len(plain) == 1 and isinstance(one := next(iter(plain.values())), str):
            return one
    return plain if isinstance(plain, str) else bytes(PLAIN_JSON.encode(plain)).decode()


@final
class TextActions:
    """Reads a model's replies as actions.

    Attributes:
        instructions: Tells the model the form of its replies; empty if every string is an
            action.
    """

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._field = _text_field(spec)
        self._takes_text = _takes_text(spec)
        self.instructions = ""
        if not self._takes_text and self._field is None:
            schema = spec.json_schema()
            schema.get("properties", {}).pop("metadata", None)
            self.instructions = (
                "Reply with nothing but your next action, as JSON that fits this schema: "
                f"{json.dumps(schema)}"
            )

    def read(self, reply: str) -> Any:
        """Parse a reply as an action.

        Raises:
            ActionError: It is not an action; the message says why, for the model.
        """
        value: Any = reply
        if self._field is not None:
            value = {self._field: reply}
        elif not self._takes_text:
            text = reply.strip()
            if text.startswith("```") and text.endswith("```"):
                text = text.partition("\n")[2].removesuffix("```").strip()
            try:
                value = json.loads(text)
            except ValueError as error:
                raise ActionError(f"The reply is not valid JSON ({error}).") from error
        try:
            return self._spec.check(value, "action")
        except SpecError as error:
            raise ActionError(str(error)) from error


def _takes_text(spec: Spec) -> bool:
    if isinstance(spec, UnionSpec):
        return any(_takes_text(option) for option in spec.options)
    return isinstance(spec, AnySpec) or is_text(spec)


def _text_field(spec: Spec) -> str | None:
    """Return the only field, or only required field, of a dataclass if it is a string."""
    if not isinstance(spec, DataclassSpec):
        return None
    own = [name for name in spec.fields if name != "metadata"]
    needed = [name for name in own if name not in spec.optional] or own
    return needed[0] if len(needed) == 1 and _takes_text(spec.fields[needed[0]]) else None


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

    def __init__(self, env: Any, actions: TextActions) -> None:
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
            result = self.env.step(self._actions.read(reply))
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
        self.actions = TextActions(first.action_spec)

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
