"""What a container of ours runs: the server of one environment, told by environment variables.

    docker run --rm -p 127.0.0.1:8000:8000 -e ENVWEAVE_TOKEN=… echo-env:latest

| variable | |
|---|---|
| `ENVWEAVE_ENV` | what to serve; the image says it |
| `ENVWEAVE_TOKEN` | what callers must show |
| `ENVWEAVE_CONFIG` | more, as one JSON object with the keys of `envweave.cli.server_main` |
| `ENVWEAVE_UDS` | a path: listen on a unix socket there, which all can use who reach it |

Without more it listens on port 8000 of every address of the container.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, MutableMapping
from typing import Any

from envweave.errors import EnvWeaveError, OptionError

_FAULT = "envweave-fault: "  # as whoever reads the log looks for it


def read(variables: MutableMapping[str, str]) -> dict[str, Any]:
    """Return the configuration in some variables; the token is taken out of them.

    Raises:
        OptionError: They tell of no environment, or cannot be read.
    """
    try:
        more = json.loads(variables.get("ENVWEAVE_CONFIG") or "{}")
    except ValueError as error:
        raise OptionError(f"ENVWEAVE_CONFIG is no JSON: {error}.") from None
    if not isinstance(more, dict):
        raise OptionError(f"ENVWEAVE_CONFIG is {more!r}, and must be a JSON object.")
    config: dict[str, Any] = {"host": "0.0.0.0", "port": 8000, **more}  # noqa: S104 - a container's
    if variables.get("ENVWEAVE_ENV"):
        config.setdefault("id", variables["ENVWEAVE_ENV"])
    if "id" not in config:
        raise OptionError(
            "ENVWEAVE_ENV is not set, so that there is nothing to serve. Set it to an "
            "environment's ID, in the image or with `docker run -e`."
        )
    if variables.get("ENVWEAVE_UDS"):
        config |= {"uds": variables["ENVWEAVE_UDS"], "uds_mode": 0o666}
    # What the environment's own code can read, a model that it runs may see.
    token = variables.pop("ENVWEAVE_TOKEN", "").strip()
    if token:
        config["options"] = {"token": token, **(config.get("options") or {})}
    return config


def main(write: Callable[[str], Any] = sys.stderr.write) -> int:
    """Serve as the variables say, and return the exit code: 2 for a mistake in them."""
    from envweave.cli.server_main import serve_as_told
    from envweave.wire.faults import fault_of

    try:
        return serve_as_told(read(os.environ))
    except EnvWeaveError as error:
        fault = fault_of(error)
        write(f"Error: {' '.join(str(error).split())}\n")
        write(f"{_FAULT}{json.dumps({'code': fault.code, 'message': fault.message})}\n")
    return 2


if __name__ == "__main__":
    from envweave.server.run import leave

    sys.exit(leave(main()))
