"""The code that prepares a session: preloaded modules, and the file tools."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

from envweave.codeact.injected.files import FILE_TOOLS

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
def _make_file_tools(source, ask, names):
    import functools, os
    space = {{"__name__": "file_tools"}}
    exec(compile(source, "<file tools>", "exec"), space)
    files = space["FileTools"](os.getcwd())
    def joined(ask, do):
        @functools.wraps(ask)
        def tool(*args, **kwargs):
            ask(*args, **kwargs)
            return do(*args, **kwargs)
        return tool
    return {{name: joined(ask[name], getattr(files, name)) for name in names}}

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
