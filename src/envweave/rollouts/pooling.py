"""`Pool`: environments of one kind that take turns at whole episodes."""

from __future__ import annotations

import asyncio
import logging
import warnings
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Protocol, Self, final

from envweave.codec import Spec
from envweave.environment import Interface
from envweave.errors import (
    CallOrderError,
    CapacityError,
    ClosedError,
    EnvironmentFailure,
    OptionError,
    SeedError,
    SpecError,
    TaskError,
    ToolCallOpenError,
)
from envweave.session import PrivateLoop
from envweave.transports.protocol import AsyncTransport
from envweave.types import ResetResult, StepResult, Tasks

logger = logging.getLogger(__name__)

REFUSALS = (SpecError, ToolCallOpenError, OptionError, SeedError, TaskError, CapacityError)
"""What the caller did wrong, such as a pool larger than its server. Another try, or another
environment, would not help."""


class Tenant(Protocol):
    """What runs in a pool, and must be over before the pool can be closed."""

    async def stop(self, why: Exception) -> None:
        """End it, and wait until nothing of it runs. Whoever awaits it gets `why`."""
        ...


@final
class Line:
    """A line to one environment, laid anew where it went dead.

    Args:
        transport: The first.
        connect: Lays another; `None` where the first goes on by itself after a failed reset.
    """

    def __init__(
        self, transport: AsyncTransport, connect: Callable[[], AsyncTransport] | None
    ) -> None:
        self._connect = connect
        self._transport: AsyncTransport | None = transport

    async def reset(self, **wanted: Any) -> ResetResult[Any]:
        """Begin an episode, over a new line if the last one was given up.

        Raises:
            EnvWeaveError: The reset was refused or failed, or there is no environment.
        """
        if self._transport is None:
            assert self._connect is not None
            self._transport = self._connect()
        try:
            return await self._transport.reset(**wanted)
        except (*REFUSALS, EnvironmentFailure):
            raise  # an environment that fails is replaced by who runs it
        except Exception:
            if self._connect is not None:
                await self._give_up()
            raise

    async def step(self, action: Any) -> StepResult[Any]:
        """Act once, in the episode that `reset` began."""
        assert self._transport is not None
        return await self._transport.step(action)

    async def _give_up(self) -> None:
        given_up, self._transport = self._transport, None
        assert given_up is not None
        try:
            await given_up.close()
        except Exception:
            logger.warning("closing an environment that was given up failed", exc_info=True)

    async def close(self) -> None:
        """Close the environment, if there is one."""
        if self._transport is not None:
            await self._transport.close()


@final
class Pool:
    """Environments of one kind that take turns at whole episodes: `rollout(pool, agent, …)`.

    Use it in an `async with` block, or `await close()`; in a program without an event loop, in
    a `with` block. Several rollouts may share it at the same time, on one event loop.

    Attributes:
        id: What it was made from.
        size: How many environments there are.
    """

    def __init__(
        self,
        env_id: str,
        transports: Sequence[AsyncTransport],
        connect: Callable[[], AsyncTransport] | None,
    ) -> None:
        self.id = env_id
        self.size = len(transports)
        self._interface = transports[0].interface
        self._tasks = transports[0].tasks
        self._lines = [Line(transport, connect) for transport in transports]
        self._free = deque(self._lines)
        self._waiting: deque[asyncio.Future[Line]] = deque()
        self._tenants: set[Tenant] = set()
        self._loop: PrivateLoop | None = None
        self._is_closed = False
        self._unclosed = weakref.finalize(self, _dropped, env_id, self.size)
        self._unclosed.atexit = False  # everything ends then anyway

    @property
    def interface(self) -> Interface:
        """How to talk to its environments."""
        return self._interface

    @property
    def action_spec(self) -> Spec:
        """What actions they take; by agent where there are several."""
        return self._interface.action_spec

    @property
    def observation_spec(self) -> Spec:
        """What they show; by agent where there are several."""
        return self._interface.observation_spec

    @property
    def tasks(self) -> Tasks | None:
        """What episodes can be about: `pool.tasks("train")` goes through a split."""
        return self._tasks

    @property
    def possible_agents(self) -> tuple[str, ...] | None:
        """All that may ever take part; `None` for one agent without a name."""
        return self._interface.possible_agents

    @property
    def deterministic(self) -> bool:
        """Whether the same seed, task and actions give the same episode."""
        return self._interface.deterministic

    @asynccontextmanager
    async def line(self) -> AsyncIterator[Line]:
        """Hold a line to an environment. Who came first gets the one that was free for longest."""
        line = await self._take()
        try:
            yield line
        finally:
            self._give(line)

    async def _take(self) -> Line:
        self.check_open()
        if self._free:
            return self._free.popleft()
        waiter: asyncio.Future[Line] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except BaseException:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif not waiter.cancelled():
                self._give(waiter.result())  # it came as we were cancelled
            raise

    def _give(self, line: Line) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(line)
                return
        self._free.append(line)

    def check_open(self) -> None:
        """Refuse if it is closed."""
        if self._is_closed:
            raise ClosedError(f"The pool of {self.id!r} is closed. Make a new one.")

    def admit(self, tenant: Tenant) -> None:
        """Note that something runs in it, which `close` must end."""
        self.check_open()
        self._tenants.add(tenant)

    def dismiss(self, tenant: Tenant) -> None:
        """Note that it is over."""
        self._tenants.discard(tenant)

    async def close(self) -> None:
        """End the rollouts that run in it and close every environment. May be called twice.

        The first failure is raised when all are closed.
        """
        self._is_closed = True
        why = ClosedError(f"The pool of {self.id!r} was closed while a rollout ran in it.")
        for tenant in list(self._tenants):
            await tenant.stop(why)
        closed = await asyncio.gather(
            *(line.close() for line in self._lines), return_exceptions=True
        )
        self._unclosed.detach()
        for outcome in closed:
            if isinstance(outcome, BaseException):
                raise outcome

    async def __aenter__(self) -> Self:
        self.check_open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __enter__(self) -> Self:
        self.check_open()
        self._refuse_running_loop()
        self._loop = PrivateLoop()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        loop = self.loop()
        try:
            loop.run(self.close())
        finally:
            loop.close()
            self._loop = None

    def loop(self) -> PrivateLoop:
        """Return the loop on which a caller without one runs everything.

        Raises:
            CallOrderError: The caller has a loop, or is not in a `with` block.
        """
        self._refuse_running_loop()
        if self._loop is None:
            raise CallOrderError(
                f"The pool of {self.id!r} was used without `await` and without a `with` block. "
                "Write `with ew.pool(…) as pool:` around it."
            )
        return self._loop

    def _refuse_running_loop(self) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise CallOrderError(
            f"The pool of {self.id!r} was used without `await` inside a running event loop. "
            "There, write `async with ew.pool(…) as pool:`, and await the rollout."
        )

    def __repr__(self) -> str:
        return f"Pool({self.id!r}, size={self.size})"


def _dropped(env_id: str, size: int) -> None:
    warnings.warn(
        f"A pool of {size} environments of {env_id!r} was dropped without close(). Use it in an "
        "`async with` block, or await its close().",
        ResourceWarning,
        stacklevel=1,
    )
