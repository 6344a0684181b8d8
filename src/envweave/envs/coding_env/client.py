"""The client of the coding environment on a server."""

from __future__ import annotations

from typing import Any

import envweave as ew
from envweave.codec import spec_from_hint
from envweave.envs.coding_env.models import CodeAction, CodeObservation, CodeState
from envweave.wire.decoding import rebuilder


class CodingEnv(ew.HTTPEnvClient[CodeAction, CodeObservation]):
    """A session with a coding environment on a server, in Python or in a shell."""

    def _parse_state(self, payload: dict[str, Any]) -> CodeState:
        rebuild = rebuilder(spec_from_hint(CodeState))
        assert rebuild is not None  # it has fields
        state: CodeState = rebuild(payload)
        return state
