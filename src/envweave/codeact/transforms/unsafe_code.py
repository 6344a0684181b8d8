"""Judges code by its syntax tree: what it imports, and what names and attributes it uses.

It is a judgement for rewards, not a wall: it says what a policy should not learn to write. What
code can do is bounded by the sandbox that runs it.
"""

from __future__ import annotations
import __future__

import ast
import re
import string
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from envweave.codeact.transforms.constants import text_of
from envweave.codeact.transforms.modules_in_code import LONGEST_PATH, ModulesInCode, ends_of
from envweave.codeact.transforms.scopes import (
    Comprehension,
    Function,
    Scope,
    ScopeKind,
    comprehension_scope,
    function_scope,
    names_certain_after,
    names_in_target,
)
from envweave.codeact.transforms.unsafe_names import (
    BY_NAME,
    GETTERS,
    HARMLESS_DUNDERS,
    INTERNALS,
    UNSAFE_MODULES,
    UNSAFE_NAMES,
    WELL_KNOWN,
)

MOST_CHARACTERS = 100_000
"""Longer code is not judged, and counts as unsafe."""

MOST_FINDINGS = 20
_LONGEST_NAME = 60
_FLAGS = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
# A cell may have asked for it, and it holds for those that follow.
_OTHER_FLAGS = _FLAGS | __future__.barry_as_FLUFL.compiler_flag
_DUNDER = re.compile(r"__[^\W_]\w*__")
_FIELD_ATTRIBUTE = re.compile(r"\.([^\W\d]\w*)")


@dataclass(frozen=True)
class Finding:
    """Something unsafe.

    Attributes:
        line: Where it stands, from 1.
        what: What it is, in words.
    """

    line: int
    what: str


@dataclass(frozen=True)
class SafetyReport:
    """What was found in a program.

    Attributes:
        parses: Whether it is Python at all. What is not does nothing.
        found: What is unsafe in it, by line; the first `MOST_FINDINGS`.
    """

    parses: bool
    found: tuple[Finding, ...] = ()

    @property
    def safe(self) -> bool:
        """Whether nothing was found."""
        return not self.found


def judge_code(
    code: str,
    *,
    modules: Collection[str] = UNSAFE_MODULES,
    names: Collection[str] = UNSAFE_NAMES,
    own: Iterable[str] = (),
) -> SafetyReport:
    """Judge a program. It never raises, whatever the program is.

    Args:
        code: Python.
        modules: What must not be imported; with a dot, what must not be used of a module.
        names: The builtins that must not be used.
        own: Names that the program finds bound to something that is no builtin.
    """
    if len(code) > MOST_CHARACTERS:
        return _not_judged(f"is longer than {MOST_CHARACTERS:,} characters")
    try:
        tree = _parse(code)
        if tree is None:
            return SafetyReport(parses=False)
        found = sorted(_Judge(tree, modules, names, own).found(), key=lambda one: one.line)
    except (RecursionError, MemoryError):
        return _not_judged("is nested too deep")
    return SafetyReport(parses=True, found=tuple(dict.fromkeys(found))[:MOST_FINDINGS])


def _not_judged(why: str) -> SafetyReport:
    return SafetyReport(parses=True, found=(Finding(1, f"cannot be judged: it {why}"),))


def _parse(code: str) -> ast.Module | None:
    for flags in (_FLAGS, _OTHER_FLAGS):
        try:
            tree: ast.Module = compile(code, "<code>", "exec", flags, dont_inherit=True)
        except (SyntaxError, ValueError):  # a null byte, half of a surrogate pair
            continue
        return tree
    return None


