"""What a server in a container says when it cannot start, read from the last lines it printed."""

from __future__ import annotations

import json
from collections.abc import Sequence

from envweave.errors import EnvWeaveError
from envweave.wire.faults import INTERNAL, error_of
from envweave.wire.messages import Fault

FAULT = "envweave-fault: "
"""What the line begins with by which a server says why it cannot start."""

LINES_READ, LINES_SHOWN = 60, 20


def error_in(lines: Sequence[str], image: str) -> EnvWeaveError | None:
    """Return the error that a server told, as it would be raised here; `None` if it told none."""
    said = next((line for line in reversed(lines) if line.startswith(FAULT)), None)
    if said is None:
        return None
    try:
        told = Fault(**json.loads(said.removeprefix(FAULT)))
        if told.code == INTERNAL.code:
            return None
        raised = error_of(told)
    except (ValueError, TypeError):
        return None
    raised.add_note(f"Raised in a container of {image!r}.")
    return raised


def told(lines: Sequence[str]) -> str:
    """Return the end of an error's message: what was printed last."""
    last = lines[-LINES_SHOWN:]
    return " Its last lines:\n" + "\n".join(last) if last else " It printed nothing."
