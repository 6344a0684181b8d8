"""A Prime Environments Hub on loopback: its API on one port, its index and wheels on another."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from installations import wheel


class Seen(NamedTuple):
    """One request: to the `"api"` or to the `"files"`, its path, and what it was shown."""

    host: str
    path: str
    authorization: str | None


@dataclass
class Release:
    """One version of an environment; `details` overrides what the API says of it."""

    filename: str
    content: bytes
    sha256: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass
class PrimeHub:
    """What the Hub holds, and how it behaves.

    Attributes:
        api_url: What `PRIME_API_BASE_URL` is set to.
        files_url: Where its index and its wheels are.
        key: The key that callers must send; `None` if none is needed.
        status: Answer every call of the API so, with `detail`.
        bare: Whether replies come without the envelope `{"data": …}`.
        redirect: Send every call of the API to this base URL.
        requests: All that were made.
    """

    api_url: str = ""
    files_url: str = ""
    key: str | None = None
    status: int | None = None
    detail: str = "no luck today"
    bare: bool = False
    redirect: str | None = None
    requests: list[Seen] = field(default_factory=list)
    releases: dict[tuple[str, str], dict[str, Release]] = field(default_factory=dict)

    def publish(
        self,
        env: str,
        version: str,
        files: Mapping[str, str],
        *,
        requires: Sequence[str] = (),
        **details: Any,
    ) -> Release:
        """Publish `owner/name`; the version that is published last is the latest."""
        owner, name = env.split("/")
        filename, content = wheel(name, version, files, requires)
        release = Release(filename, content, hashlib.sha256(content).hexdigest(), details)
        self.releases.setdefault((owner, name), {})[version] = release
        return release

    @property
    def downloads(self) -> list[str]:
        """The wheels that were downloaded."""
        return [one.path for one in self.requests if one.path.endswith(".whl")]

    def answer_api(self, path: str, authorization: str | None) -> tuple[int, Any]:
        if self.status is not None:
            return self.status, {"detail": self.detail}
        if self.key is not None and authorization != f"Bearer {self.key}":
            return 401, {"detail": "Invalid API key"}
        found = re.fullmatch(r"/api/v1/environmentshub/([^/]+)/([^/]+)/(versions|@.+)", path)
        if found is None:
            return 404, {"detail": "Not Found"}
        owner, name, what = found.groups()
        releases = self.releases.get((owner, name))
        if releases is None:
            return 404, {"detail": "Environment not found"}
        if what == "versions":
            return 200, self._wrapped({"versions": self._versions(releases)})
        version = what[1:] if what != "@latest" else list(releases)[-1]
        if version not in releases:
            return 404, {"detail": f"Version {version} not found"}
        return 200, self._wrapped(self._details(owner, name, version))

    def _wrapped(self, data: Any) -> Any:
        return data if self.bare else {"data": data}

    def _versions(self, releases: Mapping[str, Release]) -> list[dict[str, Any]]:
        return [
            {"version": version, "semantic_version": version, "sha256": one.sha256, "size": 1}
            for version, one in reversed(releases.items())
        ]

    def _details(self, owner: str, name: str, version: str) -> dict[str, Any]:
        release = self.releases[owner, name][version]
        data = {
            "owner": {"name": owner},
            "name": name,
            "visibility": "PUBLIC",
            "semantic_version": version,
            "content_hash": "c0ffee",
            "install_index_url": None,
            "simple_index_url": f"{self.files_url}/{owner}/simple/",
            "wheel_url": self._wheel_url(owner, name, version),
            "url_dependencies": [],
        }
        return {**data, **release.details}

    def _wheel_url(self, owner: str, name: str, version: str) -> str:
        filename = self.releases[owner, name][version].filename
        return f"{self.files_url}/files/{owner}/{name}/{version}/{filename}"

    def answer_files(self, path: str, _: str | None) -> tuple[int, Any]:
        if found := re.fullmatch(r"/([^/]+)/simple/([^/]+)/", path):
            links = [
                f'<a href="{self._wheel_url(owner, name, version)}#sha256={release.sha256}">'
                f"{release.filename}</a><br>"
                for (owner, name), releases in self.releases.items()
                if (owner, name.replace("_", "-")) == found.groups()
                for version, release in releases.items()
            ]
            page = "<!DOCTYPE html><html><body>" + "\n".join(links) + "</body></html>"
            return (200, page) if links else (404, {"detail": "Not Found"})
        if found := re.fullmatch(r"/files/([^/]+)/([^/]+)/([^/]+)/[^/]+", path):
            owner, name, version = found.groups()
            return 200, self.releases[owner, name][version].content
        return 404, {"detail": "Not Found"}


@contextmanager
def serving() -> Iterator[PrimeHub]:
    """Serve an empty Hub."""
    hub = PrimeHub()
    with (
        _listening("api", hub, hub.answer_api) as hub.api_url,
        _listening("files", hub, hub.answer_files) as hub.files_url,
    ):
        yield hub


@contextmanager
def _listening(
    host: str, hub: PrimeHub, answer: Callable[[str, str | None], tuple[int, Any]]
) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            shown = self.headers.get("Authorization")
            hub.requests.append(Seen(host, path, shown))
            if host == "api" and hub.redirect is not None:
                self.send_response(307)
                self.send_header("Location", hub.redirect + path)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            status, body = answer(path, shown)
            kind, content = _written(body)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _written(body: Any) -> tuple[str, bytes]:
    if isinstance(body, bytes):
        return "application/octet-stream", body
    if isinstance(body, str):
        return "text/html", body.encode()
    return "application/json", json.dumps(body).encode()
