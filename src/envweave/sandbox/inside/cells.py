"""Cells of code: compiling and running them, and keeping their source for tracebacks."""

from __future__ import annotations
import __future__

import _thread
import ast
import builtins
import functools
import inspect
import linecache
import re
import sys
import threading
import traceback
from collections import OrderedDict
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, final

from envweave.sandbox.protocol.encoding import OWN

if TYPE_CHECKING:
    import asyncio


__builtins__ = OWN

CELL = "<cell "
"""How the file name of a cell begins."""

SETUP = "<setup>"
"""The file name of code that is run beside the cells."""

_MAX_SOURCES = 1000
_cache = linecache.cache
_get_file = inspect.getfile


@final
class Sources:
    """Keeps the source of the last cells, for tracebacks and `inspect`."""

    def __init__(self) -> None:
        self._count = 0
        self._names: list[str] = []
        inspect.getfile = find_file
        threading.excepthook = threading.__excepthook__ = show_thread_failure

    def count(self) -> None:
        """Begin the next cell. One that was run before keeps the name that it had then."""
        self._count += 1

    def add(self, code: str) -> str:
        """Store the source of the current cell; return its file name."""
        name = f"{CELL}{self._count}>"
        lines = code.splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        # Without a modification time, `linecache` does not look for a file of this name.
        _cache[name] = (len(code), None, lines, name)
        self._names.append(name)
        if len(self._names) > _MAX_SOURCES:
            _cache.pop(self._names.pop(0), None)
        return name

    def clear(self) -> None:
        """Forget all cells; numbering starts again."""
        for name in self._names:
            _cache.pop(name, None)
        self._count = 0
        self._names.clear()


@functools.wraps(_get_file)
def find_file(object: Any) -> str:  # noqa: A002 - named as in `inspect`
    """Like `inspect.getfile`, but also finds the cell of a class, which has no file."""
    try:
        return _get_file(object)
    except (OSError, TypeError):
        if isinstance(object, type) and getattr(object, "__module__", None) == "__main__":
            cell = _cell_of_method(object) or _cell_defining(object.__name__)
            if cell is not None:
                return cell
        raise


def _cell_of_method(kind: type) -> str | None:
    for member in vars(kind).values():
        method = getattr(member, "__func__", member)
        if isinstance(method, FunctionType) and method.__qualname__.startswith(kind.__qualname__):
            name = method.__code__.co_filename
            if name.startswith(CELL):  # methods that a dataclass generates are in no cell
                return name
    return None


def _cell_defining(name: str) -> str | None:
    statement = re.compile(rf"\s*class\s+{re.escape(name)}\b")
    for cell in reversed(list(_cache)):
        if cell.startswith(CELL) and any(map(statement.match, linecache.getlines(cell))):
            return cell
    return None


@functools.wraps(threading.excepthook)
def show_thread_failure(args: Any) -> None:
    """Like `threading.excepthook`, which is written in C and finds source lines only in files."""
    stderr = sys.stderr
    if args.exc_type is SystemExit or stderr is None:
        return
    name = args.thread.name if args.thread is not None else _thread.get_ident()
    print(f"Exception in thread {name}:", file=stderr, flush=True)
    traceback.print_exception(args.exc_type, args.exc_value, args.exc_traceback, file=stderr)
    stderr.flush()


_CELLS = 256
_CELL_CHARACTERS = 1 << 16
_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_TREE = ast.PyCF_ONLY_AST | _AWAIT
_FUTURES = 0
for _feature in __future__.all_feature_names:
    _FUTURES |= getattr(__future__, _feature).compiler_flag
_IS_COROUTINE = 0x80  # inspect.CO_COROUTINE, without its import
_Expression = ast.Expression
_ExpressionStatement = ast.Expr
_modules = sys.modules
_NO_START = " \t\f\n#)]}"  # how no statement begins

_Parts = tuple[CodeType | None, CodeType | None]
"""Compiled statements, and the last expression."""


class _Cell(NamedTuple):
    """Compiled code: the statements before the last expression, and that expression."""

    body: CodeType | None
    last: CodeType | None
    awaits: bool


def _compile_whole(code: str, name: str, flags: int) -> _Parts:
    """Compile a cell by its syntax tree."""
    tree = compile(code, name, "exec", _TREE | flags, dont_inherit=True)
    last_statement = None
    if tree.body and type(tree.body[-1]) is _ExpressionStatement:
        last_statement = tree.body.pop()
    body = last = None
    if tree.body:
        body = compile(tree, name, "exec", _AWAIT | flags, dont_inherit=True)
        flags |= body.co_flags & _FUTURES
    if last_statement is not None:
        last = _compile_expression(last_statement, name, flags)
    return body, last


def _compile_apart(code: str, name: str, flags: int) -> _Parts | None:
    """Compile a cell like `_compile_whole`, with a tree of the last statement only.

    A tree of Python objects takes longer than everything else. The text is split before the last
    line that is not indented. If both pieces are valid by themselves, the second is the last
    statement, or several of them. Before a last statement without a value the first piece is not
    compiled by itself: its text is enough.

    Returns:
        `None` if the pieces are not valid, or it is not sure to be equivalent.
    """
    if "\r" in code or "__future__" in code:
        return None
    start = code.rfind("\n", 0, len(code.rstrip())) + 1
    while start and code[start] in _NO_START:
        start = code.rfind("\n", 0, start - 1) + 1
    # A backslash may cause a warning, which would be shown again if this is in vain.
    if start == 0 or code.find("\\", start) >= 0:
        return None
    lines = "\n" * code.count("\n", 0, start)
    try:
        tail = compile(lines + code[start:], name, "exec", _TREE | flags, dont_inherit=True).body
        if len(tail) != 1:
            return None
        is_expression = type(tail[0]) is _ExpressionStatement
        if not is_expression and _may_continue(code, start):
            return None
        text = code[:start] if is_expression else code
        body = compile(text, name, "exec", _AWAIT | flags, dont_inherit=True)
    except Exception:  # noqa: BLE001 - compiled whole, it raises the error with the right text
        return None
    return body, _compile_expression(tail[0], name, flags) if is_expression else None


