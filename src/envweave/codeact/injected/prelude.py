"""The code that prepares a session: preloaded modules, and the file tools (`file_read`, …).

The file tools use the same files as the code itself: in a session they run inside the sandbox. Each
first calls a stub on the host that does nothing, so that every call is checked, counted and
recorded.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from envweave.codeact.injected.file_tools import FileTools

MODULES = (
    "collections",
    "datetime",
    "functools",
    "itertools",
    "json",
    "math",
    "random",
    "re",
    "statistics",
    "string",
    "time",
)
"""Modules that code can use without importing them."""

# The tools have a separate namespace: the agent may delete or replace names in its own.
_FILES = """
def _make_file_tools(source, permit, names):
    import functools, os
    space = {{"__name__": "file_tools"}}
    exec(compile(source, "<file tools>", "exec"), space)
    files = space["FileTools"](os.getcwd())
    def joined(permit, do):
        @functools.wraps(permit)
        def tool(*args, **kwargs):
            permit(*args, **kwargs)
            return do(*args, **kwargs)
        return tool
    return {{name: joined(permit[name], getattr(files, name)) for name in names}}

globals().update(_make_file_tools({source!r}, globals(), {names!r}))
del _make_file_tools
"""


@functools.cache
def prelude(*, files: bool) -> str:
    """Return the code that a session runs before the agent's."""
    # A tool of the same name is kept.
    lines = f"globals().update((n, __import__(n)) for n in {MODULES} if n not in globals())\n"
    return lines + _FILES.format(source=_source(), names=FILE_TOOLS) if files else lines


def _source() -> str:
    found = importlib.util.find_spec("envweave.codeact.injected.file_tools")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).read_text(encoding="utf-8")


FILE_TOOLS = ("file_read", "file_write", "file_append", "file_list", "file_exists", "file_delete")
"""The names of the file tools."""


def file_functions(root: str) -> dict[str, Callable[..., Any]]:
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
