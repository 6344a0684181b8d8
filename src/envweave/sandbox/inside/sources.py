"""The source of cells, for tracebacks, debuggers and `inspect`."""

from __future__ import annotations

import _thread
import functools
import inspect
import linecache
import re
import sys
import threading
import traceback
from types import FunctionType
from typing import Any, final

from envweave.sandbox.own_builtins import OWN

__builtins__ = OWN

CELL = "<cell "
"""What the name of a cell begins with, in place of a file's."""

_KEPT = 1000
_cache = linecache.cache
_get_file = inspect.getfile


@final
class Sources:
    """Keeps the source of the last cells under the names that their code objects carry."""

    def __init__(self) -> None:
        self._count = 0
        self._names: list[str] = []
        inspect.getfile = find_file
        threading.excepthook = threading.__excepthook__ = show_thread_failure

    def add(self, code: str) -> str:
        """Return the name of a new cell."""
        self._count += 1
        name = f"{CELL}{self._count}>"
        lines = code.splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        # Without a time of change nobody looks for a file of this name.
        _cache[name] = (len(code), None, lines, name)
        self._names.append(name)
        if len(self._names) > _KEPT:
            _cache.pop(self._names.pop(0), None)
        return name

    def forget(self) -> None:
        """Forget all cells; the next is the first."""
        for name in self._names:
            _cache.pop(name, None)
        self._count = 0
        self._names.clear()


@functools.wraps(_get_file)
def find_file(object: Any) -> str:  # noqa: A002 - named as in `inspect`
    """Return what `inspect.getfile` does, and the cell of a class: it has no file, only a text."""
    try:
        return _get_file(object)
    except (OSError, TypeError):
        if isinstance(object, type) and getattr(object, "__module__", None) == "__main__":
            cell = _cell_of_a_method(object) or _cell_that_defines(object.__name__)
            if cell is not None:
                return cell
        raise


def _cell_of_a_method(kind: type) -> str | None:
    for member in vars(kind).values():
        method = getattr(member, "__func__", member)
        if isinstance(method, FunctionType) and method.__qualname__.startswith(kind.__qualname__):
            name = method.__code__.co_filename
            if name.startswith(CELL):  # a dataclass has methods that stand in no cell
                return name
    return None


def _cell_that_defines(name: str) -> str | None:
    statement = re.compile(rf"\s*class\s+{re.escape(name)}\b")
    for cell in reversed(list(_cache)):
        if cell.startswith(CELL) and any(map(statement.match, linecache.getlines(cell))):
            return cell
    return None


@functools.wraps(threading.excepthook)
def show_thread_failure(told: Any) -> None:
    """Do what `threading.excepthook` does, which is C and looks for the lines in files alone."""
    stderr = sys.stderr
    if told.exc_type is SystemExit or stderr is None:
        return
    name = told.thread.name if told.thread is not None else _thread.get_ident()
    print(f"Exception in thread {name}:", file=stderr, flush=True)
    traceback.print_exception(told.exc_type, told.exc_value, told.exc_traceback, file=stderr)
    stderr.flush()
