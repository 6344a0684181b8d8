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
from envweave.wire.decoding import Rebuilder, Rebuilding, rebuilder
from envweave.wire.schema import Types
from envweave.wire.schema_read import spec_of

if TYPE_CHECKING:
    from envweave.providers.docker.warm_pool import WarmPool


Rebuild = Callable[[Any], Any]

_KINDS: dict[Any, Any] = {
    kind.type: kind
    for kind in (AgentEnd, AutoResetReady, EpisodeEnd, LogEvent, NeedAction, ToolCallRequest)
}


def observed(payload: Mapping[str, Any]) -> Any:
    """Return the observation of a payload, as plain data; `obs` is another name for it.

    Raises:
        WireError: It has none.
    """
    for name in ("observation", "obs"):
        if name in payload:
            return payload[name]
    held = ", ".join(map(repr, payload)) or "nothing"
    raise WireError(f"The server's answer holds no observation, only {held}.")


def parse_result(payload: Mapping[str, Any], rebuild: Rebuild) -> StepResult[Any]:
    """Return the result in a payload, with its observations rebuilt.

    Raises:
        WireError: It holds none.
    """
    return fill(StepResult(rebuild(observed(payload))), payload, rebuild)


def fill(result: StepResult[Any], payload: Mapping[str, Any], rebuild: Rebuild) -> StepResult[Any]:
    """Return a result with what it leaves out taken from its payload.

    What whoever made it has set, stays: a reward, an info, requests, an end that the server knows
    nothing of. How an episode ended, the payload says better than `done` does.

    Raises:
        WireError: The payload holds something else than its name says.
    """
    given = StepResult(
        result.observation,
        _reward(payload),
        *_flags(payload),
        info=_dict(payload, "info"),
        requests=_requests(payload, result.observation, rebuild),
    )
    if given.end is not None and not given.end.valid and given.reward is None:
        given.reward = math.nan  # a failure; JSON has no NaN
    if result.reward is None:
        result.reward = given.reward
    agrees = given.done or not result.done
    if agrees:
        result.terminated, result.truncated = given.terminated, given.truncated
        result.end = given.end
    if not result.info:
        result.info = given.info
    has_said = result._needs is not None or result.events or result.ready is not None  # noqa: SLF001
    if agrees and not has_said and "requests" in payload:
        result.ready = given.ready
        result._needs = given._needs  # noqa: SLF001 - a result's carrier
        result._events, result._ready_events = given._events, given._ready_events  # noqa: SLF001
    for name in ("episode_id", "task_id"):
        if getattr(result, name) is None and isinstance(payload.get(name), str):
            setattr(result, name, payload[name])
    index = payload.get("step_index")
    if result.step_index == 0 and isinstance(index, int):
        result.step_index = index
    return result


def as_reset(result: StepResult[Any]) -> StepResult[Any]:
    """Return what a reset returns: the same, without a reward."""
    if type(result) is not StepResult:
        return result
    began: ResetResult[Any] = object.__new__(ResetResult)
    for name in StepResult.__slots__:
        setattr(began, name, getattr(result, name))
    began.reward = None
    return began


def _reward(payload: Mapping[str, Any]) -> Any:
    reward = payload.get("reward")
    return float(reward) if isinstance(reward, bool) else reward


