"""The file tools (`file_read`, `file_write`, …), which use the same files as the code itself.

In a session they run inside the sandbox. Each first calls a stub on the host that does nothing, so
that every call is checked, counted and recorded.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from envweave.codeact.injected.file_tools import FileTools

FILE_TOOLS = ("file_read", "file_write", "file_append", "file_list", "file_exists", "file_delete")
"""The names of the file tools."""


def functions(root: str) -> dict[str, Callable[..., Any]]:
    """Return the file tools for a folder of this host."""
    files = FileTools(root)
    return {name: getattr(files, name) for name in FILE_TOOLS}


def permission_stubs() -> dict[str, Callable[..., Any]]:
    """Return the host's side of the file tools of a session: functions that do nothing."""
    return {name: _make_stub(getattr(FileTools, name)) for name in FILE_TOOLS}


def _make_stub(method: Callable[..., Any]) -> Callable[..., None]:
    signature = inspect.signature(method, eval_str=True)
    without_self = list(signature.parameters.values())[1:]

    def do_nothing(*_args: Any, **_kwargs: Any) -> None:
        return None

    do_nothing.__name__ = do_nothing.__qualname__ = method.__name__
    do_nothing.__doc__ = inspect.getdoc(method)
    do_nothing.__annotations__ = dict(method.__annotations__)
    do_nothing.__signature__ = signature.replace(parameters=without_self)  # type: ignore[attr-defined]
    return do_nothing
