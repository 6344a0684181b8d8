"""Cells of code in one namespace, run by the interpreter that runs this."""

from __future__ import annotations
import __future__

import ast
import asyncio
import inspect
import itertools
import linecache
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import CodeType, ModuleType
from typing import Any, final

from envweave.codeact.executors.local.interpreting import Interpreter
from envweave.codeact.executors.local.modules import Modules
from envweave.codeact.executors.local.tracebacks import leave_out_ours
from envweave.codeact.injected.prelude import MODULES
from envweave.sandbox.inside.cells import CELL
from envweave.sandbox.inside.reprs import show_failure
from envweave.sandbox.protocol.messages import Failure

_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_FUTURES = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})
_KEPT_CELLS = 1000
_episodes = itertools.count(1)


@final
class Cells(Interpreter):
    """Runs cells as the lines of one program, with modules of its own."""

    def __init__(self, modules: Modules) -> None:
        self._main = ModuleType("__main__")
        self._namespace: dict[str, Any] = vars(self._main)
        self._namespace["__builtins__"] = self._builtins = modules.builtins
        for name in MODULES:
            self._namespace[name] = modules.load(name)
        self._futures = 0
        # All episodes of this process share one table of sources, so each has names of its own.
        self._mark = f" of {next(_episodes)}>"
        self._names: list[str] = []
        self._count = 1  # as in a session, whose first cell is not the agent's
        self._loop: asyncio.AbstractEventLoop | None = None

    def bind(self, names: Mapping[str, Any]) -> None:
        """Put the names among the code's."""
        self._namespace.update(names)

    def run(self, code: str) -> Any:
        """Run a cell."""
        parts = list(self._compile(code))
        namespace = self._namespace
        namespace.setdefault("__builtins__", self._builtins)
        if any(part.co_flags & inspect.CO_COROUTINE for part, _ in parts):
            return self._run_async(parts)
        value = None
        for part, is_value in parts:
            value = eval(part, namespace)  # noqa: S307 - what this is for
            value = value if is_value else None
        return value

    def variables(self) -> Mapping[str, Any]:
        """Return the namespace."""
        return self._namespace

    def show_failure(self, error: BaseException) -> Failure:
        """Show an exception, with the lines of the cells."""
        leave_out_ours(error)
        shown = show_failure(error)
        return Failure(
            shown.type,
            shown.message.replace(self._mark, ">"),
            shown.traceback.replace(self._mark, ">"),
        )

    def close(self) -> None:
        """Forget the cells and the loop."""
        for name in self._names:
            linecache.cache.pop(name, None)
        if self._loop is not None and not self._loop.is_running():
            self._loop.close()
        self._namespace.clear()

    def _compile(self, code: str) -> Iterator[tuple[CodeType, bool]]:
        """Yield what stands before the last expression, and that, and whether it is a value."""
        name = self._keep_source(code)
        flags = self._futures | _AWAIT
        tree = compile(code, name, "exec", ast.PyCF_ONLY_AST | flags, dont_inherit=True)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        if tree.body:
            body = compile(tree, name, "exec", flags, dont_inherit=True)
            flags |= body.co_flags & _FUTURES
            yield body, False
        if last is not None:
            yield compile(ast.Expression(last.value), name, "eval", flags, dont_inherit=True), True
        # As at a prompt: what one cell imports from the future holds for all that follow.
        self._futures = flags & _FUTURES

    def _keep_source(self, code: str) -> str:
        self._count += 1
        name = f"{CELL}{self._count}{self._mark}"
        lines = code.splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        linecache.cache[name] = (len(code), None, lines, name)
        self._names.append(name)
        if len(self._names) > _KEPT_CELLS:
            linecache.cache.pop(self._names.pop(0), None)
        return name

    def _run_async(self, parts: list[tuple[CodeType, bool]]) -> Any:
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
        loop = self._loop
        task = loop.create_task(self._await(parts))
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

    async def _await(self, parts: list[tuple[CodeType, bool]]) -> Any:
        value = None
        for part, is_value in parts:
            found = eval(part, self._namespace)  # noqa: S307 - what this is for
            if part.co_flags & inspect.CO_COROUTINE:
                found = await found
            value = found if is_value else None
        return value
