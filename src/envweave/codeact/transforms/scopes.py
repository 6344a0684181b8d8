"""Which names of a program can never mean the builtin of that name, because they are its own.

In a function that is any name bound in it, for it is local, bound yet or not. At the top of a
program a name falls back to the builtin until it is bound. So there only what is certain counts:
a binding that no branch can skip, for what stands after it, and the target of a loop, within it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from enum import Enum, auto

Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp

_CLOSED = (Function, ast.ClassDef, ast.Lambda, Comprehension)


class ScopeKind(Enum):
    """Where names are bound."""

    TOP = auto()
    LOOP = auto()
    CLASS = auto()
    FUNCTION = auto()


class Scope:
    """A part of a program, and the names that are its own.

    Args:
        kind: Where it is.
        bound: Names that are certainly bound in it.
        around: The scope around it; `None` for the top.
        elsewhere: Names that it declares `global`.
    """

    __slots__ = ("around", "bound", "elsewhere", "kind")

    def __init__(
        self,
        kind: ScopeKind,
        bound: Iterable[str] = (),
        around: Scope | None = None,
        elsewhere: Iterable[str] = (),
    ) -> None:
        self.kind = kind
        self.bound = set(bound)
        self.around = around
        self.elsewhere = set(elsewhere)

    def owns(self, name: str) -> bool:
        """Whether `name`, read here, is certainly no builtin."""
        scope: Scope | None = self
        is_global = False
        while scope is not None:
            is_global = is_global or name in scope.elsewhere
            is_seen = not is_global or scope.kind is ScopeKind.TOP
            # What is bound in a class is not certain, and not seen from functions in it.
            if is_seen and scope.kind is not ScopeKind.CLASS and name in scope.bound:
                return True
            scope = scope.around
        return False

    def is_local(self, name: str) -> bool:
        """Whether `name`, unbound here, is a function's own, and not laid bare by that."""
        return self.kind is ScopeKind.FUNCTION and name in self.bound

    @property
    def is_at_the_top(self) -> bool:
        """Whether what is bound here is bound for the whole program."""
        return self.kind in (ScopeKind.TOP, ScopeKind.LOOP)


def function_scope(node: Function | ast.Lambda, around: Scope) -> Scope:
    """Return the scope of a function's body."""
    every = (
        *node.args.posonlyargs,
        *node.args.args,
        *node.args.kwonlyargs,
        *filter(None, (node.args.vararg, node.args.kwarg)),
    )
    bound = {one.arg for one in every}
    elsewhere: set[str] = set()
    if not isinstance(node, ast.Lambda):
        inner = list(_open_nodes(node.body))
        for one in inner:
            bound |= set(_names_bound_by(one))
        for one in inner:
            if isinstance(one, ast.Global | ast.Nonlocal):
                bound -= set(one.names)
                elsewhere |= set(one.names) if isinstance(one, ast.Global) else set()
    return Scope(ScopeKind.FUNCTION, bound, around, elsewhere)


def comprehension_scope(node: Comprehension, around: Scope) -> Scope:
    """Return the scope of a comprehension, all but its first iterable."""
    bound = {name for one in node.generators for name in names_in_target(one.target)}
    return Scope(ScopeKind.FUNCTION, bound, around)


def names_in_target(target: ast.expr) -> Iterator[str]:
    """Yield the names that an assignment to `target` binds."""
    waiting = [target]
    while waiting:
        one = waiting.pop()
        if isinstance(one, ast.Name):
            yield one.id
        elif isinstance(one, ast.Tuple | ast.List):
            waiting += one.elts
        elif isinstance(one, ast.Starred):
            waiting.append(one.value)


def names_certain_after(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that are bound if a statement came to its end, whatever it did."""
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield from names_in_target(target)
    elif isinstance(statement, ast.AnnAssign):
        if statement.value is not None:
            yield from names_in_target(statement.target)
    elif isinstance(statement, Function | ast.ClassDef | ast.Import | ast.ImportFrom):
        yield from _names_bound_by(statement)


def _open_nodes(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes of a body, but not those that have a scope of their own."""
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _CLOSED):
            waiting += ast.iter_child_nodes(node)


def _names_bound_by(node: ast.AST) -> Iterator[str]:
    """Yield the names that one node binds by itself."""
    if isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Store):
            yield node.id
    elif isinstance(node, Function | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
        if node.name is not None:
            yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest is not None:
        yield node.rest
