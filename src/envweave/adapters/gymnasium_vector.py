"""A Gymnasium vector, adapted as a whole: stepped with arrays, never split up.

On an ordinary step nothing is done per row. Rows whose episode ended become separate results, as
for single environments.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias, final

import numpy as np
from gymnasium.vector import (
    AsyncVectorEnv,
    AutoresetMode,
    SyncVectorEnv,
    VectorObservationWrapper,
    VectorWrapper,
)
from numpy.typing import NDArray

from envweave.adapters.gymnasium_columns import (
    BatchActions,
    RowInfos,
    Rows,
    batched,
    columns_of,
    final_row,
    fitted,
    kept,
    length_of,
    row_info,
    row_of,
    rows_of,
)
from envweave.codec.gymnasium_spaces import from_space
from envweave.environment import Interface
from envweave.environment.introspection import reset_parameters
from envweave.errors import (
    BadReturnError,
    DefinitionError,
    ForkError,
    OptionError,
    ResetFailedError,
    SeedError,
    TaskError,
    format_error,
)
from envweave.session.episodes import draw_seed, episode_seed, read_seed
from envweave.session.results import bad_step, check_parts
from envweave.types import AutoResetReady, EpisodeEnd, ResetResult, State, StepResult, Tasks
from envweave.vector import StepBatch
from envweave.vector.arguments import ResetKwargs
from envweave.vector.batch import RowStatus, Tick
from envweave.vector.columns import Arrays, Columns, Layout, Listed, replaced

Seeding: TypeAlias = Literal["each", "batch", "none"]
"""Whether `reset` takes one seed per environment, one for the batch, or none."""

_PASSES_RESETS_ON = (VectorWrapper.reset, VectorObservationWrapper.reset)


class Abilities(NamedTuple):
    """What a Gymnasium vector can do.

    Attributes:
        same_step: Whether it resets ended episodes by itself, in the same step.
        resets_some: Whether it can reset only some environments.
        seeding: How it takes seeds.
        reset_takes: Which of `seed` and `options` its `reset` takes.
    """

    same_step: bool
    resets_some: bool
    seeding: Seeding
    reset_takes: frozenset[str]


def read_abilities(env: Any, name: str, *, autoreset: bool) -> Abilities:
    """Find out what a Gymnasium vector can do.

    Raises:
        DefinitionError: It lacks an attribute that every such vector has.
        OptionError: It does not support the value of `autoreset`; the message says which do.
    """
    for needed in ("num_envs", "single_action_space", "single_observation_space"):
        if getattr(env, needed, None) is None:
            raise DefinitionError(f"{name} has no {needed}. Set it in its constructor.")
    mode = env.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        raise DefinitionError(
            f"{name} does not say how it resets: metadata['autoreset_mode'] is {mode!r}. Set it "
            "to a gymnasium.vector.AutoresetMode."
        )
    inner, is_direct = _unwrapped(env)
    pooled = _is_envpool(inner)
    if pooled and inner.is_async:
        raise OptionError(
            f"{name} was made with batch_size below num_envs, so a step returns only some rows. "
            "Make it without batch_size."
        )
    single = isinstance(inner, SyncVectorEnv | AsyncVectorEnv)
    takes = reset_parameters(env.reset, name) & {"seed", "options"}
    by_contract = mode is AutoresetMode.DISABLED
    some = (by_contract or (is_direct and (single or pooled))) and "options" in takes
    if mode is AutoresetMode.SAME_STEP and not autoreset:
        raise OptionError(
            f"{name} resets ended episodes itself (autoreset_mode SAME_STEP), so autoreset=False "
            "cannot be honored. Pass autoreset=True, or construct it with DISABLED."
        )
    if by_contract and not some:
        raise DefinitionError(
            f"{name} leaves resets to its caller (autoreset_mode DISABLED), so its reset() must "
            "take `options` with a 'reset_mask'."
        )
    if mode is AutoresetMode.NEXT_STEP and not (some and _clears_what_is_pending(inner)):
        raise OptionError(
            f"{name} resets ended episodes in the next step and drops that step's action "
            "(autoreset_mode NEXT_STEP), and cannot reset them earlier. Construct it with "
            "autoreset_mode SAME_STEP or DISABLED, or pass a function that makes one environment."
        )
    return Abilities(
        same_step=mode is AutoresetMode.SAME_STEP,
        resets_some=some,
        seeding="none" if pooled else "each" if single else "batch",
        # EnvPool takes a seed only in its constructor, and no options but the mask.
        reset_takes=frozenset() if pooled else takes,
    )


def _unwrapped(env: Any) -> tuple[Any, bool]:
    """Return the vector under its wrappers, and whether all of them pass resets on unchanged."""
    is_direct = True
    while isinstance(env, VectorWrapper):
        is_direct = is_direct and type(env).reset in _PASSES_RESETS_ON
        env = env.env
    return env, is_direct


def _is_envpool(env: Any) -> bool:
    return any(cls.__module__.partition(".")[0] == "envpool" for cls in type(env).__mro__)


def _clears_what_is_pending(env: Any) -> bool:
    # Without shared memory its workers ignore it, as of Gymnasium 1.4.
    return not isinstance(env, AsyncVectorEnv) or bool(env.shared_memory)


MASK = "reset_mask"
"""The option of Gymnasium's `reset` that selects environments."""


