"""The recipe that an ID names, and the options that an environment is made with."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envweave.errors import DefinitionError, EnvWeaveError, OptionError, format_error, suggest
from envweave.registry.plugins import ENVS, load_path, load_plugin, plugin_target
from envweave.types import Observation


@dataclass(frozen=True)
class PackageSource(ABC):
    """A package that has to be installed before an environment can be made.

    Attributes:
        name: The name of its distribution.
        version: Which version of it.
        module: The module that is imported from it.
    """

    name: str
    version: str
    module: str

    @abstractmethod
    def locate(self) -> PackageFiles:
        """Return where it can be downloaded from. Downloads no package."""


class PackageFiles(ABC):
    """Where a package can be downloaded from."""

    @abstractmethod
    def requirements(self) -> list[str]:
        """Return the requirements to pass to an installer by hand."""

    @abstractmethod
    def download(self, folder: Path) -> list[str]:
        """Download and verify the files, and return the requirements for an installer."""


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """A recipe for environments of one kind.

    Attributes:
        id: The full ID, with its scheme.
        factory: What makes one: a class, a function, or an import path `"module:attribute"`,
            which other processes can import.
        kwargs: Keywords for the factory; those passed to `make` take precedence.
        max_episode_steps: Truncate every episode after this many steps.
        transform: Applied to every observation.
        description: One line for `envweave list`.
        batch_factory: Makes a whole batch of environments: called with `num_envs` and the
            keywords, it returns a Gymnasium vector, or `None` if the keywords require single
            environments.
        backend: Where it runs, if the caller cannot choose: at a running server, or in an image.
        takes_token: Whether the factory takes the caller's server token as its keyword `token`.
        base_url: The server to connect to with `backend="http"`.
        docker_image: The image to start with `backend="docker_http"`.
        package: The package that has to be installed first, in one version.
    """

    id: str
    factory: Callable[..., Any] | str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None
    transform: Callable[[Observation], Observation] | None = None
    description: str = ""
    batch_factory: Callable[..., Any] | str | None = None
    backend: str | None = None
    takes_token: bool = False
    base_url: str | None = None
    docker_image: str | None = None
    package: PackageSource | None = None

    @property
    def is_made_elsewhere(self) -> bool:
        """Whether it cannot be made in this process: a server or an image has it."""
        return self.backend is not None or isinstance(self.factory, MadeElsewhere)

    def load(self) -> Callable[..., Any]:
        """Return the factory itself, importing it if it is a path.

        Raises:
            PluginError: It cannot be imported.
            DefinitionError: It cannot be called.
        """
        factory: Any = self.factory
        if isinstance(factory, str):
            # An entry point is loaded as a plug-in, so that errors name its package.
            announced = plugin_target(ENVS, self.id) == factory
            factory = load_plugin(ENVS, self.id) if announced else load_path(factory)
        if not callable(factory):
            raise DefinitionError(
                f"{self.id!r} names {factory!r}, which is not callable. Name a class, or a "
                "function that returns an environment."
            )
        return factory  # type: ignore[no-any-return] # it can be called

    def describe(self) -> str:
        """Return the description, or the first line of the factory's docstring."""
        if self.description:
            return self.description
        factory = self.load()
        # The docstring of a base class or of a callable object does not describe this one.
        own = isinstance(factory, type) or inspect.isroutine(factory)
        return inspect.cleandoc((own and factory.__doc__) or "").partition("\n")[0]


@dataclass(frozen=True, slots=True)
class ReadyMade:
    """The factory of one existing environment; it cannot make another."""

    environment: Any

    def __call__(self) -> Any:
        """Return it."""
        return self.environment


@dataclass(frozen=True, slots=True)
class MadeElsewhere:
    """The factory of an ID that was registered with a server or an image alone."""

    env_id: str

    def __call__(self, **_: Any) -> Any:
        """Refuse.

        Raises:
            OptionError: Only the server or the image can make it.
        """
        raise OptionError(
            f"{self.env_id!r} was registered without a factory, so only the server or the image "
            "that it was registered with can run it. Leave backend out, or register a factory too."
        )


MAX_S = 1e8
"""The longest timeout or wait that a server accepts, in seconds: three years."""


def read_wait_s(value: Any) -> float:
    """Return how many seconds to wait for a session at a full server; `None` means 0.

    Raises:
        OptionError: It is not a number from 0 to `MAX_S`.
    """
    if value is None:
        return 0.0
    try:
        wait_s = math.nan if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        wait_s = math.nan
    if not 0 <= wait_s <= MAX_S:
        from envweave.codec.spec import short_repr  # only for the message

        raise OptionError(
            f"wait_s must be a number of seconds from 0 to {MAX_S:g}, got {short_repr(value)}."
        )
    return wait_s


