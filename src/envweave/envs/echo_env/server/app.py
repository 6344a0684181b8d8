"""The app that serves the echo environment.

    uvicorn envweave.envs.echo_env.server.app:app

`envweave serve echo-v0` serves the same, and by default listens on loopback only.
"""

from __future__ import annotations

import envweave as ew
from envweave.envs.echo_env.environment import EchoEnvironment
from envweave.envs.echo_env.models import EchoAction, EchoObservation

app = ew.create_fastapi_app(EchoEnvironment, EchoAction, EchoObservation)