@final
class _Seeds:
    """A stream of seeds, which begins with a caller's seed or a random one."""

    def __init__(self) -> None:
        self._base: int | None = None
        self._k = -1

    def next(self, seed: int | None) -> int:
        """Return the seed of the next episode."""
        if seed is not None:
            self._base, self._k = read_seed(seed), 0
        else:
            self._base = draw_seed() if self._base is None else self._base
            self._k += 1
        return episode_seed(self._base, self._k)


@final
class ResetPlan:
    """The episodes of each environment of a vector, and how to request the next ones.

    If the vector takes one seed per environment, each has a stream of seeds, as single
    environments do. If it takes one for the batch, the batch has a stream, and resets in between
    continue with the vector's own generator.
    """

    def __init__(self, interface: Interface, abilities: Abilities, count: int) -> None:
        self._name, self._abilities, self._count = interface.name, abilities, count
        self._takes = interface.reset_takes
        self._seeds = [_Seeds() for _ in range(count if abilities.seeding == "each" else 1)]
        self._prefix = secrets.token_hex(6)
        self._begun = [-1] * count

    def check(self, resets: ResetKwargs) -> None:
        """Refuse arguments that cannot be honored; nothing changes.

        Raises:
            SeedError, TaskError, OptionError: The message says what can be honored instead.
        """
        first = next(iter(resets.values()), None)
        if first is None:
            return
        for i, one in resets.items():
            if one["task"] is not None:
                raise TaskError(
                    f"Environment {i}: {self._name}.reset() takes no task, but was given "
                    f"{one['task']!r}."
                )
        options = first["options"]
        if options is not None and "options" not in self._takes:
            raise OptionError(
                f"options={options!r} cannot be honored: {self._name}.reset() takes no options."
            )
        if MASK in (options or ()):
            raise OptionError(f"options[{MASK!r}] is set by envweave. Use ids=[…].")
        self._check_seeds([one["seed"] for one in resets.values()])
        if len(resets) < self._count and not self._abilities.resets_some:
            raise OptionError(
                f"ids={list(resets)[:8]} cannot be honored: {self._name} resets all its "
                "environments at once. Leave out `ids`."
            )

    def _check_seeds(self, seeds: list[Any]) -> None:
        given = [read_seed(seed) for seed in seeds if seed is not None]
        if not given:
            return
        if self._abilities.seeding == "none":
            raise SeedError(
                f"seed={given[0]} cannot be honored: {self._name} takes its seed when it is made, "
                "as in envpool.make_gymnasium(…, seed=0). Reset without one."
            )
        if "seed" not in self._takes:
            raise SeedError(
                f"seed={given[0]} cannot be honored: {self._name}.reset() takes no seed. "
                "Reset without one."
            )
        if self._abilities.seeding == "batch":
            if len(seeds) < self._count:
                raise SeedError(
                    f"A seed for some environments cannot be honored: {self._name} takes one "
                    "seed for the whole batch. Reset all, or these without a seed."
                )
            if given != list(range(given[0], given[0] + self._count)):
                raise SeedError(
                    f"One seed per environment cannot be honored: {self._name} takes one seed "
                    "for the whole batch. Pass one number, such as seed=0."
                )

    def choose(self, resets: ResetKwargs) -> tuple[dict[str, Any], dict[int, dict[str, int]]]:
        """Return the keywords for the vector's `reset`, and the known seeds for each info.

        A per-environment seed is called `seed`; one for the whole batch `batch_seed`.
        """
        keywords: dict[str, Any] = {}
        known: dict[int, dict[str, int]] = {}
        is_whole = len(resets) == self._count
        if "seed" in self._takes and self._abilities.seeding == "each":
            seeds = {i: self._seeds[i].next(one["seed"]) for i, one in resets.items()}
            keywords["seed"] = [seeds.get(i) for i in range(self._count)]
            known = {i: {"seed": seed} for i, seed in seeds.items()}
        elif "seed" in self._takes and is_whole:
            keywords["seed"] = self._seeds[0].next(resets[0]["seed"])
            known = {i: {"batch_seed": keywords["seed"]} for i in resets}
        options = next(iter(resets.values()))["options"]
        if options is not None:
            keywords["options"] = dict(options)
        if not is_whole:
            mask = np.zeros(self._count, np.bool_)
            mask[list(resets)] = True
            keywords["options"] = {**keywords.get("options", {}), MASK: mask}
        return keywords, known

    def begin(self, i: int) -> str:
        """Return the id of an environment's next episode."""
        self._begun[i] += 1
        return f"{self._prefix}-{i}-{self._begun[i]}"


