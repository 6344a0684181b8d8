"""`InprocExecutor`: runs code by the interpreter of this process, for code that you trust."""

from __future__ import annotations
import __future__

import ast
import asyncio
import builtins
import contextlib
import importlib
import inspect
import itertools
import linecache
import weakref
from collections.abc import Iterator, Mapping
from types import CodeType, ModuleType
from typing import Any, final

from envweave.codeact.executors.thread import (
    Interpreter,
    ThreadExecutor,
    format_python_failure,
)
from envweave.codeact.injected.prelude import MODULES
from envweave.sandbox.inside.cells import CELL
from envweave.sandbox.protocol.messages import Failure

_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_FUTURES = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})
_KEPT_CELLS = 1000
_episodes = itertools.count(1)


@final
class InprocExecutor(ThreadExecutor):
    """Runs code in a thread of this process.

    **It is not a security boundary**: nothing isolates the code. It can read, change and end
    everything that this process can: its memory, its files, its keys. Use it for code that you
    would run yourself.

    Each episode has its own variables. The rest is shared with the process:

    - **Modules.** What code changes in a module, `builtins` included, is changed for the host.
    - **Random generators.** `random` and `numpy.random` continue the episode's own stream while
      its code runs, and the host's is restored afterwards. Episodes whose code runs at the same
      time mix their streams.
    - **Output.** What the thread of the code prints is captured. Threads that the code starts, and
      what C code and other programs write, go to the host's output; `redirect_stdout` in the code
      redirects the host's too.
    - **Files.** The current folder is the host's. The `file_*` tools use a folder of the episode,
      with `/tmp` in it, which is removed with it.
    - **Limits.** Time, output, tool calls and the size of that folder are limited. Memory, open
      files and processes are not.
    - **Interrupts.** At the time limit an exception is raised in the thread. Code that waits in C
      (`time.sleep`, a lock, a socket, `asyncio.run`) does not see it until that returns, and code
      may catch it. A thread cannot be killed: it is left behind, and the episode is over. C code
      that does not let other threads run, such as `10 ** 10 ** 9`, stops the whole process
      meanwhile.

    Args:
        limits: What the code may use.
    """

    name = "inproc"

    def interpreter(self, names: Mapping[str, Any]) -> Interpreter:
        """Return a namespace with these names, in which cells run."""
        return CellInterpreter(names)


@final
class CellInterpreter(Interpreter):
    """Runs cells of code in one namespace, as a prompt with top-level `await` does."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._namespace: dict[str, Any] = vars(ModuleType("__main__"))
        self._builtins = {**vars(builtins), "input": _input}
        self._namespace.update({name: importlib.import_module(name) for name in MODULES})
        self._namespace.update(names)
        self._futures = 0
        # All episodes of this process share `linecache`, so each needs its own names.
        self._mark = f" of {next(_episodes)}>"
        self._cells: list[str] = []
        self._forget_cells = weakref.finalize(self, _forget, self._cells)
        self._count = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, code: str) -> Any:
        """Run a cell."""
        parts = list(self._compile(code))
        self._namespace["__builtins__"] = self._builtins
        if any(part.co_flags & inspect.CO_COROUTINE for part, _ in parts):
            return self._run_async(parts)
        value = None
        for part, is_value in parts:
            value = eval(part, self._namespace)  # noqa: S307 - the purpose of this class
            value = value if is_value else None
        return value

    def variables(self) -> Mapping[str, Any]:
        """Return the namespace."""
        return self._namespace

    def format_failure(self, error: BaseException) -> Failure:
        """Return an exception as text, with the lines of the cells."""
        shown = format_python_failure(error)
        message, traceback = (
            text.replace(self._mark, ">") for text in (shown.message, shown.traceback)
        )
        return Failure(shown.type, message, traceback)

    def wake(self) -> None:
        """Wake the event loop of the cells."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                loop.call_soon_threadsafe(lambda: None)

    def close(self) -> None:
        """Forget the cells, the loop and the variables."""
        self._forget_cells()
        if self._loop is not None:
            self._loop.close()
        self._namespace.clear()

    def _compile(self, code: str) -> Iterator[tuple[CodeType, bool]]:
        """Yield the code before the last expression, and that expression; and which it is."""
        name = self._add_source(code)
        flags = self._futures | _AWAIT
        tree = compile(code, name, "exec", ast.PyCF_ONLY_AST | flags, dont_inherit=True)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        if tree.body:
            body = compile(tree, name, "exec", flags, dont_inherit=True)
            flags |= body.co_flags & _FUTURES
            yield body, False
        if last is not None:
            yield compile(ast.Expression(last.value), name, "eval", flags, dont_inherit=True), True
        # As at a prompt: `from __future__` imports apply to all later cells.
        self._futures = flags & _FUTURES

    def _add_source(self, code: str) -> str:
        """Make the source known to tracebacks; return the name of the cell."""
        self._count += 1
        name = f"{CELL}{self._count}{self._mark}"
        linecache.cache[name] = (len(code), None, f"{code}\n".splitlines(keepends=True), name)
        self._cells.append(name)
        if len(self._cells) > _KEPT_CELLS:
            linecache.cache.pop(self._cells.pop(0), None)
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
                # Interrupted in the loop itself: neither it nor the task can continue.
                task._log_destroy_pending = False  # type: ignore[attr-defined] # noqa: SLF001 - no other way to silence it
                self._loop = None
                with contextlib.suppress(Exception):
                    loop.close()
            elif not task.cancelled():
                task.exception()  # retrieved, or asyncio logs that it never was
            raise

    async def _await(self, parts: list[tuple[CodeType, bool]]) -> Any:
        value = None
        for part, is_value in parts:
            found = eval(part, self._namespace)  # noqa: S307 - the purpose of this class
            if part.co_flags & inspect.CO_COROUTINE:
                found = await found
            value = found if is_value else None
        return value


def _forget(cells: list[str]) -> None:
    for name in cells:
        linecache.cache.pop(name, None)


def _input(prompt: object = "", /) -> str:
    """Replace `input`: code cannot read the stdin of the host."""
    print(prompt, end="")  # noqa: T201 - as `input` does
    raise EOFError("EOF when reading a line")
