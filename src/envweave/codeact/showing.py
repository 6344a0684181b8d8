"""Names, types and short reprs of what code has bound: asked in the session, read on the host."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from envweave.codeact.models import Variable

MOST_NAMES = 200
NAME_CHARACTERS = 100
REPR_CHARACTERS = 80

# It runs among the agent's own names, so it binds none, and asks its own imports for help.
SHOW_VARIABLES = f"""
(lambda builtins, reprlib, types, namespace: (lambda shorten: [
    [name[:{NAME_CHARACTERS}], builtins.type(value).__name__, shorten(value)]
    for name, value in builtins.list(namespace.items())
    if builtins.type(name) is builtins.str
    and not name.startswith("_")
    and builtins.type(value) is not types.ModuleType
][:{MOST_NAMES}])(
    lambda value, short=(lambda made: [
        builtins.setattr(made, which, 6)
        for which in ("maxtuple", "maxlist", "maxarray", "maxdict", "maxset", "maxfrozenset")
    ] and [
        builtins.setattr(made, which, {REPR_CHARACTERS})
        for which in ("maxstring", "maxlong", "maxother")
    ] and made)(reprlib.Repr()): short.repr(value)[:{REPR_CHARACTERS}]
))(*map(__import__, ("builtins", "reprlib", "types")), globals())
"""
"""Code whose value is a list of a name, a type and a repr each."""


def read_variables(told: Any, own: Collection[str]) -> dict[str, Variable]:
    """Return the variables that a session told of, but for those in `own`.

    It is the word of hostile code: whatever is not of this form is left out.
    """
    if not isinstance(told, list):
        return {}
    found = {}
    for entry in told[:MOST_NAMES]:
        if not isinstance(entry, list) or len(entry) != 3:
            continue
        if not all(isinstance(text, str) for text in entry):
            continue
        name, kind, shown = entry
        if name in own:
            continue
        found[name[:NAME_CHARACTERS]] = Variable(kind[:NAME_CHARACTERS], shown[:REPR_CHARACTERS])
    return found
