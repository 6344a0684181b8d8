"""The server in our container images, configured by environment variables.

    docker run --rm -p 127.0.0.1:8000:8000 -e ENVWEAVE_TOKEN=… echo-env:latest

| variable | |
|---|---|
| `ENVWEAVE_ENV` | the environment to serve; set by the image |
| `ENVWEAVE_TOKEN` | the token that clients must send |
| `ENVWEAVE_CONFIG` | further settings: a JSON object with the keys of `envweave.cli.server_main` |
| `ENVWEAVE_UDS` | path of a unix socket to listen on, usable by every user that can reach it |

By default it listens on port 8000 of every address of the container.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, MutableMapping
from typing import Any

from envweave.errors import EnvWeaveError, OptionError

_FAULT = "envweave-fault: "  # the reader of the log searches for it


def read(variables: MutableMapping[str, str]) -> dict[str, Any]:
    """Return the configuration from environment variables, and remove the token from them.

    Raises:
        OptionError: They name no environment, or are invalid.
    """
    try:
        more = json.loads(variables.get("ENVWEAVE_CONFIG") or "{}")
    except ValueError as error:
        raise OptionError(f"ENVWEAVE_CONFIG is not valid JSON: {error}.") from None
    if not isinstance(more, dict):
        raise OptionError(f"ENVWEAVE_CONFIG must be a JSON object, got {more!r}.")
    config: dict[str, Any] = {"host": "0.0.0.0", "port": 8000, **more}  # noqa: S104 - a container's
    if variables.get("ENVWEAVE_ENV"):
        config.setdefault("id", variables["ENVWEAVE_ENV"])
    if "id" not in config:
        raise OptionError(
            "ENVWEAVE_ENV is not set, so there is nothing to serve. Set it to the ID of an "
            "environment, in the image or with `docker run -e`."
        )
    if variables.get("ENVWEAVE_UDS"):
        config |= {"uds": variables["ENVWEAVE_UDS"], "uds_mode": 0o666}
    # Whatever the environment's code can read, a model that it runs may see.
    token = variables.pop("ENVWEAVE_TOKEN", "").strip()
    if token:
        config["options"] = {"token": token, **(config.get("options") or {})}
    return config


def main(write: Callable[[str], Any] = sys.stderr.write) -> int:
    """Serve what the variables say; return the exit code, 2 if they are invalid."""
    from envweave.cli.server_main import serve_config
    from envweave.wire.faults import fault_of

    try:
        return serve_config(read(os.environ))
    except EnvWeaveError as error:
        fault = fault_of(error)
        write(f"Error: {' '.join(str(error).split())}\n")
        write(f"{_FAULT}{json.dumps({'code': fault.code, 'message': fault.message})}\n")
    return 2


if __name__ == "__main__":
    from envweave.server.run import leave

    sys.exit(leave(main()))
