"""Makes the environments of one caller, and replacements for those that failed."""

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
    """Makes environments by their index in a vector; a single one has index 0."""

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
        self._made: dict[int, Any] = {}  # what the factory returned last, by index
        self._ids: set[int] = set()  # the identities of these
        # Over calls of the factory, which need not be thread-safe.
        self._lock = threading.Lock()

    def open_session(self, index: int) -> Session:
        """Make the environment at an index, and a session for it.

        Raises:
            OptionError: It does not support an option; it is closed, unless it is the caller's.
            DefinitionError: It cannot be made, or is not an environment.
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
        """Forget the environment at an index, which is no longer used."""
        # Without the lock: another thread may hold it for as long as making one takes.
        made = self._made.pop(index, None)
        self._ids.discard(id(made))

    def _make(self, index: int) -> Environment:
        with self._lock:
            made = build(self._spec, self._kwargs)
            if id(made) in self._ids:
                raise self._reuse_error(index, made)
            self._ids.discard(id(self._made.get(index)))
            self._made[index] = made
            self._ids.add(id(made))
        environment = adopt(made)
        try:
            if self._wrap is not None:
                environment = self._wrap(index, environment)
            if self._spec.max_episode_steps is not None:
                environment = TimeLimit(environment, self._spec.max_episode_steps)
        except BaseException:
            discard(environment, self._options.timeout_s)
            raise
        return environment

    def _reuse_error(self, index: int, made: Any) -> Exception:
        name = type(made).__name__
        if index not in self._made:
            return OptionError(
                f"One {name} object cannot be {self._num_envs} environments: the factory of "
                f"{self._spec.id!r} returned it twice. Let it make a new one each time."
            )
        return DefinitionError(
            f"The factory of {self._spec.id!r} was called for a replacement of a failed {name}, "
            "and returned an object that it had made before. Let it make a new one each time."
        )

    def _make_again(self, index: int, interface: Interface) -> Environment:
        """Make a replacement for one that failed; it must have the same calling interface."""
        environment = self._make(index)
        try:
            if _calling_interface(found := environment.describe()) != _calling_interface(interface):
                raise DefinitionError(
                    f"The factory of {self._spec.id!r} made a {found.name} to replace a failed "
                    f"{interface.name}, but its reset parameters, agents or async methods differ. "
                    "Let it make environments of one kind."
                )
        except BaseException:
            discard(environment, self._options.timeout_s)
            raise
        return environment

    def _refuse_deadline(self, interface: Interface) -> None:
        plain = [name for name in ("reset", "step") if name not in interface.async_methods]
        # A caller that wraps environments sees when their code begins, and can end this process.
        if self._options.timeout_s is not None and plain and self._wrap is None:
            raise OptionError(
                f"timeout_s={self._options.timeout_s!r} cannot be enforced: {plain[0]}() of "
                f"{self._spec.id!r} is a plain function, which cannot be interrupted in this "
                "process. Use backend='process', write it with `async def`, or leave timeout_s out."
            )


def _calling_interface(interface: Interface) -> tuple[Any, ...]:
    return interface.reset_takes, interface.async_methods, interface.possible_agents


def discard(environment: Environment, timeout_s: float | None) -> None:
    """Close an unused environment; a failure is logged, so that the original error is raised."""
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
