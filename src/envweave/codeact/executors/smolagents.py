"""`SmolagentsExecutor`: runs code by the interpreter of smolagents, in this process."""

from __future__ import annotations

import ast
import importlib
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, final

from envweave.codeact.executors.thread import Interpreter, ThreadExecutor
from envweave.codeact.injected.prelude import MODULES
from envweave.errors import MissingExtraError
from envweave.sandbox.execution import Limits
from envweave.sandbox.inside.cells import CELL
from envweave.sandbox.inside.reprs import show_failure
from envweave.sandbox.protocol.messages import Failure

FINAL_ANSWER = "final_answer"

_ALLOWED = [*MODULES, "numpy", "numpy.*"]
_PRINTED = "_print_outputs"
_MARK = "envweave_cell"
_KEPT_CELLS = 1000
_FRAMES = 100
_OURS = (
    str(Path(__file__).parent),
    str(Path(sys.modules[show_failure.__module__].__file__ or "").parent),
)


@final
class SmolagentsExecutor(ThreadExecutor):
    """Runs code by the `LocalPythonExecutor` of smolagents, in a thread of this process.

    **It is not a security boundary**, and its authors say so too. It walks the syntax tree, and
    supports a part of Python: few builtins, and imports of `MODULES`, numpy and those that it
    allows by itself. What it refuses is an `InterpreterError`.

    Its language differs from Python:

    - `final_answer(value)` ends the code, and `value` is the return value. If the environment has
      a tool of that name, the tool is called first.
    - Names of tools and of its builtins cannot be bound.
    - It stops after ten million operations, or a million iterations of one `while`.

    Its own timeout would wait for the code to end, so time is limited as `InprocExecutor` limits
    it. Everything that `InprocExecutor` shares with the process is shared here too; code has no
    `open`, and uses files by the `file_*` tools alone.

    Args:
        limits: What the code may use.

    Raises:
        MissingExtraError: smolagents is not installed.
    """

    name = "smolagents"

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits)
        try:
            self._library = importlib.import_module("smolagents.local_python_executor")
        except ImportError as error:
            raise MissingExtraError.for_extra(
                "executor='smolagents' needs smolagents.", "smolagents"
            ) from error

    def interpreter(self, names: Mapping[str, Any]) -> Interpreter:
        """Return an interpreter of smolagents that has these names."""
        return SmolagentsInterpreter(self._library, names)


@final
class SmolagentsInterpreter(Interpreter):
    """Runs code by a `LocalPythonExecutor`.

    Args:
        library: The module that defines it.
        names: Functions become tools, all else variables.
    """

    def __init__(self, library: Any, names: Mapping[str, Any]) -> None:
        self._library = library
        self._sources: dict[int, list[str]] = {}
        self._cell = 0
        tools = {name: one for name, one in names.items() if not isinstance(one, type)}
        tools[FINAL_ANSWER] = _final_answer(tools.get(FINAL_ANSWER))
        executor = library.LocalPythonExecutor(
            _ALLOWED, max_print_outputs_length=sys.maxsize, additional_functions=tools
        )
        executor.authorized_imports.sort()  # an error lists them
        executor.timeout_seconds = None
        executor.state.update({name: importlib.import_module(name) for name in MODULES})
        executor.state.update({name: one for name, one in names.items() if name not in tools})
        executor.send_tools({})
        self._executor = executor

    def run(self, code: str) -> Any:
        """Run code."""
        self._cell += 1
        self._sources[self._cell] = code.splitlines()
        self._sources.pop(self._cell - _KEPT_CELLS, None)
        state = self._executor.state
        state.pop(_PRINTED, None)
        try:
            output = self._executor(code)
        finally:
            sys.stdout.write(str(state.get(_PRINTED, "")))
            self._mark_functions()
        if output.is_final_answer or _ends_in_expression(code):
            return output.output
        return None

    def variables(self) -> Mapping[str, Any]:
        """Return the variables, and the functions that the code has defined."""
        return {**self._executor.state, **self._executor.custom_tools}

    def format_failure(self, error: BaseException) -> Failure:
        """Return what the code raised as text, not that its interpreter gave up."""
        if isinstance(error, self._library.InterpreterError) and error.__context__ is not None:
            error = error.__context__
        if isinstance(error, SyntaxError) and error.filename == "<unknown>":
            error.filename = f"{CELL}{self._cell}>"
            return show_failure(error.with_traceback(None))
        shown = show_failure(error)
        frames = list(self._frames(error.__traceback__))[-_FRAMES:]
        lines = ["Traceback (most recent call last):\n"]
        lines += traceback.StackSummary.from_list(frames).format()
        lines += traceback.format_exception_only(error)
        return Failure(shown.type, shown.message, "".join(lines))

    def close(self) -> None:
        """Forget everything."""
        self._executor.state.clear()
        self._executor.custom_tools.clear()
        self._sources.clear()

    def _mark_functions(self) -> None:
        """Remember which cell defines each function."""
        for function in self._executor.custom_tools.values():
            node = getattr(function, "__ast__", None)
            if node is not None and not hasattr(node, _MARK):
                setattr(node, _MARK, self._cell)

    def _frames(self, entry: TracebackType | None) -> Iterator[traceback.FrameSummary]:
        """Yield the frames that a traceback would have if Python had run the code."""
        cell, name, line = self._cell, "<module>", 0
        while entry is not None:
            frame = entry.tb_frame
            where = frame.f_code.co_filename
            if where == self._library.__file__:
                if frame.f_code.co_name == "evaluate_ast":
                    line = getattr(frame.f_locals.get("expression"), "lineno", line)
                elif frame.f_code.co_name == "new_func":
                    yield self._frame(cell, name, line)
                    node = frame.f_locals["func_def"]
                    cell, name, line = getattr(node, _MARK, cell), node.name, node.lineno
            elif not where.startswith(_OURS):
                if line:
                    yield self._frame(cell, name, line)
                    line = 0
                yield traceback.FrameSummary(where, entry.tb_lineno, frame.f_code.co_name)
            entry = entry.tb_next
        if line:
            yield self._frame(cell, name, line)

    def _frame(self, cell: int, name: str, line: int) -> traceback.FrameSummary:
        lines = self._sources.get(cell, [])
        text = lines[line - 1] if 0 < line <= len(lines) else ""
        return traceback.FrameSummary(f"{CELL}{cell}>", line, name, line=text)


def _final_answer(tool: Any) -> Any:
    def final_answer(*args: Any, **kwargs: Any) -> Any:
        """Submit the answer, which ends the code."""
        if tool is not None:
            tool(*args, **kwargs)
        return next(iter((*args, *kwargs.values())), None)

    return final_answer


def _ends_in_expression(code: str) -> bool:
    body = ast.parse(code).body
    return bool(body) and isinstance(body[-1], ast.Expr)