def _flags(payload: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return `terminated` and `truncated`; a server that says only `done` means the first."""
    truncated = payload.get("truncated") or False
    terminated = payload.get("terminated")
    if terminated is None:
        terminated = bool(payload.get("done")) and truncated is not True
    return terminated, truncated


def _dict(payload: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = payload.get(name)
    if value is not None and not isinstance(value, dict):
        raise WireError(f"The server's answer holds {name}={value!r}, which is no dict.")
    return value or {}


def _requests(
    payload: Mapping[str, Any], observation: Any, rebuild: Rebuild
) -> list[Request] | None:
    plain = payload.get("requests")
    if plain is None:
        return None
    if not isinstance(plain, list):
        raise WireError(f"The server's answer holds requests={plain!r}, which is no list.")
    shown = observed(payload)
    return [_request(one, shown, observation, rebuild) for one in plain]


def _request(plain: Any, shown: Any, observation: Any, rebuild: Rebuild) -> Request:
    kind = _KINDS.get(plain.get("type")) if isinstance(plain, dict) else None
    if kind is None:
        raise WireError("The server's answer holds a request of no known type.")
    try:
        request: Any = msgspec.convert(plain, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise WireError(
            f"The server's answer holds a request that cannot be read: {error}"
        ) from None
    if isinstance(request, AutoResetReady):
        request.initial_obs = rebuild(request.initial_obs)
    elif isinstance(request, NeedAction) and request.observation == shown:
        request.observation = observation  # as the caller's own hook made it
    elif isinstance(request, NeedAction | AgentEnd):
        request.observation = rebuild(request.observation)
    read: Request = request
    return read


ActT = TypeVar("ActT")
ObsT = TypeVar("ObsT")

_GRACE_S = 5.0
"""How much longer than an environment may take its answer is waited for."""

_CLOSE_S = 5.0

_SESSION = re.compile(r"[A-Za-z0-9._~-]{1,200}")  # what fits into a header and a path as it is


class HTTPEnvClient(Generic[ActT, ObsT]):
    """A caller's side of one environment on a server, with the author's own classes.

    ```python
    class EchoEnv(HTTPEnvClient[EchoAction, EchoObservation]):
        pass
    ```

    Each client has a session of its own. Every call carries an id, so that one that is repeated
    when a connection breaks is carried out once. Three methods may be overridden, where a
    server's data are not simply the fields of these classes: `_step_payload`, `_parse_result`
    and `_parse_state`. What a `_parse_result` leaves out of its result is filled in.

    A server without `POST /sessions` needs only `POST /reset`, `POST /step` and `GET /state`. It
    is sent `{}` to reset and `{"action": …, "timeout_s": …}` to step, and what the caller passes
    besides; nothing is repeated there.

    Args:
        base_url: Where the server is: `http://…`, `https://…` or `unix:///path.sock`.
        request_timeout_s: How long an answer may take in all, where no `timeout_s` says more.
        default_headers: Sent with every call.
        provider: Who started the server; it is stopped by `close`.
        token: What to show the server; if left out, the provider's, else `$ENVWEAVE_TOKEN`.
        wait_s: How long to wait for a session where the server is full; not at all by default.

    Raises:
        EnvIdError: `base_url` is none of a server.
        OptionError: A header cannot be sent, or the time is none.
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
        self._rebuild: Rebuilding | None = None  # known when the first observation comes
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
        self._session: str | None = None  # empty where the server knows none

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
            image: What to run, as the provider names it.
            provider: Who runs it; a `LocalDockerProvider` by default. A `WarmPool` has it ready.
                One of your own has `start_container`, `wait_for_ready` and `stop_container`.
            **kwargs: Passed to the provider's `start_container`: `env_vars`, `port`, and what
                only it knows.

        Raises:
            StartupError: It could not be started. Nothing is left behind.
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
            image: What to run, as the cluster finds it.
            port: The port of loopback where it is reached; left out, one that is free.
            env_vars: The server's environment variables, which travel in a secret.
            **options: What `KubernetesProvider` takes, such as `memory="512m"`.

        Raises:
            StartupError: It could not be started. Nothing is left behind.
        """
        from envweave.providers.kubernetes.provider import KubernetesProvider

        provider = KubernetesProvider(**options)
        return cls.from_docker_image(image, provider, port=port, env_vars=env_vars)

    # What may be overridden

    def _step_payload(self, action: ActT) -> dict[str, Any]:
        """Return an action as the server wants it: its fields by name."""
        payload: Any = to_plain(action)
        if not isinstance(payload, dict):
            raise ActionError(f"action: {action!r} has no fields. Override _step_payload().")
        if payload.get("metadata") == {}:
            del payload["metadata"]
        return payload

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[ObsT]:
        """Return the result in a server's answer."""
        return parse_result(payload, self._rebuilding())

    def _parse_state(self, payload: dict[str, Any]) -> State:
        """Return the state in a server's answer."""
        if self._rebuild_state is None:
            self._rebuild_state = rebuilder(self._told("state") or spec_from_hint(State))
        assert self._rebuild_state is not None
        state: State = self._rebuild_state(payload)
        return state

    # What callers call

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
            seed: Where the episode's chance begins.
            episode_id: What to call it.
            options: For the environment's own `reset`.
            task: What it is about.
            request_id: What the call is known by; who repeats it with the same is given the
                first answer.

        Raises:
            SeedError, TaskError, OptionError: What was asked cannot be honored.
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
        """Act once.

        Args:
            action: What to do: of the client's action class, or a dict of its fields.
            timeout_s: How many seconds the environment may take.
            request_id: What the call is known by; who repeats it with the same is given the
                first answer.

        Raises:
            ActionError: The action was refused, by field path. The episode is unharmed.
            DeadlineError: No answer came in time.
            SessionGoneError: The server has no such session any more.
        """
        body = {"action": self._step_payload(self._as_action(action)), "timeout_s": timeout_s}
        return self._result("/step", body, timeout_s, request_id)

    def state(self) -> State:
        """Return what the environment is, beyond what it shows."""
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

    # How calls are made

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
        given = {name: value for name, value in body.items() if value is not None}
        patience_s = self._request_timeout_s
        if timeout_s is not None:
            patience_s = max(patience_s, _seconds("timeout_s", timeout_s) + _GRACE_S)
        if self._opened():
            request_id = request_id or secrets.token_hex(8)
        elif path == "/step":
            # A server of the first form may require `timeout_s`, and refuse any other key.
            given.setdefault("timeout_s", max(1, int(self._request_timeout_s)))
        if request_id is not None:
            given["request_id"] = request_id
        try:
            payload = self._call("POST", path, given, patience_s)
        except DeadlineError as error:
            if self._session:
                error.add_note(
                    f"Make the same call with request_id={request_id!r} to have its answer; other "
                    "calls wait for it. To allow a step more time, call step(…, timeout_s=…)."
                )
            raise
        result = self._parse_result(payload)
        return fill(result, payload, self._rebuilding())

    def _rebuilding(self) -> Rebuilding:
        """Return what makes observations: of the class that is known, or of one like it."""
        if self._rebuild is None:
            hint = self._types.observation
            spec = self._told("observation") if hint is None else spec_from_hint(hint)
            self._rebuild = Rebuilding(spec or spec_from_hint(Any))
        return self._rebuild

    def _told(self, role: str) -> Spec | None:
        """Return the spec that the server itself tells; `None` if it tells none."""
        answer = self._send("GET", "/schema", timeout_s=self._request_timeout_s, may_repeat=True)
        schema = answer.payload.get(role) if isinstance(answer.payload, dict) else None
        if answer.status != 200 or not isinstance(schema, dict):
            return None
        return spec_of(schema, role)

    def _call(self, method: str, path: str, body: Any, timeout_s: float) -> dict[str, Any]:
        session = self._opened()
        headers = {"X-Session-Id": session} if session else {}
        answer = self._send(
            method, path, body, headers=headers, timeout_s=timeout_s, may_repeat=bool(session)
        )
        if answer.status >= 400:
            error = error_in(answer, path)
            if isinstance(error, SessionGoneError):
                self._session = None
            raise error
        if not isinstance(answer.payload, dict):
            raise WireError(f"{self.base_url} answered {path} with what is no JSON object.")
        payload: dict[str, Any] = answer.payload
        return payload

    def _send(self, *args: Any, **options: Any) -> HTTPResponse:
        """Make a call; if the server that was started for this client is gone, say what to do."""
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
        """Return the session's id, after opening one if need be; empty if the server has none."""
        if self._is_closed:
            raise ClosedError("This client is closed. Make a new one.")
        return self._open() if self._session is None else self._session

    def _open(self) -> str:
        """Open a session; repeated under the same key, it is opened once."""
        answer = self._send(
            "POST",
            "/sessions",
            {"wait_s": self._wait_s} if self._wait_s else {},
            headers={"Idempotency-Key": secrets.token_urlsafe(16)},
            timeout_s=self._request_timeout_s + self._wait_s,
            may_repeat=True,
        )
        if answer.status in (404, 405, 501):
            self._session = ""  # it speaks the protocol, and has one session for all
            return self._session
        if answer.status >= 400:
            raise error_in(answer, "/sessions")
        name = answer.payload.get("session_id") if isinstance(answer.payload, dict) else None
        if not isinstance(name, str) or not _SESSION.fullmatch(name):
            raise WireError(f"{self.base_url} opened a session, and did not say which.")
        self._session = name
        return name


def _seconds(name: str, value: Any) -> float:
    """Return how long something may take, or refuse it."""
    try:
        length = math.nan if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        length = math.nan
    if not 0 < length < math.inf:
        raise OptionError(
            f"{name}={value!r} is no number of seconds above 0; use one, such as {name}=5.0."
        )
    return length
