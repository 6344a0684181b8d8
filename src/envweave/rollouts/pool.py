"""`Pool`: environments of one kind that take turns at whole episodes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self, final

from envweave.api.options import (
    Transforms,
    backend_module,
    choose_backend,
    constructor_keywords,
    explain_collisions,
    flag,
    ray_options,
    recipe,
    refuse_one_object,
    seconds,
    whole_number,
    with_registered_server,
)
from envweave.api.packages import prepare_packages
from envweave.api.recording import RecordOption
from envweave.api.tracing import traced_async
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
from envweave.lifetime import AtExit, CloseGuard
from envweave.recording.writer import RunWriter
from envweave.registry import MakeOptions, RayOptions, Registry, Remote
from envweave.registry.spec import read_wait_s
from envweave.session import PrivateLoop
from envweave.types import ResetResult, StepResult, Tasks
from envweave.vector.transport import AsyncTransport

logger = logging.getLogger(__name__)

REFUSALS = (SpecError, ToolCallOpenError, OptionError, SeedError, TaskError, CapacityError)
"""Mistakes of the caller, such as a pool larger than its server, which no retry would help."""


class PoolUser(Protocol):
    """Something that runs in a pool, and must end before the pool is closed."""

    async def stop(self, why: Exception) -> None:
        """End it, and wait until nothing of it runs. Code that awaits it gets `why`."""
        ...


@final
class PoolSlot:
    """The connection to one environment of a pool, replaced if it is lost.

    Args:
        transport: The first transport.
        connect: Makes a new one; `None` if the first recovers by itself after a failed reset.
    """

    def __init__(
        self, transport: AsyncTransport, connect: Callable[[], AsyncTransport] | None
    ) -> None:
        self._connect = connect
        self._transport: AsyncTransport | None = transport

    async def reset(self, **params: Any) -> ResetResult[Any]:
        """Begin an episode, over a new transport if the last one was given up.

        Raises:
            EnvWeaveError: The reset was refused or failed, or no transport could be made.
        """
        transport = self._connected()
        try:
            return await transport.reset(**params)
        except (*REFUSALS, EnvironmentFailure):
            raise  # the backend replaces a failed environment
        except Exception:
            if self._connect is not None:
                await self._give_up()
            raise

    async def step(self, action: Any) -> StepResult[Any]:
        """Take one step in the episode that `reset` began."""
        assert self._transport is not None
        return await self._transport.step(action)

    async def snapshot(self) -> Any:
        """Return the point that the running episode has reached. See `AsyncTransport`."""
        assert self._transport is not None
        return await self._transport.snapshot()

    async def restore(self, point: Any) -> ResetResult[Any]:
        """Continue from what `snapshot` of a slot of the pool returned. See `AsyncTransport`."""
        return await self._connected().restore(point)

    def _connected(self) -> AsyncTransport:
        if self._transport is None:
            assert self._connect is not None
            self._transport = self._connect()
        return self._transport

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
    a `with` block, or between `open()` and `close()`. Several rollouts may share it at the same
    time, on one event loop.

    Attributes:
        id: The ID or name that it was made from.
        size: How many environments there are.
        describe_workers: Returns what the backend knows of their workers, for progress bars.
        writer: Records every rollout's episodes, if the pool was made with `record=`.
        open_writer: Opens the recording of a rollout, from its option `record`.
        max_episode_steps: The limit that the caller or the ID sets; `None` if there is none.
        durable: Whether an episode whose worker or server is lost is brought back.
    """

    def __init__(
        self,
        env_id: str,
        transports: Sequence[AsyncTransport],
        connect: Callable[[], AsyncTransport] | None,
        describe_workers: Callable[[], str] | None = None,
        writer: RunWriter | None = None,
        open_writer: Callable[[Any], RunWriter | None] = lambda _: None,
        max_episode_steps: int | None = None,
        *,
        durable: bool = False,
    ) -> None:
        self.id = env_id
        self.durable = durable
        self.writer = writer
        self.open_writer = open_writer
        self.max_episode_steps = max_episode_steps
        self.size = len(transports)
        self.describe_workers = describe_workers
        self._interface = transports[0].interface
        self._tasks = transports[0].tasks
        self._slots = [PoolSlot(transport, connect) for transport in transports]
        self._free = deque(self._slots)
        self._waiting: deque[asyncio.Future[PoolSlot]] = deque()
        self._users: set[PoolUser] = set()
        self._loop: PrivateLoop | None = None
        self._is_closed = False
        self._was_opened = False  # for callers without an event loop
        self._unclosed = CloseGuard(
            self,
            lambda: None,  # its environments have their own guards
            f"A pool of {self.size} environments of {env_id!r} was dropped without close(). Use it "
            "in an `async with` block, or await its close().",
            at_exit=AtExit.NOTHING,
        )

    @property
    def interface(self) -> Interface:
        """The interface of its environments."""
        return self._interface

    @property
    def action_spec(self) -> Spec:
        """The spec of actions; by agent where there are several."""
        return self._interface.action_spec

    @property
    def observation_spec(self) -> Spec:
        """The spec of observations; by agent where there are several."""
        return self._interface.observation_spec

    @property
    def tasks(self) -> Tasks | None:
        """The tasks that the environment offers: `pool.tasks("train")` iterates over a split."""
        return self._tasks

    @property
    def possible_agents(self) -> tuple[str, ...] | None:
        """Every agent that may ever take part; `None` for one unnamed agent."""
        return self._interface.possible_agents

    @property
    def deterministic(self) -> bool:
        """Whether the same seed, task and actions give the same episode."""
        return self._interface.deterministic

    @asynccontextmanager
    async def line(self) -> AsyncIterator[PoolSlot]:
        """Lease a slot. The first caller in the queue gets the slot that was free for longest."""
        slot = await self._acquire()
        try:
            yield slot
        finally:
            self._release(slot)

    async def _acquire(self) -> PoolSlot:
        self.check_open()
        if self._free:
            return self._free.popleft()
        waiter: asyncio.Future[PoolSlot] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except BaseException:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif not waiter.cancelled():
                self._release(waiter.result())  # it arrived while we were being cancelled
            raise

    def _release(self, slot: PoolSlot) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(slot)
                return
        self._free.append(slot)

    def check_open(self) -> None:
        """Raise `ClosedError` if it is closed."""
        if self._is_closed:
            raise ClosedError(f"The pool of {self.id!r} is closed. Make a new one.")

    def admit(self, user: PoolUser) -> None:
        """Register something that `close` must end."""
        self.check_open()
        self._users.add(user)

    def dismiss(self, user: PoolUser) -> None:
        """Unregister it: it has ended."""
        self._users.discard(user)

    def open(self) -> Self:
        """Use the pool without `await` and without a `with` block, until `close()`.

        For a trainer's callbacks, which begin and end in different functions. May be called twice.

        Raises:
            CallOrderError: There is a running event loop; there, await the rollouts instead.
            ClosedError: The pool is closed.
        """
        self.check_open()
        self._refuse_running_loop()
        if self._loop is None:
            self._loop = PrivateLoop()
        self._was_opened = True
        return self

    def close(self) -> Awaitable[None]:
        """End its running rollouts and close every environment. May be called twice.

        Await it; after `open()`, and in a `with` block, it is done when it returns. The first
        failure is raised after all are closed.
        """
        if not self._was_opened:
            return self._close()
        if self._loop is None:
            return _Done()
        loop = self.loop()
        try:
            loop.run(self._close())
        finally:
            loop.close()
            self._loop = None
        return _Done()

    async def _close(self) -> None:
        self._is_closed = True
        why = ClosedError(f"The pool of {self.id!r} was closed while a rollout ran in it.")
        for user in list(self._users):
            await user.stop(why)
        closed = await asyncio.gather(
            *(slot.close() for slot in self._slots), return_exceptions=True
        )
        self._unclosed.disarm()
        if self.writer is not None:
            self.writer.close()
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
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def loop(self) -> PrivateLoop:
        """Return the event loop for a caller without one.

        Raises:
            CallOrderError: The caller has a loop, or is not in a `with` block.
        """
        self._refuse_running_loop()
        if self._loop is None:
            raise CallOrderError(
                f"The pool of {self.id!r} was used without `await` and without a `with` block. "
                "Write `with ew.pool(…) as pool:` around it, or call its open() before, and its "
                "close() at the end."
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


@final
class _Done:
    """An awaitable of what is done already."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


@explain_collisions
def pool(
    env: Any,
    *,
    size: int,
    backend: str | None = None,
    workers: int | None = None,
    timeout_s: float | None = None,
    max_episode_steps: int | None = None,
    transform: Transforms | None = None,
    registry: Registry | None = None,
    base_url: str | None = None,
    token: str | None = None,
    encoding: str = "msgpack",
    wait_s: float | None = None,
    provider: Any = None,
    docker_image: str | None = None,
    isolation: str | None = None,
    install: str = "never",
    venv: str | os.PathLike[str] | None = None,
    requirements: Sequence[str] = (),
    envs_per_worker: int | str | None = None,
    address: str | None = None,
    resources: Mapping[str, float] | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    placement: str | None = None,
    record: str | os.PathLike[str] | None = None,
    durable: bool = False,
    kwargs: Mapping[str, Any] | None = None,
    **keywords: Any,
) -> Pool:
    """Make a pool of `size` environments of one kind for `rollout`.

    All of them are made at once, so errors in making one are raised here. In-process, an
    environment with plain functions runs on the event loop's thread.

    Args:
        env: An ID, a class, or a function that makes one.
        size: How many environments, and so how many episodes run at the same time.
        backend: Where they run; see `make`. At a server, all of them share one connection.
        workers: With `backend="process"` or `"ray"`, how many processes run them; by default one
            per core.
        timeout_s: How long one call may take, on backends that can interrupt a call.
        max_episode_steps: Truncate every episode after this many steps.
        transform: Applied to every observation.
        registry: Where to look up the ID; by default the registry of this process.
        base_url: The URL of a running server; `env` is then only used for the author's classes.
        token: The token to send to the server; `$ENVWEAVE_TOKEN` by default.
        encoding: The encoding of messages: `"msgpack"` or `"json"`.
        wait_s: How many seconds to wait for a session if the server is full; by default a full
            server raises `CapacityError` in the first episodes, at once.
        provider: Starts the server if there is no `base_url`; by default a `SubprocessProvider`,
            for containers a `LocalDockerProvider`.
        docker_image: The image whose container serves them; see `make`.
        isolation: With containers, `"container"` gives each environment its own; by default one
            container runs them all.
        install: Whether packages may be installed; see `make`.
        venv: The virtual environment whose Python runs them; see `make`.
        requirements: What to install into `venv="auto"`; see `make`.
        envs_per_worker: With `backend="ray"`, how many environments each worker actor holds. By
            default there is one actor for each processor of the cluster; `workers` sets their
            number instead.
        address: With `backend="ray"`, the cluster; see `make_vector`.
        resources: With `backend="ray"`, what each worker claims on its node; see `make_vector`.
        runtime_env: With `backend="ray"`, what Ray installs or copies for the workers.
        placement: With `backend="ray"`, `"spread"` or `"pack"`; see `make_vector`.
        record: The directory to record the episodes of all rollouts into; see `load`.
        durable: Whether an episode whose worker or server is lost is brought back rather than
            reported as `lost`: its actions are taken again in a replacement, every result is
            compared, and then it goes on. What the environment does outside of itself, such as
            writing to a database, is done again too. If a result differs, or that of the same
            action is lost three times, it ends as `lost`, and the cause says why. A call that
            takes too long is no loss.
        kwargs: Keywords for each environment's constructor, including those with the name of an
            option.
        **keywords: Passed to each environment's constructor too.

    Raises:
        EnvNotFoundError: No environment has this ID.
        BackendNotFoundError: No backend has this name.
        OptionError: A keyword is known neither to `pool` nor to the environment; or `durable` was
            passed for an environment that is not deterministic.
        DefinitionError: An environment could not be made. Those already made are closed.
        RecordingError: Nothing can be recorded into the directory `record`.
    """
    recorded = RecordOption(record, transform)
    durable = flag("durable", durable)
    count = whole_number("size", size)
    refuse_one_object(env, count)
    timeout_s = seconds("timeout_s", timeout_s)
    given = constructor_keywords(kwargs, keywords)
    spec = recipe(env, registry, max_episode_steps, transform, given)
    remote = Remote(
        base_url, token, encoding, provider, docker_image, isolation, read_wait_s(wait_s) or None
    )
    remote = with_registered_server(spec, backend, remote)
    backend, remote = prepare_packages(spec, backend, remote, install, venv, requirements)
    chosen, given = choose_backend(spec, backend, remote, max_episode_steps, transform, given)
    ray = RayOptions(address, envs_per_worker, resources, runtime_env, placement)
    ray, given = ray_options(chosen, given, ray)
    module = backend_module(chosen)
    one = MakeOptions(timeout_s=timeout_s, remote=remote, ray=ray)
    connect = partial(module.connect_async, spec, given, one)
    if workers is not None:
        workers = whole_number("workers", workers)
    connect_pool = getattr(module, "connect_pool", None)
    if connect_pool is None:
        transports = _connect_each(connect, count)
    else:
        options = MakeOptions(timeout_s=timeout_s, workers=workers, remote=remote, ray=ray)
        transports = connect_pool(spec, given, options, count)
    try:
        if durable:
            _refuse_unrepeatable(transports[0].interface)
        writer = recorded.open(transports[0], spec, given, chosen)
    except BaseException:
        _close_all(transports)
        raise
    return Pool(
        spec.id,
        [traced_async(one, spec.id) for one in transports],
        None if getattr(module, "RECONNECTS", False) else lambda: traced_async(connect(), spec.id),
        getattr(module, "describe_workers", None),
        writer,
        lambda given_record: RecordOption(given_record, transform).open(
            transports[0], spec, given, chosen
        ),
        spec.max_episode_steps,
        durable=durable,
    )


def _refuse_unrepeatable(interface: Interface) -> None:
    if not interface.deterministic:
        raise OptionError(
            f"durable=True cannot be honored: {interface.name} is not deterministic, as its author "
            "declared, so taking its actions again leads elsewhere. Leave durable out; a rollout "
            "then plays lost episodes again from the start."
        )


def _connect_each(connect: Callable[[], AsyncTransport], size: int) -> list[AsyncTransport]:
    transports: list[AsyncTransport] = []
    try:
        for _ in range(size):
            transports.append(connect())  # noqa: PERF401 - those made so far are closed below
    except BaseException:
        _close_all(transports)
        raise
    return transports


def _close_all(transports: list[AsyncTransport]) -> None:
    loop = PrivateLoop()
    try:
        loop.run(_close(transports))
    finally:
        loop.close()


async def _close(transports: list[AsyncTransport]) -> None:
    """Close unused environments; failures are logged, since the original error is raised."""
    for transport in transports:
        try:
            await transport.close()
        except Exception:
            logger.warning("closing an unused environment failed", exc_info=True)