class _Judge:
    """Goes through one tree, with a stack of its own: how deep it is, is the agent's choice."""

    def __init__(
        self,
        tree: ast.Module,
        modules: Collection[str],
        names: Collection[str],
        own: Iterable[str],
    ) -> None:
        self._tree = tree
        self._modules = modules
        self._well_known = {module for module in WELL_KNOWN if module in modules}
        self._names = set(names) | self._well_known
        self._paths = ModulesInCode(tree)
        self._top = Scope(ScopeKind.TOP, own)
        self._waiting: list[tuple[ast.AST, Scope]] = []
        self._judged: set[int] = set()  # names that their call has judged already
        self._found: list[Finding] = []
        self._line = 1

    def found(self) -> list[Finding]:
        """Return all that is unsafe, in no order."""
        for statement in self._tree.body:
            self._waiting.append((statement, self._top))
            while self._waiting:
                node, scope = self._waiting.pop()
                self._line = getattr(node, "lineno", self._line)
                look = _LOOKS.get(type(node))
                if look is not None:
                    look(self, node, scope)
                self._enter(node, scope)
            self._top.bound |= set(names_certain_after(statement))
        return self._found

    def _tell(self, what: str) -> None:
        self._found.append(Finding(self._line, what))

    # Which nodes come next, and in which scope

    def _enter(self, node: ast.AST, scope: Scope) -> None:
        if isinstance(node, Function | ast.Lambda):
            inner = function_scope(node, scope)
            body = node.body if isinstance(node.body, list) else [node.body]
            self._wait(body, inner)
            self._wait(_but(node, body), scope)
        elif isinstance(node, ast.ClassDef):
            self._wait(node.body, Scope(ScopeKind.CLASS, around=scope))
            self._wait(_but(node, node.body), scope)
        elif isinstance(node, Comprehension):
            inner = comprehension_scope(node, scope)
            first, *later = node.generators
            self._wait([first.iter], scope)
            self._wait([first.target, *first.ifs, *later], inner)
            self._wait(_but(node, node.generators), inner)
        elif isinstance(node, ast.For | ast.AsyncFor) and scope.is_at_the_top:
            bound = names_in_target(node.target)
            self._wait(node.body, Scope(ScopeKind.LOOP, bound, scope))
            self._wait(_but(node, node.body), scope)
        else:
            self._wait(ast.iter_child_nodes(node), scope)

    def _wait(self, nodes: Iterable[ast.AST], scope: Scope) -> None:
        self._waiting += [(node, scope) for node in nodes]

    # What each kind of node may be unsafe by

    def _import(self, node: ast.Import, _scope: Scope) -> None:
        for alias in node.names:
            self._module(alias.name)

    def _import_from(self, node: ast.ImportFrom, _scope: Scope) -> None:
        if node.level:
            return
        source = node.module or ""
        if self._module(source):
            return
        for alias in node.names:
            if alias.name == "*":
                if any(one.startswith(f"{source}.") for one in self._modules):
                    self._tell(f"imports everything of {_short(source)}")
            elif not self._module(f"{source}.{alias.name}"):
                self._attribute_name(alias.name, ends_of(f"{source}.{alias.name}"))

    def _module(self, path: str) -> bool:
        parts = path.split(".", LONGEST_PATH)[:LONGEST_PATH]
        for length in range(1, len(parts) + 1):
            prefix = ".".join(parts[:length])
            if prefix in self._modules:
                self._tell(f"imports {_short(prefix)}")
                return True
        return False

    def _name(self, node: ast.Name, scope: Scope) -> None:
        name = node.id
        if id(node) in self._judged:
            return
        if _is_internal(name):
            self._tell(f"uses {_short(name)}")
        elif name in self._names and not isinstance(node.ctx, ast.Store):
            is_deleted = isinstance(node.ctx, ast.Del)
            if not (scope.is_local(name) if is_deleted else scope.owns(name)):
                self._tell(f"{'unbinds' if is_deleted else 'uses'} {name}")
        elif isinstance(node.ctx, ast.Load) and self._getter_called(name, scope):
            self._tell(f"uses {_short(name)} without calling it")

    def _getter_called(self, name: str, scope: Scope) -> str | None:
        """Return which function of `operator` a name stands for, if any."""
        for path in self._paths.of_name(name):
            getter = path.rpartition(".")[2]
            if getter in GETTERS and (path != name or not scope.owns(name)):
                return getter
        return None

    def _handler(self, node: ast.ExceptHandler, scope: Scope) -> None:
        # Its name is unbound after it, and means the builtin again.
        if node.name in self._names and not scope.is_local(node.name or ""):
            self._tell(f"unbinds {node.name}")

    def _attribute(self, node: ast.Attribute, _scope: Scope) -> None:
        if id(node) in self._judged:
            return
        inner = node.value
        if node.attr in ("__name__", "__qualname__") and isinstance(inner, ast.Attribute):
            if inner.attr == "__class__":  # what a class is called leads nowhere
                self._judged.add(id(inner))
            return
        self._attribute_name(node.attr, self._paths.of(node))
        if node.attr in GETTERS:
            self._tell(f"uses {node.attr} without calling it")
        if node.attr in ("format", "format_map"):
            self._format(text_of(inner))

    def _attribute_name(self, name: str, paths: Iterable[str]) -> None:
        is_module = name in self._well_known or name.lstrip("_") in self._well_known
        if is_module or _is_internal(name) or name in INTERNALS:
            self._tell(f"uses the attribute {_short(name)}")
            return
        for path in paths:
            if path in self._modules:
                self._tell(f"uses {path}")
                return

    def _call(self, node: ast.Call, scope: Scope) -> None:
        function, given = node.func, node.args
        if isinstance(function, ast.Name):
            if function.id in BY_NAME and function.id in self._names:
                if scope.owns(function.id):
                    return
                self._judged.add(id(function))
                self._by_name(function.id, node)
            elif (getter := self._getter_called(function.id, scope)) is not None:
                self._judged.add(id(function))
                self._getter(getter, given)
        elif isinstance(function, ast.Attribute):
            if function.attr in GETTERS:
                self._judged.add(id(function))
                self._getter(function.attr, given)
            elif function.attr in ("format", "format_map") and given:
                self._format(text_of(given[0]))  # str.format("{0.a}", x)

    def _by_name(self, function: str, node: ast.Call) -> None:
        """Judge `getattr` and its kind by the attribute that they are asked for."""
        starred = any(isinstance(one, ast.Starred) for one in node.args[:2])
        name = text_of(node.args[1]) if len(node.args) > 1 and not starred else None
        if name is None:
            self._tell(f"uses {function} with a name that is no literal")
        else:
            self._attribute_name(name, self._paths.with_attribute(node.args[0], name))

    def _getter(self, function: str, given: list[ast.expr]) -> None:
        named = given[:1] if function == "methodcaller" else given
        names = [text_of(one) for one in named]
        if not names or None in names:
            self._tell(f"uses {function} with a name that is no literal")
        for name in names:
            for part in (name or "").split("."):
                self._attribute_name(part, [])

    def _format(self, pattern: str | None) -> None:
        """Judge the attributes that the fields of a format string ask for."""
        for field in _fields(pattern or "", 2):
            for attribute in _FIELD_ATTRIBUTE.findall(field):
                self._attribute_name(attribute, [])

    def _subscript(self, node: ast.Subscript, _scope: Scope) -> None:
        key = text_of(node.slice)
        if key is not None and _is_internal(key):
            self._tell(f"looks up {_short(key)}")

    def _pattern(self, node: ast.MatchClass, _scope: Scope) -> None:
        for name in node.kwd_attrs:
            self._attribute_name(name, [])

    def _annotated(self, node: Any, scope: Scope) -> None:
        """Judge text in annotations that would call something, if somebody evaluated it."""
        annotation = node.returns if isinstance(node, Function) else node.annotation
        for part in () if annotation is None else ast.walk(annotation):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                tree = _parse(part.value)
                if tree is not None and any(isinstance(one, ast.Call) for one in ast.walk(tree)):
                    self._wait(_statements(tree, part.lineno), scope)


