"""Names, types and short reprs of what code has bound: asked in the session, read on the host."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from envweave.codeact.injected.variables_inside import MOST_NAMES, NAME_CHARACTERS, REPR_CHARACTERS
from envweave.codeact.models import Variable
from envweave.errors import SandboxError
from envweave.sandbox.async_session import AsyncSession
from envweave.sandbox.results import ToolCall

LOOK_S = 1.0
"""How long values may take to show themselves."""

# It runs among the agent's own names, and binds none.
_SHOW = (
    "(lambda space: __import__('builtins').exec({source!r}, space)"
    " or space['show'](globals(), {own!r}, ask={ask!r}))({{}})"
)


def show_code(own: Iterable[str], ask: bool) -> str:  # noqa: FBT001 - bound to the first
    """Return code whose value is a list of a name, a type and a repr each.

    Args:
        own: Names that are not the code's doing.
        ask: Whether values are asked for their repr, which runs code of theirs.
    """
    return _SHOW.format(source=_source(), own=list(own), ask=ask)


@functools.cache
def _source() -> str:
    found = importlib.util.find_spec("envweave.codeact.injected.variables_inside")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).read_text(encoding="utf-8")


class VariableSnapshot(NamedTuple):
    """What a session told of.

    Attributes:
        variables: By name.
        tool_calls: The tools that values called to show themselves. They belong to some step's
            record: no code calls a tool unseen.
    """

    variables: dict[str, Variable]
    tool_calls: tuple[ToolCall, ...]


async def look(
    session: AsyncSession, code: Callable[[bool], str], own: Collection[str]
) -> VariableSnapshot:
    """Return the variables that a session tells of, but for those in `own`.

    Where a value does not show itself in a second, none is asked: names and types remain.

    Args:
        session: Who is asked.
        code: What has the session tell, where values are asked for their repr, and where not.
        own: Names that are not the code's doing.
    """
    calls: tuple[ToolCall, ...] = ()
    for ask in (True, False):
        if not session.alive:
            break
        try:
            told = await session.run(code(ask), timeout_s=LOOK_S)
        except SandboxError:
            break
        calls += told.tool_calls
        if told.success:
            return VariableSnapshot(read_variables(told.return_value, own), calls)
    return VariableSnapshot({}, calls)


def read_variables(told: Any, own: Collection[str]) -> dict[str, Variable]:
    """Return the variables that a session told of, but for those in `own`.

    It is the word of hostile code: whatever is not of this form is left out.
    """
    if not isinstance(told, list):
        return {}
    found = {}
    for entry in told[:MOST_NAMES]:
        if not isinstance(entry, list) or len(entry) != 3:
            continue
        if not all(isinstance(text, str) for text in entry):
            continue
        name, kind, shown = entry
        if name in own:
            continue
        found[name[:NAME_CHARACTERS]] = Variable(kind[:NAME_CHARACTERS], shown[:REPR_CHARACTERS])
    return found
