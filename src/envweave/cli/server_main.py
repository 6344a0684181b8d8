"""A server process, configured by one JSON object.

`envweave serve` runs it in its own process. To start a server as a child process, run
`python -m envweave.cli.server_main CONFIG`, which needs only the extra `server` and starts quickly.
CONFIG is a JSON object, or `-` to read it from stdin, where no other process can see a token:

    {"id": "counter-v0", "kwargs": {"done_at": 5}, "port": 0, "ready_fd": 7, "lifeline_fd": 8}

| key | |
|---|---|
| `id` | the environment to serve; required |
| `kwargs` | keyword arguments of the environment's constructor |
| `max_episode_steps` | truncate every episode after this many steps |
| `transform` | import path of a transform applied to every observation |
| `host`, `port`, `uds`, `insecure` | where to listen, as `envweave.serve` takes them |
| `uds_mode` | file mode of the unix socket, as a number; default: its user only |
| `options` | the fields of `ServerOptions` |
| `ready_fd` | a file descriptor: `{"url": …}` is written to it, on one line, once the server accepts calls |
| `lifeline_fd` | a file descriptor whose other end the parent holds: when that is closed, the server exits at once |
| `log` | `"text"`, `"json"`, or `"none"` |
| `quiet` | whether stdout stays empty |
"""  # noqa: E501 - a table's rows

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envweave.errors import EnvWeaveError, OptionError

_KEYS = (
    "id", "kwargs", "max_episode_steps", "transform", "host", "port", "uds", "uds_mode", "insecure",
    "options", "ready_fd", "lifeline_fd", "log", "quiet",
)  # fmt: skip


def serve_config(config: Mapping[str, Any]) -> int:
    """Serve until stopped, and return the exit code.

    Raises:
        EnvWeaveError: The configuration is invalid, or the environment cannot be served.
    """
    from envweave.api.options import recipe
    from envweave.api.serving import ready_line, refuse_without_extra, run_server, split
    from envweave.registry.plugins import load_path

    unknown = [key for key in config if key not in _KEYS]
    if unknown or not isinstance(config.get("id"), str):
        problem = f"There is no key {unknown[0]!r}" if unknown else "The key 'id' is missing"
        raise OptionError(f"{problem}. The keys of a server's configuration: {', '.join(_KEYS)}.")
    refuse_without_extra()
    env_id, kwargs = config["id"], dict(config.get("kwargs") or {})
    options, rest = split(config.get("options") or {})
    if rest:
        raise OptionError(f"A server has no option {next(iter(rest))!r}.")
    transform = None if config.get("transform") is None else load_path(config["transform"])
    spec = recipe(env_id, None, config.get("max_episode_steps"), transform, kwargs)

    def on_ready(url: str) -> None:
        if config.get("ready_fd") is not None:
            from envweave.server.run import write_line

            write_line(config["ready_fd"], json.dumps({"url": url}).encode())
        if not config.get("quiet"):
            as_json = json.dumps({"id": env_id, "url": url})
            line = as_json if config.get("log") == "json" else ready_line(env_id, url)
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()

    with _open_log(config.get("log", "text")):
        return run_server(
            spec,
            kwargs,
            options,
            host=config.get("host", "127.0.0.1"),
            port=config.get("port", 8000),
            uds=config.get("uds"),
            insecure=bool(config.get("insecure")),
            on_ready=on_ready,
            lifeline_fd=config.get("lifeline_fd"),
            uds_mode=config.get("uds_mode", 0o600),
        )


def _open_log(form: str) -> contextlib.AbstractContextManager[None]:
    if form == "none":
        return contextlib.nullcontext()
    from envweave.server.logs import logged

    return logged(as_json=form == "json", level=logging.INFO if form == "json" else logging.WARNING)


def main(arguments: Sequence[str], write: Callable[[str], Any] = sys.stderr.write) -> int:
    """Serve the configuration in the argument; return the exit code, 2 if it is invalid."""
    try:
        text = sys.stdin.read() if list(arguments) == ["-"] else " ".join(arguments)
        config = json.loads(text)
        if not isinstance(config, dict):
            raise OptionError("The configuration of a server must be a JSON object.")
        return serve_config(config)
    except json.JSONDecodeError as error:
        write(f"Error: The configuration of a server must be a JSON object: {error}.\n")
    except EnvWeaveError as error:
        write(f"Error: {' '.join(str(error).split())}\n")
    return 2


if __name__ == "__main__":
    from envweave.server.run import leave

    sys.exit(leave(main(sys.argv[1:])))
