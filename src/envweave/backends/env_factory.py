"""Making the environments of one caller, and others in place of those that failed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, final

from envweave.adapters import adopt
from envweave.environment import Environment, Interface
from envweave.errors import DefinitionError, OptionError
from envweave.registry import EnvSpec, MakeOptions, ReadyMade, build
from envweave.session import Deadline, PrivateLoop, Session
from envweave.wrappers import TimeLimit

logger = logging.getLogger("envweave.session")


@final
class EnvFactory:
    """Makes environments by their places in a vector; a single one has place 0."""

    def __init__(
        self,
        spec: EnvSpec,
        kwargs: Mapping[str, Any],
        options: MakeOptions,
        num_envs: int = 1,
        wrap: Callable[[int, Environment], Environment] | None = None,
    ) -> None:
        self._spec = spec
        self._kwargs = kwargs
        self._options = options
        self._num_envs = num_envs
        self._wrap = wrap
        self._made: dict[int, Any] = {}  # what the factory returned last, by place
        self._ids: set[int] = set()  # the identities of these
        # Environments that are replaced in threads call the factory, which need not bear two.
        self._lock = threading.Lock()

    def open_session(self, index: int) -> Session:
        """Make the environment of one place, and put it under a session.

        Raises:
            OptionError: What it is asked to do it cannot; it is closed, unless it is the caller's.
            DefinitionError: It cannot be made, or is no environment.
        """
        environment = self._make(index)
        is_given = isinstance(self._spec.factory, ReadyMade)
        try:
            session = Session(
                environment,
                autoreset=self._options.autoreset,
                transform=self._spec.transform,
            )
            self._refuse_deadline(session.interface)
        except BaseException:
            if not is_given:
                discard(environment, self._options.timeout_s)
            raise
        if not is_given:
            session.slot.factory = partial(self._make_again, index, session.interface)
        return session

    def forget(self, index: int) -> None:
        """Let go of what was made for one place, which nobody uses any more."""
        # Without the lock: somebody may be making another, for as long as that takes.
        made = self._made.pop(index, None)
        self._ids.discard(id(made))

    def _make(self, index: int) -> Environment:
        with self._lock:
            one = build(self._spec, self._kwargs)
            if id(one) in self._ids:
                raise self._shared(index, one)
            self._ids.discard(id(self._made.get(index)))
            self._made[index] = one
            self._ids.add(id(one))
        environment = adopt(one)
        try:
            if self._wrap is not None:
                environment = self._wrap(index, environment)
            if self._spec.max_episode_steps is not None:
                environment = TimeLimit(environment, self._spec.max_episode_steps)
        except BaseException:
            discard(environment, self._options.timeout_s)
            raise
        return environment

    def _shared(self, index: int, one: Any) -> Exception:
        name = type(one).__name__
        if index not in self._made:
            return OptionError(
                f"One {name} object cannot be {self._num_envs} environments: the factory of "
                f"{self._spec.id!r} returned it twice. Let it make a new one each time."
            )
        return DefinitionError(
            f"The factory of {self._spec.id!r} was asked for another {name} in place of one that "
            "failed, and returned one that it had made before. Let it make a new one each time."
        )

    def _make_again(self, index: int, interface: Interface) -> Environment:
        """Make another in place of one that failed; it must be talked to in the same way."""
        environment = self._make(index)
        try:
            if _manner(found := environment.describe()) != _manner(interface):
                raise DefinitionError(
                    f"The factory of {self._spec.id!r} made a {found.name} in place of a failed "
                    f"{interface.name}, and its reset, its agents or its async methods are others. "
                    "Let it make environments of one kind."
                )
        except BaseException:
            discard(environment, self._options.timeout_s)
            raise
        return environment

    def _refuse_deadline(self, interface: Interface) -> None:
        plain = [name for name in ("reset", "step") if name not in interface.async_methods]
        # Who wraps environments sees when their code begins, and can end this very process.
        if self._options.timeout_s is not None and plain and self._wrap is None:
            raise OptionError(
                f"timeout_s={self._options.timeout_s!r} cannot be honored: {plain[0]}() of "
                f"{self._spec.id!r} is a plain function, which nothing can interrupt in this "
                "process. Use backend='process', write it with `async def`, or leave timeout_s out."
            )


def _manner(interface: Interface) -> tuple[Any, ...]:
    return interface.reset_takes, interface.async_methods, interface.possible_agents


def discard(environment: Environment, timeout_s: float | None) -> None:
    """Close an environment that nobody will use; what led to this is raised, not a failure here."""
    try:
        closing = environment.close()
        if isinstance(closing, Coroutine):
            loop = PrivateLoop(is_patient=timeout_s is None)
            try:
                loop.run(Deadline(timeout_s).run("close", lambda: closing))
            finally:
                loop.close()
    except Exception:
        logger.warning("closing an unused %s failed", type(environment).__name__, exc_info=True)
