"""Code in the interpreter of smolagents, with the names, lines and modules of an episode."""

from __future__ import annotations

import ast
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from types import TracebackType
from typing import Any, final

from envweave.codeact.executors.local.interpreting import Interpreter
from envweave.codeact.executors.local.modules import Modules
from envweave.codeact.executors.local.tracebacks import is_ours
from envweave.codeact.injected.prelude import MODULES
from envweave.sandbox.inside.cells import CELL
from envweave.sandbox.inside.reprs import show_failure
from envweave.sandbox.protocol.messages import Failure

FINAL_ANSWER = "final_answer"

_ALLOWED = [*MODULES, "numpy", "numpy.*"]
_PRINTED = "_print_outputs"
_MARK = "envweave_cell"
_KEPT_CELLS = 1000
_FRAMES = 100


@final
class SmolagentsCode(Interpreter):
    """Runs code by a `LocalPythonExecutor`.

    Args:
        library: The module that has it.
        modules: The modules of this episode.
    """

    def __init__(self, library: Any, modules: Modules) -> None:
        self._library = library
        self._modules = modules
        self._executor: Any = None
        self._sources: dict[int, list[str]] = {}
        self._cell = 1  # as in a session, whose first cell is not the agent's

    def bind(self, names: Mapping[str, Any]) -> None:
        """Offer functions as tools, and all else as variables."""
        tools = {name: one for name, one in names.items() if not isinstance(one, type)}
        tools[FINAL_ANSWER] = _final_answer(tools.get(FINAL_ANSWER))
        executor = self._library.LocalPythonExecutor(
            _ALLOWED, max_print_outputs_length=sys.maxsize, additional_functions=tools
        )
        executor.authorized_imports.sort()  # an error names them
        executor.timeout_seconds = None
        executor.state = _Names(self._modules, executor.state)
        executor.state.update({name: self._modules.load(name) for name in MODULES})
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

    def show_failure(self, error: BaseException) -> Failure:
        """Show what the code raised, not that its interpreter gave up on it."""
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
        """Remember in which cell each function stands."""
        for function in self._executor.custom_tools.values():
            node = getattr(function, "__ast__", None)
            if node is not None and not hasattr(node, _MARK):
                setattr(node, _MARK, self._cell)

    def _frames(self, entry: TracebackType | None) -> Iterator[traceback.FrameSummary]:
        """Yield what a traceback would hold, had Python run the code."""
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
            elif not is_ours(entry) and not where.startswith(_INSIDE):
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


_INSIDE = str(PurePath(sys.modules[show_failure.__module__].__file__ or "").parent)


@final
class _Names(dict[str, Any]):
    """Variables. What a session has its own of is put in place of what is bound."""

    def __init__(self, modules: Modules, names: Mapping[str, Any]) -> None:
        super().__init__(names)
        self._modules = modules

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, self._modules.own(value))

    def copy(self) -> _Names:
        """Return the variables of a function that is called."""
        return _Names(self._modules, self)


def _final_answer(tool: Any) -> Any:
    def final_answer(*args: Any, **kwargs: Any) -> Any:
        """Hand in the answer, which ends the code."""
        if tool is not None:
            tool(*args, **kwargs)
        return next(iter((*args, *kwargs.values())), None)

    return final_answer


def _ends_in_expression(code: str) -> bool:
    body = ast.parse(code).body
    return bool(body) and isinstance(body[-1], ast.Expr)
