"""Information about a server: `/health`, `/ready`, `/schema`, `/metadata`, `/metrics`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import msgspec
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from envweave.server.http.routes import answer_errors
from envweave.wire.encoding import SUBPROTOCOLS

if TYPE_CHECKING:
    from starlette.requests import Request

    from envweave.server.metrics import Metrics
    from envweave.server.service import Service
    from envweave.wire.description import Description

DIALECTS = [*SUBPROTOCOLS, "openenv"]
"""The dialects of `/ws`."""


def probe_routes(service: Service, metrics: Metrics) -> list[Route]:
    """Return the routes for information about the server."""
    probes = _Probes(service, metrics)
    return [
        Route("/health", probes.health, methods=["GET"]),
        Route("/ready", answer_errors(probes.ready), methods=["GET"]),
        Route("/schema", answer_errors(probes.schema), methods=["GET"]),
        Route("/metadata", answer_errors(probes.metadata), methods=["GET"]),
        Route("/metrics", probes.metrics, methods=["GET"]),
        Route("/", probes.root, methods=["GET"], include_in_schema=False),
    ]


def metadata_of(about: Description, service: Service) -> dict[str, Any]:
    """Return the content of `/metadata`. The key `envweave` identifies our servers."""
    options = service.options
    return {
        "name": about.name,
        "description": about.description or f"The environment {about.env_id}.",
        "version": about.version,
        "envweave": about.version,
        "env_id": about.env_id,
        "dialects": DIALECTS,
        "reset_takes": about.reset_takes,
        "possible_agents": about.possible_agents,
        "deterministic": about.deterministic,
        "splits": about.splits,
        "limits": {
            "max_sessions": options.max_sessions,
            "max_message_bytes": options.max_message_bytes,
            "session_ttl_s": options.session_ttl_s,
            "resume_ttl_s": options.resume_ttl_s,
            "timeout_s": options.timeout_s,
        },
    }


@final
class _Probes:
    def __init__(self, service: Service, metrics: Metrics) -> None:
        self._service = service
        self._metrics = metrics

    async def health(self, request: Request) -> Response:  # noqa: ARG002 - an endpoint
        return _json({"status": "healthy"})

    async def ready(self, request: Request) -> Response:  # noqa: ARG002 - an endpoint
        await self._service.start()
        reason = self._service.unready_reason
        if reason is None:
            return _json({"status": "ready"})
        return _json({"status": "unready", "reason": reason}, 503)

    async def schema(self, request: Request) -> Response:  # noqa: ARG002 - an endpoint
        await self._service.start()
        about = self._service.runtime.description
        return _json(
            {"action": about.action, "observation": about.observation, "state": about.state}
        )

    async def metadata(self, request: Request) -> Response:  # noqa: ARG002 - an endpoint
        await self._service.start()
        return _json(metadata_of(self._service.runtime.description, self._service))

    async def metrics(self, request: Request) -> Response:  # noqa: ARG002 - an endpoint
        return Response(self._metrics.show(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def root(self, request: Request) -> Response:
        return RedirectResponse(f"{request.scope.get('root_path', '')}/docs", 307)


def _json(message: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(message), status, media_type="application/json")
