"""`HTTPEnvClient`: a typed client over plain HTTP, to be subclassed."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import secrets
import typing
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import msgspec

from envweave.client.address import parse_address
from envweave.client.http import HttpCalls, HTTPResponse, error_in
from envweave.client.managed_server import START_S, ServerGoneError
from envweave.codec import Spec, spec_from_hint, to_plain
from envweave.errors import (
    ActionError,
    ClosedError,
    ConnectionLostError,
    DeadlineError,
    EnvWeaveError,
    OptionError,
    SessionGoneError,
    SpecError,
    WireError,
)
from envweave.providers import ContainerProvider
from envweave.providers.base import WatchedProvider, bind_wait_for_ready
from envweave.registry.spec import read_wait_s
from envweave.types import (
    AgentEnd,
    AutoResetReady,
    EpisodeEnd,
    LogEvent,
    NeedAction,
    Request,
    ResetResult,
    State,
    StepResult,
    Task,
    ToolCallRequest,
)
from envweave.wire.decoding import ObservationRebuilder, Rebuilder, rebuilder
from envweave.wire.description import Types
from envweave.wire.schema_read import spec_of

if TYPE_CHECKING:
    from envweave.providers.docker.warm_pool import WarmPool


Rebuild = Callable[[Any], Any]

_KINDS: dict[Any, Any] = {
    kind.type: kind
    for kind in (AgentEnd, AutoResetReady, EpisodeEnd, LogEvent, NeedAction, ToolCallRequest)
}


def observation_in(payload: Mapping[str, Any]) -> Any:
    """Return the observation in a payload, as plain data; `obs` is another name for it.

    Raises:
        WireError: It has none.
    """
    for name in ("observation", "obs"):
        if name in payload:
            return payload[name]
    keys = ", ".join(map(repr, payload)) or "nothing"
    raise WireError(f"The server's response has no observation, only {keys}.")


def parse_result(payload: Mapping[str, Any], rebuild: Rebuild) -> StepResult[Any]:
    """Return the result in a payload, with its observations rebuilt.

    Raises:
        WireError: It holds none.
    """
    return fill(StepResult(rebuild(observation_in(payload))), payload, rebuild)


def fill(result: StepResult[Any], payload: Mapping[str, Any], rebuild: Rebuild) -> StepResult[Any]:
    """Return a result with missing fields filled in from its payload.

    Fields that the parser has set stay: a reward, an info, requests, an end that the server does
    not know of. How an episode ended is taken from the payload, which says more than `done`.

    Raises:
        WireError: A field of the payload has the wrong type.
    """
    sent = StepResult(
        result.observation,
        _reward(payload),
        *_flags(payload),
        info=_dict(payload, "info"),
        requests=_requests(payload, result.observation, rebuild),
    )
    if sent.end is not None and not sent.end.valid and sent.reward is None:
        sent.reward = math.nan  # a failure; JSON has no NaN
    if result.reward is None:
        result.reward = sent.reward
    agrees = sent.done or not result.done
    if agrees:
        result.terminated, result.truncated = sent.terminated, sent.truncated
        result.end = sent.end
    if not result.info:
        result.info = sent.info
    has_requests = result._needs is not None or result.events or result.ready is not None  # noqa: SLF001
    if agrees and not has_requests and "requests" in payload:
        result.ready = sent.ready
        result._needs = sent._needs  # noqa: SLF001 - a result's own fields
        result._events, result._ready_events = sent._events, sent._ready_events  # noqa: SLF001
    for name in ("episode_id", "task_id"):
        if getattr(result, name) is None and isinstance(payload.get(name), str):
            setattr(result, name, payload[name])
    index = payload.get("step_index")
    if result.step_index == 0 and isinstance(index, int):
        result.step_index = index
    return result


def as_reset(result: StepResult[Any]) -> StepResult[Any]:
    """Return a result as a `ResetResult`, without a reward."""
    if type(result) is not StepResult:
        return result
    reset: ResetResult[Any] = object.__new__(ResetResult)
    for name in StepResult.__slots__:
        setattr(reset, name, getattr(result, name))
    reset.reward = None
    return reset


def _reward(payload: Mapping[str, Any]) -> Any:
    reward = payload.get("reward")
    return float(reward) if isinstance(reward, bool) else reward


def _flags(payload: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return `terminated` and `truncated`; `done` alone means the first."""
    truncated = payload.get("truncated") or False
    terminated = payload.get("terminated")
    if terminated is None:
        terminated = bool(payload.get("done")) and truncated is not True
    return terminated, truncated


