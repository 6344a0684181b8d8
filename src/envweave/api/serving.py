"""Serve environments: `create_fastapi_app` and `serve`."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envweave.adapters import adopt
from envweave.api.options import (
    Transforms,
    constructor_keywords,
    explain_collisions,
    flag,
    recipe,
    seconds,
)
from envweave.codec import AgentsSpec, AnySpec, Spec, spec_from_hint
from envweave.environment import Environment
from envweave.errors import DefinitionError, MissingExtraError, OptionError, suggest
from envweave.registry import EnvSpec, ReadyMade, Registry
from envweave.registry.plugins import load_path
from envweave.registry.spec import refuse_unknown

if TYPE_CHECKING:
    from fastapi import FastAPI

    from envweave.server.options import ServerOptions
    from envweave.server.runtime.base import Runtime


def with_types(spec: EnvSpec, action: Any, observation: Any) -> EnvSpec:
    """Return a recipe whose environments have these action and observation types.

    Raises:
        DefinitionError: An existing environment has other types. For others, the error comes
            when one is made.
    """
    if action is None and observation is None:
        return spec
    if isinstance(spec.factory, ReadyMade):
        ready = ReadyMade(_set_types(adopt(spec.factory.environment), action, observation))
        return dataclasses.replace(spec, factory=ready)
    about = spec.description or _first_line(spec)
    made = TypedFactory(spec.factory, action, observation)
    return dataclasses.replace(spec, factory=made, description=about)


@dataclass(frozen=True)
class TypedFactory:
    """Makes environments with another factory, and sets their types.

    Attributes:
        factory: The other factory, or its import path.
        action: The type of actions; `None` to use the hints of `step`.
        observation: The type of observations; `None` to use the hints of `step`.
    """

    factory: Callable[..., Any] | str
    action: Any
    observation: Any

    def __call__(self, **kwargs: Any) -> Environment:
        """Make an environment.

        Raises:
            DefinitionError: Its own hints contradict the types.
        """
        return _set_types(adopt(self._load()(**kwargs)), self.action, self.observation)

    def _load(self) -> Callable[..., Any]:
        loaded = load_path(self.factory) if isinstance(self.factory, str) else self.factory
        if not callable(loaded):
            raise DefinitionError(f"{self.factory!r} cannot make environments: it is not callable.")
        return loaded

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature of the other factory, so that unknown keywords are refused."""
        return inspect.signature(self._load())


def _set_types(environment: Environment, action: Any, observation: Any) -> Environment:
    interface = environment.describe()
    for name, given, own in (
        ("action", action, interface.action_spec),
        ("observation", observation, interface.observation_spec),
    ):
        if given is None:
            continue
        spec = spec_from_hint(given)
        for one in _each(own):
            _refuse_contradiction(name, given, spec, one, interface.name)
        setattr(environment, f"{name}_spec", spec)
    return environment


def _each(spec: Spec) -> Iterator[Spec]:
    yield from spec.agents.values() if isinstance(spec, AgentsSpec) else (spec,)


def _refuse_contradiction(name: str, given: Any, spec: Spec, own: Spec, environment: str) -> None:
    """Accept a class if the hint names it, a base class of it, or nothing."""
    if isinstance(own, AnySpec):
        return
    hinted = getattr(own, "cls", None)
    if isinstance(hinted, type) and isinstance(given, type):
        if issubclass(given, hinted):
            return
    elif own.json_schema() == spec.json_schema():
        return
    raise DefinitionError(
        f"The type hints of {environment} declare {_format_type(hinted or own)} as its {name}s, "
        f"but the server was passed {_format_type(given)}. Leave that out, or correct the hints."
    )


