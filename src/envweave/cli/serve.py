"""`envweave serve`: an environment behind HTTP and WebSocket."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from envweave.cli import arguments
from envweave.server.options import ServerOptions

_DEFAULT = ServerOptions()
_SECONDS = {"metavar": "SECONDS", "min": 0.0}


def serve_command(
    env_id: arguments.EnvId,
    host: Annotated[
        str,
        typer.Option(
            help="Where to listen. Beyond this machine a token is needed.", metavar="ADDRESS"
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(help="On which port; 0 for one that is free.", metavar="N", min=0, max=65535),
    ] = 8000,
    uds: Annotated[
        Path | None,
        typer.Option(help="Listen on this unix socket instead.", metavar="PATH"),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            help="What callers must show. Better set as ENVWEAVE_TOKEN, which `ps` does not show.",
            metavar="TEXT",
            envvar="ENVWEAVE_TOKEN",
            show_envvar=False,
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", metavar="", help="Let anybody call, from any machine."),
    ] = False,
    workers: Annotated[
        int,
        typer.Option(
            help="How many processes run the environments, so that one which crashes takes few "
            "others with it; 0 runs them in the server's own.",
            metavar="N",
            min=0,
        ),
    ] = _DEFAULT.workers,
    max_sessions: Annotated[
        int, typer.Option(help="How many sessions there may be at once.", metavar="N", min=1)
    ] = _DEFAULT.max_sessions,
    queue_size: Annotated[
        int,
        typer.Option(
            help="How many callers may wait for a session when there are so many; a caller waits "
            "only if it asks to.",
            metavar="N",
            min=0,
        ),
    ] = _DEFAULT.queue_size,
    queue_timeout_s: Annotated[
        float, typer.Option(help="How long one of them may wait at most.", **_SECONDS)
    ] = _DEFAULT.queue_timeout_s,
    timeout_s: Annotated[
        float | None,
        typer.Option(help="How long one call of an environment may take.", **_SECONDS),
    ] = _DEFAULT.timeout_s,
    session_ttl_s: Annotated[
        float, typer.Option(help="How long a session may go without a call.", **_SECONDS)
    ] = _DEFAULT.session_ttl_s,
    resume_ttl_s: Annotated[
        float,
        typer.Option(
            help="How long a session waits for a caller whose connection broke.", **_SECONDS
        ),
    ] = _DEFAULT.resume_ttl_s,
    drain_s: Annotated[
        float,
        typer.Option(
            help="How long running episodes may go on after SIGTERM or Ctrl-C.", **_SECONDS
        ),
    ] = _DEFAULT.drain_s,
    head_timeout_s: Annotated[
        float, typer.Option(help="How long the head of a request may take to come.", **_SECONDS)
    ] = _DEFAULT.head_timeout_s,
    threads: Annotated[
        int, typer.Option(help="How many threads run plain functions.", metavar="N", min=1)
    ] = _DEFAULT.threads,
    max_stuck: Annotated[
        int,
        typer.Option(
            help="With more calls than this past their deadline that cannot be stopped, the server "
            "is not ready any more, or its worker process is replaced.",
            metavar="N",
            min=0,
        ),
    ] = _DEFAULT.max_stuck,
    max_message_bytes: Annotated[
        int, typer.Option(help="How large a body or a frame may be.", metavar="N", min=1024)
    ] = _DEFAULT.max_message_bytes,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Another name that this server is reached by; may be given several times.",
            metavar="NAME",
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            help="A web page's origin that may call; may be given several times.", metavar="ORIGIN"
        ),
    ] = None,
    max_episode_steps: Annotated[
        int | None,
        typer.Option(help="Truncate every episode after so many steps.", metavar="N", min=1),
    ] = None,
    arg: arguments.Keywords = None,
    install: arguments.Install = "never",
    ready_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
    json: Annotated[
        bool,
        typer.Option("--json", metavar="", help="Print the URL and the log as lines of JSON."),
    ] = False,
) -> int:
    """Serve an environment over HTTP and WebSocket, until SIGTERM or Ctrl-C.

    Callers reach it with `make("http://127.0.0.1:8000")`, with OpenEnv's own clients, or with
    plain HTTP; `/docs` shows how. The first signal lets nobody in any more, and running episodes
    may go on for a while; the second ends at once.
    """
    from envweave.cli.server_main import serve_as_told

    options: dict[str, Any] = {
        "token": token or None,
        "workers": workers,
        "max_sessions": max_sessions,
        "queue_size": queue_size,
        "queue_timeout_s": queue_timeout_s,
        "timeout_s": timeout_s,
        "session_ttl_s": session_ttl_s,
        "resume_ttl_s": resume_ttl_s,
        "drain_s": drain_s,
        "head_timeout_s": head_timeout_s,
        "threads": threads,
        "max_stuck": max_stuck,
        "max_message_bytes": max_message_bytes,
        "allowed_hosts": allow_host or [],
        "allowed_origins": allow_origin or [],
    }
    code = serve_as_told(
        {
            "id": arguments.installed(env_id, install),
            "kwargs": arguments.read_keywords(arg),
            "max_episode_steps": max_episode_steps,
            "host": host,
            "port": port,
            "uds": uds,
            "insecure": insecure,
            "options": options,
            "ready_fd": ready_fd,
            "log": "json" if json else "text",
        }
    )
    from envweave.server.run import leave

    return leave(code)
