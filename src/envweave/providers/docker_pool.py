"""`WarmPool`: containers that are started, well and paused before anybody asks for one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, final

from envweave.errors import CallOrderError, OptionError
from envweave.providers.docker import TOKEN, refuse_nameless, told_variables
from envweave.providers.docker_engine import Engine
from envweave.providers.docker_held import Held
from envweave.providers.docker_image import CONFIG, Image
from envweave.providers.docker_options import DockerOptions, known, variables
from envweave.providers.docker_stock import Stock
from envweave.providers.reaper import reap
from envweave.providers.watched import WatchedProvider

_MOST = 256


@final
class WarmPool:
    """Keeps containers of one image ready, and hands them out in milliseconds.

    `make("echo-v0", provider=pool)` takes one, and so does every other place that takes a
    provider for containers. Close it, or use it in a `with` block.

    Each container is used once: whoever had it removes it, and another is started in the
    background. With none ready, one is started while its caller waits. A paused container needs
    its memory, and no time of any core.

    Args:
        image: What to start them from.
        size: How many are kept ready.
        kwargs: Keywords for the environment's constructor; its callers cannot pass any.
        env_vars: The servers' environment variables.
        **options: The fields of `DockerOptions`.

    Raises:
        StartupError: The engine does not answer, or there is no such image.
        OptionError: There is no such option, or it cannot have this value.
    """

    def __init__(
        self,
        image: str,
        *,
        size: int = 2,
        kwargs: Mapping[str, Any] | None = None,
        env_vars: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        refuse_nameless(image)
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= _MOST:
            raise OptionError(f"size={size!r} is no whole number from 1 to {_MOST}.")
        read = DockerOptions(**known(options))
        told = told_variables(read, env_vars)
        if TOKEN in {**read.env_vars, **(env_vars or {})}:
            raise OptionError(f"{TOKEN} is another one for each container. Leave it out.")
        engine = Engine(read.docker_host)
        try:
            about = Image(image, engine.image(image))
            config = {**_read(told[CONFIG]), **({"kwargs": dict(kwargs)} if kwargs else {})}
            told[CONFIG] = _written(config)
            about.refuse_untold(read, told)
            about.warn_of_root(read.user)
            reap(engine)
        except BaseException:
            engine.close()
            raise
        self.image = image
        self.size = size
        self._serves = _wishes({"id": about.env_id, **config})
        self._variables = {name: told[name] for name in told if name not in (CONFIG, TOKEN)}
        self._stock = Stock(engine, image, read, told, size)

    @property
    def ready(self) -> int:
        """How many containers wait to be handed out."""
        return self._stock.ready

    def wait_until_warm(self, timeout_s: float = 120.0) -> None:
        """Block until as many containers wait as shall.

        Raises:
            StartupError: One could not be started, or `timeout_s` seconds passed.
        """
        self._stock.wait_until_full(timeout_s)

    def provider(self) -> WatchedProvider:
        """Return a provider that takes its container from the pool."""
        return _WarmProvider(self)

    def take(
        self, image: str, port: int | None, env_vars: Mapping[str, str], options: Mapping[str, Any]
    ) -> Held:
        """Hand out a container, for whoever wants what the pool's containers are.

        Raises:
            OptionError: Something else is wanted.
            StartupError: There is none, and none can be started.
            ClosedError: The pool is closed.
        """
        self._refuse_others(image, port, env_vars, options)
        return self._stock.take()

    def _refuse_others(
        self, image: str, port: int | None, env_vars: Mapping[str, str], options: Mapping[str, Any]
    ) -> None:
        if image != self.image:
            raise OptionError(f"The pool has containers of {self.image!r}, and none of {image!r}.")
        late: dict[str, Any] = {**options, **({} if port is None else {"port": port})}
        given = dict(variables(env_vars))
        config = given.pop(CONFIG, None)
        if given.pop(TOKEN, None) is not None:
            late["token"] = "…"  # noqa: S105 - not shown
        late |= {name: v for name, v in given.items() if self._variables.get(name) != v}
        for name, value in late.items():
            raise OptionError(
                f"{name}={value} came too late: the pool's containers run already. Pass it to "
                "WarmPool, or leave it out."
            )
        if config is None:
            return
        wanted = _wishes({"id": self._serves["id"], **_read(config)})
        for name, value in wanted.items():
            if value != self._serves[name]:
                raise OptionError(
                    f"The pool's containers serve {name}={self._serves[name]!r}, and not "
                    f"{value!r}. Make a pool for that, or use a LocalDockerProvider."
                )

    def close(self) -> None:
        """Remove the containers that wait, and start no more. May be called twice.

        Those that were handed out are left to those who have them.
        """
        self._stock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"WarmPool({self.image!r}, size={self.size})"


@final
class _WarmProvider(WatchedProvider):
    """Takes one container at a time from a pool."""

    def __init__(self, pool: WarmPool) -> None:
        self._pool = pool
        self._held: Held | None = None

    @property
    def token(self) -> str | None:
        return None if self._held is None else self._held.token

    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> str:
        if self._held is not None:
            raise CallOrderError(
                "The provider has a container already. Stop it first, or use a provider of its "
                "own for each."
            )
        self._held = self._pool.take(image, port, env_vars or {}, kwargs)
        return self._held.container.base_url

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        if self._held is None:
            raise CallOrderError(f"No container was started for {base_url!r}.")
        self._held.container.wait_until_ready(timeout_s)

    def why_gone(self) -> str | None:
        return None if self._held is None else self._held.container.why_gone()

    def another(self) -> WatchedProvider:
        return _WarmProvider(self._pool)

    def stop_container(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.stop()


def _read(config: str) -> dict[str, Any]:
    try:
        told = json.loads(config)
    except ValueError as error:
        raise OptionError(f"{CONFIG} is no JSON: {error}.") from None
    if not isinstance(told, dict):
        raise OptionError(f"{CONFIG} is {told!r}, and must be a JSON object.")
    return told


def _written(config: Mapping[str, Any]) -> str:
    try:
        return json.dumps(config, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"kwargs={config.get('kwargs')!r} cannot travel to a container: {error}. Pass texts, "
            "numbers, lists and dicts."
        ) from None


def _wishes(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a configuration makes a difference to an episode."""
    return {
        "id": config.get("id"),
        "kwargs": config.get("kwargs") or {},
        "max_episode_steps": config.get("max_episode_steps"),
        "transform": config.get("transform"),
        "workers": (config.get("options") or {}).get("workers"),
    }
