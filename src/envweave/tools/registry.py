"""`ToolRegistry`: the tools that an agent may call, the sources they come from, and call limits."""

from __future__ import annotations

import asyncio
import threading
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, final, overload

from envweave.errors import EnvWeaveError, OptionError, suggest
from envweave.tools.episode import ToolEpisode
from envweave.tools.tool import Tool, ToolOutcome, call_tool, check_limit, failed


class ToolSource(ABC):
    """Provides tools that must be started and closed, such as those of a server.

    A registry calls it from several threads and event loops, possibly at the same time.

    Attributes:
        name: Its name in error messages.
    """

    name: str

    @abstractmethod
    async def start(self) -> Sequence[Tool]:
        """Start what is not running yet, and return the current tools.

        Called before every episode. After `close` it starts again.

        Raises:
            StartupError: It cannot be started.
        """

    @abstractmethod
    async def close(self) -> None:
        """Stop what was started. Harmless twice, and before the first start."""


_RETRY_S = 0.01


class SourcedTool(NamedTuple):
    """A tool and the name of its source."""

    tool: Tool
    owner: str


@final
class ToolCollection:
    """Starts sources when they are needed, and closes them when the last holder releases them.

    Attributes:
        sources: All sources.
        tools: The tools of the sources, by name, as of their last start; empty while closed.
        is_started: Whether all sources are started, so that `tools` is complete.
    """

    def __init__(self) -> None:
        self.sources: tuple[ToolSource, ...] = ()
        self.tools: dict[str, SourcedTool] = {}
        self.is_started = True
        self._lock = threading.Lock()  # protects all of it
        self._holders: weakref.WeakSet[Any] = weakref.WeakSet()
        self._close_count = 0  # odd while they are being closed

    def add(self, source: ToolSource) -> None:
        """Add a source.

        Raises:
            OptionError: It is not a `ToolSource`, or was added already.
        """
        if not isinstance(source, ToolSource):
            raise OptionError(f"add_source() takes a ToolSource, got {source!r}.")
        with self._lock:
            if any(one is source for one in self.sources):
                raise OptionError(f"add_source(): {source.name} was added already.")
            self.sources = (*self.sources, source)
            self.is_started = False

    async def start(self, taken: Container[str], holder: object = None) -> None:
        """Start what is not running, and collect the tools.

        Args:
            taken: Names that no tool of a source may have.
            holder: An object that needs the sources until it calls `end`.

        Raises:
            OptionError: Two tools have the same name.
            StartupError: A source cannot be started.
        """
        with self._lock:
            if holder is not None:
                self._holders.add(holder)
        while True:
            with self._lock:
                before, sources = self._close_count, self.sources
            if not sources:
                return
            found = await asyncio.gather(
                *(source.start() for source in sources), return_exceptions=True
            )
            with self._lock:
                # A concurrent `end` may have closed what was just started.
                if before == self._close_count and before % 2 == 0:
                    self.tools = _merge_tools(sources, found, taken)
                    self.is_started = sources is self.sources
                    return
            await asyncio.sleep(_RETRY_S)

    async def end(self, holder: object = None) -> None:
        """Close all sources, unless a holder other than `holder` needs them. Harmless twice."""
        with self._lock:
            if holder is not None:
                self._holders.discard(holder)
                if len(self._holders):
                    return
            if not self.sources:
                return
            self.tools = {}
            self.is_started = False
            self._close_count += 1
        try:
            ended = await asyncio.gather(
                *(source.close() for source in self.sources), return_exceptions=True
            )
        finally:
            with self._lock:
                self._close_count += 1
        for outcome in ended:
            if isinstance(outcome, BaseException):
                raise outcome


def _merge_tools(
    sources: Sequence[ToolSource],
    found: Sequence[Sequence[Tool] | BaseException],
    taken: Container[str],
) -> dict[str, SourcedTool]:
    collected: dict[str, SourcedTool] = {}
    for source, tools in zip(sources, found, strict=True):
        if isinstance(tools, BaseException):
            raise tools
        for tool in tools:
            other = "this registry" if tool.name in taken else None
            if tool.name in collected:
                other = collected[tool.name].owner
            if other is not None:
                raise OptionError(
                    f"Two tools have the name {tool.name!r}: one of {other}, one of "
                    f"{source.name}. Rename or remove one."
                )
            collected[tool.name] = SourcedTool(tool, source.name)
    return collected


class CallLimitError(EnvWeaveError, RuntimeError):
    """A tool was called more often than allowed in one episode. The call did not run."""


