"""`ToolRegistry`: what an agent may call."""

from __future__ import annotations

import asyncio
import threading
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, final, overload

from envweave.errors import EnvWeaveError, OptionError, suggest
from envweave.tools.tool import Tool, ToolOutcome, call_tool, check_limit, failed


class ToolSource(ABC):
    """Brings tools that have to be started first, and ended.

    A registry calls it from several threads and event loops, also at once.

    Attributes:
        name: What errors call it.
    """

    name: str

    @abstractmethod
    async def start(self) -> Sequence[Tool]:
        """Start what is not running yet, and return the tools that there are now.

        Called before every episode. After `close` it starts anew.

        Raises:
            StartupError: It cannot be started.
        """

    @abstractmethod
    async def close(self) -> None:
        """End what was started. Harmless twice, and before the first start."""


_A_MOMENT_S = 0.01


class SourcedTool(NamedTuple):
    """A tool, and the name of the source that it is from."""

    tool: Tool
    owner: str


@final
class ToolCollection:
    """Starts sources when they are needed, and ends them when nobody needs them any more.

    Attributes:
        sources: All of them.
        brought: By name, the tools that they brought when they were last started; none while
            they are not.
        is_started: Whether all of them are, so that `brought` is complete.
    """

    def __init__(self) -> None:
        self.sources: tuple[ToolSource, ...] = ()
        self.brought: dict[str, SourcedTool] = {}
        self.is_started = True
        self._lock = threading.Lock()  # protects all of it
        self._holders: weakref.WeakSet[Any] = weakref.WeakSet()
        self._closings = 0  # odd while they are being ended

    def add(self, source: ToolSource) -> None:
        """Add a source.

        Raises:
            OptionError: It is no source, or is there already.
        """
        if not isinstance(source, ToolSource):
            raise OptionError(f"add_source({source!r}): expected a ToolSource.")
        with self._lock:
            if any(one is source for one in self.sources):
                raise OptionError(f"add_source(…): {source.name} is there already.")
            self.sources = (*self.sources, source)
            self.is_started = False

    async def start(self, taken: Container[str], holder: object = None) -> None:
        """Start what is not running, and take in the tools.

        Args:
            taken: Names that no tool of a source may have.
            holder: Whoever needs them, until it ends them.

        Raises:
            OptionError: Two tools have the same name.
            StartupError: A source cannot be started.
        """
        with self._lock:
            if holder is not None:
                self._holders.add(holder)
        while True:
            with self._lock:
                before, sources = self._closings, self.sources
            if not sources:
                return
            found = await asyncio.gather(
                *(source.start() for source in sources), return_exceptions=True
            )
            with self._lock:
                # Whoever was ending them meanwhile may have ended what is now needed.
                if before == self._closings and before % 2 == 0:
                    self.brought = _joined(sources, found, taken)
                    self.is_started = sources is self.sources
                    return
            await asyncio.sleep(_A_MOMENT_S)

    async def end(self, holder: object = None) -> None:
        """End all of them, unless somebody else than `holder` needs them. Harmless twice."""
        with self._lock:
            if holder is not None:
                self._holders.discard(holder)
                if len(self._holders):
                    return
            if not self.sources:
                return
            self.brought = {}
            self.is_started = False
            self._closings += 1
        try:
            ended = await asyncio.gather(
                *(source.close() for source in self.sources), return_exceptions=True
            )
        finally:
            with self._lock:
                self._closings += 1
        for outcome in ended:
            if isinstance(outcome, BaseException):
                raise outcome


def _joined(
    sources: Sequence[ToolSource],
    found: Sequence[Sequence[Tool] | BaseException],
    taken: Container[str],
) -> dict[str, SourcedTool]:
    brought: dict[str, SourcedTool] = {}
    for source, tools in zip(sources, found, strict=True):
        if isinstance(tools, BaseException):
            raise tools
        for tool in tools:
            other = "this registry" if tool.name in taken else None
            if tool.name in brought:
                other = brought[tool.name].owner
            if other is not None:
                raise OptionError(
                    f"Two tools are called {tool.name!r}: one of {other}, one of {source.name}. "
                    "Rename one, or do without it."
                )
            brought[tool.name] = SourcedTool(tool, source.name)
    return brought


class CallLimitError(EnvWeaveError, RuntimeError):
    """A tool was called more often than it may be in one episode. It did not run."""


@final
class CallCounter:
    """Counts the calls of one episode.

    Args:
        max_calls: How many calls there may be of all tools together; `None` for any number.
    """

    def __init__(self, max_calls: int | None) -> None:
        self._max_calls = max_calls
        self._lock = threading.Lock()  # protects the counts: code may call from several threads
        self._counts: Counter[str] = Counter()

    def admit(self, tool: Tool) -> None:
        """Count a call that is about to run.

        Raises:
            CallLimitError: There were as many as there may be.
        """
        with self._lock:
            if tool.max_calls is not None and self._counts[tool.name] >= tool.max_calls:
                raise CallLimitError(
                    f"{tool.name}() may be called {_times(tool.max_calls)} in an episode, and was."
                )
            if self._max_calls is not None and self._counts.total() >= self._max_calls:
                raise CallLimitError(
                    f"Tools may be called {_times(self._max_calls)} in an episode, and were."
                )
            self._counts[tool.name] += 1


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


