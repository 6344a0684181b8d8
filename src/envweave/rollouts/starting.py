"""Starting a rollout."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

from envweave.api.recipes import flag, whole_number
from envweave.errors import OptionError, suggest
from envweave.rollouts.faults import OnFault
from envweave.rollouts.jobs import plan
from envweave.rollouts.playing import Agent
from envweave.rollouts.pooling import Pool
from envweave.rollouts.running import Manner, Rollout
from envweave.types import Task


def rollout(
    pool: Pool,
    agent: Agent,
    *,
    tasks: Iterable[Task | str] | None = None,
    episodes: int | None = None,
    group_size: int = 1,
    seed: int | None = None,
    share_seed: bool = False,
    max_concurrency: int | None = None,
    max_steps: int | None = None,
    on_fault: OnFault = "replace",
    attempts: int = 3,
    max_faults: int | None = None,
    progress: bool | None = None,
) -> Rollout:
    """Play whole episodes, many at a time, and return them as they finish or all together.

    Await what it returns for a list of `Episode`s, or go through it with `async for`; in a
    program without an event loop, call its `run()`, or go through it with `for`. With the same
    `seed`, and an agent and an environment that leave nothing else to chance, the episodes are
    the same, however many run at the same time and whichever finishes first.

    An error that the agent raises, and an action that is refused, end the rollout and are
    raised; a note on the error names the episode.

    Args:
        pool: Where to play.
        agent: Takes the last result and returns the next action, at once or as a coroutine. With
            several agents, it returns a dict with an action for exactly those in
            `result.needs`; while a tool call is open, its `ToolResult`. It may return a
            `Decision`, to have something kept beside the action. A plain function runs on the
            loop's thread, so while it thinks nobody else does. The episodes keep the results
            it is given, so it must not change them.
        tasks: What the episodes are about: tasks or their ids, taken one by one as they are
            needed. Left out, one is drawn for each group, if the environment has tasks.
        episodes: How many episodes at most; needed where `tasks` is left out or endless.
        group_size: How many episodes share a task, as GRPO wants it.
        seed: What the seed of every episode is derived from; drawn from the system if left out.
        share_seed: Whether those who share a task share a seed too.
        max_concurrency: How many episodes run at the same time, if less than the pool's size.
        max_steps: Truncate every episode after so many steps.
        on_fault: What is done about an episode that fails, and not by the agent: `"replace"`
            plays the same task and seed again, in another environment where one is free, and
            after so many `attempts` returns it as not usable; `"keep"` returns it as not
            usable; `"raise"` ends the rollout.
        attempts: How often an episode is played before it is given up.
        max_faults: How many faults are replaced in all; without a limit if left out.
        progress: Whether to show progress. Left out, a terminal gets a bar if rich is installed.

    Raises:
        OptionError: An option cannot be honoured, or nobody says how many episodes to play.
        SeedError: The environment takes no seed.
        TaskError: The environment takes no task.
        ClosedError: The pool is closed.
        RolloutFailedError: Not one episode could be used, or `on_fault="raise"` and one failed.
            Raised where the rollout is awaited.
    """
    if not isinstance(pool, Pool):
        raise OptionError(f"rollout() plays in a pool, and {pool!r} is none. Make one with pool().")
    if not callable(agent):
        raise OptionError(f"agent={agent!r} cannot be called. Pass a function of the last result.")
    if on_fault not in get_args(OnFault):
        known = get_args(OnFault)
        raise OptionError(
            f"on_fault={on_fault!r} is none of {', '.join(map(repr, known))}."
            f"{suggest(str(on_fault), known)}"
        )
    if progress is not None:
        flag("progress", progress)
    pool.check_open()
    concurrency = pool.size
    if max_concurrency is not None:
        concurrency = min(concurrency, whole_number("max_concurrency", max_concurrency))
    manner = Manner(
        concurrency=concurrency,
        max_steps=_count("max_steps", max_steps),
        on_fault=on_fault,
        attempts=whole_number("attempts", attempts),
        max_faults=_faults(max_faults),
        progress=progress,
    )
    wanted = plan(
        pool.interface,
        tasks=tasks,
        episodes=_count("episodes", episodes),
        group_size=whole_number("group_size", group_size),
        seed=seed,
        share_seed=flag("share_seed", share_seed),
    )
    return Rollout(pool, agent, wanted, manner)


def _faults(value: Any) -> int | None:
    return 0 if value == 0 and not isinstance(value, bool) else _count("max_faults", value)


def _count(name: str, value: Any) -> int | None:
    return None if value is None else whole_number(name, value)