@final
class CallCounter:
    """Counts the calls of one episode.

    Args:
        max_calls: The limit on the calls of all tools together; `None` for no limit.
        counts: How often each tool was called before. It is updated.
    """

    def __init__(self, max_calls: int | None, counts: Counter[str] | None = None) -> None:
        self._max_calls = max_calls
        self._lock = threading.Lock()  # protects the counts: code may call from several threads
        self._counts: Counter[str] = Counter() if counts is None else counts

    def admit(self, tool: Tool) -> None:
        """Count a call that is about to run.

        Raises:
            CallLimitError: The limit is reached.
        """
        with self._lock:
            if tool.max_calls is not None and self._counts[tool.name] >= tool.max_calls:
                raise CallLimitError(
                    f"{tool.name}() may be called {_times(tool.max_calls)} per episode; the limit "
                    "is reached."
                )
            if self._max_calls is not None and self._counts.total() >= self._max_calls:
                raise CallLimitError(
                    f"Tools may be called {_times(self._max_calls)} per episode; the limit is "
                    "reached."
                )
            self._counts[tool.name] += 1


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


F = TypeVar("F", bound=Callable[..., Any])

_LONGEST_NAME = 100


@final
class ToolRegistry:
    """The tools that an agent may call, by name: functions of the host, and tools of sources.

    One registry may serve many environments at the same time, in several threads and event loops.
    Calls are counted per episode.

    Args:
        tools: Functions by name, or functions and `Tool`s that have a name themselves.
        allow: The names of the tools that an agent can see and call; `None` allows all.
        max_calls: The limit on the calls of all tools in an episode; `None` for no limit.

    Raises:
        OptionError: Not a tool, a name that is not an identifier, or one that is taken.
    """

    def __init__(
        self,
        tools: Mapping[str, Callable[..., Any]] | Iterable[Any] | None = None,
        *,
        allow: Iterable[str] | None = None,
        max_calls: int | None = None,
    ) -> None:
        check_limit("ToolRegistry: ", max_calls)
        self._allow = None if allow is None else _check_allow(allow)
        self._max_calls = max_calls
        self._lock = threading.Lock()  # held while the table is replaced
        self._own: dict[str, Tool] = {}
        self._sources = ToolCollection()
        self._counter = CallCounter(max_calls)
        self._episode = ToolEpisode()
        for name, one in _list_tools(tools):
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
            name_or_function: The name; or a function with its own name, or a `Tool`.
            function: Runs on the host, if a name is given. Without it, returns a decorator.
            description: What the tool does; default: its docstring.
            max_calls: The limit on its calls in an episode.
            replace: Whether to replace a tool of the same name.

        Returns:
            The function itself; `get` returns the `Tool`.

        Raises:
            OptionError: Not a tool, a name that is not an identifier, or one that is taken.
        """
        if name_or_function is not None and not isinstance(name_or_function, str):
            if function is not None:
                raise OptionError(
                    f"register({name_or_function!r}, {function!r}): the first argument must be the "
                    "name."
                )
            name_or_function, function = None, name_or_function

        def add(one: Any) -> Any:
            self._add(_tool(name_or_function, one, description, max_calls), replace=replace)
            return one

        return add if function is None else add(function)

    def unregister(self, name: str) -> None:
        """Remove a tool, from the next episode on.

        Raises:
            OptionError: There is no such tool, or it belongs to a source.
        """
        found = self._sources.tools.get(name)
        if found is not None:
            raise OptionError(
                f"The tool {name!r} belongs to {found.owner} and cannot be removed here. Leave it "
                "out of allow=[…]."
            )
        with self._lock:
            if name not in self._own:
                raise OptionError(f"There is no tool {name!r}.{suggest(str(name), self._own)}")
            self._own = {known: tool for known, tool in self._own.items() if known != name}

    def add_source(self, source: ToolSource) -> None:
        """Add the tools of a source, from the next episode on. It is closed with the registry.

        Raises:
            OptionError: It is not a `ToolSource`, or was added already.
        """
        self._sources.add(source)

    def get(self, name: str) -> Tool | None:
        """Return the tool of this name, or `None`."""
        return self._all().get(name)

    def names(self) -> list[str]:
        """Return the names of all tools, allowed or not; those of sources after `open`."""
        return list(self._all())

    @property
    def sources(self) -> tuple[ToolSource, ...]:
        """The sources that were added."""
        return self._sources.sources

    def schemas(self) -> list[dict[str, Any]]:
        """Return the schemas of the allowed tools, in the format of OpenAI-compatible models.

        Includes the tools of sources after `open`.
        """
        return [tool.schema() for tool in self._filter_allowed(self._all()).values()]

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def __len__(self) -> int:
        return len(self._all())

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._all().values())

    def __repr__(self) -> str:
        sources = [f"and of {source.name}" for source in self._sources.sources]
        return f"<ToolRegistry: {' '.join([', '.join(self._all()) or 'no tools', *sources])}>"

    def __reduce__(self) -> tuple[Callable[..., ToolRegistry], tuple[Any, ...]]:
        own = list(self._own.values())
        return _unpickle, (own, self._sources.sources, self._allow, self._max_calls)

    async def open(
        self, *, holder: object = None, episode: ToolEpisode | None = None
    ) -> dict[str, Callable[..., Any]]:
        """Start the sources, and return the functions of an episode, by name.

        Each function checks its arguments and counts its calls, on from `episode.calls`. An `async`
        tool is an `async` function. Failures are raised.

        Args:
            holder: An object that needs the sources until it calls `close` with itself. Without
                one, they run until the registry is closed.
            episode: What `current_episode` returns in the tools; by default one without a task.

        Raises:
            OptionError: `allow` has an unknown name, or two tools have the same name.
            StartupError: A source cannot be started.
        """
        await self._sources.start(self._own, holder)
        everything = self._all()
        tools = self._filter_allowed(everything)
        for name in self._allow or ():
            if name not in tools:
                raise OptionError(
                    f"allow=[{name!r}, …]: there is no such tool.{suggest(name, everything)} "
                    f"Known: {', '.join(everything) or 'none'}."
                )
        self._counter = CallCounter(self._max_calls)
        self._episode = episode = ToolEpisode() if episode is None else episode
        counter = CallCounter(self._max_calls, episode.calls)
        return {name: tool.made_for(counter.admit, episode) for name, tool in tools.items()}

    async def close(self, *, holder: object = None) -> None:
        """Close the sources. Harmless twice; `open` starts them again.

        Args:
            holder: The object that no longer needs them. While others do, nothing is closed.
        """
        await self._sources.end(holder)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolOutcome:
        """Call a tool by name, with arguments as a model's function call has them.

        Starts the sources if necessary. Calls are counted since the last `open`.

        Returns:
            The outcome. An unknown tool, invalid arguments, a limit and a failing tool are
            outcomes with `is_error`, never exceptions.
        """
        try:
            if not self._sources.is_started:
                await self._sources.start(self._own)
        except Exception as error:  # noqa: BLE001 - a source may do anything
            return failed(error)
        tools = self._filter_allowed(self._all())
        tool = tools.get(name) if isinstance(name, str) else None
        if tool is None:
            known = f" Known: {', '.join(tools)}." if tools else ""
            near = suggest(str(name)[:_LONGEST_NAME], tools)
            return ToolOutcome(
                f"NameError: There is no tool {repr(name)[:_LONGEST_NAME]}.{near}{known}",
                is_error=True,
            )
        return await call_tool(tool, arguments, self._counter.admit, self._episode)

    def _add(self, tool: Tool, *, replace: bool) -> None:
        found = self._sources.tools.get(tool.name)
        if found is not None:
            raise OptionError(
                f"The name {tool.name!r} is taken by a tool of {found.owner}. Choose another."
            )
        with self._lock:
            if tool.name in self._own and not replace:
                raise OptionError(
                    f"The name {tool.name!r} is taken by another tool. Choose another, or pass "
                    "replace=True."
                )
            self._own = {**self._own, tool.name: tool}

    def _all(self) -> dict[str, Tool]:
        collected = self._sources.tools
        return {**self._own, **{name: one.tool for name, one in collected.items()}}

    def _filter_allowed(self, tools: Mapping[str, Tool]) -> dict[str, Tool]:
        """Return the tools that are allowed."""
        allow = self._allow
        return {name: tool for name, tool in tools.items() if allow is None or name in allow}


def _unpickle(
    tools: list[Tool],
    sources: Iterable[ToolSource],
    allow: Iterable[str] | None,
    max_calls: int | None,
) -> ToolRegistry:
    """Unpickle a registry: with the same tools, and nothing started."""
    registry = ToolRegistry(tools, allow=allow, max_calls=max_calls)
    for source in sources:
        registry.add_source(source)
    return registry


def _list_tools(tools: Any) -> list[tuple[str | None, Any]]:
    if tools is None:
        return []
    if isinstance(tools, Mapping):
        return list(tools.items())
    if isinstance(tools, ToolRegistry):
        raise OptionError(
            "tools is a ToolRegistry already. Use it directly, or pass list(registry) for its "
            "current tools."
        )
    if isinstance(tools, str | bytes | Tool) or not isinstance(tools, Iterable):
        raise OptionError(
            f"tools must be a list of functions or a dict of functions by name, got {tools!r}."
        )
    return [(None, one) for one in tools]


def _tool(name: Any, one: Any, description: str | None, max_calls: int | None) -> Tool:
    if not isinstance(one, Tool):
        return Tool.of(one, name, description, max_calls)
    if description is not None or max_calls is not None or name not in (None, one.name):
        raise OptionError(
            f"{one!r} already has a name, a description and a limit. Pass the function to set "
            "others."
        )
    return one


def _check_allow(allow: Any) -> frozenset[str]:
    names = None if isinstance(allow, str | bytes) or not isinstance(allow, Iterable) else [*allow]
    if names is None or not all(isinstance(name, str) for name in names):
        raise OptionError(f"allow must be a list of names, got {allow!r}.")
    return frozenset(names)
