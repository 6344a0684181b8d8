"""What authors write: `Environment`, and `MultiAgentEnvironment` for several agents."""

from __future__ import annotations

import copy
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

from envweave.environment.introspection import (
    Given,
    Interface,
    by_agent,
    coroutine_methods,
    for_one,
    hinted_specs,
    read_spec,
    reset_parameters,
)
from envweave.errors import DefinitionError, ForkError, format_error
from envweave.types import (
    REFUSED,
    EpisodeEnd,
    LogEvent,
    Observation,
    State,
    Tasks,
    ToolCallRequest,
    ToolResult,
)

logger = logging.getLogger("envweave.environment")

RESERVED = frozenset({"__all__", REFUSED, "episode", "reset_error", "seed"})
"""Names that flags and infos keyed by agent id already use."""


class _Place:
    """Stands in a copy for an environment, which is not copied."""


@final
@dataclass(frozen=True, slots=True)
class AttributesCopy:
    """A deep copy of an environment's attributes.

    Attributes:
        kind: The environment's class.
        attributes: The copies, by name.
        places: What stands in them for the environment, and for those inside it.
    """

    kind: type
    attributes: dict[str, Any]
    places: tuple[_Place, ...]


def copy_attributes(
    environment: Environment,
    without: Iterable[str] = (),
    inside: Iterable[Environment] = (),
) -> AttributesCopy:
    """Return a deep copy of an environment's attributes, but for the queue of its events.

    What refers to the environment itself, such as its bound methods, or to one of those `inside`
    it, will refer to the one that the attributes are pasted into.

    Raises:
        ForkError: One of them cannot be copied.
    """
    kind = type(environment)
    if any(vars(cls).get("__slots__") for cls in kind.__mro__):
        raise ForkError(
            f"{kind.__name__} has __slots__, which are not copied. Give it a snapshot() and a "
            "restore()."
        )
    own = {name: value for name, value in vars(environment).items() if name not in without}
    queue = own.setdefault(_QUEUE, [])
    kept = (environment, *inside)
    places = tuple(_Place() for _ in kept)
    # An environment inside, which is connected to the same queue, stays so.
    memo: dict[int, Any] = {id(queue): queue}
    memo.update((id(one), place) for one, place in zip(kept, places, strict=True))
    try:
        return AttributesCopy(kind, copy.deepcopy(own, memo), places)
    except Exception as error:  # what `deepcopy` runs is code of the attributes' authors
        raise ForkError(
            f"The attributes of {kind.__name__} cannot be copied: {format_error(error)}."
        ) from error


def paste_attributes(
    environment: Environment,
    copied: Any,
    without: Iterable[str] = (),
    inside: Iterable[Environment] = (),
) -> None:
    """Replace an environment's attributes by what `copy_attributes` returned.

    Raises:
        ForkError: They are those of an environment of another class, or with others inside.
    """
    kept = (environment, *inside)
    if (
        not isinstance(copied, AttributesCopy)
        or copied.kind is not type(environment)
        or len(copied.places) != len(kept)
    ):
        raise ForkError(
            f"The snapshot is not of a {type(environment).__name__} that was made in the same way."
        )
    own = vars(environment)
    memo: dict[int, Any] = {id(copied.attributes[_QUEUE]): own.get(_QUEUE)}
    memo.update((id(place), one) for place, one in zip(copied.places, kept, strict=True))
    pasted = copy.deepcopy(copied.attributes, memo)
    for name in [one for one in own if one not in without]:
        del own[name]
    own.update(pasted)


_QUEUE = "_emitted_events"
"""The attribute that connects an environment to its session."""


