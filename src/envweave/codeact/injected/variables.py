"""Snapshots of the variables of a session: collected inside it, validated on the host."""

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
from envweave.sandbox.execution import ToolCall

LOOK_S = 1.0
"""How long the `__repr__` of all values together may take."""

# It runs in the agent's namespace, and binds no names there.
_SHOW = (
    "(lambda space: __import__('builtins').exec({source!r}, space)"
    " or space['show'](globals(), {own!r}, call_repr={call_repr!r}))({{}})"
)


def show_code(own: Iterable[str], call_repr: bool) -> str:  # noqa: FBT001 - bound to the first
    """Return code whose value is a list of name, type and repr of each variable.

    Args:
        own: Names that were bound for the code, not by it.
        call_repr: Whether to call the `__repr__` of values, which may run the agent's code.
    """
    return _SHOW.format(source=_source(), own=list(own), call_repr=call_repr)


@functools.cache
def _source() -> str:
    found = importlib.util.find_spec("envweave.codeact.injected.variables_inside")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).read_text(encoding="utf-8")


class VariableSnapshot(NamedTuple):
    """The variables of a session.

    Attributes:
        variables: By name.
        tool_calls: The tools that were called by a `__repr__`. The next step records them, so
            that no tool call goes unrecorded.
    """

    variables: dict[str, Variable]
    tool_calls: tuple[ToolCall, ...]


async def read_snapshot(
    session: AsyncSession, code: Callable[[bool], str], own: Collection[str]
) -> VariableSnapshot:
    """Return the variables of a session, except those in `own`.

    If the reprs take longer than a second, only names and types are returned.

    Args:
        session: The session.
        code: Returns the code to run, given whether to call the `__repr__` of values.
        own: Names that were bound for the code, not by it.
    """
    calls: tuple[ToolCall, ...] = ()
    for call_repr in (True, False):
        if not session.alive:
            break
        try:
            result = await session.run(code(call_repr), timeout_s=LOOK_S, counted=False)
        except SandboxError:
            break
        calls += result.tool_calls
        if result.success:
            return VariableSnapshot(read_variables(result.return_value, own), calls)
    return VariableSnapshot({}, calls)


def read_variables(entries: Any, own: Collection[str]) -> dict[str, Variable]:
    """Return the variables that a session reported, except those in `own`.

    The report may come from hostile code: entries that are not well-formed are dropped.
    """
    if not isinstance(entries, list):
        return {}
    found = {}
    for entry in entries[:MOST_NAMES]:
        if not isinstance(entry, list) or len(entry) != 3:
            continue
        if not all(isinstance(text, str) for text in entry):
            continue
        name, kind, shown = entry
        if name in own:
            continue
        found[name[:NAME_CHARACTERS]] = Variable(kind[:NAME_CHARACTERS], shown[:REPR_CHARACTERS])
    return found
