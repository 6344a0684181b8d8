"""A Kubernetes cluster, as far as pods are started and looked at.

The official client reads the kubeconfig, logs in, and makes connections. What is said over them is
plain data, as in a manifest, so that it is the same with every release of the client and cluster.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, final
from urllib.parse import quote, urlencode

from envweave.errors import MissingExtraError, OptionError, StartupError
from envweave.providers.kubernetes.manifests import CONTAINER
from envweave.providers.kubernetes.port_forward import open_line

CALL_S = 30.0
"""How long the API server may take for one answer, before it counts as hung."""

LOOK_S = 5.0
"""The same where somebody only wants to know what became of a pod."""

_CONNECT_S = 5.0
_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_MERGE = "application/strategic-merge-patch+json"
_GROUPS = {"deployments": "/apis/apps/v1"}
_HOW_TO_SAY = (
    "Set KUBECONFIG to the file that tells of your cluster, or pass kubeconfig=…. "
    "`kubectl cluster-info` tells whether it works."
)


class ClusterError(StartupError):
    """The API server does not answer."""


class NoSuchObjectError(StartupError):
    """The cluster has no such thing, or not any more."""


class ClusterRefusedError(StartupError):
    """The API server answered, and will not do it."""


class TakenError(ClusterRefusedError):
    """There is one of this name already."""


@final
class Cluster:
    """A connection to an API server, which any thread may use.

    Args:
        kubeconfig: The file that tells of it; left out, `$KUBECONFIG`, `~/.kube/config`, or the
            cluster that this process runs in.
        context: Which of the file's contexts; left out, the current one.
        namespace: Where things are; left out, where the context says, or `"default"`.

    Attributes:
        url: Where the API server is.
        namespace: Where things are.

    Raises:
        MissingExtraError: The library for it is not installed.
        StartupError: Nothing tells of a cluster.
        OptionError: The file cannot be read, or there is no such context.
    """

    def __init__(
        self,
        kubeconfig: str | None = None,
        context: str | None = None,
        namespace: str | None = None,
    ) -> None:
        library = _client()
        self._configuration = library.client.Configuration()
        found = _configure(library.config, self._configuration, kubeconfig, context)
        self.namespace = namespace or found
        self.url = str(self._configuration.host).rstrip("/")
        self._api = library.client.ApiClient(self._configuration)
        self._pool: Any = self._api.rest_client.pool_manager
        self._urllib3 = importlib.import_module("urllib3")
        self._library = library

    def close(self) -> None:
        """Hang up. May be called twice."""
        self._pool.clear()

    # Things of the namespace

    def create(self, kind: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Make something, such as one of the `"pods"`, and return it as the cluster has it.

        Raises:
            TakenError: There is one of this name already.
            RefusedError: The cluster will not have it; the message says why.
        """
        return self._json("POST", self._path(kind), manifest)

    def change(self, kind: str, name: str, change: Mapping[str, Any]) -> dict[str, Any]:
        """Change something, and return it as the cluster has it."""
        return self._json("PATCH", self._path(kind, name), change, sent_as=_MERGE)

    def get(self, kind: str, name: str, timeout_s: float = CALL_S) -> dict[str, Any]:
        """Return something as the cluster has it.

        Raises:
            NoSuchObjectError: There is none.
            ClusterError: The API server does not answer, or not in time.
        """
        return self._json("GET", self._path(kind, name), timeout_s=timeout_s)

    def delete(self, kind: str, name: str, grace_s: int = 0, timeout_s: float = CALL_S) -> None:
        """Delete something, which may take so long to end. What is gone is no failure."""
        body = {"gracePeriodSeconds": grace_s, "propagationPolicy": "Background"}
        with contextlib.suppress(NoSuchObjectError):
            self._json("DELETE", self._path(kind, name), body, timeout_s=timeout_s)

    def described(self, kind: str, label: str) -> dict[str, dict[str, Any]]:
        """Return the metadata of all that have a label of this name, by their own names."""
        found = self._json(
            "GET", self._path(kind), query={"labelSelector": label}, accepted=_METADATA
        )
        return {one["metadata"]["name"]: one["metadata"] for one in found.get("items") or []}

    def changes(
        self, kind: str, name: str, version: str, timeout_s: float
    ) -> Iterator[dict[str, Any] | None]:
        """Give something each time it changes after a version; `None` once it is gone.

        It ends after `timeout_s` seconds, or when the API server has had enough.

        Raises:
            ClusterError: The API server does not answer.
        """
        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={name}",
            "resourceVersion": version,
            "timeoutSeconds": str(max(1, round(timeout_s))),
        }
        with self._translated():
            response = self._request(
                "GET", self._path(kind), None, query, timeout_s=timeout_s + LOOK_S, is_stream=True
            )
            try:
                if response.status >= 400:
                    return  # the version is too old; who asks looks again
                for line in _lines(response.stream(2**16)):
                    event = json.loads(line)
                    if event["type"] == "DELETED":
                        yield None
                    elif event["type"] in ("ADDED", "MODIFIED"):
                        yield event["object"]
                    else:
                        return
            finally:
                response.close()

    # Pods

    def last_lines(self, pod: str, count: int, timeout_s: float = CALL_S) -> list[str]:
        """Return the last lines that a pod printed."""
        query = {"container": CONTAINER, "tailLines": str(count), "limitBytes": str(2**18)}
        raw = self._call("GET", self._path("pods", pod) + "/log", None, query, timeout_s)
        lines = raw.decode(errors="replace").splitlines()
        return [line.rstrip() for line in lines if line.strip()][-count:]

    def connect(self, pod: str, port: int) -> Any:
        """Return a socket that leads to a port of a pod, in frames of a WebSocket.

        Raises:
            ClusterError: The API server does not answer.
            RefusedError: The pod cannot be reached now, or never will be.
        """
        websocket = importlib.import_module("websocket")
        url = f"{self.url}{self._path('pods', pod)}/portforward?ports={port}"
        with self._translated():
            try:
                return open_line(self._configuration, url, self._authority(), _CONNECT_S)
            except websocket.WebSocketBadStatusException as error:
                raise ClusterRefusedError(" ".join(str(error).split())) from None
            except websocket.WebSocketException as error:
                raise OSError(str(error)) from None

    # How calls are made

    def _path(self, kind: str, name: str | None = None) -> str:
        group = _GROUPS.get(kind, "/api/v1")
        path = f"{group}/namespaces/{quote(self.namespace)}/{kind}"
        return path if name is None else f"{path}/{quote(name)}"

    def _authority(self) -> dict[str, str]:
        settings: Mapping[str, Any] = self._configuration.auth_settings()
        found = (one for one in settings.values() if one.get("in") == "header" and one["value"])
        return {str(one["key"]): str(one["value"]) for one in found}

    def _json(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        timeout_s: float = CALL_S,
        accepted: str = "application/json",
        sent_as: str = "application/json",
    ) -> dict[str, Any]:
        raw = self._call(method, path, body, query, timeout_s, accepted, sent_as)
        try:
            found = json.loads(raw)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ClusterError(f"What answers at {self.url} is no API server of Kubernetes.")
        return found

    def _call(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        timeout_s: float = CALL_S,
        accepted: str = "application/json, */*",
        sent_as: str = "application/json",
    ) -> bytes:
        with self._translated():
            response = self._request(method, path, body, query, timeout_s, accepted, sent_as)
            raw: bytes = response.data
            if response.status >= 400:
                raise self._refusal(response.status, raw)
            return raw

    def _request(
        self,
        method: str,
        path: str,
        body: Any,
        query: Mapping[str, str] | None,
        timeout_s: float,
        accepted: str = "application/json",
        sent_as: str = "application/json",
        *,
        is_stream: bool = False,
    ) -> Any:
        headers = {"Accept": accepted, **self._authority()}
        data = None
        if body is not None:
            headers["Content-Type"] = sent_as
            data = json.dumps(body).encode()
        return self._pool.request(
            method,
            f"{self.url}{path}{'?' + urlencode(query) if query else ''}",
            body=data,
            headers=headers,
            timeout=self._urllib3.Timeout(connect=min(_CONNECT_S, timeout_s), read=timeout_s),
            retries=False,
            redirect=False,
            preload_content=not is_stream,
        )

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Make one call, and tell in our own words why it failed."""
        try:
            yield
        except (self._urllib3.exceptions.HTTPError, OSError) as error:
            raise self._silent(error) from None
        except self._library.config.ConfigException as error:
            raise ClusterRefusedError(
                f"Logging in at {self.url} failed: {_joined(error)}."
            ) from None

    def _silent(self, error: BaseException) -> ClusterError:
        why = _joined(error)
        if isinstance(error, ssl.SSLError) or "SSL" in why:
            return ClusterError(
                f"The API server at {self.url} cannot be trusted ({why}). {_HOW_TO_SAY}"
            )
        for known in ("Connection refused", "timed out", "Name or service not known"):
            if known in why:
                why = known.lower()
        return ClusterError(f"The API server at {self.url} does not answer ({why}). {_HOW_TO_SAY}")

    def _refusal(self, status: int, raw: bytes) -> StartupError:
        why = _joined(raw.decode(errors="replace"))
        with contextlib.suppress(ValueError, AttributeError):
            why = _joined(json.loads(raw).get("message") or why)
        if status == 404:
            return NoSuchObjectError(why)
        if status == 401:
            return ClusterRefusedError(
                f"The cluster at {self.url} does not know this user. Log in again."
            )
        if status == 403:
            return ClusterRefusedError(
                f"{why}. Ask for that right; the guide on Kubernetes lists them"
            )
        if status == 409:
            return TakenError(why)
        if status >= 500 or status == 429:  # too many calls, of which none was at fault
            return ClusterError(f"The API server at {self.url} failed with status {status}: {why}")
        return ClusterRefusedError(why)


def _client() -> Any:
    try:
        # A folder called kubernetes, where Python looks first, can be imported too; these cannot.
        for name in ("client", "config", "stream"):
            importlib.import_module(f"kubernetes.{name}")
    except ImportError:
        raise MissingExtraError.for_extra(
            "Starting pods needs the Kubernetes client.", "kubernetes"
        ) from None
    return importlib.import_module("kubernetes")


def _configure(config: Any, configuration: Any, kubeconfig: str | None, context: str | None) -> str:
    """Fill in where the cluster is and who we are; return the namespace that is usual there."""
    named = kubeconfig or os.environ.get("KUBECONFIG") or None
    path = named or str(Path("~/.kube/config").expanduser())
    if named is None and not Path(path).exists():
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            raise StartupError(f"No cluster is known here. {_HOW_TO_SAY}") from None
        return _NAMESPACE.read_text().strip() if _NAMESPACE.exists() else "default"
    missing = [one for one in path.split(os.pathsep) if one and not Path(one).expanduser().exists()]
    if missing and len(missing) == len([one for one in path.split(os.pathsep) if one]):
        raise OptionError(f"There is no file {missing[0]!r} to tell of a cluster. {_HOW_TO_SAY}")
    try:
        contexts, current = config.list_kube_config_contexts(path)
        names = [one["name"] for one in contexts]
        if context is not None and context not in names:
            raise OptionError(f"{path!r} has no context {context!r}. It has: {', '.join(names)}.")
        config.load_kube_config(path, context, configuration)
    except OptionError:
        raise
    except config.ConfigException as error:
        raise OptionError(f"{path!r} tells of no cluster: {_joined(error)}.") from None
    except Exception as error:  # noqa: BLE001 - the client reads what it is given without a look
        raise OptionError(
            f"{path!r} is no file that tells of a cluster: {_joined(error)}. {_HOW_TO_SAY}"
        ) from None
    if not configuration.host:
        raise OptionError(f"{path!r} does not say where the cluster's API server is.")
    chosen = current if context is None else contexts[names.index(context)]
    return str(chosen["context"].get("namespace") or "default")


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line.strip())


def _joined(said: object) -> str:
    return " ".join(str(said).split()).rstrip(".") or type(said).__name__