@dataclass(frozen=True, slots=True)
class Remote:
    """How a caller reaches a server.

    Attributes:
        base_url: The URL of the server; `None` to start one.
        token: The token to send; `None` for `$ENVWEAVE_TOKEN`, if that is set.
        encoding: `"msgpack"` or `"json"`.
        provider: Starts the server if there is no `base_url`.
        docker_image: The image to start containers from.
        isolation: `"container"` for one container per environment.
        wait_s: How long to wait for a session if the server is full; `None` for not at all.
        python: The interpreter to start a server with; `None` for this one.
    """

    base_url: str | None = None
    token: str | None = None
    encoding: str = "msgpack"
    provider: Any = None
    docker_image: str | None = None
    isolation: str | None = None
    wait_s: float | None = None
    python: str | None = None


@dataclass(frozen=True, slots=True)
class RayOptions:
    """How to run on a Ray cluster.

    Attributes:
        address: The cluster's address; `None` for one that is found, or started.
        envs_per_worker: How many environments each worker actor holds; `"auto"` for as many as
            give one actor per processor.
        resources: What each worker actor claims on its node, by name.
        runtime_env: What Ray installs or copies for the workers.
        placement: `"spread"` or `"pack"`.
    """

    address: str | None = None
    envs_per_worker: int | str | None = None
    resources: Mapping[str, float] | None = None
    runtime_env: Mapping[str, Any] | None = None
    placement: str | None = None


@dataclass(frozen=True, slots=True)
class MakeOptions:
    """How to run an environment, as opposed to which one.

    Attributes:
        autoreset: Whether an end begins the next episode.
        timeout_s: How long one call may take.
        mode: How a vector's environments run, if the backend has several modes.
        workers: How many processes or threads run them, if the backend uses several.
        copy: Whether a vector's observations are copies for the caller.
        remote: How to reach a server, if there is one.
        ray: How to run on a Ray cluster.
    """

    autoreset: bool = False
    timeout_s: float | None = None
    mode: str | None = None
    workers: int | None = None
    copy: bool = True
    remote: Remote = Remote()
    ray: RayOptions = RayOptions()


def build(spec: EnvSpec, kwargs: Mapping[str, Any] | None = None) -> Any:
    """Make one environment from its recipe.

    Raises:
        OptionError: The factory does not take a keyword, or a required one is missing.
        DefinitionError: The factory raised, or returned `None`. Our own errors, such as a
            missing extra, pass through.
    """
    factory = spec.load()
    given = {**spec.kwargs, **(kwargs or {})}
    refuse_unknown(spec, factory, given)
    try:
        made = factory(**given)
    except EnvWeaveError:
        raise
    except Exception as error:
        raise DefinitionError(f"Making {spec.id!r} failed: {format_error(error)}") from error
    if made is None:
        raise DefinitionError(f"The factory of {spec.id!r} returned None, not an environment.")
    return made


def refuse_unknown(
    spec: EnvSpec,
    factory: Callable[..., Any],
    given: Mapping[str, Any],
    *,
    caller: str = "make",
    options: Collection[str] = (),
) -> None:
    """Refuse keywords that a factory does not take, and missing required ones.

    Args:
        spec: The recipe.
        factory: Its factory.
        given: The keywords.
        caller: The function that they were passed to.
        options: The options of that function, for suggestions.

    Raises:
        OptionError: The message names the keyword and the nearest valid one.
    """
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return  # a builtin without a signature; calling it raises
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    unnamed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
    taken = [n for n, p in parameters.items() if p.kind not in unnamed]
    for name in given:
        if name not in taken:
            known = f" It takes: {', '.join(taken)}." if taken else " It takes none."
            raise OptionError(
                f"{name!r} is neither an option of {caller}() nor a keyword of {spec.id!r}."
                f"{suggest(name, [*taken, *options]) or known}"
            )
    missing = [n for n, p in parameters.items() if p.default is p.empty and n not in given]
    missing = [n for n in missing if parameters[n].kind is not inspect.Parameter.VAR_POSITIONAL]
    if missing:
        raise OptionError(
            f"{spec.id!r} needs the keyword {missing[0]!r}: {caller}(..., {missing[0]}=…)."
        )
