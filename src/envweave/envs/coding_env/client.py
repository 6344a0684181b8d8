"""The coding environment on a server, for its callers."""

from __future__ import annotations

import envweave as ew
from envweave.envs.coding_env.models import CodeAction, CodeObservation


class CodingEnv(ew.HTTPEnvClient[CodeAction, CodeObservation]):
    """A caller's own session with the coding environment.

    ```python
    with CodingEnv("http://127.0.0.1:8000") as env:
        env.reset()
        env.step(CodeAction("total = sum(range(10))"))
        env.step(CodeAction("total / 0")).observation.exit_code  # 1
    ```
    """
