"""What the tools of MCP servers are called in code."""

from __future__ import annotations

import keyword
import unicodedata
from collections.abc import Iterable
from typing import Literal

from envweave.errors import OptionError

Prefix = Literal["auto", "always", "never"]
"""When the name of a tool begins with that of its server."""

Pair = tuple[str, str]
"""A server's name, and the name it gives to a tool of its."""


def identifier(name: str) -> str:
    """Return a name that code can use: `read-file` is `read_file`."""
    plain = unicodedata.normalize("NFKC", name)  # as Python reads names
    fitting = "".join(one if f"a{one}".isidentifier() else "_" for one in plain)
    bare = fitting.strip("_") or "tool"
    if not bare.isidentifier():  # it begins with a digit
        bare = f"_{bare}"
    return f"{bare}_" if keyword.iskeyword(bare) else bare


def called(tools: Iterable[Pair], prefix: Prefix) -> dict[Pair, str]:
    """Return what each tool is called in code.

    With `"auto"` a name that two servers give gets that of its server in front, on both of them.
    Names of one server that come out equal are numbered.

    Raises:
        OptionError: Two servers give the same name, and `"never"` forbids to tell them apart.
    """
    wanted = {pair: identifier(pair[1]) for pair in dict.fromkeys(tools)}
    servers = {
        name: {server for (server, _), one in wanted.items() if one == name}
        for name in wanted.values()
    }
    names: dict[Pair, str] = {}
    for (server, tool), bare in wanted.items():
        clashes = len(servers[bare]) > 1
        if clashes and prefix == "never":
            both = " and ".join(map(repr, sorted(servers[bare])))
            raise OptionError(
                f"The MCP servers {both} both have a tool {bare!r}, and prefix='never'. Leave out "
                "prefix, or give an 'allow' list to one of them."
            )
        is_told = prefix == "always" or clashes
        names[server, tool] = identifier(f"{server}_{tool}") if is_told else bare
    return _numbered(names)


def _numbered(names: dict[Pair, str]) -> dict[Pair, str]:
    """Number the names that are there more than once, from the second on."""
    taken: set[str] = set()
    plain = set(names.values())
    for pair, name in names.items():
        number, unique = 1, name
        while unique in taken or (number > 1 and unique in plain):
            number += 1
            unique = f"{name}_{number}"
        taken.add(unique)
        names[pair] = unique
    return names
