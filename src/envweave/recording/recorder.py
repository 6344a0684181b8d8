"""What the caller's thread does to record: it packs the values of each call and queues them."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter, time
from typing import TYPE_CHECKING, Any, final

import msgspec
import numpy as np
from msgspec.msgpack import Ext

from envweave.environment import Interface
from envweave.errors import (
    BadReturnError,
    BusyError,
    CallOrderError,
    CapacityError,
    DeadlineError,
    EnvironmentFailure,
    EnvironmentLostError,
    OptionError,
    RegistryError,
    SeedError,
    SpecError,
    TaskError,
    format_error,
)
from envweave.recording.events import TakenEnd, TakenReset, TakenResult, TakenStep, pack_result
from envweave.recording.writer import RunWriter
from envweave.types import Blame, EpisodeEnd, Reason, ResetResult, State, StepResult, Task, Tasks
from envweave.types.requests import ToolResult
from envweave.wire.arrays import header
from envweave.wire.encoding import ARRAY, MSGPACK, encode_fallback

if TYPE_CHECKING:
    from envweave.vector.transport import AsyncTransport, Transport

REFUSED_CALLS = (SpecError, CallOrderError, OptionError, SeedError, TaskError, CapacityError)
"""Errors of calls that did nothing: the episode, if any, is unharmed."""

_NUMBERS = frozenset("?bBhHiIlLqQefd")
"""The numpy types of which the wire holds every value."""


def _encode(value: Any) -> Any:
    """Return what MessagePack writes of a value: as `encode_fallback`, but arrays more quickly."""
    if type(value) is np.ndarray and value.dtype.char in _NUMBERS:
        return Ext(ARRAY, header(value.dtype, value.shape) + value.tobytes())
    return encode_fallback(value)


_pack_fast = msgspec.msgpack.Encoder(enc_hook=_encode).encode


def pack(value: Any) -> bytes:
    """Return a packed copy of a value. What cannot be packed is packed as its `repr`."""
    try:
        return _pack_fast(value)
    except Exception:  # noqa: BLE001 - a value that MessagePack cannot write
        return MSGPACK.encode(value)


def public_task(task: Task | str | None) -> dict[str, Any] | None:
    """Return what a recording keeps of a task: everything but its private part."""
    if not isinstance(task, Task):
        return None if task is None else {"id": task}
    about = {"id": task.id, "split": task.split, "data": task.data}
    if task.image is not None:
        about["image"] = task.image
    if task.limits is not None:
        about["limits"] = task.limits
    return about


def failure_end(error: BaseException) -> EpisodeEnd:
    """Return the end of an episode for an error that a call raised."""
    reason: Reason = "lost"
    blame: Blame = "infrastructure"
    if isinstance(error, DeadlineError) or isinstance(error.__cause__, DeadlineError):
        reason, blame = "timeout", "environment"
    elif isinstance(error, EnvironmentFailure | RegistryError) and not isinstance(
        error, EnvironmentLostError
    ):
        reason, blame = "error", "environment"
    return EpisodeEnd(reason, blame, format_error(error))


@final
class EpisodeEvents:
    """Records the episodes of one environment.

    Args:
        writer: Writes them; several environments may share it.
        row: The row of the environment, in a vector.

    Attributes:
        about: Further fields of the next episode's `reset` event: `group`, `member`, `attempt`,
            `parent`. They are used once.
    """

    def __init__(self, writer: RunWriter, row: int | None = None) -> None:
        self._writer = writer
        self._row = row
        self._running: str | None = None  # the episode; without a row, only this knows
        self.about: dict[str, Any] = {}

    def began(
        self,
        result: Any,
        duration_s: float,
        *,
        seed: int | None = None,
        task: Task | str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Record the start of an episode, which ends one that was still running."""
        self.left("reset() began another episode.")
        self._running = result.episode_id
        about, self.about = self.about, {}
        asked = pack({"seed": seed, "task": public_task(task), "options": options, **about})
        packed = pack_result(result)
        taken = TakenReset(time(), self._row, packed, asked, duration_s)
        self._writer.put(taken, len(packed) + len(asked))

    def stepped(
        self,
        action: bytes,
        result: Any,
        duration_s: float,
        *,
        is_answer: bool = False,
        extra: bytes | None = None,
    ) -> None:
        """Record a step, or the answer to a tool call, with its action that was packed before."""
        if (
            result.end is None
            and not is_answer
            and result._needs is None  # noqa: SLF001 - a result's own fields
            and not result._events  # noqa: SLF001
            and result.terminated is False
            and result.truncated is False
        ):
            observation, array, size = result.observation, None, 0
            if type(observation) is np.ndarray and observation.dtype.char in _NUMBERS:
                # Copying it takes a third of the time of packing it.
                array, observation, size = observation.copy(), None, observation.nbytes
            outcome = pack((observation, result.reward, result.info))
            episode, step = result.episode_id, result.step_index
            self._writer.put(
                TakenStep(
                    time(), self._row, episode, step, action, outcome, array, extra, duration_s
                ),
                size + len(outcome),
            )
            return
        packed = pack_result(result)
        self._writer.put(
            TakenResult(time(), self._row, action, is_answer, packed, extra, duration_s),
            len(packed),
        )
        if result.end is not None:
            self._running = None if result.ready is None else result.ready.episode_id
            self._writer.hurry()

    @property
    def is_running(self) -> bool:
        """Whether an episode is running, as far as this recorded it."""
        return self._running is not None

    def failed(self, error: BaseException) -> None:
        """Record that a call raised; a refusal changes nothing, so nothing is recorded."""
        if not isinstance(error, REFUSED_CALLS) or isinstance(error, BadReturnError):
            self.ended(failure_end(error))

    def left(self, cause: str) -> None:
        """Record that the caller gives up the episode that is running, if there is one."""
        if self._row is None:
            self.ended(EpisodeEnd("truncated", cause=cause))

    def ended(self, end: EpisodeEnd) -> None:
        """Record the end of the episode that is running, of which no result told."""
        if self._running is None:
            return
        episode = self._running if self._row is None else None
        self._writer.put(TakenEnd(time(), self._row, episode, pack(end)), 0)
        self._writer.hurry()
        if self._row is None:
            self._running = None


