"""Parses `{"mcpServers": …}`: the MCP servers, and how to reach each of them."""

from __future__ import annotations

import json
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, final

from envweave.errors import OptionError, suggest

AnyConfig = Mapping[str, Any] | str | os.PathLike[str]
"""A configuration, or the path of a JSON file that contains one."""

Transport = Literal["http", "sse"]

_KINDS: dict[str, Transport] = {"http": "http", "streamable-http": "http", "sse": "sse"}
_COMMON_KEYS = ("allow", "timeout_s")
_COMMAND_KEYS = ("command", "args", "env", "cwd", "type", "transport", *_COMMON_KEYS)
_URL_KEYS = ("url", "headers", "type", "transport", *_COMMON_KEYS)
_VARIABLE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class ServerConfig(ABC):
    """The options of every server.

    Attributes:
        name: Its name in the configuration.
        allow: The tools that may be used, by the server's own names; `None` allows all.
        timeout_s: How long it may take to start, and to answer; `None` for the common timeout.
    """

    name: str
    allow: tuple[str, ...] | None = None
    timeout_s: float | None = None

    @property
    @abstractmethod
    def where(self) -> str:
        """Its command or address, for errors. Contains no secrets."""


@final
@dataclass(frozen=True, kw_only=True)
class CommandServer(ServerConfig):
    """A server that is started here, with messages over its stdin and stdout.

    Attributes:
        command: The program.
        args: Its arguments.
        env: Environment variables besides those that every program needs.
        cwd: The folder it runs in; default: the current folder.
    """

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None

    @property
    def where(self) -> str:
        """The command line. Secrets belong in `env`."""
        return " ".join([self.command, *self.args])


