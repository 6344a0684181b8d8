"""Finds tools that may keep state where no fork can copy it."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterable
from typing import Any

from envweave.errors import ForkError
from envweave.tools import ToolRegistry

_FIXED = (str, int, float, complex, bool, bytes, type(None), type, types.ModuleType)
_REBINDS = ("STORE_DEREF", "DELETE_DEREF")


def refuse_state_elsewhere(tools: ToolRegistry) -> None:
    """Refuse tools that may keep the state of an episode elsewhere than in `ToolEpisode.state`.

    These are the tools of sources, such as MCP servers, methods of objects, and functions whose
    closure or defaults can change. A module's variables are not checked: they belong to all
    episodes of the process.

    Raises:
        ForkError: There is one.
    """
    for source in tools.sources:
        raise ForkError(
            f"The tools of {source.name} run elsewhere and may keep state there, which cannot be "
            "copied."
        )
    for tool in tools:
        if not _is_fixed(tool.function, set()):
            raise ForkError(
                f"The tool {tool.name!r} may keep state in an object or a closure, which cannot be "
                "copied. Keep it in current_episode().state, and write the tool as a plain "
                "function."
            )


def _is_fixed(value: Any, seen: set[int]) -> bool:
    """Whether a value, or what a function can reach besides its module, can never change."""
    if id(value) in seen or isinstance(value, _FIXED):
        return True
    seen.add(id(value))
    if isinstance(value, tuple | frozenset):
        return _are_fixed(value, seen)
    if isinstance(value, functools.partial):
        return _are_fixed((value.func, *value.args, *value.keywords.values()), seen)
    if isinstance(value, functools._lru_cache_wrapper):  # noqa: SLF001 - the type has no other name
        return _is_fixed(value.__wrapped__, seen)
    if isinstance(value, types.MethodType | types.BuiltinFunctionType):
        function = getattr(value, "__func__", None)
        return _are_fixed((value.__self__, function), seen)
    return isinstance(value, types.FunctionType) and _is_fixed_function(value, seen)


def _are_fixed(values: Iterable[Any], seen: set[int]) -> bool:
    return all(_is_fixed(one, seen) for one in values)


def _is_fixed_function(function: types.FunctionType, seen: set[int]) -> bool:
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    try:
        bound = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # a variable that has no value yet
        return False
    return _are_fixed((*defaults, *bound), seen) and not _rebinds(
        function.__code__, frozenset(function.__code__.co_freevars)
    )


def _rebinds(code: types.CodeType, names: frozenset[str]) -> bool:
    """Whether the code, or that of a function inside it, assigns to these variables around it."""
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return any(
        one.opname in _REBINDS and one.argval in names for one in dis.get_instructions(code)
    ) or any(_rebinds(one, names.intersection(one.co_freevars)) for one in inner)
