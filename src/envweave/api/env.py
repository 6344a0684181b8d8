"""`Env` and `AsyncEnv`: what `make` and `make_async` return, on every backend."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, final

from envweave.codec import Spec
from envweave.types import ResetResult, State, StepResult, Task, Tasks
from envweave.vector.transport import AsyncTransport, Transport


@final
class Env:
    """The caller's side of one environment.

    Use it in a `with` block, or `close` it. One thread at a time may call it.

    Attributes:
        id: What it was made from.
    """

    def __init__(self, transport: Transport, env_id: str) -> None:
        self._transport = transport
        self.id = env_id
        # Bound here, so that a step costs no further call: it is 60 ns of about 900.
        self.step = transport.step  # type: ignore[method-assign]

    def reset(
        self,
        *,
        seed: int | None = None,
        task: Task | str | None = None,
        options: Mapping[str, Any] | None = None,
        episode_id: str | None = None,
    ) -> ResetResult[Any]:
        """Begin an episode.

        Args:
            seed: Begins a stream of seeds: this episode gets it, later ones follow from it.
                Left out, the stream goes on, or begins with one drawn from the system.
                `info["seed"]` shows it.
            task: What the episode is about, as a `Task` or the id of one.
            options: Whatever else the environment's `reset` takes.
            episode_id: A name for the episode; made up if left out.

        Raises:
            SeedError: The environment takes no seed.
            TaskError: The task is unknown, or none is taken.
            OptionError: The environment takes no options.
            ResetFailedError: The environment's own code raised. It ran once.
            ClosedError: The environment is closed.
        """
        return self._transport.reset(seed=seed, task=task, options=options, episode_id=episode_id)

    def step(self, action: Any) -> StepResult[Any]:
        """Act once.

        Args:
            action: The action, or a dict of its fields. With several agents, a dict with an
                action for exactly those in `result.needs`. While a tool call is open, its
                `ToolResult`.

        Raises:
            ActionError: The action was refused, by field. The episode is unharmed.
            ResetNeededError: No episode is running.
            ToolCallOpenError: A tool call waits for its answer.
            ClosedError: The environment is closed.
        """
        return self._transport.step(action)

    def state(self) -> State:
        """Return what the environment is, beyond what it shows.

        Raises:
            StateFailedError: The environment's own code raised. The episode is unharmed.
            ClosedError: The environment is closed.
        """
        return self._transport.state()

    def close(self) -> None:
        """Leave nothing behind. May be called twice."""
        self._transport.close()

    @property
    def action_spec(self) -> Spec:
        """What actions it takes; by agent where there are several."""
        return self._transport.interface.action_spec

    @property
    def observation_spec(self) -> Spec:
        """What it shows; by agent where there are several."""
        return self._transport.interface.observation_spec

    @property
    def tasks(self) -> Tasks | None:
        """What episodes can be about."""
        return self._transport.tasks

    @property
    def possible_agents(self) -> tuple[str, ...] | None:
        """All that may ever take part; `None` for one agent without a name."""
        return self._transport.interface.possible_agents

    @property
    def agents(self) -> list[str]:
        """Who takes part now."""
        return self._transport.agents

    @property
    def deterministic(self) -> bool:
        """Whether the same seed, task and actions give the same episode."""
        return self._transport.interface.deterministic

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Env({self.id!r})"


@final
class AsyncEnv:
    """The async caller's side of one environment: `Env`, awaited.

    Use it in an `async with` block, or `await close()`. One call at a time.

    Attributes:
        id: What it was made from.
    """

    def __init__(self, transport: AsyncTransport, env_id: str) -> None:
        self._transport = transport
        self.id = env_id

    async def reset(
        self,
        *,
        seed: int | None = None,
        task: Task | str | None = None,
        options: Mapping[str, Any] | None = None,
        episode_id: str | None = None,
    ) -> ResetResult[Any]:
        """Begin an episode. See `Env.reset`."""
        return await self._transport.reset(
            seed=seed, task=task, options=options, episode_id=episode_id
        )

    async def step(self, action: Any) -> StepResult[Any]:
        """Act once. See `Env.step`.

        Raises:
            BusyError: Another call on this environment is still under way.
        """
        return await self._transport.step(action)

    async def state(self) -> State:
        """Return what the environment is, beyond what it shows. See `Env.state`."""
        return await self._transport.state()

    async def close(self) -> None:
        """Leave nothing behind. May be called twice."""
        await self._transport.close()

    @property
    def action_spec(self) -> Spec:
        """What actions it takes; by agent where there are several."""
        return self._transport.interface.action_spec

    @property
    def observation_spec(self) -> Spec:
        """What it shows; by agent where there are several."""
        return self._transport.interface.observation_spec

    @property
    def tasks(self) -> Tasks | None:
        """What episodes can be about."""
        return self._transport.tasks

    @property
    def possible_agents(self) -> tuple[str, ...] | None:
        """All that may ever take part; `None` for one agent without a name."""
        return self._transport.interface.possible_agents

    @property
    def agents(self) -> list[str]:
        """Who takes part now."""
        return self._transport.agents

    @property
    def deterministic(self) -> bool:
        """Whether the same seed, task and actions give the same episode."""
        return self._transport.interface.deterministic

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncEnv({self.id!r})"
