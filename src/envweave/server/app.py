"""The application around a server's sessions: every route, behind the guard.

`build_app` returns it as a FastAPI application, for any ASGI server. `envweave serve` runs the
same routes without FastAPI, whose import takes longer than everything else together; `/docs` and
`/openapi.json` import what they need when somebody asks for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from envweave.server.dialects.mcp import McpEndpoint
from envweave.server.dialects.openenv import OpenEnv
from envweave.server.dialects.openenv_mcp import Mcp
from envweave.server.dialects.websocket import encoding_of, speak
from envweave.server.http.bodies import on_failure, on_http_exception, on_invalid
from envweave.server.http.health import probe_routes
from envweave.server.http.openapi import VERSION, openapi
from envweave.server.http.routes import http_routes, told
from envweave.server.logs import SessionLog
from envweave.server.loop_owner import LoopOwner, RunningLoop
from envweave.server.metrics import Meter, Metrics
from envweave.server.security import Guard
from envweave.server.service import Service

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from envweave.server.options import ServerOptions
    from envweave.server.runtime.base import Runtime


@final
class AppState:
    """The parts that both kinds of application are put together from.

    Attributes:
        service: Its inside.
        home: On which loop it runs.
    """

    def __init__(self, make_place: Callable[[], Runtime], options: ServerOptions) -> None:
        self.service = service = Service(make_place, options)

        def begin() -> None:
            if service.is_stopped:
                service.renew()

        self.home = LoopOwner(begin, service.stop)
        self._metrics = Metrics(service)
        service.watch(SessionLog())

    def routes(self) -> list[BaseRoute]:
        """Return every route, those that are called most first."""
        mcp = Mcp(self.service)
        openenv = OpenEnv(self.service, mcp)

        return [
            WebSocketRoute("/ws", _Router(self.service, self._metrics, openenv)),
            *http_routes(self.service),
            Route("/mcp", McpEndpoint(self.service, mcp), methods=["POST", "DELETE"]),
            *probe_routes(self.service, self._metrics),
        ]

    def middleware(self) -> list[Middleware]:
        """Return what stands before the routes, the outermost first."""
        options = self.service.options
        first = []
        if options.allowed_origins:
            from starlette.middleware.cors import CORSMiddleware

            origins = list(options.allowed_origins)
            first = [
                Middleware(
                    CORSMiddleware,
                    allow_origins=origins,
                    allow_methods=["GET", "POST", "DELETE"],
                    allow_headers=["*"],
                    expose_headers=["Mcp-Session-Id"],
                )
            ]
        return [
            *first,
            Middleware(Guard, options=options),
            Middleware(RunningLoop, home=self.home),
            Middleware(Meter, metrics=self._metrics),
        ]

    def document(self) -> dict[str, Any]:
        """Return the content of `/openapi.json`, once the service is started."""
        has_token = self.service.options.token is not None
        return openapi(self.service.place.description, has_token=has_token)

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncIterator[None]:  # noqa: ARG002 - as Starlette calls it
        """Start with the server, and stop with it: running episodes are not waited for.

        An application may be started again.
        """
        if not self.home.settle():
            yield  # it runs already, and whoever came first says for how long
            return
        try:
            await self.service.start()
            yield
        finally:
            await self.service.stop()
            self.home.leave()


@final
class _Router:
    """`/ws`, in the dialect that its caller speaks, as a pure ASGI application."""

    def __init__(self, service: Service, metrics: Metrics, openenv: OpenEnv) -> None:
        self._service = service
        self._metrics = metrics
        self._openenv = openenv

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Speak with a caller until it is gone."""
        encoding = encoding_of(scope)
        if encoding is None:
            await self._openenv.speak(WebSocket(scope, receive, send))
        else:
            await speak(scope, receive, send, self._service, encoding, self._metrics)


HANDLERS: dict[Any, Callable[[Any, Exception], Any]] = {
    HTTPException: on_http_exception,
    Exception: on_failure,
}
"""How what nobody refused on purpose is told."""


def build_app(make_place: Callable[[], Runtime], options: ServerOptions) -> FastAPI:
    """Return a FastAPI application that serves what runs in the place that is made.

    It starts and stops with its server. Mounted in another application, it starts at the first
    call, on a loop of its own.
    """
    from fastapi import FastAPI
    from fastapi.exceptions import RequestValidationError

    site = AppState(make_place, options)
    app = FastAPI(
        title="envweave",
        version=VERSION,
        openapi_url=None,  # ours needs the environment, which is made first
        docs_url=None,
        redoc_url=None,
        lifespan=site.lifespan,
        middleware=site.middleware(),
        exception_handlers={**HANDLERS, RequestValidationError: on_invalid},
        routes=[*site.routes(), *_documents(site, lambda: app.openapi())],
    )
    theirs = app.openapi

    def ours() -> dict[str, Any]:
        document = theirs()  # whatever was added to the application afterwards
        if not site.service.is_started:
            return document
        said = site.document()
        components = {**document.get("components", {}), **said["components"]}
        return {**said, "paths": {**document["paths"], **said["paths"]}, "components": components}

    app.openapi = ours  # type: ignore[method-assign] # as FastAPI documents it
    app.state.envweave = site
    return app


def build_plain_app(site: AppState) -> Starlette:
    """Return an application with the same routes, whose service is started and stopped by hand.

    `site.home.settle()` is called where it will run.
    """
    return Starlette(
        routes=[*site.routes(), *_documents(site, site.document)],
        middleware=site.middleware(),
        exception_handlers=HANDLERS,
    )


_EMPTY = '<div id="swagger-ui">'
_OFFLINE = (
    "This page loads its scripts from the network. Where there is none, "
    '<a href="{url}">{url}</a> says the same.'
)
"""What stands on the page until its scripts have come."""


def _documents(site: AppState, write: Callable[[], dict[str, Any]]) -> list[BaseRoute]:
    async def document(request: Request) -> Response:
        await site.service.start()
        said = write()
        if root := request.scope.get("root_path"):
            said["servers"] = [{"url": root}]
        return Response(msgspec.json.encode(said), media_type="application/json")

    async def docs(request: Request) -> Response:
        from fastapi.openapi.docs import get_swagger_ui_html

        url = f"{request.scope.get('root_path', '')}/openapi.json"
        page = bytes(get_swagger_ui_html(openapi_url=url, title="envweave").body).decode()
        return HTMLResponse(page.replace(_EMPTY, _EMPTY + _OFFLINE.format(url=url), 1))

    return [
        Route("/openapi.json", told(document), methods=["GET"], include_in_schema=False),
        Route("/docs", docs, methods=["GET"], include_in_schema=False),
    ]