_LOOKS: dict[type[ast.AST], Callable[[_Judge, Any, Scope], None]] = {
    ast.AnnAssign: _Judge._annotated,  # noqa: SLF001 - a table of its own methods
    ast.arg: _Judge._annotated,  # noqa: SLF001
    ast.Attribute: _Judge._attribute,  # noqa: SLF001
    ast.AsyncFunctionDef: _Judge._annotated,  # noqa: SLF001
    ast.Call: _Judge._call,  # noqa: SLF001
    ast.ExceptHandler: _Judge._handler,  # noqa: SLF001
    ast.FunctionDef: _Judge._annotated,  # noqa: SLF001
    ast.Import: _Judge._import,  # noqa: SLF001
    ast.ImportFrom: _Judge._import_from,  # noqa: SLF001
    ast.MatchClass: _Judge._pattern,  # noqa: SLF001
    ast.Name: _Judge._name,  # noqa: SLF001
    ast.Subscript: _Judge._subscript,  # noqa: SLF001
}


def _but(node: ast.AST, those: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield what stands in a node, without some of it."""
    left_out = set(map(id, those))
    return (one for one in ast.iter_child_nodes(node) if id(one) not in left_out)


def _fields(pattern: str, depth: int) -> Iterator[str]:
    """Yield the fields of a format string, and of the format strings in those."""
    try:
        parsed = list(string.Formatter().parse(pattern))
    except ValueError:
        return
    for _, field, inner, _ in parsed:
        if field:
            yield field
        if inner and depth:
            yield from _fields(inner, depth - 1)


def _statements(tree: ast.Module, line: int) -> list[ast.stmt]:
    """Return the statements of a tree, as if all stood on one line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.expr | ast.stmt):
            node.lineno = line
    return tree.body


def _is_internal(name: str) -> bool:
    return _DUNDER.fullmatch(name) is not None and name not in HARMLESS_DUNDERS


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
