"""Cells of code: how they are compiled, kept, and run in one namespace."""

from __future__ import annotations
import __future__

import ast
import builtins
import sys
from collections import OrderedDict
from contextlib import suppress
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, final

from envweave.sandbox.inside.sources import Sources
from envweave.sandbox.own_builtins import OWN

if TYPE_CHECKING:
    import asyncio

__builtins__ = OWN

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


class _Cell(NamedTuple):
    """Compiled code: what stands before its last expression, and that expression."""

    body: CodeType | None
    last: CodeType | None
    awaits: bool


@final
class Cells:
    """Runs cells as the lines of one program, `__main__`."""

    def __init__(self) -> None:
        main = ModuleType("__main__")
        _modules["__main__"] = main
        self.namespace: dict[str, Any] = main.__dict__
        self.namespace["__builtins__"] = builtins
        self._compiled: OrderedDict[tuple[str, int], _Cell] = OrderedDict()
        self._futures = 0
        self._sources = Sources()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._left: list[asyncio.AbstractEventLoop] = []

    def run(self, code: str) -> Any:
        """Run a cell and return the value of its last expression, or `None`."""
        key = (code, self._futures)
        cell = self._compiled.get(key)
        if cell is None:
            cell = self._compile(code)
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
        """Forget every cell that was run, and what it left."""
        self._compiled.clear()
        self._sources.forget()
        self.namespace.pop("_", None)

    def start_over(self) -> None:
        """Leave the event loop, which this process shares with the one it is a copy of."""
        if self._loop is not None:
            # Not closed: that would take the original's descriptors out of its selector.
            self._left.append(self._loop)
            self._loop = None

    def _compile(self, code: str) -> _Cell:
        name = self._sources.add(code)
        flags = self._futures
        tree = compile(code, name, "exec", _TREE | flags, dont_inherit=True)
        last_statement = None
        if tree.body and type(tree.body[-1]) is _ExpressionStatement:
            last_statement = tree.body.pop()
        body = last = None
        if tree.body:
            body = compile(tree, name, "exec", _AWAIT | flags, dont_inherit=True)
            flags |= body.co_flags & _FUTURES
        if last_statement is not None:
            expression = _Expression(last_statement.value)
            last = compile(expression, name, "eval", _AWAIT | flags, dont_inherit=True)
        awaits = any(part and part.co_flags & _IS_COROUTINE for part in (body, last))
        cell = _Cell(body, last, awaits)
        if len(code) <= _CELL_CHARACTERS:
            self._compiled[code, self._futures] = cell
            if len(self._compiled) > _CELLS:
                self._compiled.popitem(last=False)
        # As at a prompt: what one cell imports from the future holds for all that follow.
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
                # Interrupted in the loop itself: neither it nor the task can go on.
                task._log_destroy_pending = False  # type: ignore[attr-defined] # noqa: SLF001 - or it complains for ever
                self._loop = None
                with suppress(Exception):
                    loop.close()
            elif not task.cancelled():
                task.exception()  # taken, or it complains that nobody did
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
