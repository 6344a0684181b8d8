"""The client of the echo environment on a server."""

from __future__ import annotations

import envweave as ew
from envweave.envs.echo_env.models import EchoAction, EchoObservation


class EchoEnv(ew.HTTPEnvClient[EchoAction, EchoObservation]):
    """A session with the echo environment on a server.

    ```python
    with EchoEnv("http://127.0.0.1:8000") as env:
        env.reset().observation.echoed_message  # "Echo environment ready!"
        env.step(EchoAction("Hello, World!")).reward  # 1.3
    ```
    """
