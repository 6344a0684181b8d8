"""`envweave view`: look at runs in a browser."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import webbrowser
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from envweave.server.listen import Listener

PORT = 8300
_HEAD_TIMEOUT_S = 20.0


def view_command(
    folder: Annotated[
        Path,
        typer.Argument(help="Folder of a run, or with runs in it.", metavar="[DIR]"),
    ] = Path("runs"),
    host: Annotated[
        str, typer.Option(help="Address to listen on.", metavar="ADDRESS")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port; 0 picks a free one.", metavar="N", min=0, max=65535)
    ] = PORT,
    no_open: Annotated[
        bool, typer.Option("--no-open", metavar="", help="Don't open a browser.")
    ] = False,
    token: Annotated[
        str | None,
        typer.Option(
            help="Token to sign in with; by default a random one, which the printed URL contains.",
            metavar="TEXT",
            envvar="ENVWEAVE_TOKEN",
            show_envvar=False,
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Another host name of this machine; repeatable.", metavar="NAME"),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", metavar="", help="Print the URL as a JSON line.")
    ] = False,
) -> None:
    """Look at recorded episodes and training curves in a browser, until Ctrl-C.

    Shows the runs below DIR: folders with a recording (`record=`) or a `metrics.jsonl`. Runs that
    are still being written are shown as they grow. Nothing outside DIR is served, and nothing is
    changed.
    """
    from envweave.api.serving import refuse_without_extra

    refuse_without_extra()
    import msgspec
    from starlette.middleware import Middleware

    from envweave.api.serving import split
    from envweave.server.listen import listen
    from envweave.server.security import Guard
    from envweave.web.viewer.app import viewer_app
    from envweave.web.viewer.folder import RunsFolder

    # An empty token is none; one that a header cannot carry is refused.
    token = token or secrets.token_urlsafe(24)
    options, _ = split({"token": token, "allowed_hosts": allow_host or []})
    app = viewer_app(RunsFolder(folder), [Middleware(Guard, options=options)])
    listener = listen(host, port)
    try:
        url = f"{listener.url}/?token={quote(token, safe='')}"
        if json:
            line = msgspec.json.encode({"url": listener.url, "token": token}).decode()
        else:
            line = f"envweave: viewing {folder} on {url}"
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        if not (no_open or json) and sys.stdout.isatty() and _has_screen():
            webbrowser.open(url)  # the socket listens already
        with contextlib.suppress(KeyboardInterrupt):
            _serve(app, listener)
    finally:
        listener.close()


def _has_screen() -> bool:
    """Whether a browser would open a window, rather than take over the terminal."""
    names = ("DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform in ("darwin", "win32") or any(os.environ.get(one) for one in names)


def _serve(app: Starlette, listener: Listener) -> None:
    import uvicorn

    from envweave.server.security import HeaderLimitedProtocol

    config = uvicorn.Config(
        app,
        http=partial(HeaderLimitedProtocol, head_timeout_s=_HEAD_TIMEOUT_S),  # type: ignore[arg-type] # any callable works
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[listener.socket])