@final
class RecordedTransport:
    """Carries the calls of an `Env`, and records them.

    Args:
        transport: Carries them.
        writer: Records them; closed with this.
    """

    def __init__(self, transport: Transport, writer: RunWriter) -> None:
        self._transport = transport
        self._writer = writer
        self._events = EpisodeEvents(writer)
        self._step = transport.step
        self.interface: Interface = transport.interface

    def reset(self, **params: Any) -> ResetResult[Any]:
        """Begin an episode."""
        began_s = perf_counter()
        try:
            result = self._transport.reset(**params)
        except Exception as error:
            self._events.failed(error)
            raise
        asked = {name: params.get(name) for name in ("seed", "task", "options")}
        self._events.began(result, perf_counter() - began_s, **asked)
        return result

    def step(self, action: Any) -> StepResult[Any]:
        """Take one step."""
        packed = pack(action)
        began_s = perf_counter()
        try:
            result = self._step(action)
        except Exception as error:
            self._events.failed(error)
            raise
        is_answer = type(action) is ToolResult
        self._events.stepped(packed, result, perf_counter() - began_s, is_answer=is_answer)
        return result

    def state(self) -> State:
        """Return the environment's state."""
        return self._transport.state()

    def close(self) -> None:
        """Release everything, and end the recording. May be called twice."""
        try:
            self._transport.close()
        except BusyError:
            raise  # nothing was closed
        except BaseException:
            self._writer.close()
            raise
        self._writer.close()

    @property
    def tasks(self) -> Tasks | None:
        """The tasks of its episodes."""
        return self._transport.tasks

    @property
    def agents(self) -> list[str]:
        """The agents that take part now."""
        return self._transport.agents


@final
class RecordedAsyncTransport:
    """Carries the calls of an `AsyncEnv`, and records them."""

    def __init__(self, transport: AsyncTransport, writer: RunWriter) -> None:
        self._transport = transport
        self._writer = writer
        self._events = EpisodeEvents(writer)
        self.interface: Interface = transport.interface

    async def reset(self, **params: Any) -> ResetResult[Any]:
        """Begin an episode."""
        began_s = perf_counter()
        try:
            result = await self._transport.reset(**params)
        except Exception as error:
            self._events.failed(error)
            raise
        asked = {name: params.get(name) for name in ("seed", "task", "options")}
        self._events.began(result, perf_counter() - began_s, **asked)
        return result

    async def step(self, action: Any) -> StepResult[Any]:
        """Take one step."""
        packed = pack(action)
        began_s = perf_counter()
        try:
            result = await self._transport.step(action)
        except Exception as error:
            self._events.failed(error)
            raise
        is_answer = type(action) is ToolResult
        self._events.stepped(packed, result, perf_counter() - began_s, is_answer=is_answer)
        return result

    async def state(self) -> State:
        """Return the environment's state."""
        return await self._transport.state()

    async def close(self) -> None:
        """Release everything, and end the recording. May be called twice."""
        try:
            await self._transport.close()
        finally:
            self._writer.close()

    @property
    def tasks(self) -> Tasks | None:
        """The tasks of its episodes."""
        return self._transport.tasks

    @property
    def agents(self) -> list[str]:
        """The agents that take part now."""
        return self._transport.agents