def _format_type(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else repr(value)


def _first_line(spec: EnvSpec) -> str:
    try:
        return spec.describe()
    except (DefinitionError, ImportError):
        return ""  # making an environment gives a better error


_NEEDED = ("fastapi", "httptools", "prometheus_client", "starlette", "uvicorn", "websockets")
_COUNTS = {
    "max_sessions": 1,
    "queue_size": 0,
    "workers": 0,
    "threads": 1,
    "max_stuck": 0,
    "max_message_bytes": 1024,
    "replies_kept": 0,
}
"""Options that are counts, and their minimum."""

_LISTS = ("allowed_hosts", "allowed_origins")


@explain_collisions
def create_fastapi_app(
    env: Any,
    ActionCls: Any = None,  # noqa: N803 - part of the public API
    ObservationCls: Any = None,  # noqa: N803
    *,
    max_episode_steps: int | None = None,
    transform: Transforms | None = None,
    registry: Registry | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **keywords: Any,
) -> FastAPI:
    """Return a FastAPI application that serves an environment.

    It serves plain HTTP (`/reset`, `/step`, `/state`), WebSocket (`/ws`) and `/docs`, and runs on
    any ASGI server. It starts and stops with that server. Without a token it refuses callers on
    other machines.

    Args:
        env: An ID, a class, or a function that makes environments. A single object is served to
            one session at a time.
        ActionCls: The type of actions, if the hints of `step` don't give it.
        ObservationCls: The type of observations, likewise.
        max_episode_steps: Truncate every episode after this many steps.
        transform: Applied to every observation.
        registry: Where to look up the ID; by default the registry of this process.
        kwargs: Keywords for the environment's constructor, including those with the name of an
            option.
        **keywords: The fields of `ServerOptions`, except `head_timeout_s`. The default `token` is
            `$ENVWEAVE_TOKEN`, if it is set. Every other keyword goes to the environment's
            constructor.

    Raises:
        MissingExtraError: The extra `server` is not installed.
        EnvNotFoundError: No environment has this ID.
        OptionError: An option cannot be honored.
        DefinitionError: It is not an environment, or its hints contradict `ActionCls`.
    """
    refuse_without_extra()
    from envweave.server.app import build_app

    if "head_timeout_s" in keywords:
        raise OptionError(
            "head_timeout_s is for serve(): an ASGI application does not see the request head. Set "
            "such a limit on the ASGI server, or on the proxy in front of it."
        )
    options, rest = split(keywords)
    given = constructor_keywords(kwargs, rest)
    spec = recipe(env, registry, max_episode_steps, transform, given)
    _check_keywords(spec, given, "create_fastapi_app")
    _refuse_max_sessions(spec, keywords)
    spec = with_types(spec, ActionCls, ObservationCls)
    options = check_options(spec, options)
    return build_app(partial(make_runtime, spec, given, options), options)


@explain_collisions
def serve(
    env: Any,
    ActionCls: Any = None,  # noqa: N803 - part of the public API
    ObservationCls: Any = None,  # noqa: N803
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    uds: str | os.PathLike[str] | None = None,
    insecure: bool = False,
    max_episode_steps: int | None = None,
    transform: Transforms | None = None,
    registry: Registry | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **keywords: Any,
) -> None:
    """Serve an environment from this process, until SIGTERM or Ctrl-C.

    Then it accepts no more sessions, and running episodes may continue for `drain_s`.

    Args:
        env: As in `create_fastapi_app`.
        ActionCls: The same.
        ObservationCls: The same.
        host: The address to listen on. Anything but loopback requires a `token`.
        port: The port; 0 for a free one.
        uds: The path of a unix socket to listen on instead.
        insecure: Whether to accept anyone without a token, also from other machines.
        max_episode_steps: Truncate every episode after this many steps.
        transform: Applied to every observation.
        registry: Where to look up the ID; by default the registry of this process.
        kwargs: As in `create_fastapi_app`.
        **keywords: As in `create_fastapi_app`, and `head_timeout_s`.

    Raises:
        StartupError: The port is in use, or not permitted.
        OptionError: An option cannot be honored, or the host can be reached from other machines
            and there is no token.
        EnvWeaveError: As in `create_fastapi_app`.
    """
    refuse_without_extra()
    options, rest = split(keywords)
    given = constructor_keywords(kwargs, rest)
    spec = recipe(env, registry, max_episode_steps, transform, given)
    _check_keywords(spec, given, "serve")
    _refuse_max_sessions(spec, keywords)
    spec = with_types(spec, ActionCls, ObservationCls)

    def print_ready(url: str) -> None:
        sys.stdout.write(ready_line(spec.id, url) + "\n")
        sys.stdout.flush()

    run_server(
        spec, given, options, host=host, port=port, uds=uds, insecure=insecure, on_ready=print_ready
    )


def run_server(
    spec: EnvSpec,
    kwargs: Mapping[str, Any],
    options: ServerOptions,
    *,
    host: str,
    port: int,
    uds: str | os.PathLike[str] | None,
    insecure: bool,
    on_ready: Callable[[str], None],
    lifeline_fd: int | None = None,
    uds_mode: int = 0o600,
) -> int:
    """Serve until SIGTERM or Ctrl-C, and return the exit code. Calls `on_ready` with the URL."""
    from envweave.server.app import AppState
    from envweave.server.listen import listen, listen_unix, refuse_openness
    from envweave.server.run import Serving

    options = check_options(spec, options)
    if insecure:
        options = dataclasses.replace(options, insecure=True)
    if uds is None:
        refuse_openness(host, options.token, insecure=options.insecure)
        listener = listen(host, port)
    else:
        listener = listen_unix(uds, uds_mode)
    try:
        app_state = AppState(partial(make_runtime, spec, kwargs, options), options)
        return Serving(app_state, listener, on_ready, lifeline_fd).run()
    finally:
        listener.close()


def ready_line(env_id: str, url: str) -> str:
    """Return the line that a server prints when it is ready."""
    docs = f" (docs at {url}/docs)" if url.startswith("http") else ""
    return f"envweave: serving {env_id} on {url}{docs}"


def split(keywords: Mapping[str, Any]) -> tuple[ServerOptions, dict[str, Any]]:
    """Split keywords into server options and those for the constructor.

    Raises:
        OptionError: An option has an invalid value.
    """
    from envweave.server.options import ServerOptions

    known = _option_names()
    given = {name: value for name, value in keywords.items() if name in known}
    rest = {name: value for name, value in keywords.items() if name not in known}
    if given.get("token") is None:
        given["token"] = os.environ.get("ENVWEAVE_TOKEN") or None
    read = {name: _read(name, value) for name, value in given.items()}
    return ServerOptions(**read), rest


def _option_names() -> list[str]:
    from envweave.server.options import ServerOptions

    return [field.name for field in dataclasses.fields(ServerOptions)]


def _check_keywords(spec: EnvSpec, kwargs: Mapping[str, Any], caller: str) -> None:
    """Refuse bad keywords now rather than when the first environment is made."""
    if kwargs or not isinstance(spec.factory, str):  # without keywords, don't import a path yet
        given = {**spec.kwargs, **kwargs}
        refuse_unknown(spec, spec.load(), given, caller=caller, options=_option_names())


def _refuse_max_sessions(spec: EnvSpec, keywords: Mapping[str, Any]) -> None:
    """Refuse more than one session for a single object."""
    limit = keywords.get("max_sessions", 1)
    if isinstance(spec.factory, ReadyMade) and limit != 1:
        raise OptionError(
            f"max_sessions={limit!r} cannot be honored: one {spec.id} object has one session at a "
            "time. Serve its class, or a function that makes one, or leave max_sessions out."
        )


def _read(name: str, value: Any) -> Any:
    if name in _COUNTS:
        least = _COUNTS[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise OptionError(f"{name} must be an integer >= {least}, got {value!r}.")
        return value
    if name in _LISTS:
        if isinstance(value, str) or not all(isinstance(one, str) for one in value):
            raise OptionError(f"{name} must be a list of strings, got {value!r}.")
        return tuple(value)
    if name == "token":
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip():
            raise OptionError("token must be a non-empty string. Leave it out for none.")
        token = value.strip()  # as in an HTTP header
        if not (token.isascii() and token.isprintable()):
            raise OptionError("token has characters that a header cannot. Use letters and digits.")
        return token
    if name == "insecure":
        return flag(name, value)
    if name == "record":
        from envweave.recording.writer import read_directory

        return None if value is None else str(read_directory(value))
    if name == "dialects":
        return None if value is None else _dialects(value)
    if name == "timeout_s" and value is None:
        return None
    if name == "drain_s" and value == 0:
        return 0.0
    read = seconds(name, value)
    if read is None:
        raise OptionError(f"{name} must be a number of seconds > 0, got None.")
    return read


def _dialects(names: Any) -> tuple[str, ...]:
    from envweave.server.options import DIALECTS

    if isinstance(names, str) or not all(isinstance(one, str) for one in names):
        raise OptionError(f"dialects must be a list of names, got {names!r}.")
    for name in names:
        if name not in DIALECTS:
            raise OptionError(
                f"There is no dialect {name!r}.{suggest(name, DIALECTS)} Known: "
                f"{', '.join(DIALECTS)}. envweave's own is always served."
            )
    if "mcp" in names and importlib.util.find_spec("mcp") is None:
        raise MissingExtraError.for_extra("The dialect 'mcp' needs the MCP SDK.", "mcp")
    return tuple(names)


def check_options(spec: EnvSpec, options: ServerOptions) -> ServerOptions:
    """Return the options for this recipe; a single object is limited to one session.

    Raises:
        OptionError: It is already served elsewhere.
    """
    if spec.is_made_elsewhere:
        raise OptionError(f"{spec.id!r} is already served. Connect to it with make({spec.id!r}).")
    if isinstance(spec.factory, ReadyMade):
        return dataclasses.replace(options, max_sessions=1)
    return options


def make_runtime(spec: EnvSpec, kwargs: Mapping[str, Any], options: ServerOptions) -> Runtime:
    """Return the runtime of a server: in this process, or in workers."""
    runtime: Runtime
    if options.workers:
        from envweave.server.runtime.workers import WorkerRuntime

        runtime = WorkerRuntime(spec, kwargs, options)
    else:
        from envweave.server.runtime.local import LocalRuntime

        runtime = LocalRuntime(spec, kwargs, options)
    if options.record is None:
        return runtime
    from envweave.api.recording import open_served
    from envweave.server.runtime.recorded import RecordedRuntime

    return RecordedRuntime(runtime, partial(open_served, Path(options.record), spec, kwargs))


def refuse_without_extra() -> None:
    """Check that the libraries for serving are installed.

    Raises:
        MissingExtraError: One of them is not installed.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError.for_extra(f"Serving needs {missing[0]}.", "server")
