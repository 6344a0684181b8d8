"""`envweave serve`: serve an environment over HTTP and WebSocket."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from envweave.cli import arguments
from envweave.server.options import DIALECTS, ServerOptions

_DEFAULT = ServerOptions()
_SECONDS = {"metavar": "SECONDS", "min": 0.0}


def serve_command(
    env_id: arguments.EnvId,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. A non-loopback address requires a token.", metavar="ADDRESS"
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(help="Port; 0 picks a free one.", metavar="N", min=0, max=65535),
    ] = 8000,
    uds: Annotated[
        Path | None,
        typer.Option(help="Listen on this unix socket instead.", metavar="PATH"),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            help="Token that clients must send. Prefer ENVWEAVE_TOKEN, which `ps` does not show.",
            metavar="TEXT",
            envvar="ENVWEAVE_TOKEN",
            show_envvar=False,
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", metavar="", help="Serve any machine without a token."),
    ] = False,
    workers: Annotated[
        int,
        typer.Option(
            help="Number of worker processes that run the environments, which limits the damage of "
            "a crash; 0 runs them in the server process.",
            metavar="N",
            min=0,
        ),
    ] = _DEFAULT.workers,
    max_sessions: Annotated[
        int, typer.Option(help="Maximum number of concurrent sessions.", metavar="N", min=1)
    ] = _DEFAULT.max_sessions,
    queue_size: Annotated[
        int,
        typer.Option(
            help="Maximum number of clients that wait for a session when all are in use; a client "
            "waits only if it asks to.",
            metavar="N",
            min=0,
        ),
    ] = _DEFAULT.queue_size,
    queue_timeout_s: Annotated[
        float, typer.Option(help="Maximum time that a client waits.", **_SECONDS)
    ] = _DEFAULT.queue_timeout_s,
    timeout_s: Annotated[
        float | None,
        typer.Option(help="Time limit of one call of an environment.", **_SECONDS),
    ] = _DEFAULT.timeout_s,
    session_ttl_s: Annotated[
        float, typer.Option(help="Close a session after this time without a call.", **_SECONDS)
    ] = _DEFAULT.session_ttl_s,
    resume_ttl_s: Annotated[
        float,
        typer.Option(
            help="Time that a session waits for a client whose connection broke.", **_SECONDS
        ),
    ] = _DEFAULT.resume_ttl_s,
    drain_s: Annotated[
        float,
        typer.Option(
            help="Time that running episodes may continue after SIGTERM or Ctrl-C.", **_SECONDS
        ),
    ] = _DEFAULT.drain_s,
    head_timeout_s: Annotated[
        float, typer.Option(help="Time limit for receiving the head of a request.", **_SECONDS)
    ] = _DEFAULT.head_timeout_s,
    threads: Annotated[
        int,
        typer.Option(
            help="Maximum number of threads for synchronous environments.", metavar="N", min=1
        ),
    ] = _DEFAULT.threads,
    max_stuck: Annotated[
        int,
        typer.Option(
            help="With more calls than this past their deadline that cannot be stopped, the server "
            "reports that it is not ready, or its worker process is replaced.",
            metavar="N",
            min=0,
        ),
    ] = _DEFAULT.max_stuck,
    max_message_bytes: Annotated[
        int, typer.Option(help="Maximum size of a body or a frame.", metavar="N", min=1024)
    ] = _DEFAULT.max_message_bytes,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Another host name of this server; repeatable.",
            metavar="NAME",
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(help="Origin of a web page that may call; repeatable.", metavar="ORIGIN"),
    ] = None,
    dialects: Annotated[
        str | None,
        typer.Option(
            help=f"Comma-separated dialects besides envweave's own: {', '.join(DIALECTS)}. "
            "Default: all.",
            metavar="NAMES",
        ),
    ] = None,
    max_episode_steps: Annotated[
        int | None,
        typer.Option(help="Truncate every episode after N steps.", metavar="N", min=1),
    ] = None,
    record: arguments.Record = None,
    arg: arguments.Keywords = None,
    install: arguments.Install = "never",
    ready_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
    json: Annotated[
        bool,
        typer.Option("--json", metavar="", help="Print the URL and the log as JSON lines."),
    ] = False,
) -> int:
    """Serve an environment over HTTP and WebSocket, until SIGTERM or Ctrl-C.

    Connect with `make("http://127.0.0.1:8000")`, with OpenEnv's clients, or over plain HTTP;
    `/docs` shows how. On the first SIGTERM or Ctrl-C the server stops accepting sessions, and
    running episodes may finish within --drain-s; the second one ends it at once.
    """
    from envweave.cli.server_main import serve_config

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
        "record": record,
        "dialects": None if dialects is None else [one for one in dialects.split(",") if one],
    }
    code = serve_config(
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