@final
@dataclass(frozen=True, kw_only=True)
class UrlServer(ServerConfig):
    """A running server, with messages over HTTP.

    Attributes:
        url: Its address.
        headers: Sent with every call.
        transport: Streamable HTTP, or the older server-sent events.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    transport: Transport = "http"

    @property
    def where(self) -> str:
        """The address, without a password or a query."""
        bare = re.sub(r"//[^/@]*@", "//", self.url)
        return bare.partition("?")[0]


def read_config(config: AnyConfig) -> list[CommandServer | UrlServer]:
    """Return the servers of a configuration, in its order.

    `${NAME}` in `env` and `headers` stands for that variable of this process's environment.

    Raises:
        OptionError: It is invalid; the message names the server and the key.
    """
    found = config if isinstance(config, Mapping) else _read_file(config)
    servers = found.get("mcpServers")
    for key in found:
        if key != "mcpServers":
            hint = suggest(str(key), ["mcpServers"])
            raise OptionError(f"MCP servers: unknown key {key!r}; expected 'mcpServers'.{hint}")
    if not isinstance(servers, Mapping) or not servers:
        raise OptionError(
            f"MCP servers: expected a dict of servers, got {servers!r}. Use "
            '{"mcpServers": {name: {"command": …} or {"url": …}}}.'
        )
    return [_parse_server(name, given) for name, given in servers.items()]


def _read_file(path: Any) -> Mapping[str, Any]:
    if not isinstance(path, str | os.PathLike):
        raise OptionError(f"MCP servers: expected a dict or the path of a JSON file, got {path!r}.")
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"MCP servers: {path!r} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise OptionError(f"MCP servers: {path!r} is not valid JSON: {error}.") from None
    if not isinstance(found, dict):
        raise OptionError(f"MCP servers: {path!r} does not contain a JSON object.")
    return found


def _parse_server(name: Any, given: Any) -> CommandServer | UrlServer:
    if not isinstance(name, str) or not name.strip():
        raise OptionError(f"MCP servers: the name of a server must be a string, got {name!r}.")
    if not isinstance(given, Mapping):
        raise OptionError(f"MCP server {name!r}: expected a dict, got {given!r}.")
    entry = _Entry(name, given)
    if ("command" in given) == ("url" in given):
        both = "both 'command' and 'url'" if "url" in given else "neither 'command' nor 'url'"
        raise OptionError(
            f"MCP server {name!r} has {both}. Set 'command' to start a server here, or 'url' to "
            "connect to a running one."
        )
    return _parse_command(entry) if "command" in given else _parse_url(entry)


def _parse_command(entry: _Entry) -> CommandServer:
    entry.allow_only(_COMMAND_KEYS)
    if entry.kind() not in (None, "stdio"):
        raise entry.wrong("type", "'stdio', or a 'url' in place of 'command'")
    cwd = entry.given.get("cwd")
    if cwd is not None and not isinstance(cwd, str | os.PathLike):
        raise entry.wrong("cwd", "a path")
    return CommandServer(
        name=entry.name,
        command=entry.text("command"),
        args=entry.texts("args") or (),
        env=entry.expanded("env"),
        cwd=None if cwd is None else os.fspath(cwd),
        allow=entry.texts("allow"),
        timeout_s=entry.seconds("timeout_s"),
    )


def _parse_url(entry: _Entry) -> UrlServer:
    entry.allow_only(_URL_KEYS)
    kind = entry.kind() or "http"
    if kind not in _KINDS:
        raise entry.wrong("type", " or ".join(map(repr, _KINDS)))
    url = entry.text("url")
    if not re.match(r"https?://[^/?#\s]+", url):
        raise entry.wrong("url", "an address that begins with http:// or https://")
    return UrlServer(
        name=entry.name,
        url=url,
        headers=entry.expanded("headers"),
        transport=_KINDS[kind],
        allow=entry.texts("allow"),
        timeout_s=entry.seconds("timeout_s"),
    )


@dataclass(frozen=True)
class _Entry:
    """The configuration of one server, with checks of its keys."""

    name: str
    given: Mapping[str, Any]

    def wrong(self, key: str, expected: str) -> OptionError:
        given = f"={self.given[key]!r}" if key in self.given else ""
        return OptionError(f"MCP server {self.name!r}: {key}{given}: expected {expected}.")

    def allow_only(self, known: tuple[str, ...]) -> None:
        for key in self.given:
            if key not in known:
                raise OptionError(
                    f"MCP server {self.name!r}: unknown key {key!r}."
                    f"{suggest(str(key), known)} Known: {', '.join(known)}."
                )

    def kind(self) -> str | None:
        """Return `type`, or its synonym `transport`."""
        kinds = [self.given[key] for key in ("type", "transport") if key in self.given]
        if len(kinds) == 2 and kinds[0] != kinds[1]:
            raise OptionError(
                f"MCP server {self.name!r}: type={kinds[0]!r} and transport={kinds[1]!r} mean the "
                "same, but differ. Set one of them."
            )
        if kinds and not isinstance(kinds[0], str):
            raise self.wrong("type" if "type" in self.given else "transport", "a string")
        return kinds[0] if kinds else None

    def text(self, key: str) -> str:
        value = self.given[key]
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise self.wrong(key, "a non-empty string")
        return value

    def texts(self, key: str) -> tuple[str, ...] | None:
        values = self.given.get(key)
        if values is None:
            return None
        if not isinstance(values, list | tuple) or not all(
            isinstance(value, str) and "\0" not in value for value in values
        ):
            raise self.wrong(key, "a list of strings")
        return tuple(values)

    def seconds(self, key: str) -> float | None:
        value = self.given.get(key)
        if value is None:
            return None
        return check_seconds(value, f"MCP server {self.name!r}: {key}={value!r}")

    def expanded(self, key: str) -> dict[str, str]:
        """Return strings by name, with environment variables of this process substituted."""
        values = self.given.get(key)
        if values is None:
            return {}
        if not isinstance(values, Mapping):
            raise self._wrong_strings(key)
        return {name: self._expand(key, name, value) for name, value in values.items()}

    def _expand(self, key: str, name: Any, value: Any) -> str:
        if not isinstance(name, str) or not name or re.search(r"[\0\n\r=]", name):
            raise self._wrong_strings(key)
        if not isinstance(value, str) or "\0" in value:
            raise self._wrong_strings(key)

        def look_up(variable: re.Match[str]) -> str:
            try:
                return os.environ[variable[1]]
            except KeyError:
                raise OptionError(
                    f"MCP server {self.name!r}: {key}[{name!r}] uses the environment "
                    f"variable {variable[1]!r}, which is not set."
                ) from None

        filled = _VARIABLE.sub(look_up, value)
        if key == "headers" and re.search(r"[\n\r]", filled):
            raise OptionError(f"MCP server {self.name!r}: {key}[{name!r}] has a line break.")
        return filled

    def _wrong_strings(self, key: str) -> OptionError:
        # The values are not shown: they may be secret.
        return OptionError(f"MCP server {self.name!r}: {key}: expected a dict of strings.")


def check_seconds(value: Any, shown: str) -> float:
    """Return a number of seconds.

    Raises:
        OptionError: It is not a number above 0; the message begins with `shown`.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value <= 0:
        raise OptionError(f"{shown}: expected a number of seconds above 0.")
    return float(value)