F = TypeVar("F", bound=Callable[..., Any])

_LONGEST_NAME = 100


@final
class ToolRegistry:
    """What an agent may call, by name: functions of the host, and the tools of sources.

    One registry may serve many environments at once, in several threads and event loops. Each
    episode has its own counts.

    Args:
        tools: Functions by name, or functions and `Tool`s that have a name themselves.
        allow: The names that an agent may call; others it neither sees nor can call. `None`
            allows all.
        max_calls: How often tools may be called in an episode, all together; `None` for any
            number.

    Raises:
        OptionError: Something that is no tool, a name that code cannot use, or one that is taken.
    """

    def __init__(
        self,
        tools: Mapping[str, Callable[..., Any]] | Iterable[Any] | None = None,
        *,
        allow: Iterable[str] | None = None,
        max_calls: int | None = None,
    ) -> None:
        check_limit("ToolRegistry: ", max_calls)
        self._allow = None if allow is None else _allowed(allow)
        self._max_calls = max_calls
        self._lock = threading.Lock()  # held while the table is replaced
        self._own: dict[str, Tool] = {}
        self._gathering = ToolCollection()
        self._ledger = CallCounter(max_calls)
        for name, one in _listed(tools):
            self._add(_tool(name, one, None, None), replace=False)

    @overload
    def register(
        self,
        name_or_function: str,
        function: F,
        *,
        description: str | None = ...,
        max_calls: int | None = ...,
        replace: bool = ...,
    ) -> F: ...

    @overload
    def register(
        self,
        name_or_function: str | None = ...,
        function: None = ...,
        *,
        description: str | None = ...,
        max_calls: int | None = ...,
        replace: bool = ...,
    ) -> Callable[[F], F]: ...

    @overload
    def register(
        self,
        name_or_function: F,
        function: None = ...,
        *,
        description: str | None = ...,
        max_calls: int | None = ...,
        replace: bool = ...,
    ) -> F: ...

    @overload
    def register(
        self, name_or_function: Tool, function: None = ..., *, replace: bool = ...
    ) -> Tool: ...

    def register(
        self,
        name_or_function: Any = None,
        function: Any = None,
        *,
        description: str | None = None,
        max_calls: int | None = None,
        replace: bool = False,
    ) -> Any:
        """Add a tool, from the next episode on. Works as a decorator, too.

        ```python
        registry = ToolRegistry()
        registry.register("add", lambda a, b: a + b)

        @registry.register
        def forecast(city: str, days: int = 1) -> str:
            return f"{city}: rain for {days} days."

        @registry.register("search", max_calls=3)
        async def search_books(words: str) -> list[str]:
            return [words]
        ```

        Args:
            name_or_function: The name; or the function, whose own name it is, or a `Tool`.
            function: What runs on the host, where a name is given. Without it a decorator is
                returned.
            description: What it does; what its docstring says unless given.
            max_calls: How often it may be called in an episode.
            replace: Whether it takes the place of a tool of the same name.

        Returns:
            The function itself; the `Tool` is had by `get`.

        Raises:
            OptionError: Something that is no tool, a name that code cannot use, or one that is
                taken.
        """
        if name_or_function is not None and not isinstance(name_or_function, str):
            if function is not None:
                raise OptionError(
                    f"register({name_or_function!r}, {function!r}): the name comes first, as text."
                )
            name_or_function, function = None, name_or_function

        def add(one: Any) -> Any:
            self._add(_tool(name_or_function, one, description, max_calls), replace=replace)
            return one

        return add if function is None else add(function)

    def unregister(self, name: str) -> None:
        """Remove a tool, from the next episode on.

        Raises:
            OptionError: There is none, or it is the tool of a source.
        """
        found = self._gathering.brought.get(name)
        if found is not None:
            raise OptionError(
                f"The tool {name!r} comes from {found.owner}, so that it cannot be removed here. "
                "Leave it out of allow=[…]."
            )
        with self._lock:
            if name not in self._own:
                raise OptionError(f"There is no tool {name!r}.{suggest(str(name), self._own)}")
            self._own = {known: tool for known, tool in self._own.items() if known != name}

    def add_source(self, source: ToolSource) -> None:
        """Add the tools of a source, from the next episode on. It is closed with the registry.

        Raises:
            OptionError: It is no source, or is there already.
        """
        self._gathering.add(source)

    def get(self, name: str) -> Tool | None:
        """Return the tool of this name, or `None`."""
        return self._all().get(name)

    def names(self) -> list[str]:
        """Return the names of all tools, allowed or not; those of sources once it is open."""
        return list(self._all())

    def schemas(self) -> list[dict[str, Any]]:
        """Return the tools that may be called, as OpenAI-compatible models are told of them.

        Those of sources are among them once the registry is open.
        """
        return [tool.schema() for tool in self._seen(self._all()).values()]

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def __len__(self) -> int:
        return len(self._all())

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._all().values())

    def __repr__(self) -> str:
        sources = [f"and of {source.name}" for source in self._gathering.sources]
        return f"<ToolRegistry: {' '.join([', '.join(self._all()) or 'no tools', *sources])}>"

    def __reduce__(self) -> tuple[Callable[..., ToolRegistry], tuple[Any, ...]]:
        own = list(self._own.values())
        return _remade, (own, self._gathering.sources, self._allow, self._max_calls)

    async def open(self, *, holder: object = None) -> dict[str, Callable[..., Any]]:
        """Start the sources, and return the functions of a new episode, by name.

        Each checks its arguments and counts its calls, from zero. An `async` tool is an `async`
        function. What goes wrong is raised.

        Args:
            holder: Whoever needs the sources until it calls `close` with the same. Without one,
                they last until anybody closes the registry.

        Raises:
            OptionError: An allowed name that no tool has, or one name for two tools.
            StartupError: A source cannot be started.
        """
        await self._gathering.start(self._own, holder)
        everything = self._all()
        tools = self._seen(everything)
        for name in self._allow or ():
            if name not in tools:
                raise OptionError(
                    f"allow=[{name!r}, …]: no tool is called so.{suggest(name, everything)} "
                    f"Known: {', '.join(everything) or 'none'}."
                )
        self._ledger = CallCounter(self._max_calls)
        ledger = CallCounter(self._max_calls)
        return {name: tool.made_for(ledger.admit) for name, tool in tools.items()}

    async def close(self, *, holder: object = None) -> None:
        """End the sources. Harmless twice; `open` starts them anew.

        Args:
            holder: Who does not need them any more. While others do, nothing is ended.
        """
        await self._gathering.end(holder)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolOutcome:
        """Call a tool by name, with arguments as a model's function call has them.

        Sources are started if they are not. Calls are counted from the last `open` on.

        Returns:
            What it returned. An unknown tool, arguments that do not fit, a limit and a tool that
            fails are outcomes with `is_error`, never exceptions.
        """
        try:
            if not self._gathering.is_started:
                await self._gathering.start(self._own)
        except Exception as error:  # noqa: BLE001 - a source may do anything
            return failed(error)
        tools = self._seen(self._all())
        tool = tools.get(name) if isinstance(name, str) else None
        if tool is None:
            known = f" Known: {', '.join(tools)}." if tools else ""
            near = suggest(str(name)[:_LONGEST_NAME], tools)
            return ToolOutcome(
                f"NameError: There is no tool {repr(name)[:_LONGEST_NAME]}.{near}{known}",
                is_error=True,
            )
        return await call_tool(tool, arguments, self._ledger.admit)

    def _add(self, tool: Tool, *, replace: bool) -> None:
        found = self._gathering.brought.get(tool.name)
        if found is not None:
            raise OptionError(
                f"The name {tool.name!r} is taken by a tool of {found.owner}. Choose another."
            )
        with self._lock:
            if tool.name in self._own and not replace:
                raise OptionError(
                    f"The name {tool.name!r} is taken by another tool. Choose another, or give "
                    "replace=True."
                )
            self._own = {**self._own, tool.name: tool}

    def _all(self) -> dict[str, Tool]:
        brought = self._gathering.brought
        return {**self._own, **{name: one.tool for name, one in brought.items()}}

    def _seen(self, tools: Mapping[str, Tool]) -> dict[str, Tool]:
        """Those of the tools that may be called."""
        allow = self._allow
        return {name: tool for name, tool in tools.items() if allow is None or name in allow}


