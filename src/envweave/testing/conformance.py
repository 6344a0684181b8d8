"""The checks as functions to call and as pytest classes to inherit."""

from __future__ import annotations

import unittest
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from envweave.api import Env, make
from envweave.api.options import constructor_keywords
from envweave.registry import Registry
from envweave.testing.backend_checks import BACKEND_CHECKS, SCRIPTED, BackendSubject
from envweave.testing.check_result import Check, CheckOutcome, NotApplicable, run_each
from envweave.testing.environment_checks import ENVIRONMENT_CHECKS
from envweave.testing.fixture import Subject


def iter_checks(
    env: Any,
    *,
    backend: str = "inproc",
    seed: int = 0,
    max_steps: int = 1000,
    registry: Registry | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **keywords: Any,
) -> Iterator[CheckOutcome]:
    """Check every promise of an environment, and yield each outcome as it is known.

    Args:
        env: An ID or a class; the checks make many of them.
        backend: Where to run it.
        seed: Random seed.
        max_steps: Maximum number of steps to wait for the end of an episode.
        registry: Where to look up the ID.
        kwargs: Keyword arguments of the environment's constructor, also those with the name of
            an option of `make`.
        **keywords: Passed to the environment's constructor too.

    Raises:
        EnvWeaveError: The environment cannot be made at all.
    """
    arguments = constructor_keywords(kwargs, keywords)

    def open_env(*, autoreset: bool = False) -> Env:
        return make(env, backend=backend, autoreset=autoreset, registry=registry, kwargs=arguments)

    with open_env() as one:
        deterministic = one.deterministic
    subject = Subject(open_env, seed=seed, deterministic=deterministic, max_steps=max_steps)
    yield from run_each(ENVIRONMENT_CHECKS, subject)


def check_environment(env: Any, **options: Any) -> list[CheckOutcome]:
    """Check every promise of an environment. Takes the arguments of `iter_checks`."""
    return list(iter_checks(env, **options))


def check_backend(backend: str) -> list[CheckOutcome]:
    """Check every promise of a backend."""
    return list(run_each(BACKEND_CHECKS, _backend_subject(backend, SCRIPTED)))


class EnvironmentConformance:
    """Inherit from it, and pytest checks your environment against every promise.

    ```python
    class TestCounterEnv(EnvironmentConformance):
        def make_environment(self) -> CounterEnv:
            return CounterEnv(done_at=3)

        def episode(self) -> Iterable[CounterAction]:
            return [CounterAction(delta=1)] * 3
    ```
    """

    backend = "inproc"

    def make_environment(self) -> Any:
        """Return a fresh environment."""
        raise NotImplementedError("make_environment() must return a fresh environment")

    def episode(self) -> Iterable[Any] | None:
        """Return actions that lead from a reset to an end; `None` for random actions."""
        return None

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Parametrize the test by promise."""
        if "promise" in metafunc.fixturenames:
            names = [check.name for check in ENVIRONMENT_CHECKS]
            metafunc.parametrize("promise", ENVIRONMENT_CHECKS, ids=names)

    def test_keeps(self, promise: Check[Subject]) -> None:
        """Run one check."""
        episode = None if self.episode() is None else lambda: self.episode() or ()

        def open_env(*, autoreset: bool = False) -> Env:
            return make(self.make_environment, backend=self.backend, autoreset=autoreset)

        with open_env() as one:
            deterministic = one.deterministic
        _run(promise, Subject(open_env, episode, deterministic=deterministic))


class BackendConformance:
    """Inherit from it, name a backend, and pytest checks it against every promise."""

    backend = "inproc"
    scripted = SCRIPTED

    def make(self, env_id: str, **options: Any) -> Env:
        """Make an environment; override it if the backend needs further options."""
        return make(env_id, backend=self.backend, **options)

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Parametrize the test by promise."""
        if "promise" in metafunc.fixturenames:
            names = [check.name for check in BACKEND_CHECKS]
            metafunc.parametrize("promise", BACKEND_CHECKS, ids=names)

    def test_keeps(self, promise: Check[BackendSubject]) -> None:
        """Run one check."""
        _run(promise, BackendSubject(self.make, self.scripted))


def _run(check: Check[Any], subject: Any) -> None:
    try:
        check.run(subject)
    except NotApplicable as reason:
        raise unittest.SkipTest(str(reason)) from None


def _backend_subject(backend: str, scripted: str) -> BackendSubject:
    def make_on(env_id: str, **options: Any) -> Env:
        return make(env_id, backend=backend, **options)

    return BackendSubject(make_on, scripted)
