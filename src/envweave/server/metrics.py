"""Metrics of a server for Prometheus: `/metrics`.

Counting costs a few additions per call. prometheus-client is imported on the first request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, final

from envweave.server.dialects.websocket import encoding_of
from envweave.wire.messages import OF_SERVERS, OF_SESSIONS

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from envweave.server.service import Service

BUCKETS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""Upper bounds of the histogram of call durations."""

_METHODS = OF_SESSIONS | OF_SERVERS


@final
class Metrics:
    """Counts calls and sessions, as an observer of the session table."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._calls: Counter[tuple[str, str]] = Counter()
        self._lasted: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()
        self._opened = 0
        self._closed: Counter[str] = Counter()
        self._registry: Any = None
        self.connections = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        service.watch(self)

    def called(self, method: str, code: str, seconds: float, count: int = 1) -> None:
        """Count calls that have ended."""
        if method not in _METHODS:
            method = "unknown"  # a label must not come from a client
        self._calls[method, code] += count
        lasted = self._lasted.get(method)
        if lasted is None:
            lasted = self._lasted[method] = [0] * (len(BUCKETS_S) + 1)
        lasted[bisect_left(BUCKETS_S, seconds)] += count
        self._seconds[method] += seconds * count  # type: ignore[assignment] # a sum of seconds

    def opened(self) -> None:
        """Count a session."""
        self._opened += 1

    def closed(self, reason: str) -> None:
        """Count the end of a session."""
        self._closed[reason] += 1

    def show(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import generate_latest

        if self._registry is None:
            self._registry = CollectorRegistry(auto_describe=False)
            self._registry.register(self)
        return generate_latest(self._registry)

    def summary(self) -> dict[str, Any]:
        """Return the figures that the web page shows. They name no session and no client."""
        table, health = self._service.table, self._service.runtime.health
        return {
            "unready_reason": self._service.unready_reason,
            "limit": self._service.options.max_sessions,
            "waiting": table.waiting,
            "opened": self._opened,
            "closed": dict(self._closed),
            "connections": self.connections,
            "received_bytes": self.received_bytes,
            "sent_bytes": self.sent_bytes,
            "workers": health.workers,
            "workers_replaced": health.replaced,
            "stuck": health.stuck,
            "calls": [
                {"method": method, "outcome": code, "count": count}
                for (method, code), count in self._calls.items()
            ],
            "durations": {
                method: {"counts": counts, "seconds": self._seconds[method]}
                for method, counts in self._lasted.items()
            },
            "buckets_s": BUCKETS_S,
        }

    def collect(self) -> Iterator[Any]:
        """Yield the metrics, as prometheus-client calls it."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        def gauge(name: str, about: str, value: float) -> Any:
            return GaugeMetricFamily(f"envweave_{name}", about, value)

        def counter(name: str, about: str, value: float) -> Any:
            return CounterMetricFamily(f"envweave_{name}", about, value)

        table, health = self._service.table, self._service.runtime.health
        yield gauge("sessions", "Sessions in use.", table.count)
        yield gauge("sessions_waiting", "Clients that wait for a session.", table.waiting)
        yield gauge(
            "sessions_limit", "Maximum number of sessions.", self._service.options.max_sessions
        )
        yield counter("sessions_opened", "Sessions that were opened.", self._opened)
        closed = CounterMetricFamily(
            "envweave_sessions_closed", "Sessions that were closed, by reason.", labels=["reason"]
        )
        for reason, count in self._closed.items():
            closed.add_metric([reason], count)
        yield closed
        calls = CounterMetricFamily(
            "envweave_calls", "Calls, by outcome.", labels=["method", "outcome"]
        )
        for (method, code), count in self._calls.items():
            calls.add_metric([method, code], count)
        yield calls
        lasted = HistogramMetricFamily(
            "envweave_call_duration_seconds", "Duration of calls.", labels=["method"]
        )
        for method, counts in self._lasted.items():
            lasted.add_metric([method], _cumulative(counts), self._seconds[method])
        yield lasted
        yield gauge("stuck_threads", "Calls past their deadline that still run.", health.stuck)
        yield counter(
            "loop_moves",
            "Calls that blocked the event loop for so long that it moved to another thread.",
            health.moves,
        )
        yield counter(
            "loop_delay_seconds",
            "Time for which slow calls delayed other clients.",
            health.delayed_s,
        )
        yield gauge("workers", "Worker processes that are alive.", health.workers)
        yield counter("workers_replaced", "Worker processes that were lost.", health.replaced)
        yield gauge("connections", "WebSocket connections.", self.connections)
        yield counter("received_bytes", "Bytes of received bodies and frames.", self.received_bytes)
        yield counter("sent_bytes", "Bytes of sent bodies and frames.", self.sent_bytes)
        yield gauge(
            "ready", "Whether new sessions are accepted.", self._service.unready_reason is None
        )


def _cumulative(counts: list[int]) -> list[tuple[str, float]]:
    total, shown = 0, []
    for bound, count in zip([*map(str, BUCKETS_S), "+Inf"], counts, strict=True):
        total += count
        shown.append((bound, float(total)))
    return shown


@final
class Meter:
    """Counts connections and bytes, as pure ASGI middleware."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a call and count its bytes; frames of our own dialect are counted there."""
        metrics = self._metrics

        async def metered_receive() -> Message:
            message = await receive()
            metrics.received_bytes += _size(message)
            return message

        def metered_send(message: Message) -> Any:
            metrics.sent_bytes += _size(message)
            return send(message)

        is_socket = scope["type"] == "websocket"
        metrics.connections += is_socket
        try:
            if is_socket and encoding_of(scope) is not None:
                await self.app(scope, receive, send)
            else:
                await self.app(scope, metered_receive, metered_send)
        finally:
            metrics.connections -= is_socket


def _size(message: Message) -> int:
    data = message.get("bytes") or message.get("body") or message.get("text")
    return len(data) if data else 0