logger = logging.getLogger(__name__)

_NOTHING: Mapping[int, Any] = {}
_NO_OPTIONS: Mapping[str, Any] = {"seed": None, "task": None, "options": None}


class _StepColumns(NamedTuple):
    """The return value of one `step` of the vector, checked and copied."""

    shown: Columns
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: dict[str, Any]


class _Start(NamedTuple):
    """The start of one environment's next episode; `seeds` are the known seeds."""

    observation: Any
    info: dict[str, Any]
    seeds: dict[str, int]


@final
class GymnasiumBatch:
    """Carries a `VectorEnv`'s calls to a Gymnasium vector."""

    def __init__(self, env: Any, *, autoreset: bool) -> None:
        self._name = name = type(env.unwrapped).__name__
        abilities = read_abilities(env, name, autoreset=autoreset)
        self._env, self._autoreset, self._abilities = env, autoreset, abilities
        self._single, self.num_envs = env.single_observation_space, (count := int(env.num_envs))
        self._actions = BatchActions(env.single_action_space, count)
        self._space = batched(self._single, count)
        spec = getattr(env, "spec", None)
        self.interface = Interface(
            abilities.reset_takes,
            frozenset(),
            self._actions.spec,
            from_space(self._single),
            deterministic=not getattr(spec, "nondeterministic", False),
            name=name,
        )
        self.tasks: Tasks | None = None
        self._resets = ResetPlan(self.interface, abilities, count)
        self._ids = range(count)
        self._layout: Layout = Listed()
        self._columns: Columns = None  # what to act on next; read-only
        self._sent: list[Any] | None = None
        self._is_closed = False
        self._tick = 0
        # Batches refer to these, so they are copied before each write.
        self._starts = np.zeros(count, np.int64)
        self._episodes: list[str | None] = [None] * count
        self._tasks: list[str | None] = [None] * count

    @property
    def columns(self) -> Columns:
        """What to act on next. Read-only."""
        return self._columns

    @property
    def receivable(self) -> set[int]:
        """All environments, if actions were sent and not stepped yet."""
        return set() if self._sent is None else set(self._ids)

    def snapshot(self, row: int) -> NoReturn:  # noqa: ARG002
        """Refuse: Gymnasium's vectors have no such call.

        Raises:
            ForkError: Always.
        """
        raise self._no_forks()

    def restore(self, points: Mapping[int, Any]) -> dict[int, ResetResult[Any] | Exception]:
        """Refuse, as `snapshot` does."""
        return {row: self._no_forks() for row in points}

    def _no_forks(self) -> ForkError:
        return ForkError(
            f"The rows of {self._name} cannot be copied: it is a Gymnasium vector, which has no "
            "call for that. Make a vector of single environments, by their ID or class."
        )

    def fix(self, layout: Layout, observations: Sequence[Any]) -> None:
        """Fix the layout of the columns, at the first reset."""
        self._layout = layout
        self._columns = layout.gather(observations)

    # Resets

    def check_reset(self, resets: ResetKwargs) -> None:
        """Refuse what `reset` would refuse; nothing changes."""
        self._resets.check(resets)

    def reset(self, resets: ResetKwargs) -> dict[int, ResetResult[Any] | Exception]:
        """Begin an episode in each of these; on failure, the error takes each result's place."""
        try:
            starts = self._restart(resets)
        except Exception as error:  # noqa: BLE001 - the author's code, the boundary itself
            return {i: self._reset_failure(error) for i in resets}
        outcomes: dict[int, ResetResult[Any] | Exception] = {}
        for i, start in starts.items():
            info = {**start.info, **start.seeds}
            outcomes[i] = ResetResult(start.observation, info, episode_id=self._episodes[i])
        return outcomes

    def _reset_failure(self, error: Exception) -> Exception:
        failure = ResetFailedError(f"{self._name}.reset() failed: {format_error(error)}")
        failure.__cause__ = error
        return failure

    def _restart(self, resets: ResetKwargs) -> dict[int, _Start]:
        """Begin an episode in each of these, by one call of the vector's `reset`."""
        ids = list(resets)
        keywords, seeds = self._resets.choose(resets)
        outcome = self._env.reset(**keywords)
        if not isinstance(outcome, tuple) or len(outcome) != 2:
            raise BadReturnError("reset() did not return a tuple of observations and info.")
        shown, infos = outcome[0], kept(outcome[1])
        # EnvPool returns the rows that were reset; Gymnasium returns all of them.
        count = self.num_envs if self._columns is None else length_of(shown, self._single)
        places = ids if count == self.num_envs else range(len(ids))
        if self._columns is None:
            rows = rows_of(self._space, shown)
            if len(rows) != count:
                raise BadReturnError(f"reset() returned {len(rows)} rows, not {count}.")
            observed = {i: rows[i] for i in ids}
        else:
            columns = columns_of(self._layout, self._space, shown, count)
            observed = {
                i: row_of(columns, k, self._layout) for i, k in zip(ids, places, strict=True)
            }
        self._start(observed)
        return {
            i: _Start(observed[i], row_info(infos, k, count), seeds.get(i, {}))
            for i, k in zip(ids, places, strict=True)
        }

    def _start(self, observed: Mapping[int, Any]) -> None:
        """Record the first observations of new episodes."""
        if not observed:
            return
        ids = list(observed)
        self._starts, self._episodes = self._starts.copy(), list(self._episodes)
        self._starts[ids] = self._tick
        for i in ids:
            self._episodes[i] = self._resets.begin(i)
        if self._columns is not None:
            self._columns = replaced(self._columns, observed, self._layout)

    def row_status(self, ids: Sequence[int]) -> list[RowStatus]:
        """Return the current observations of these environments."""
        index = self._tick - self._starts
        return [
            RowStatus(
                row_of(self._columns, i, self._layout), int(index[i]), self._episodes[i], None
            )
            for i in ids
        ]

    # Steps

    def admit(self, ids: Sequence[int], actions: Sequence[Any]) -> list[Any]:
        """Return one batch of the actions, or refuse; nothing changes."""
        if len(ids) < self.num_envs:
            raise OptionError(
                f"ids={list(ids)[:8]} cannot be honored: {self._name} steps all its "
                "environments at once. Send an action for each of them."
            )
        if list(ids) == list(self._ids):
            return [self._actions.read(actions)]
        by_id = dict(zip(ids, actions, strict=True))
        return [self._actions.read([by_id[i] for i in self._ids])]

    def admit_array(self, actions: NDArray[Any]) -> list[Any] | None:
        """Return one array as `step` takes it; `None` if each action must be checked."""
        batch = self._actions.read_array(actions)
        return None if batch is None else [batch]

    def send(self, ids: Sequence[int], actions: Sequence[Any]) -> None:  # noqa: ARG002 - all
        """Keep the actions; the environments are stepped by `recv`."""
        self._sent = list(actions)

    def recv(self, min_ready: int, timeout_s: float | None) -> StepBatch:  # noqa: ARG002
        """Step all of them; all are then ready."""
        sent, self._sent = self._sent, None
        assert sent is not None
        return self.step(sent)

    def step(self, actions: Sequence[Any]) -> StepBatch:
        """Step every environment once, with the batch of actions that was admitted."""
        try:
            columns = self._read(self._env.step(actions[0]))
        except Exception as error:
            logger.warning("all episodes of %s ended: its step failed", self._name, exc_info=error)
            nothing = np.zeros(self.num_envs, np.bool_)
            no_rewards = np.full(self.num_envs, math.nan)
            columns = _StepColumns(self._columns, no_rewards, nothing, nothing, {})
            return self._record(columns, {i: self._failed(i, error) for i in self._ids}, {})
        failures = self._failures(columns)
        over = np.flatnonzero(columns.terminated | columns.truncated).tolist()
        if not over and not failures:
            return self._record(columns, {}, {})
        if self._abilities.same_step:
            return self._record_same_step(columns, over, failures)
        infos = RowInfos(columns.infos, self.num_envs)
        special = {
            i: self._ended(i, columns, row_of(columns.shown, i, self._layout), infos[i])
            for i in over
        }
        special |= {i: self._failed(i, error) for i, error in failures.items()}
        return self._record(columns, special, {})

    def _read(self, outcome: Any) -> _StepColumns:
        """Check the return value of the vector's `step`, and copy it."""
        if not isinstance(outcome, tuple) or len(outcome) != 5:
            raise bad_step(outcome)
        rewards = np.array(outcome[1], np.float64)
        flags = [np.array(flags) for flags in outcome[2:4]]
        for name, column in zip(
            ("rewards", "terminations", "truncations"), (rewards, *flags), strict=True
        ):
            if column.shape != (self.num_envs,) or (name != "rewards" and column.dtype != bool):
                raise BadReturnError(
                    f"step() returned {name} of {column.dtype}{column.shape}; expected one for "
                    f"each of {self.num_envs} environments."
                )
        shown = columns_of(self._layout, self._space, outcome[0], self.num_envs)
        return _StepColumns(shown, rewards, flags[0], flags[1], kept(outcome[4]))

    def _failures(self, columns: _StepColumns) -> dict[int, Exception]:
        """Return the errors of single rows: no reward may be NaN, and parts must sum."""
        failures: dict[int, Exception] = {}
        if np.isnan(columns.rewards).any():
            wrong = BadReturnError("reward is NaN.")
            failures = dict.fromkeys(np.flatnonzero(np.isnan(columns.rewards)).tolist(), wrong)
        if "reward_parts" in columns.infos:
            for i in self._ids:
                info = row_info(columns.infos, i, self.num_envs)
                try:
                    if "reward_parts" in info:
                        check_parts(info["reward_parts"], float(columns.rewards[i]))
                except BadReturnError as error:
                    failures.setdefault(i, error)
        return failures

    def _record_same_step(
        self, columns: _StepColumns, over: list[int], failures: dict[int, Exception]
    ) -> StepBatch:
        """Record a step of a vector that resets ended episodes itself."""
        infos, count = columns.infos, self.num_envs
        finals, masks = infos.pop("final_obs", None), infos.pop("_final_obs", None)
        last_infos = infos.pop("final_info", {})
        infos.pop("_final_info", None)
        special: dict[int, StepResult[Any]] = {}
        began: dict[int, _Start] = {}
        for i in over:
            info = row_info(infos, i, count)
            last_info = row_info(last_infos, i, count)
            # RecordEpisodeStatistics puts it beside the new episode's info.
            if "episode" in info:
                last_info["episode"] = info.pop("episode")
            began[i] = _Start(row_of(columns.shown, i, self._layout), info, {})
            try:
                if finals is None or (masks is not None and not masks[i]):
                    raise BadReturnError("the step that ended the episode gave no final_obs.")
                last = fitted(self._layout, final_row(finals, i, self._single))
            except BadReturnError as error:
                failures.setdefault(i, error)
                continue
            special[i] = self._ended(i, columns, last, last_info)
        special |= {i: self._failed(i, error) for i, error in failures.items()}
        return self._record(columns, special, began)

    def _ended(
        self, i: int, columns: _StepColumns, last: Any, info: dict[str, Any]
    ) -> StepResult[Any]:
        """Return the result of a step that ended an episode."""
        return StepResult(
            last,
            float(columns.rewards[i]),
            bool(columns.terminated[i]),
            bool(columns.truncated[i]),
            info,
            episode_id=self._episodes[i],
            step_index=int(self._tick + 1 - self._starts[i]),
        )

    def _failed(self, i: int, error: Exception) -> StepResult[Any]:
        """Return the result of a step that failed: no reward, the last good observation."""
        return StepResult(
            row_of(self._columns, i, self._layout),
            math.nan,
            truncated=True,
            end=EpisodeEnd("error", "environment", format_error(error)),
            episode_id=self._episodes[i],
            step_index=int(self._tick + 1 - self._starts[i]),
        )

    def _record(
        self,
        columns: _StepColumns,
        special: dict[int, StepResult[Any]],
        began: Mapping[int, _Start],
    ) -> StepBatch:
        """Record a step, and begin the episodes that an autoreset has to.

        Args:
            columns: The return value of the step.
            special: The result of each row whose episode is over.
            began: The rows that the vector has already reset itself.
        """
        successor, rewards, layout = columns.shown, columns.rewards, self._layout
        if special:
            successor = replaced(
                successor, {i: result.observation for i, result in special.items()}, layout
            )
            rewards[[i for i, result in special.items() if not result.valid]] = math.nan
        self._columns = successor
        self._tick += 1
        tick = Tick(
            layout,
            self._ids,
            successor,
            None if isinstance(layout, Arrays) else Rows(successor, layout, self.num_envs),
            rewards,
            special,
            RowInfos(columns.infos, self.num_envs) if columns.infos else _NOTHING,
            self._tick - self._starts,
            self._episodes,
            self._tasks,
        )
        if began:
            self._start({i: start.observation for i, start in began.items()})
            self._join(special, began)
        due = [i for i in special if i not in began] if self._autoreset else []
        if due:
            self._go_on(special, due)
        return StepBatch(tick, self._columns)

    def _go_on(self, special: Mapping[int, StepResult[Any]], due: list[int]) -> None:
        """Begin the next episode of these rows, or add to their results why it could not begin."""
        try:
            if len(due) < self.num_envs and not self._abilities.resets_some:
                raise OptionError(
                    f"{self._name} resets all its environments at once. Call reset() without ids."
                )
            starts = self._restart(dict.fromkeys(due, _NO_OPTIONS))
        except Exception as error:
            logger.warning("the autoreset of %s failed", self._name, exc_info=error)
            for i in due:
                special[i].info = {**special[i].info, "reset_error": format_error(error)}
        else:
            self._join(special, starts)

    def _join(self, special: Mapping[int, StepResult[Any]], starts: Mapping[int, _Start]) -> None:
        for i, start in starts.items():
            info = {**start.info, **start.seeds}
            special[i].ready = AutoResetReady(start.observation, info, self._episodes[i])

    # State and close

    def state(self) -> list[State]:
        """Return the episode and step count of each environment; a vector has no other state."""
        counts = (self._tick - self._starts).tolist()
        return [
            State(episode_id=episode, step_count=count)
            for episode, count in zip(self._episodes, counts, strict=True)
        ]

    def close(self) -> None:
        """Close the vector, once."""
        if not self._is_closed:
            self._is_closed = True
            self._env.close()