def _may_continue(code: str, start: int) -> bool:
    """Whether the line at `start` may continue a string or a line before it.

    It is valid by itself, so it does not close a bracket that was opened before it.
    """
    return (
        code.endswith("\\\n", 0, start)
        or code.find('"""', 0, start) >= 0
        or code.find("'''", 0, start) >= 0
    )


def _compile_expression(statement: Any, name: str, flags: int) -> CodeType:
    expression = _Expression(statement.value)
    code: CodeType = compile(expression, name, "eval", _AWAIT | flags, dont_inherit=True)
    return code


@final
class Cells:
    """Runs cells one after the other in one namespace, that of `__main__`."""

    def __init__(self) -> None:
        main = ModuleType("__main__")
        _modules["__main__"] = main
        self.namespace: dict[str, Any] = main.__dict__
        self.namespace["__builtins__"] = builtins
        self._compiled: OrderedDict[tuple[str, int], _Cell] = OrderedDict()
        self._futures = 0
        self._sources = Sources()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._abandoned_loops: list[asyncio.AbstractEventLoop] = []

    def run(self, code: str, counted: bool = True) -> Any:  # noqa: FBT001, FBT002 - on the path of each run
        """Run a cell and return the value of its last expression, or `None`."""
        if counted:
            self._sources.count()
        key = (code, self._futures)
        cell = self._compiled.get(key)
        if cell is None:
            cell = self._compile(code, counted)
        else:
            self._compiled.move_to_end(key)
        namespace = self.namespace
        if "__builtins__" not in namespace:
            namespace["__builtins__"] = builtins
        if cell.awaits:
            return self._run_async(cell)
        if cell.body is not None:
            exec(cell.body, namespace)  # noqa: S102 - what this is for
        if cell.last is not None:
            return eval(cell.last, namespace)  # noqa: S307 - what this is for
        return None

    def forget(self) -> None:
        """Forget all cells and the variable of the warm-up."""
        self._compiled.clear()
        self._sources.clear()
        self.namespace.pop("_", None)

    def reset_after_fork(self) -> None:
        """Abandon the event loop, which this process shares with the one it was forked from."""
        if self._loop is not None:
            # Not closed: that would remove descriptors from the selector of the original.
            self._abandoned_loops.append(self._loop)
            self._loop = None

    def async_state(self) -> tuple[int, set[int]]:
        """Return how many tasks of the event loop are not done, and the loops' descriptors."""
        tasks, descriptors = 0, set()
        for loop in (self._loop, *self._abandoned_loops):
            if loop is None or loop.is_closed():
                continue
            with suppress(AttributeError):  # code may replace the kind of loop
                for one in (loop._selector, loop._ssock, loop._csock):  # type: ignore[attr-defined] # noqa: SLF001 - there is no public way
                    descriptors.add(one.fileno())
            if loop is self._loop:
                tasks = len(_modules["asyncio"].all_tasks(loop))
        return tasks, descriptors

    def _compile(self, code: str, counted: bool) -> _Cell:  # noqa: FBT001 - as `run`
        name = self._sources.add(code) if counted else SETUP
        parts = _compile_apart(code, name, self._futures)
        body, last = parts or _compile_whole(code, name, self._futures)
        flags = self._futures
        if body is not None:
            flags |= body.co_flags & _FUTURES
        awaits = any(part and part.co_flags & _IS_COROUTINE for part in (body, last))
        cell = _Cell(body, last, awaits)
        if len(code) <= _CELL_CHARACTERS:
            self._compiled[code, self._futures] = cell
            if len(self._compiled) > _CELLS:
                self._compiled.popitem(last=False)
        # As at a prompt: a `__future__` import applies to all later cells.
        self._futures = flags
        return cell

    def _run_async(self, cell: _Cell) -> Any:
        import asyncio

        loop = self._loop
        if loop is None or loop.is_closed():
            loop = self._loop = asyncio.new_event_loop()
        task = loop.create_task(self._await(cell))
        try:
            return loop.run_until_complete(task)
        except BaseException:
            if not task.done():
                # Interrupted in the loop itself: neither it nor the task can continue.
                task._log_destroy_pending = False  # type: ignore[attr-defined] # noqa: SLF001 - or it warns when it is collected
                self._loop = None
                with suppress(Exception):
                    loop.close()
            elif not task.cancelled():
                task.exception()  # retrieved, or the loop warns that it never was
            raise

    async def _await(self, cell: _Cell) -> Any:
        """Run both parts of the cell in the loop, whichever of them awaits."""
        value = None
        for code in (cell.body, cell.last):
            if code is None:
                continue
            value = eval(code, self.namespace)  # noqa: S307 - what this is for
            if code.co_flags & _IS_COROUTINE:
                value = await value
        return value if cell.last is not None else None
