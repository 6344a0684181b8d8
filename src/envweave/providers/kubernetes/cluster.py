"""A Kubernetes cluster: creating, watching and deleting objects.

The official client reads the kubeconfig, logs in, and makes connections. Objects are plain data, as
in a manifest, which works with every release of the client and the cluster.
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
from envweave.providers.kubernetes.port_forward import open_websocket

CALL_S = 30.0
"""How long the API server may take for one call, before it counts as hung."""

LOOK_S = 5.0
"""The same for calls that only inspect a pod."""

_CONNECT_S = 5.0
_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_MERGE = "application/strategic-merge-patch+json"
_GROUPS = {"deployments": "/apis/apps/v1"}
_HOW_TO_CONFIGURE = (
    "Set KUBECONFIG to the kubeconfig file of your cluster, or pass kubeconfig=…. "
    "`kubectl cluster-info` shows whether it works."
)


class ClusterError(StartupError):
    """The API server does not answer."""


class NoSuchObjectError(StartupError):
    """The cluster has no such object."""


class ClusterRefusedError(StartupError):
    """The API server refused a call."""


class TakenError(ClusterRefusedError):
    """There is an object of this name already."""


@final
class Cluster:
    """A connection to an API server, which any thread may use.

    Args:
        kubeconfig: The kubeconfig file; by default `$KUBECONFIG`, `~/.kube/config`, or the
            cluster that this process runs in.
        context: The context in it; by default the current one.
        namespace: The namespace; by default the context's, or `"default"`.

    Attributes:
        url: The URL of the API server.
        namespace: The namespace.

    Raises:
        MissingExtraError: The Kubernetes client is not installed.
        StartupError: No cluster is configured.
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
        """Disconnect. May be called twice."""
        self._pool.clear()

    # Objects of the namespace

    def create(self, kind: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object of a kind, such as `"pods"`, and return it.

        Raises:
            TakenError: There is an object of this name already.
            ClusterRefusedError: The cluster refuses it; the message says why.
        """
        return self._json("POST", self._path(kind), manifest)

    def change(self, kind: str, name: str, change: Mapping[str, Any]) -> dict[str, Any]:
        """Patch an object, and return it."""
        return self._json("PATCH", self._path(kind, name), change, sent_as=_MERGE)

    def get(self, kind: str, name: str, timeout_s: float = CALL_S) -> dict[str, Any]:
        """Return an object.

        Raises:
            NoSuchObjectError: There is none.
            ClusterError: The API server does not answer, or not in time.
        """
        return self._json("GET", self._path(kind, name), timeout_s=timeout_s)

    def delete(self, kind: str, name: str, grace_s: int = 0, timeout_s: float = CALL_S) -> None:
        """Delete an object; a pod may take `grace_s` to end. One that is gone is not an error."""
        body = {"gracePeriodSeconds": grace_s, "propagationPolicy": "Background"}
        with contextlib.suppress(NoSuchObjectError):
            self._json("DELETE", self._path(kind, name), body, timeout_s=timeout_s)

    def described(self, kind: str, label: str) -> dict[str, dict[str, Any]]:
        """Return the metadata of all objects with this label, by name."""
        found = self._json(
            "GET", self._path(kind), query={"labelSelector": label}, accepted=_METADATA
        )
        return {item["metadata"]["name"]: item["metadata"] for item in found.get("items") or []}

    def changes(
        self, kind: str, name: str, version: str, timeout_s: float
    ) -> Iterator[dict[str, Any] | None]:
        """Yield an object each time it changes after a version; `None` once it is deleted.

        It ends after `timeout_s` seconds, or when the API server closes the stream.

        Raises:
            ClusterError: The API server does not answer.
        """
        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={name}",
            "resourceVersion": version,
            "timeoutSeconds": str(max(1, round(timeout_s))),
        }
        with self._translate_errors():
            response = self._request(
                "GET", self._path(kind), None, query, timeout_s=timeout_s + LOOK_S, is_stream=True
            )
            try:
                if response.status >= 400:
                    return  # the version is too old; the caller gets the object again
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
        """Return a socket to a port of a pod, which carries WebSocket frames.

        Raises:
            ClusterError: The API server does not answer.
            ClusterRefusedError: The pod cannot be reached now, or never will be.
        """
        websocket = importlib.import_module("websocket")
        url = f"{self.url}{self._path('pods', pod)}/portforward?ports={port}"
        with self._translate_errors():
            try:
                return open_websocket(self._configuration, url, self._auth_headers(), _CONNECT_S)
            except websocket.WebSocketBadStatusException as error:
                raise ClusterRefusedError(" ".join(str(error).split())) from None
            except websocket.WebSocketException as error:
                raise OSError(str(error)) from None

    # Making calls

    def _path(self, kind: str, name: str | None = None) -> str:
        group = _GROUPS.get(kind, "/api/v1")
        path = f"{group}/namespaces/{quote(self.namespace)}/{kind}"
        return path if name is None else f"{path}/{quote(name)}"

    def _auth_headers(self) -> dict[str, str]:
        settings: Mapping[str, Any] = self._configuration.auth_settings()
        headers = (one for one in settings.values() if one.get("in") == "header" and one["value"])
        return {str(one["key"]): str(one["value"]) for one in headers}

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
            raise ClusterError(f"The server at {self.url} is not a Kubernetes API server.")
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
        with self._translate_errors():
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
        headers = {"Accept": accepted, **self._auth_headers()}
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
    def _translate_errors(self) -> Iterator[None]:
        """Translate the errors of one call into ours."""
        try:
            yield
        except (self._urllib3.exceptions.HTTPError, OSError) as error:
            raise self._silent(error) from None
        except self._library.config.ConfigException as error:
            raise ClusterRefusedError(
                f"Logging in at {self.url} failed: {_join_lines(error)}."
            ) from None

    def _silent(self, error: BaseException) -> ClusterError:
        why = _join_lines(error)
        if isinstance(error, ssl.SSLError) or "SSL" in why:
            return ClusterError(
                f"The API server at {self.url} cannot be trusted ({why}). {_HOW_TO_CONFIGURE}"
            )
        for known in ("Connection refused", "timed out", "Name or service not known"):
            if known in why:
                why = known.lower()
        return ClusterError(
            f"The API server at {self.url} does not answer ({why}). {_HOW_TO_CONFIGURE}"
        )

    def _refusal(self, status: int, raw: bytes) -> StartupError:
        why = _join_lines(raw.decode(errors="replace"))
        with contextlib.suppress(ValueError, AttributeError):
            why = _join_lines(json.loads(raw).get("message") or why)
        if status == 404:
            return NoSuchObjectError(why)
        if status == 401:
            return ClusterRefusedError(
                f"The cluster at {self.url} does not know this user. Log in again."
            )
        if status == 403:
            return ClusterRefusedError(
                f"{why}. Ask for this permission; the guide on Kubernetes lists all of them"
            )
        if status == 409:
            return TakenError(why)
        if status >= 500 or status == 429:  # a rate limit is not the call's fault
            return ClusterError(f"The API server at {self.url} failed with status {status}: {why}")
        return ClusterRefusedError(why)


def _client() -> Any:
    try:
        # A folder called kubernetes on the path could be imported, but not with these modules.
        for name in ("client", "config", "stream"):
            importlib.import_module(f"kubernetes.{name}")
    except ImportError:
        raise MissingExtraError.for_extra(
            "Starting pods needs the Kubernetes client.", "kubernetes"
        ) from None
    return importlib.import_module("kubernetes")


def _configure(config: Any, configuration: Any, kubeconfig: str | None, context: str | None) -> str:
    """Configure the address and credentials of the cluster; return its default namespace."""
    named = kubeconfig or os.environ.get("KUBECONFIG") or None
    path = named or str(Path("~/.kube/config").expanduser())
    if named is None and not Path(path).exists():
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            raise StartupError(f"No cluster is configured. {_HOW_TO_CONFIGURE}") from None
        return _NAMESPACE.read_text().strip() if _NAMESPACE.exists() else "default"
    missing = [one for one in path.split(os.pathsep) if one and not Path(one).expanduser().exists()]
    if missing and len(missing) == len([one for one in path.split(os.pathsep) if one]):
        raise OptionError(f"There is no kubeconfig file {missing[0]!r}. {_HOW_TO_CONFIGURE}")
    try:
        contexts, current = config.list_kube_config_contexts(path)
        names = [one["name"] for one in contexts]
        if context is not None and context not in names:
            raise OptionError(f"{path!r} has no context {context!r}. It has: {', '.join(names)}.")
        config.load_kube_config(path, context, configuration)
    except OptionError:
        raise
    except config.ConfigException as error:
        raise OptionError(f"{path!r} configures no cluster: {_join_lines(error)}.") from None
    except Exception as error:  # noqa: BLE001 - the client does not check the file
        raise OptionError(
            f"{path!r} is not a kubeconfig file: {_join_lines(error)}. {_HOW_TO_CONFIGURE}"
        ) from None
    if not configuration.host:
        raise OptionError(f"{path!r} has no address of the cluster's API server.")
    selected = current if context is None else contexts[names.index(context)]
    return str(selected["context"].get("namespace") or "default")


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line.strip())


def _join_lines(message: object) -> str:
    return " ".join(str(message).split()).rstrip(".") or type(message).__name__