class Environment(ABC):
    """A world that an agent acts in. Subclass it, and write `reset` and `step`.

    ```python
    class CounterEnv(Environment):
        def reset(self, *, seed: int | None = None) -> CounterObservation: ...
        def step(self, action: CounterAction) -> CounterObservation: ...
    ```

    Both may be `async def`, and so may `state` and `close`. Each returns an `Observation` (which
    carries `reward`, `done` and `truncated`), a `StepResult`, or what Gymnasium returns: a tuple
    of two from `reset`, of five from `step`, with any observation. The session that `make` puts
    around it handles the order of calls, seeds, ends and failures, so the methods only implement
    the world itself.

    Attributes:
        deterministic: Whether the same seed, task and actions give the same episode.
        copyable: Whether `copy.deepcopy` of its attributes copies a running episode. Declare it
            if all of its state is in attributes: no file, process, connection, closure, weak
            reference or global.
        tasks: What episodes can be about. With tasks, `reset` is always given one.
        transform: Applied by the session to every observation, once, before the caller's.
        action_spec: The type of actions, if the hints of `step` don't give it: a type, or a
            `Spec`. With several agents also a dict with one for each, by agent id.
        observation_spec: The type of observations, likewise.
        openenv_fields: The fields of an observation that OpenEnv's typed clients know, which
            refuse any other. Other fields are sent to them in the metadata.
    """

    deterministic: bool = True
    copyable: bool = False
    tasks: Tasks | None = None
    transform: Callable[[Observation], Observation] | None = None
    action_spec: Any = None
    observation_spec: Any = None
    openenv_fields: Sequence[str] | None = None

    _emitted_events: list[LogEvent | ToolCallRequest | EpisodeEnd] | None = None

    @abstractmethod
    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Begin an episode and return its first observation.

        An author's `reset` takes any subset of `task`, `seed`, `options` and `episode_id`,
        by keyword. A caller's seed, task or options for a `reset` that does not take it is
        refused.
        """

    @abstractmethod
    def step(self, action: Any) -> Any:
        """Take one action. Only called while an episode is running.

        Raise `ActionError` before anything has changed to refuse the action: the caller gets
        the error, no step is counted, and the episode continues with the next action.
        """

    def answer(self, result: ToolResult) -> Any:
        """Continue with the answer to a tool call that this environment emitted.

        Returns what `step` returns. It does not count as a step of the episode.
        """
        raise NotImplementedError(
            f"{type(self).__name__} emitted the tool call {result.call_id!r} but has no answer()"
        )

    def solution(self) -> Any:
        """Return the next action of a solution to the running episode; `None` if none is known.

        With several agents it returns a dict of actions. `envweave audit` calls it in the
        environment's own process, before each step, to find out whether tasks can be solved. It is
        never called for a caller, so it may read the private part of the task.
        """
        return None

    def snapshot(self) -> Any:
        """Return the state of the running episode, for `restore`. It may be `async`.

        By default a deep copy of the attributes, if the class declares itself `copyable`. Steps
        that are taken later must not change what is returned.

        Raises:
            ForkError: The state cannot be copied. Callers then play the episode's actions again.
        """
        if not self.copyable:
            raise ForkError(f"{type(self).__name__} has no snapshot(), and is not `copyable`.")
        return copy_attributes(self)

    def restore(self, snapshot: Any) -> Any:
        """Continue from a snapshot of this environment, or of another one made in the same way.

        It may be called before the first `reset`, and many times with the same snapshot, which it
        must not change.
        """
        paste_attributes(self, snapshot)

    @property
    def state(self) -> Any:
        """The state behind the observations: a `State`, or an instance of a subclass.

        The session fills in `episode_id` if it is `None`, and `step_count` if the author has no
        `state`.
        """
        return State()

    def close(self) -> Any:
        """Free the environment's resources. Called once."""
        return None

    def emit(self, event: LogEvent | ToolCallRequest | EpisodeEnd) -> None:
        """Send an event to the caller, in the result of the current call.

        A `ToolCallRequest` waits for its `answer`. An `EpisodeEnd` sets the reason and the blame:
        `EpisodeEnd("timeout", blame="agent")` for an agent's endless loop. The reward is the one
        that this step returns.
        """
        if self._emitted_events is not None:
            self._emitted_events.append(event)
        else:
            logger.info("%s emitted %r outside a session", type(self).__name__, event)

    def connect(self, events: list[LogEvent | ToolCallRequest | EpisodeEnd]) -> None:
        """Append events to `events` from now on. Called by the session."""
        self._emitted_events = events

    def unwrap(self) -> Environment:
        """Return the environment to put under a session: this one.

        An environment with a session inside, for use without `make`, returns the one in that
        session, so that nothing is applied twice.
        """
        return self

    def hold(self) -> Callable[[], None]:
        """Keep what environments of this kind share, until the returned function is called.

        A server, which makes and closes many in turn, calls it on the first one.
        """
        return lambda: None

    def describe(self) -> Interface:
        """Return the interface that a session needs. Authors need not override it."""
        given, shown = self._specs(several_agents=False)
        return Interface(
            reset_parameters(self.reset, type(self).__name__),
            coroutine_methods(self),
            for_one(given, f"{type(self).__name__}.action_spec"),
            for_one(shown, f"{type(self).__name__}.observation_spec"),
            deterministic=self.deterministic,
            name=type(self).__name__,
            openenv_fields=None if self.openenv_fields is None else tuple(self.openenv_fields),
        )

    def _specs(self, *, several_agents: bool) -> tuple[Given, Given]:
        """The specs that the author set; by default, those from the hints of `step`."""
        given, shown = self.action_spec, self.observation_spec
        hinted: tuple[Any, Any] = (None, None)
        if given is None or shown is None:
            hinted = hinted_specs(self.step, several_agents=several_agents)
        name = type(self).__name__
        return (
            hinted[0] if given is None else read_spec(given, f"{name}.action_spec"),
            hinted[1] if shown is None else read_spec(shown, f"{name}.observation_spec"),
        )


class MultiAgentEnvironment(Environment):
    """A world for several agents, by turns or at once; agents may come and go.

    `reset` returns a dict of observations keyed by agent id, or a tuple of such a dict and a
    dict of infos. `step` takes a dict with an action for exactly those that `to_act` named,
    and returns a dict of observations (each carrying `reward`, `done`, `truncated`), or
    PettingZoo's five dicts. An agent whose `done` or `truncated` is true has left. The
    episode is over when no agent is left, or when a flag dict has `"__all__"` set.

    Agents may act and see in different types: hint `step` with a `TypedDict` that has a key for
    each agent, or set `action_spec` and `observation_spec` to a dict of types by agent id.

    Attributes:
        possible_agents: Every agent that may ever take part, in a fixed order.
    """

    possible_agents: Sequence[str] = ()

    def to_act(self) -> Sequence[str] | None:
        """Return the agents that must act now. `None`, the default, means all living agents."""
        return None

    def describe(self) -> Interface:
        """Return the interface that a session needs. Authors need not override it."""
        agents = tuple(self.possible_agents)
        if not agents or len(set(agents)) < len(agents) or RESERVED.intersection(agents):
            raise DefinitionError(
                f"{type(self).__name__}.possible_agents is {list(agents)!r}. List every agent id "
                f"that may ever take part, once; {', '.join(sorted(RESERVED))} mean something else."
            )
        given, shown = self._specs(several_agents=True)
        return Interface(
            reset_parameters(self.reset, type(self).__name__),
            coroutine_methods(self),
            by_agent(given, agents, "action_spec"),
            by_agent(shown, agents, "observation_spec"),
            agents,
            deterministic=self.deterministic,
            name=type(self).__name__,
        )
