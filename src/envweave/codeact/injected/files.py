"""`file_read`, `file_write` and their kind: the same files that the code itself sees.

In a session the work is done by the session, inside its walls; the host is asked first, so that
every call is checked, counted and kept in the step's record.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from envweave.codeact.injected.file_tools import FileTools

FILE_TOOLS = ("file_read", "file_write", "file_append", "file_list", "file_exists", "file_delete")
"""Their names."""


def functions(root: str) -> dict[str, Callable[..., Any]]:
    """Return the tools for a folder of this host."""
    files = FileTools(root)
    return {name: getattr(files, name) for name in FILE_TOOLS}


def gates() -> dict[str, Callable[..., Any]]:
    """Return the host's side of the tools of a session: they only let pass."""
    return {name: _gate(getattr(FileTools, name)) for name in FILE_TOOLS}


def _gate(method: Callable[..., Any]) -> Callable[..., None]:
    signature = inspect.signature(method, eval_str=True)
    without_self = list(signature.parameters.values())[1:]

    def let_pass(*_args: Any, **_kwargs: Any) -> None:
        return None

    let_pass.__name__ = let_pass.__qualname__ = method.__name__
    let_pass.__doc__ = inspect.getdoc(method)
    let_pass.__annotations__ = dict(method.__annotations__)
    let_pass.__signature__ = signature.replace(parameters=without_self)  # type: ignore[attr-defined]
    return let_pass
