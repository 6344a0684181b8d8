"""The ASGI application of a server: every route, behind the access guard.

`build_app` returns a FastAPI application, for any ASGI server. `envweave serve` runs the same
routes on plain Starlette: importing FastAPI takes longer than everything else together.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from envweave.server.dialects.mcp import McpEndpoint
from envweave.server.dialects.nemo_gym import NemoGym
from envweave.server.dialects.openenv import Mcp, OpenEnv
from envweave.server.dialects.ors import OpenReward
from envweave.server.dialects.websocket import encoding_of, serve_websocket
from envweave.server.http.bodies import on_failure, on_http_exception, on_invalid
from envweave.server.http.openapi import VERSION, openapi
from envweave.server.http.routes import answer_errors, http_routes, probe_routes
from envweave.server.http.web import web_routes
from envweave.server.logs import SessionLog
from envweave.server.loop_owner import LoopOwner, RunningLoop
from envweave.server.metrics import Meter, Metrics
from envweave.server.security import Guard, not_served, refuse_socket
from envweave.server.service import Service
from envweave.web.assets import page

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from envweave.server.options import ServerOptions
    from envweave.server.runtime.base import Runtime


_PAGES = Path(__file__).parent / "http"


@final
class AppState:
    """The parts that both kinds of application share.

    Attributes:
        service: What the routes call.
        loop_owner: The event loop it runs on.
    """

    def __init__(self, make_runtime: Callable[[], Runtime], options: ServerOptions) -> None:
        self.service = service = Service(make_runtime, options)

        def begin() -> None:
            if service.is_stopped:
                service.prepare()

        self.loop_owner = LoopOwner(begin, service.stop)
        self._metrics = Metrics(service)
        service.watch(SessionLog())

    def routes(self) -> list[BaseRoute]:
        """Return every route, the most frequently called first."""
        has_dialect = self.service.options.has_dialect
        mcp = Mcp(self.service)
        openenv = OpenEnv(self.service, mcp) if has_dialect("openenv") else None
        nemo_gym = NemoGym(self.service) if has_dialect("nemo-gym") else None
        routes: list[BaseRoute] = [
            WebSocketRoute("/ws", _Router(self.service, self._metrics, openenv)),
            *http_routes(self.service, *([nemo_gym.share] if nemo_gym else [])),
        ]
        if openenv or has_dialect("mcp"):
            methods = ["POST", "DELETE"]
            routes.append(Route("/mcp", McpEndpoint(self.service, mcp), methods=methods))
        routes += probe_routes(self.service, self._metrics)
        routes += web_routes(self.service, self._metrics)
        routes += nemo_gym.routes() if nemo_gym else []
        routes += OpenReward(self.service).routes() if has_dialect("ors") else []
        return routes

    def middleware(self) -> list[Middleware]:
        """Return the middleware, outermost first."""
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
            Middleware(RunningLoop, owner=self.loop_owner),
            Middleware(Meter, metrics=self._metrics),
        ]

    def document(self) -> dict[str, Any]:
        """Return the content of `/openapi.json`, once the service is started."""
        has_token = self.service.options.token is not None
        return openapi(self.service.runtime.description, has_token=has_token)

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncIterator[None]:  # noqa: ARG002 - as Starlette calls it
        """Start and stop with the server, without waiting for running episodes.

        The application can be started again.
        """
        if not self.loop_owner.adopt_running_loop():
            yield  # already running; the first caller decides for how long
            return
        try:
            await self.service.start()
            yield
        finally:
            await self.service.stop()
            self.loop_owner.release()


@final
class _Router:
    """`/ws` in the dialect of its client, as a pure ASGI application."""

    def __init__(self, service: Service, metrics: Metrics, openenv: OpenEnv | None) -> None:
        self._service = service
        self._metrics = metrics
        self._openenv = openenv

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection until the client disconnects."""
        encoding = encoding_of(scope)
        if encoding is None and self._openenv is None:
            await refuse_socket(not_served("openenv"), scope, receive, send)
        elif encoding is None:
            assert self._openenv is not None
            await self._openenv.serve(WebSocket(scope, receive, send))
        else:
            await serve_websocket(scope, receive, send, self._service, encoding, self._metrics)


HANDLERS: dict[Any, Callable[[Any, Exception], Any]] = {
    HTTPException: on_http_exception,
    Exception: on_failure,
}
"""Responses to errors that no endpoint handled."""


def build_app(make_runtime: Callable[[], Runtime], options: ServerOptions) -> FastAPI:
    """Return a FastAPI application that serves the environments of a runtime.

    It starts and stops with its server. Mounted in another application, it starts on the first
    call, on an event loop of its own.
    """
    from fastapi import FastAPI
    from fastapi.exceptions import RequestValidationError

    state = AppState(make_runtime, options)
    app = FastAPI(
        title="envweave",
        version=VERSION,
        openapi_url=None,  # ours needs the environment, which is made at the start
        docs_url=None,
        redoc_url=None,
        lifespan=state.lifespan,
        middleware=state.middleware(),
        exception_handlers={**HANDLERS, RequestValidationError: on_invalid},
        routes=[*state.routes(), *_documents(state, lambda: app.openapi())],
    )
    fastapi_document = app.openapi

    def merged_document() -> dict[str, Any]:
        document = fastapi_document()  # includes routes that users added to the application
        if not state.service.is_started:
            return document
        own = state.document()
        components = {**document.get("components", {}), **own["components"]}
        return {**own, "paths": {**document["paths"], **own["paths"]}, "components": components}

    app.openapi = merged_document  # type: ignore[method-assign] # as FastAPI documents it
    app.state.envweave = state
    return app


def build_plain_app(state: AppState) -> Starlette:
    """Return an application with the same routes, started and stopped by the caller.

    The caller runs `state.loop_owner.adopt_running_loop()` on its event loop first.
    """
    return Starlette(
        routes=[*state.routes(), *_documents(state, state.document)],
        middleware=state.middleware(),
        exception_handlers=HANDLERS,
    )


def _documents(state: AppState, write: Callable[[], dict[str, Any]]) -> list[BaseRoute]:
    async def document(request: Request) -> Response:
        await state.service.start()
        content = write()
        if root := request.scope.get("root_path"):
            content["servers"] = [{"url": root}]
        return Response(msgspec.json.encode(content), media_type="application/json")

    async def docs(request: Request) -> Response:  # noqa: ARG001 - an endpoint
        return Response((_PAGES / "docs.html").read_bytes(), media_type="text/html")

    async def favicon(request: Request) -> Response:  # noqa: ARG001 - an endpoint
        return page("favicon.svg")

    return [
        Route("/openapi.json", answer_errors(document), methods=["GET"], include_in_schema=False),
        Route("/docs", docs, methods=["GET"], include_in_schema=False),
        Route("/favicon.svg", favicon, methods=["GET"], include_in_schema=False),
    ]