def _dict(payload: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = payload.get(name)
    if value is not None and not isinstance(value, dict):
        raise WireError(f"{name} in the server's response must be an object, got {value!r}.")
    return value or {}


def _requests(
    payload: Mapping[str, Any], observation: Any, rebuild: Rebuild
) -> list[Request] | None:
    plain = payload.get("requests")
    if plain is None:
        return None
    if not isinstance(plain, list):
        raise WireError(f"requests in the server's response must be a list, got {plain!r}.")
    shown = observation_in(payload)
    return [_request(request, shown, observation, rebuild) for request in plain]


def _request(plain: Any, shown: Any, observation: Any, rebuild: Rebuild) -> Request:
    kind = _KINDS.get(plain.get("type")) if isinstance(plain, dict) else None
    if kind is None:
        raise WireError("The server's response has a request of an unknown type.")
    try:
        request: Any = msgspec.convert(plain, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise WireError(
            f"The server's response has a request that cannot be read: {error}"
        ) from None
    if isinstance(request, AutoResetReady):
        request.initial_obs = rebuild(request.initial_obs)
    elif isinstance(request, NeedAction) and request.observation == shown:
        request.observation = observation  # as the client's own `_parse_result` made it
    elif isinstance(request, NeedAction | AgentEnd):
        request.observation = rebuild(request.observation)
    read: Request = request
    return read


ActT = TypeVar("ActT")
ObsT = TypeVar("ObsT")

_GRACE_S = 5.0
"""How much longer than the environment's time limit to wait for the response."""

_CLOSE_S = 5.0

_SESSION = re.compile(r"[A-Za-z0-9._~-]{1,200}")  # needs no quoting in a header or a path


class HTTPEnvClient(Generic[ActT, ObsT]):
    """A client for one environment on a server, typed with the author's own classes.

    ```python
    class EchoEnv(HTTPEnvClient[EchoAction, EchoObservation]):
        pass
    ```

    Each client has a separate session. Every call carries an id, so a call that is repeated when
    a connection breaks runs once. If a server's data are not simply the fields of these classes,
    override `_step_payload`, `_parse_result` or `_parse_state`. Fields that `_parse_result` leaves
    out of its result are filled in.

    A server without `POST /sessions` needs only `POST /reset`, `POST /step` and `GET /state`. It
    is sent `{}` to reset and `{"action": …, "timeout_s": …}` to step, plus what the caller passes;
    nothing is repeated there.

    Args:
        base_url: Where the server is: `http://…`, `https://…` or `unix:///path.sock`.
        request_timeout_s: How long a response may take in all, unless `timeout_s` allows more.
        default_headers: Sent with every call.
        provider: The provider that started the server; `close` stops it.
        token: The access token; by default the provider's, or else `$ENVWEAVE_TOKEN`.
        wait_s: How long to wait for a free session if the server is full; by default, not at all.

    Raises:
        EnvIdError: `base_url` is not the URL of a server.
        OptionError: A header or a time is invalid.
    """

    _types: Types = Types()
    _has_own_payload: bool = False

    def __init__(
        self,
        base_url: str,
        request_timeout_s: float = 15.0,
        default_headers: Mapping[str, str] | None = None,
        provider: ContainerProvider | None = None,
        *,
        token: str | None = None,
        wait_s: float | None = None,
    ) -> None:
        self._request_timeout_s = _seconds("request_timeout_s", request_timeout_s)
        self._wait_s = read_wait_s(wait_s)
        self._default_headers = dict(default_headers or {})
        self._token = token
        self._provider = provider
        self._watched = provider if isinstance(provider, WatchedProvider) else None
        self._start_server: Callable[[], str] | None = None  # set by `from_docker_image`
        self._is_closed = False
        self._connect(base_url)
        self._rebuild: ObservationRebuilder | None = (
            None  # known when the first observation arrives
        )
        self._rebuild_state: Rebuilder | None = None

    def _connect(self, base_url: str) -> None:
        """Use the server at `base_url` from now on."""
        provided = self._watched.token if self._watched is not None else None
        token = (self._token or provided or os.environ.get("ENVWEAVE_TOKEN", "")).strip()
        headers = dict(self._default_headers)
        if token:
            headers.setdefault("Authorization", f"Bearer {token}")
        why_gone = self._watched.why_gone if self._watched is not None else None
        self.base_url = base_url
        self._calls = HttpCalls(parse_address(base_url), headers, why_gone=why_gone)
        self._has_server = True  # until `reset` fails to start another one
        self._session: str | None = None  # empty if the server has no sessions

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._has_own_payload = cls._step_payload is not HTTPEnvClient._step_payload
        for base in cls.__dict__.get("__orig_bases__", ()):
            origin, arguments = typing.get_origin(base), typing.get_args(base)
            if isinstance(origin, type) and issubclass(origin, HTTPEnvClient):
                known = [None if isinstance(one, TypeVar) else one for one in arguments]
                cls._types = Types(action=known[0], observation=known[1])

    @classmethod
    def from_docker_image(
        cls, image: str, provider: ContainerProvider | WarmPool | None = None, **kwargs: Any
    ) -> Self:
        """Start a server from an image, and return a client that stops it when it is closed.

        If the container dies, the running episode is lost: `step` and `state` raise
        `ConnectionLostError` with the reason. The next `reset` starts another container.

        Args:
            image: The image to run, as the provider names it.
            provider: Runs the image; a `LocalDockerProvider` by default, or a `WarmPool`. Your own
                needs `start_container`, `wait_for_ready` and `stop_container`.
            **kwargs: Passed to the provider's `start_container`: `env_vars`, `port`, and its own
                options.

        Raises:
            StartupError: It could not be started. Nothing is left running.
        """
        from envweave.providers.docker.provider import LocalDockerProvider
        from envweave.providers.docker.warm_pool import WarmPool

        if provider is None:
            provider = LocalDockerProvider()
        elif isinstance(provider, WarmPool):
            provider = provider.provider()
        wait_for_ready = bind_wait_for_ready(provider)

        def start_server() -> str:
            base_url = provider.start_container(image, **kwargs)
            try:
                wait_for_ready(base_url, START_S)
            except BaseException:
                provider.stop_container()
                raise
            return base_url

        base_url = start_server()
        try:
            client = cls(base_url=base_url, provider=provider)
        except BaseException:
            provider.stop_container()
            raise
        client._start_server = start_server
        return client

    @classmethod
    def from_kubernetes(
        cls,
        image: str,
        *,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Self:
        """Start a server in a pod of a Kubernetes cluster; closing the client deletes the pod.

        Args:
            image: The image to run, as the cluster finds it.
            port: The local port to forward to it; by default, a free one.
            env_vars: The server's environment variables, stored in a secret.
            **options: Options of `KubernetesProvider`, such as `memory="512m"`.

        Raises:
            StartupError: It could not be started. Nothing is left running.
        """
        from envweave.providers.kubernetes.provider import KubernetesProvider

        provider = KubernetesProvider(**options)
        return cls.from_docker_image(image, provider, port=port, env_vars=env_vars)

    # To override

    def _step_payload(self, action: ActT) -> dict[str, Any]:
        """Return an action as the server expects it: its fields by name."""
        payload: Any = to_plain(action)
        if not isinstance(payload, dict):
            raise ActionError(f"action: {action!r} has no fields. Override _step_payload().")
        if payload.get("metadata") == {}:
            del payload["metadata"]
        return payload

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[ObsT]:
        """Return the result in a server's response."""
        return parse_result(payload, self._rebuilding())

    def _parse_state(self, payload: dict[str, Any]) -> State:
        """Return the state in a server's response."""
        if self._rebuild_state is None:
            self._rebuild_state = rebuilder(self._served_spec("state") or spec_from_hint(State))
        assert self._rebuild_state is not None
        state: State = self._rebuild_state(payload)
        return state

    # Public methods

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        options: Mapping[str, Any] | None = None,
        task: Task | str | None = None,
        *,
        request_id: str | None = None,
    ) -> StepResult[ObsT]:
        """Begin an episode. After a session was reported as gone, this opens another.

        If the container that `from_docker_image` started has died, this starts another.

        Args:
            seed: The random seed of the episode.
            episode_id: The id of the episode.
            options: For the environment's own `reset`.
            task: The task, or its id.
            request_id: Identifies the call: repeated with the same id, it returns the first
                response.

        Raises:
            SeedError, TaskError, OptionError: An argument is invalid or not supported.
            ResetFailedError: The environment's `reset` raised.
            SessionGoneError: The server has no such session any more.
            StartupError: The container has died, and another one could not be started.
        """
        body = {"seed": seed, "episode_id": episode_id, "options": options, "task": task}
        reset = functools.partial(self._result, "/reset", body, None, request_id)
        try:
            result = reset()
        except ServerGoneError:
            if self._provider is None or self._start_server is None:
                raise
            self._has_server = False
            self._calls.close()
            self._provider.stop_container()
            self._connect(self._start_server())
            result = reset()
        return as_reset(result)

    def step(
        self,
        action: ActT | dict[str, Any],
        *,
        timeout_s: float | None = None,
        request_id: str | None = None,
    ) -> StepResult[ObsT]:
        """Take one step.

        Args:
            action: An instance of the client's action class, or a dict of its fields.
            timeout_s: How many seconds the environment may take.
            request_id: Identifies the call: repeated with the same id, it returns the first
                response.

        Raises:
            ActionError: The action was refused, by field path. The episode is unharmed.
            DeadlineError: No response came in time.
            SessionGoneError: The server has no such session any more.
        """
        body = {"action": self._step_payload(self._as_action(action)), "timeout_s": timeout_s}
        return self._result("/step", body, timeout_s, request_id)

    def state(self) -> State:
        """Return the environment's state."""
        return self._parse_state(self._call("GET", "/state", None, self._request_timeout_s))

    def close(self) -> None:
        """Close the session, and stop the server if a provider started it. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._session and self._provider is None:
                with contextlib.suppress(EnvWeaveError):
                    self._calls.call(
                        "DELETE", f"/sessions/{self._session}", timeout_s=_CLOSE_S, may_repeat=False
                    )
        finally:
            self._calls.close()
            if self._provider is not None:
                self._provider.stop_container()

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
        return f"{type(self).__name__}({self.base_url!r})"

    # Making calls

    def _as_action(self, action: Any) -> Any:
        """Return a dict as the action class, for a `_step_payload` that reads its attributes."""
        hint = self._types.action
        if not self._has_own_payload or hint is None or not isinstance(action, dict):
            return action
        try:
            return spec_from_hint(hint).check(action, "action")
        except SpecError as error:
            raise ActionError(str(error)) from None

    def _result(
        self, path: str, body: dict[str, Any], timeout_s: float | None, request_id: str | None
    ) -> StepResult[ObsT]:
        params = {name: value for name, value in body.items() if value is not None}
        limit_s = self._request_timeout_s
        if timeout_s is not None:
            limit_s = max(limit_s, _seconds("timeout_s", timeout_s) + _GRACE_S)
        if self._opened():
            request_id = request_id or secrets.token_hex(8)
        elif path == "/step":
            # A server without sessions may require `timeout_s`, and refuse any other key.
            params.setdefault("timeout_s", max(1, int(self._request_timeout_s)))
        if request_id is not None:
            params["request_id"] = request_id
        try:
            payload = self._call("POST", path, params, limit_s)
        except DeadlineError as error:
            if self._session:
                error.add_note(
                    f"Make the same call with request_id={request_id!r} to get its response; other "
                    "calls wait for it. To allow a step more time, call step(…, timeout_s=…)."
                )
            raise
        result = self._parse_result(payload)
        return fill(result, payload, self._rebuilding())

    def _rebuilding(self) -> ObservationRebuilder:
        """Return what makes observations: of the client's class, or of the server's schema."""
        if self._rebuild is None:
            hint = self._types.observation
            spec = self._served_spec("observation") if hint is None else spec_from_hint(hint)
            self._rebuild = ObservationRebuilder(spec or spec_from_hint(Any))
        return self._rebuild

    def _served_spec(self, role: str) -> Spec | None:
        """Return the spec in the server's `/schema`; `None` if it has none."""
        response = self._send("GET", "/schema", timeout_s=self._request_timeout_s, may_repeat=True)
        schema = response.payload.get(role) if isinstance(response.payload, dict) else None
        if response.status != 200 or not isinstance(schema, dict):
            return None
        return spec_of(schema, role)

    def _call(self, method: str, path: str, body: Any, timeout_s: float) -> dict[str, Any]:
        session = self._opened()
        headers = {"X-Session-Id": session} if session else {}
        response = self._send(
            method, path, body, headers=headers, timeout_s=timeout_s, may_repeat=bool(session)
        )
        if response.status >= 400:
            error = error_in(response, path)
            if isinstance(error, SessionGoneError):
                self._session = None
            raise error
        if not isinstance(response.payload, dict):
            raise WireError(f"{self.base_url} answered {path} with something other than an object.")
        payload: dict[str, Any] = response.payload
        return payload

    def _send(self, *args: Any, **options: Any) -> HTTPResponse:
        """Make a call; if the server that was started for this client is gone, explain what to do.

        Raises:
            ServerGoneError: It is gone.
        """
        if not self._has_server:
            raise ServerGoneError(
                "The container has died, and another one could not be started. Call reset() to try "
                "again."
            )
        try:
            return self._calls.call(*args, **options)
        except ConnectionLostError as error:
            if self._provider is None:
                raise
            way = "Close this client, and make a new one with from_docker_image()."
            if not isinstance(error, ServerGoneError):
                error.add_note(f"If the container has died: {way}")
                raise
            if self._start_server is not None:
                way = "Call reset(), which starts another one."
            raise ServerGoneError(f"{error}\nThe episode is lost. {way}") from None

    def _opened(self) -> str:
        """Return the session's id, opening one if necessary; empty if the server has none."""
        if self._is_closed:
            raise ClosedError("This client is closed. Make a new one.")
        return self._open() if self._session is None else self._session

    def _open(self) -> str:
        """Open a session; repeated with the same key, it is opened once."""
        response = self._send(
            "POST",
            "/sessions",
            {"wait_s": self._wait_s} if self._wait_s else {},
            headers={"Idempotency-Key": secrets.token_urlsafe(16)},
            timeout_s=self._request_timeout_s + self._wait_s,
            may_repeat=True,
        )
        if response.status in (404, 405, 501):
            self._session = ""  # the server has one session for all
            return self._session
        if response.status >= 400:
            raise error_in(response, "/sessions")
        name = response.payload.get("session_id") if isinstance(response.payload, dict) else None
        if not isinstance(name, str) or not _SESSION.fullmatch(name):
            raise WireError(f"{self.base_url} opened a session, but returned no valid session_id.")
        self._session = name
        return name


def _waiting_time(value: Any) -> float:
    """Return `wait_s` as a number, or refuse it."""
    if value is None:
        return 0.0
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        raise OptionError(f"wait_s must be a number of seconds >= 0, got {value!r}.")
    return float(value)


def _seconds(name: str, value: Any) -> float:
    """Return a number of seconds, or refuse it."""
    try:
        length = math.nan if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        length = math.nan
    if not 0 < length < math.inf:
        raise OptionError(f"{name} must be a number of seconds > 0, got {value!r}.")
    return length
