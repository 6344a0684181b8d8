"""The promises about seeds, options and randomness."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from envweave.errors import OptionError, SeedError
from envweave.testing.check_result import NotApplicable, refuses, require
from envweave.testing.fixture import Subject
from envweave.types import StepResult


def a_seed_is_honoured_or_refused(subject: Subject) -> None:
    """A seed is used and shown in `info`, or refused; an invalid seed is refused."""
    with subject.opened() as env:
        try:
            result = env.reset(seed=subject.seed)
        except SeedError:
            require("seed" not in env.reset().info, "info shows a seed although none is supported.")
            return
        require(
            result.info.get("seed") == subject.seed,
            f"reset(seed={subject.seed}) shows info['seed']={result.info.get('seed')!r}.",
        )
        refuses(lambda: env.reset(seed="seven"), SeedError, "seed='seven'")  # type: ignore[arg-type]
        refuses(lambda: env.reset(seed=-1), SeedError, "seed=-1")


def the_same_seed_gives_the_same_episode(subject: Subject) -> None:
    """The same seed and actions give the same results, whatever happened in between."""
    if not subject.deterministic:
        raise NotApplicable("The environment declares deterministic=False.")
    if not subject.takes_seed:
        raise NotApplicable("The environment takes no seed.")
    with subject.opened() as env:
        first = subject.play(env)
        again = subject.play(env)
    with subject.opened() as other:
        afresh = subject.play(other)

        subject.same_episode(first, again, "The second episode with the same seed differs")
        subject.same_episode(first, afresh, "A fresh environment with the same seed differs")


def sessions_share_no_randomness(subject: Subject) -> None:
    """Two environments, and the caller's own random draws, do not affect each other."""
    if not subject.deterministic or not subject.takes_seed:
        raise NotApplicable("Two episodes of this environment cannot be compared.")
    with subject.opened() as env:
        alone = subject.play(env)
    before = random.getstate(), np.random.get_state()
    try:
        with subject.opened() as left, subject.opened() as right:
            rows: list[list[StepResult[Any]]] = [[subject.start(left)], [subject.start(right)]]
            for action in alone.actions:
                random.random()  # noqa: S311 - changes the global state
                np.random.random()
                rows[0].append(left.step(action))
                rows[1].append(right.step(action))
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])

    for row in rows:
        subject.same_episode(
            alone,
            type(alone)(alone.actions, row),
            "With another session in parallel the episode differs",
        )


def later_episodes_have_seeds_of_their_own(subject: Subject) -> None:
    """Each episode after a seeded one gets a seed from the same stream, shown in `info`."""
    if not subject.takes_seed:
        raise NotApplicable("The environment takes no seed.")
    with subject.opened() as env:
        streams = []
        for _ in range(2):
            seeds = [subject.start(env).info["seed"]]
            seeds += [env.reset().info["seed"] for _ in range(3)]
            streams.append(seeds)

        require(len(set(streams[0])) == 4, f"Seeds are repeated in one stream: {streams[0]}.")
        require(streams[0] == streams[1], f"The same seed gives different streams: {streams}.")


def options_are_taken_or_refused(subject: Subject) -> None:
    """Options for a reset that takes none are refused, not ignored."""
    with subject.opened() as env:
        try:
            env.reset(options={})
        except OptionError as refusal:
            require(str(refusal), "The refusal has no message.")


SEED_CHECKS = [
    a_seed_is_honoured_or_refused,
    the_same_seed_gives_the_same_episode,
    sessions_share_no_randomness,
    later_episodes_have_seeds_of_their_own,
    options_are_taken_or_refused,
]
