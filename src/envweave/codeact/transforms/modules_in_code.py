"""Follows what a program calls its modules: `np.load` is `numpy.load`, whatever `np` is called."""

from __future__ import annotations

import ast
from collections.abc import Iterator

LONGEST_PATH = 6
"""How many parts of a dotted path are looked at."""

_ROUNDS = 5
_MOST_PATHS = 8


class ModulesInCode:
    """The dotted paths that the names of a program may stand for.

    A name that the program does not import may come from an earlier step, so it also stands for
    itself. Which assignment comes first is not looked at: a name stands for all it is ever bound
    to.
    """

    def __init__(self, tree: ast.Module) -> None:
        self._paths: dict[str, set[str]] = {}
        copied: list[tuple[str, ast.expr]] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.asname is not None:
                        self._add(alias.asname, alias.name)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self._add(alias.asname or alias.name, f"{node.module}.{alias.name}")
            else:
                copied += _copies(node)
        for _ in range(_ROUNDS):
            for name, value in copied:
                for path in list(self._of(value)):
                    self._add(name, path)

    def of(self, node: ast.Attribute) -> list[str]:
        """Return the paths that an attribute may be, and their ends: the base may be a module."""
        return [end for path in self._of(node) for end in ends_of(path)]

    def with_attribute(self, base: ast.expr, name: str) -> list[str]:
        """Return the same for the attribute `name` of an expression."""
        return [end for path in self._of(base) for end in ends_of(f"{path}.{name}")]

    def of_name(self, name: str) -> list[str]:
        """Return the paths that a name may stand for: itself, and what it is bound to."""
        return [name, *self._paths.get(name, ())]

    def _add(self, name: str, path: str) -> None:
        paths = self._paths.setdefault(name, set())
        if path != name and len(paths) < _MOST_PATHS:
            paths.add(".".join(path.split(".")[-LONGEST_PATH:]))

    def _of(self, node: ast.expr) -> Iterator[str]:
        attributes: list[str] = []
        while isinstance(node, ast.Attribute | ast.NamedExpr) and len(attributes) < LONGEST_PATH:
            if isinstance(node, ast.Attribute):
                attributes.insert(0, node.attr)
            node = node.value
        end = "".join(f".{one}" for one in attributes)
        if isinstance(node, ast.Name):
            for root in self.of_name(node.id):
                yield f"{root}{end}"
        else:
            yield f"?{end}"


def _copies(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that are bound to another name or an attribute, and to which."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
        targets = [node.target]
    for target in targets:
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Name | ast.Attribute):  # type: ignore[attr-defined]
            yield target.id, node.value  # type: ignore[attr-defined]


def ends_of(path: str) -> list[str]:
    """Return the ends of a dotted path that have a dot: `b.c` and `a.b.c` of `a.b.c`."""
    parts = path.split(".")
    return [".".join(parts[-n:]) for n in range(2, min(len(parts), LONGEST_PATH) + 1)]
