"""The web page of a server, at `/web/`: its files, and what it shows beyond the HTTP calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from envweave.errors import EnvWeaveError
from envweave.server.http.bodies import refusal
from envweave.web.assets import asset, data, page
from envweave.wire.faults import fault_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from envweave.server.metrics import Metrics
    from envweave.server.service import Service

SHOWN = 200
"""Maximum number of sessions that the page lists."""


def web_routes(service: Service, metrics: Metrics) -> list[Route]:
    """Return the routes of the web page."""

    async def to_page(request: Request) -> Response:
        return RedirectResponse(f"{request.scope.get('root_path', '')}/web/", 307)

    async def index(request: Request) -> Response:  # noqa: ARG001 - an endpoint
        return page("server.html")

    async def about(request: Request) -> Response:  # noqa: ARG001 - an endpoint
        try:
            await service.start()
        except EnvWeaveError as error:
            return refusal(fault_of(error))
        return data(service.runtime.description)

    async def live(request: Request) -> Response:  # noqa: ARG001 - an endpoint
        sessions = service.table.overview()
        return data({**metrics.summary(), "total": len(sessions), "sessions": sessions[:SHOWN]})

    return [
        Route("/web", to_page, methods=["GET"], include_in_schema=False),
        Route("/web/", index, methods=["GET"], include_in_schema=False),
        Route("/web/about", about, methods=["GET"], include_in_schema=False),
        Route("/web/live", live, methods=["GET"], include_in_schema=False),
        Route("/web/{name}", asset, methods=["GET"], include_in_schema=False),
    ]
