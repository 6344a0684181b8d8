"""OpenTelemetry spans of episodes, resets and steps, where a program has configured a tracer.

They are the caller's: of `make`, `make_async` and pools, on every backend. An episode is a span
`envweave.episode` below the caller's current span; each call in it is a child, and the current
span of what it calls, so that spans of an environment or its tools nest below.

Whether there is a tracer is asked once, when an environment is made. Without one nothing is put
around it, and OpenTelemetry is not imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, final

from envweave.environment import Interface
from envweave.types import ResetResult, State, StepResult, Tasks
from envweave.vector.transport import AsyncTransport, Transport

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

_API = "opentelemetry.trace"


def traced(transport: Transport, env_id: str) -> Transport:
    """Return the transport; with a tracer, one that makes spans of its calls."""
    tracer = _find_tracer()
    return transport if tracer is None else _TracedTransport(transport, tracer, env_id)


def traced_async(transport: AsyncTransport, env_id: str) -> AsyncTransport:
    """Return the transport; with a tracer, one that makes spans of its calls."""
    tracer = _find_tracer()
    return transport if tracer is None else _TracedAsyncTransport(transport, tracer, env_id)


def _find_tracer() -> Tracer | None:
    # Who has configured a tracer has imported the API.
    api: Any = sys.modules.get(_API)
    if api is None:
        return None
    provider = api.get_tracer_provider()
    if isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider):
        return None
    tracer: Tracer = provider.get_tracer("envweave")
    return tracer


@final
class _EpisodeSpans:
    """The spans of one environment's episodes."""

    def __init__(self, tracer: Tracer, env_id: str) -> None:
        self._tracer = tracer
        self._env_id = env_id
        self._episode: Span | None = None

    def begin(self) -> None:
        """Begin the span of an episode; one that has not ended was left."""
        self.leave()
        self._episode = self._tracer.start_span(
            "envweave.episode", attributes={"envweave.env_id": self._env_id}
        )

    @contextmanager
    def call(self, name: str) -> Iterator[Span]:
        """Make a span of a call, in the episode if there is one. What it raises is recorded."""
        api = sys.modules[_API]
        context = None if self._episode is None else api.set_span_in_context(self._episode)
        with self._tracer.start_as_current_span(name, context=context) as span:
            yield span

    def began(self, result: StepResult[Any], info: dict[str, Any]) -> None:
        """Describe the episode that a result began."""
        ready = result.ready
        about = {
            "envweave.episode_id": result.episode_id if ready is None else ready.episode_id,
            "envweave.task_id": result.task_id if ready is None else ready.task_id,
            "envweave.seed": info.get("seed"),
        }
        assert self._episode is not None
        # Seeds may exceed the 64 bits of an attribute.
        self._episode.set_attributes(
            {
                name: value if isinstance(value, str) else str(value)
                for name, value in about.items()
                if value is not None
            }
        )

    def stepped(self, span: Span, result: StepResult[Any]) -> None:
        """Describe a step, and end the episode if it was the last one."""
        span.set_attribute("envweave.step_index", result.step_index)
        if isinstance(result.reward, float):
            span.set_attribute("envweave.reward", result.reward)
        if result.end is None:
            return
        self._end(result)
        if result.ready is not None:
            self.begin()
            self.began(result, result.ready.initial_info)

    def _end(self, result: StepResult[Any]) -> None:
        episode, end = self._episode, result.end
        if episode is None or end is None:
            return
        episode.set_attribute("envweave.reason", end.reason)
        episode.set_attribute("envweave.length", result.step_index)
        if end.blame is not None:
            episode.set_attribute("envweave.blame", end.blame)
        if not end.valid:
            status = sys.modules[_API].Status(sys.modules[_API].StatusCode.ERROR, end.cause)
            episode.set_status(status)
        episode.end()
        self._episode = None

    def leave(self) -> None:
        """End the span of an episode that the caller left before its end."""
        if self._episode is not None:
            self._episode.set_attribute("envweave.reason", "left")
            self._episode.end()
            self._episode = None


class _TracedBase:
    """What both colors of transports have in common."""

    def __init__(self, transport: Any, tracer: Tracer, env_id: str) -> None:
        self._transport = transport
        self._spans = _EpisodeSpans(tracer, env_id)
        self.interface: Interface = transport.interface

    @property
    def tasks(self) -> Tasks | None:
        """The tasks that the environment offers."""
        tasks: Tasks | None = self._transport.tasks
        return tasks

    @property
    def agents(self) -> list[str]:
        """The agents that take part now."""
        agents: list[str] = self._transport.agents
        return agents


@final
class _TracedTransport(_TracedBase):
    def reset(self, **params: Any) -> ResetResult[Any]:
        self._spans.begin()
        with self._spans.call("envweave.reset"):
            result: ResetResult[Any] = self._transport.reset(**params)
        self._spans.began(result, result.info)
        return result

    def step(self, action: Any) -> StepResult[Any]:
        with self._spans.call("envweave.step") as span:
            result: StepResult[Any] = self._transport.step(action)
            self._spans.stepped(span, result)
        return result

    def state(self) -> State:
        state: State = self._transport.state()
        return state

    def snapshot(self) -> Any:
        return self._transport.snapshot()

    def restore(self, point: Any) -> ResetResult[Any]:
        self._spans.begin()
        with self._spans.call("envweave.restore"):
            result: ResetResult[Any] = self._transport.restore(point)
        self._spans.began(result, result.info)
        return result

    def close(self) -> None:
        self._spans.leave()
        self._transport.close()


@final
class _TracedAsyncTransport(_TracedBase):
    async def reset(self, **params: Any) -> ResetResult[Any]:
        self._spans.begin()
        with self._spans.call("envweave.reset"):
            result: ResetResult[Any] = await self._transport.reset(**params)
        self._spans.began(result, result.info)
        return result

    async def step(self, action: Any) -> StepResult[Any]:
        with self._spans.call("envweave.step") as span:
            result: StepResult[Any] = await self._transport.step(action)
            self._spans.stepped(span, result)
        return result

    async def state(self) -> State:
        state: State = await self._transport.state()
        return state

    async def snapshot(self) -> Any:
        return await self._transport.snapshot()

    async def restore(self, point: Any) -> ResetResult[Any]:
        self._spans.begin()
        with self._spans.call("envweave.restore"):
            result: ResetResult[Any] = await self._transport.restore(point)
        self._spans.began(result, result.info)
        return result

    async def close(self) -> None:
        self._spans.leave()
        await self._transport.close()