def _remade(
    tools: list[Tool],
    sources: Iterable[ToolSource],
    allow: Iterable[str] | None,
    max_calls: int | None,
) -> ToolRegistry:
    """A registry as it comes out of a pickle: with the same tools, and with nothing started."""
    registry = ToolRegistry(tools, allow=allow, max_calls=max_calls)
    for source in sources:
        registry.add_source(source)
    return registry


def _listed(tools: Any) -> list[tuple[str | None, Any]]:
    if tools is None:
        return []
    if isinstance(tools, Mapping):
        return list(tools.items())
    if isinstance(tools, ToolRegistry):
        raise OptionError(
            "This is a ToolRegistry already. Use it as it is, or give list(registry) for the "
            "tools that it has now."
        )
    if isinstance(tools, str | bytes | Tool) or not isinstance(tools, Iterable):
        raise OptionError(f"tools={tools!r}: expected a list of functions, or functions by name.")
    return [(None, one) for one in tools]


def _tool(name: Any, one: Any, description: str | None, max_calls: int | None) -> Tool:
    if not isinstance(one, Tool):
        return Tool.of(one, name, description, max_calls)
    if description is not None or max_calls is not None or name not in (None, one.name):
        raise OptionError(
            f"{one!r} has a name, a description and a limit of its own. Give the function to "
            "have others."
        )
    return one


def _allowed(allow: Any) -> frozenset[str]:
    names = None if isinstance(allow, str | bytes) or not isinstance(allow, Iterable) else [*allow]
    if names is None or not all(isinstance(name, str) for name in names):
        raise OptionError(f"allow={allow!r}: expected a list of names.")
    return frozenset(names)
