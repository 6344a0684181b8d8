"""The app that serves the coding environment.

    uvicorn envweave.envs.coding_env.server.app:app

`envweave serve coding-v0` serves the same, and by default listens on loopback only. The variable
`ENVWEAVE_CODING_PROFILE` names the profile, `shell` for a terminal.
"""

from __future__ import annotations

import os

import envweave as ew
from envweave.envs.coding_env.environment import CodingEnvironment
from envweave.envs.coding_env.models import CodeAction, CodeObservation

app = ew.create_fastapi_app(
    CodingEnvironment,
    CodeAction,
    CodeObservation,
    profile=os.environ.get("ENVWEAVE_CODING_PROFILE", "python"),
)
