"""An environment with a session inside, for use without `make`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from envweave.environment import Environment, Interface
from envweave.errors import ForkError, OptionError
from envweave.session.driver import LoopDriver, SyncDriver
from envweave.session.session import Phase, Session, SessionSnapshot
from envweave.types import (
    EpisodeEnd,
    LogEvent,
    Observation,
    State,
    Task,
    ToolCallRequest,
    ToolResult,
)


@final
class DirectEnvironment(Environment):
    """Runs an environment under its episode rules, and returns bare observations.

    The rules are those of `make`: a step before the first reset is refused (unless
    `reset_on_first_step`), bad actions are refused by field, the transform is applied once.
    `make`, `register` and `create_fastapi_app` unwrap it, and put their own session around the
    environment inside.

    ```python
    env = create_codeact_env()
    env.transform = create_math_env_transform(expected_answer=42)
    env.step(CodeAction(code="6 * 7")).reward
    env.close()
    ```

    Args:
        environment: The environment to run. It is closed with this one.
        reset_on_first_step: Whether a `step` before the first `reset` starts the first episode.
            With tasks it never does, since the agent has not seen its task. Every later episode
            needs a `reset`.
        again: Makes another environment of this kind, for `fork`; `None` if there can be only one.
    """

    def __init__(
        self,
        environment: Environment,
        *,
        reset_on_first_step: bool = False,
        again: Callable[[], Environment] | None = None,
    ) -> None:
        self.environment = environment.unwrap()
        self.deterministic = self.environment.deterministic
        self.tasks = self.environment.tasks
        self._session = Session(self.environment)
        self._reset_on_first_step = reset_on_first_step and self.tasks is None
        self._again = again
        self._made: LoopDriver | SyncDriver | None = None
        self._is_apart = False

    @property
    def _driver(self) -> LoopDriver | SyncDriver:
        """The driver, made on first use, since `make` may unwrap the environment instead."""
        if self._made is None:
            is_async = self._session.interface.is_async
            self._made = LoopDriver(self._session) if is_async else SyncDriver(self._session)
        return self._made

    @property
    def transform(self) -> Callable[[Observation], Observation] | None:
        """Applied to every observation from now on."""
        return self.environment.transform

    @transform.setter
    def transform(self, transform: Callable[[Observation], Observation] | None) -> None:
        if transform is not None and not callable(transform):
            raise OptionError(f"transform={transform!r} cannot be called with an observation.")
        self.environment.transform = transform
        self._session.update_transform()

    def reset(
        self,
        *,
        seed: int | None = None,
        task: Task | str | None = None,
        options: dict[str, Any] | None = None,
        episode_id: str | None = None,
    ) -> Any:
        """Begin an episode and return its first observation. See `Env.reset`."""
        return self._shown(
            self._driver.reset(seed=seed, task=task, options=options, episode_id=episode_id)
        )

    def step(self, action: Any) -> Any:
        """Take one action and return the observation.

        Its `reward` and `done` are those of the result that an `Env` would return. If a failure
        ended the episode, `metadata["end"]` says why.
        """
        if self._reset_on_first_step and self._session.phase is Phase.FRESH:
            self._driver.reset()
        return self._shown(self._driver.step(action))

    def answer(self, result: ToolResult) -> Any:
        """Answer a tool call of the environment."""
        return self._shown(self._driver.step(result))

    def _shown(self, result: Any) -> Any:
        observation = result.observation
        if not isinstance(observation, Observation):
            return observation
        if result.end is not None:
            observation.done = bool(result.terminated)
            observation.truncated = bool(result.truncated)
            observation.reward = result.reward
            end = result.end
            ended = {"reason": end.reason, "blame": end.blame, "cause": end.cause}
            observation.metadata = {**observation.metadata, "end": ended}
        return observation

    def snapshot(self) -> SessionSnapshot:
        """Return the point that the running episode has reached. See `Env.snapshot`."""
        return self._driver.snapshot()

    def restore(self, snapshot: SessionSnapshot) -> Any:
        """Continue from a snapshot; return the observation of then. See `Env.restore`."""
        return self._shown(self._driver.restore(snapshot))

    def fork(self, n: int = 1) -> list[DirectEnvironment]:
        """Return `n` environments that continue from here. See `Env.fork`."""
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise OptionError(f"n must be an integer >= 1, got {n!r}.")
        point = self.snapshot()
        if self._again is None:
            raise ForkError(
                f"{self._session.interface.name} was made with an executor, which cannot be two. "
                "Pass the executor's name and its options instead; or use snapshot() and restore()."
            )
        children: list[DirectEnvironment] = []
        try:
            for _ in range(n):
                children.append(DirectEnvironment(self._again(), again=self._again))
                children[-1].environment.transform = self.environment.transform
                children[-1].restore(point)
        except BaseException:
            for child in children:
                child.close()
            raise
        return children

    @property
    def state(self) -> State:
        """The state of the environment inside."""
        return self._driver.state()

    def close(self) -> None:
        """Close the environment inside, once; if `make` has unwrapped it, `make` closes it."""
        if self._made is not None or not self._is_apart:
            self._driver.close()

    def __enter__(self) -> DirectEnvironment:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def unwrap(self) -> Environment:
        """Return the environment inside, for another session."""
        made, self._made, self._is_apart = self._made, None, True
        if isinstance(made, LoopDriver):
            made.detach()
        return self.environment

    def connect(self, events: list[LogEvent | ToolCallRequest | EpisodeEnd]) -> None:
        """Connect the environment inside."""
        self.environment.connect(events)

    def hold(self) -> Callable[[], None]:
        """Keep the resources that environments like the one inside share."""
        return self.environment.hold()

    def describe(self) -> Interface:
        """Describe the environment inside."""
        return self.environment.describe()
