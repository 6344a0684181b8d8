"""`VectorEnv`: many environments of one kind behind one call."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from envweave.codec import AgentsSpec, Spec
from envweave.errors import (
    BadReturnError,
    BusyError,
    CallOrderError,
    ClosedError,
    ForkError,
    OptionError,
    ResetFailedError,
    ResetNeededError,
)
from envweave.types import ResetResult, Snapshot, State, Task, Tasks
from envweave.vector.agents.batch import AgentResetBatch
from envweave.vector.agents.columns import ByAgent
from envweave.vector.agents.rows import AgentRows
from envweave.vector.arguments import (
    action_rows,
    agent_action_rows,
    read_ids,
    read_reset_kwargs,
    read_row,
    read_snapshots,
)
from envweave.vector.batch import OVER, ResetBatch, StepBatch, lend
from envweave.vector.columns import Layout, layout_of
from envweave.vector.forking import RowSnapshot, Siblings, snapshot_of, state_of
from envweave.vector.transport import BatchTransport, TakesArrays

BatchT = TypeVar("BatchT", ResetBatch, StepBatch)


@final
class VectorEnv:
    """Many environments of one kind, stepped together. Made by `make_vector`.

    One thread at a time may call it.

    ```python
    batch = venv.reset(seed=0)
    batch = venv.step(policy(batch.current))
    target = batch.reward + gamma * batch.bootstrap * value(batch.successor)
    ```

    Attributes:
        num_envs: How many there are.
        autoreset: Whether an end begins the next episode, in the same batch.
    """

    def __init__(
        self,
        transport: BatchTransport,
        num_envs: int,
        *,
        autoreset: bool = False,
        copy: bool = True,
        env_id: str = "",
        siblings: Siblings[VectorEnv] | None = None,
    ) -> None:
        agents = transport.interface.possible_agents
        self.num_envs = num_envs
        self.autoreset = autoreset
        self._transport = transport
        self._agents = None if agents is None else AgentRows(agents, num_envs)
        self._admit_array = transport.admit_array if isinstance(transport, TakesArrays) else None
        self._layout: Layout | None = None
        self._idle: dict[int, str] = {}  # the environments without a running episode, and why
        self._in_flight: set[int] = set()
        self._is_closed = False
        self._copies = copy
        self._env_id = env_id
        self._siblings = siblings

    @property
    def action_spec(self) -> Spec:
        """What one environment's action may be; `action_spec[agent_id]` with several agents."""
        return self._transport.interface.action_spec

    @property
    def observation_spec(self) -> Spec:
        """What one environment shows; `observation_spec[agent_id]` with several agents."""
        return self._transport.interface.observation_spec

    @property
    def possible_agents(self) -> tuple[str, ...] | None:
        """All agents that may ever take part, in the order of a batch's slots; `None` with one."""
        return self._transport.interface.possible_agents

    @property
    def tasks(self) -> Tasks | None:
        """What episodes can be about."""
        return self._transport.tasks

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        task: Task | str | Sequence[Task | str | None] | None = None,
        options: Mapping[str, Any] | None = None,
        ids: Sequence[int] | NDArray[np.integer[Any]] | None = None,
    ) -> ResetBatch:
        """Begin an episode in every environment, or in those of `ids`.

        With several agents it returns an `AgentResetBatch`.

        Args:
            seed: Environment i gets `seed + i`; a sequence has one for each environment.
            task: One for all, or one for each environment.
            options: Passed to every reset.
            ids: Which environments; the first reset is of all.

        Raises:
            SeedError, TaskError, OptionError: An environment refuses its arguments; it is
                named, and none was reset.
            ResetFailedError: An environment's `reset` raised; it is named by its index. The
                others have begun their episodes.
            BadReturnError: At the first reset, an environment's observation is of another kind
                than that of environment 0; it is named.
        """
        self._open("reset")
        chosen = list(range(self.num_envs)) if ids is None else read_ids(ids, self.num_envs)
        if self._layout is None and len(chosen) < self.num_envs:
            raise ResetNeededError(
                "The first reset() must be of all environments; leave out `ids`."
            )
        resets = read_reset_kwargs(chosen, seed, task, options)
        self._transport.check_reset(resets)
        try:
            outcomes = self._transport.reset(resets)
        except BaseException as error:
            self._note_interrupt("reset", chosen, error)
            raise
        return self._begin(outcomes, {})

    def _begin(
        self,
        outcomes: Mapping[int, ResetResult[Any] | Exception],
        acted: Mapping[int, Collection[str]],
    ) -> ResetBatch:
        """Record which episodes began; `acted` has the agents that have acted in them."""
        began = {i: r for i, r in outcomes.items() if not isinstance(r, Exception)}
        failed = {i: r for i, r in outcomes.items() if isinstance(r, Exception)}
        for i in began:
            self._idle.pop(i, None)
        for i, failure in failed.items():
            if isinstance(failure, ResetFailedError | ForkError):
                self._idle[i] = str(failure)
        if self._layout is None and not failed:
            self._layout = self._fix([began[i].observation for i in range(self.num_envs)])
        if self._agents is not None:
            self._agents.restart(began, acted)
        if failed:
            first = min(failed)
            raise type(failed[first])(f"Environment {first}: {failed[first]}") from failed[first]
        others = [i for i in range(self.num_envs) if i not in began]
        statuses = self._transport.row_status(others) if others else ()
        kept, idle = dict(zip(others, statuses, strict=True)), frozenset(self._idle)
        if self._agents is not None:
            return self._export(AgentResetBatch(began, kept, idle, self._agents.slots(idle)))
        return self._export(ResetBatch(began, kept, idle, self._transport.columns))

    def _export(self, batch: BatchT) -> BatchT:
        if not self._copies:
            lend(batch)
        return batch

    def _fix(self, observations: list[Any]) -> Layout:
        layout: Layout | None = None
        if self._agents is not None:
            layout = self._agents.fix(_by_agent(self.observation_spec), observations)
        for i, observation in enumerate(observations):
            try:
                layout = layout or layout_of(self.observation_spec, observation)
                layout.check(observation)
            except BadReturnError as error:
                raise BadReturnError(f"Environment {i}: {error}") from None
        assert layout is not None
        self._transport.fix(layout, observations)
        return layout

    def _note_interrupt(self, call: str, ids: Iterable[int], error: BaseException) -> None:
        """Record a call that did not return.

        Steps that can still be received are in flight. How far the other environments got is
        unknown, so they must be reset.
        """
        self._in_flight = self._transport.receivable
        why = f"its last {call}() was interrupted by {type(error).__name__}"
        self._idle.update(dict.fromkeys(set(ids) - self._in_flight, why))

    def step(self, actions: Any) -> StepBatch:
        """Step every environment once.

        An action that an environment's own `step` refuses leaves its row where it was, and
        `batch.refused` is true there. With several agents it returns an `AgentStepBatch`.

        Args:
            actions: A list of actions or dicts; a dict of columns; or one array, where an
                action has one field. With several agents: a list with a dict by agent of
                exactly those that must act; a dict by agent of any of these forms, where the
                actions of agents that must not act are ignored; or one array with a row for
                each environment and a column for each agent. If one is refused, none is
                stepped.

        Raises:
            ActionError: An action was refused; the message begins with its index.
            ResetNeededError: An environment has no episode running; it is named.
        """
        self._open("step")
        everyone = range(self.num_envs)
        self._refuse_idle("step", everyone)
        admitted: Sequence[Any] | None = None
        if self._admit_array is not None and isinstance(actions, np.ndarray):
            admitted = self._admit_array(actions)
        if admitted is None:
            admitted = self._transport.admit(everyone, self._read(actions, everyone))
        try:
            batch = self._transport.step(admitted)
        except BaseException as error:
            self._note_interrupt("step", everyone, error)
            raise
        self._idle = batch.idle
        return self._export(batch if self._agents is None else self._agents.record(batch))

    def _read(self, actions: Any, ids: Sequence[int]) -> list[Any]:
        """Return one action for each of these environments."""
        if self._agents is None:
            return action_rows(actions, len(ids), self.action_spec)
        to_act, spec = self._agents.to_act(ids), _by_agent(self.action_spec)
        return agent_action_rows(actions, to_act, self._agents.agents, spec)

    def send(
        self, actions: Any, *, ids: Sequence[int] | NDArray[np.integer[Any]] | None = None
    ) -> None:
        """Have some environments take a step, without waiting for it. `recv` returns it.

        Args:
            actions: One for each of `ids`, in any form that `step` takes. If one is refused,
                none is stepped.
            ids: Which environments; by default all that are not in flight, in order.

        Raises:
            ActionError: An action was refused; the message begins with its index.
            ResetNeededError: An environment has no episode running; it is named.
            BusyError: An environment is still in flight; it is named.
        """
        self._open("send", while_in_flight=True)
        chosen = self._chosen(ids)
        self._refuse_idle("send", chosen)
        admitted = self._transport.admit(chosen, self._read(actions, chosen))
        try:
            self._transport.send(chosen, admitted)
        except BaseException as error:
            self._note_interrupt("send", chosen, error)
            raise
        self._in_flight.update(chosen)

    def _chosen(self, ids: Any) -> list[int]:
        if ids is None:
            free = [i for i in range(self.num_envs) if i not in self._in_flight]
            if not free:
                raise BusyError("send() while all environments are in flight. Call recv() first.")
            return free
        chosen = read_ids(ids, self.num_envs)
        busy = [i for i in chosen if i in self._in_flight]
        if busy:
            raise BusyError(f"Environments {busy[:8]} are still in flight. Call recv() first.")
        return chosen

    def recv(self, min_ready: int = 1, *, timeout_s: float | None = None) -> StepBatch:
        """Return the steps that are done, the oldest first, when `min_ready` of them are.

        Rows are in the order in which they were done, at most one per environment;
        `batch.ids` says which. Short steps return more often: a learner that counts rows
        sees more of the fast environments than of the slow ones.

        Args:
            min_ready: How many to wait for; no more than are in flight.
            timeout_s: After so long, return fewer, or none. Steps that run in the caller's own
                thread, as with `mode="serial"` or in the rows that `backend="process"` leaves
                to it, are not interrupted.

        Raises:
            CallOrderError: No environment is in flight.
        """
        self._open("recv", while_in_flight=True)
        if not self._in_flight:
            raise CallOrderError("recv() while no environment is in flight. Call send() first.")
        if not isinstance(min_ready, int) or isinstance(min_ready, bool) or min_ready < 1:
            raise OptionError(f"min_ready must be an integer of 1 or more, got {min_ready!r}.")
        if timeout_s is not None and not (isinstance(timeout_s, int | float) and timeout_s >= 0):
            raise OptionError(f"timeout_s must be 0 or more seconds, got {timeout_s!r}.")
        try:
            batch = self._transport.recv(min(min_ready, len(self._in_flight)), timeout_s)
        except BaseException as error:
            self._note_interrupt("recv", self._in_flight, error)
            raise
        self._in_flight.difference_update(batch.ids.tolist())
        self._idle |= batch.idle
        return self._export(batch if self._agents is None else self._agents.record(batch))

    def drain(self) -> StepBatch:
        """Return the steps of all environments in flight, when all are done."""
        return self.recv(self.num_envs)

    @property
    def in_flight(self) -> int:
        """How many environments have a step that was sent and not received."""
        return len(self._in_flight)

    def _refuse_idle(self, call: str, ids: Sequence[int]) -> None:
        if self._layout is None:
            raise ResetNeededError(f"{call}() before the first reset(). Call reset() first.")
        if not self._idle:
            return
        idle = [i for i in ids if i in self._idle]
        if idle:
            why = self._idle[idle[0]]
            ways = ", or make the vector with autoreset=True" if why == OVER else ""
            shown = f"{idle[:8]}{' and more' if len(idle) > 8 else ''}"
            raise ResetNeededError(
                f"{call}() while no episode is running in environments {shown}. Environment "
                f"{idle[0]}: {why.removesuffix('.')}. Call reset(ids=[…]) first{ways}."
            )

    def state(self) -> list[State]:
        """Return the state of each environment."""
        self._open("state")
        return self._transport.state()

    def snapshot(self, row: int) -> Snapshot:
        """Return the point that the episode in a row has reached, for `restore`.

        All environments continue unchanged. What is kept is what `Env.snapshot` keeps.

        Raises:
            ForkError: The environment cannot be copied, and its actions are not kept.
            ResetNeededError: No episode is running in that row.
        """
        self._open("snapshot")
        i = read_row(row, self.num_envs)
        self._refuse_idle("snapshot", [i])
        assert self._layout is not None
        try:
            point = self._transport.snapshot(i)
        except ForkError as error:
            raise ForkError(f"Environment {i}: {self._advised(error)}") from error
        (status,) = self._transport.row_status([i])
        acted: frozenset[str] = frozenset() if self._agents is None else self._agents.acted(i)
        return snapshot_of(
            self._env_id, RowSnapshot(point, self._layout, status.observation, acted)
        )

    def _advised(self, error: ForkError) -> ForkError:
        return error if self._siblings is None else self._siblings.advise(error)

    def restore(
        self,
        snapshot: Snapshot | Sequence[Snapshot],
        *,
        ids: Sequence[int] | NDArray[np.integer[Any]] | None = None,
    ) -> ResetBatch:
        """Continue from a snapshot in every environment, or in those of `ids`.

        Each begins an episode of its own, with the state and the steps of then, as
        `Env.restore` does. It may be the first call on a vector, if it is for all of them.

        Args:
            snapshot: One for all, or one for each environment. It may be of another row, or of
                another vector that was made in the same way.
            ids: Which environments.

        Raises:
            ForkError: The same state is not reached in an environment; it is named by its index,
                the message has the first difference, and it must be reset. The others continue.
            OptionError: It is not a snapshot of such an environment, or there are too few or too
                many. Nothing has changed.
        """
        self._open("restore")
        chosen = list(range(self.num_envs)) if ids is None else read_ids(ids, self.num_envs)
        if self._layout is None and len(chosen) < self.num_envs:
            raise ResetNeededError(
                "The first reset() or restore() must be of all environments; leave out `ids`."
            )
        given = read_snapshots(snapshot, chosen)
        points = {i: state_of(one, self._env_id) for i, one in given.items()}
        rows = {i: one.state for i, one in given.items() if isinstance(one.state, RowSnapshot)}
        if self._layout is None and len(rows) == self.num_envs:
            self._adopt(rows[0].layout, [rows[i].shown for i in chosen])
        try:
            outcomes = self._transport.restore(points)
        except BaseException as error:
            self._note_interrupt("restore", chosen, error)
            raise
        return self._begin(outcomes, {i: one.acted for i, one in rows.items()})

    def _adopt(self, layout: Layout, observations: list[Any]) -> None:
        """Fix the columns as those of another vector, before any episode began."""
        if self._agents is not None:
            assert isinstance(layout, ByAgent)
            self._agents.adopt(layout)
        self._transport.fix(layout, observations)
        self._layout = layout

    def fork(self, row: int, n: int = 1) -> VectorEnv:
        """Return a vector of `n` environments that continue from a row, each by itself.

        It runs where this one does, and this one continues unchanged. Close it.

        Raises:
            ForkError: As `snapshot` and `restore`; nothing is left open.
        """
        if self._siblings is None:
            raise ForkError("Only vectors that make_vector() made can be forked.")
        point = self.snapshot(row)
        child = self._siblings.open(n)
        try:
            child.restore(point)
        except BaseException:
            child.close()
            raise
        return child

    def close(self) -> None:
        """Leave nothing behind. May be called twice."""
        self._is_closed = True
        self._transport.close()

    def _open(self, call: str, *, while_in_flight: bool = False) -> None:
        if self._is_closed:
            raise ClosedError(f"{call}() on a vector environment that is closed. Make a new one.")
        if self._in_flight and not while_in_flight:
            raise BusyError(
                f"{call}() while {len(self._in_flight)} environments are in flight. Call recv() "
                "or drain() first."
            )

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
        return f"VectorEnv(num_envs={self.num_envs}, action_spec={self.action_spec!r})"


def _by_agent(spec: Spec) -> AgentsSpec:
    assert isinstance(spec, AgentsSpec)
    return spec
