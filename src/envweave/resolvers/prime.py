"""`prime://owner/name[@version]`: a package of the Prime Environments Hub.

Without a version in the ID, the Hub is asked for the latest; the ID of the resulting recipe always
has one. Its packages are [verifiers](https://github.com/PrimeIntellect-ai/verifiers) modules of
either generation. A package is downloaded here, checked against its SHA-256 and installed from the
file; the user's installer gets its dependencies as usual. The API key is sent to the API's host
only.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import ipaddress
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, final
from urllib.parse import unquote, urljoin, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from envweave.errors import (
    AccessError,
    ConnectionLostError,
    EnvIdError,
    EnvNotFoundError,
    InstallError,
    MissingExtraError,
    OptionError,
    ServerError,
)
from envweave.providers.interpreter import PythonInterpreter, ensure_installed
from envweave.registry import EnvSpec, PackageFiles, PackageSource, Registry

PUBLIC_API = "https://api.primeintellect.ai"

_ID = re.compile(r"(?P<owner>\w[\w.-]*)/(?P<name>\w[\w.-]*)(@(?P<version>\w[\w.+!-]*))?", re.ASCII)
_TIMEOUT_S = 30.0
_MANY = 10


def resolve(rest: str, registry: Registry) -> EnvSpec:  # noqa: ARG001 - a resolver's signature
    """`prime://owner/name[@version]`: a package of the Prime Environments Hub.

    Installs and downloads nothing.

    Raises:
        EnvIdError: It is not `owner/name` or `owner/name@version`.
        EnvNotFoundError: The Hub has no such environment, or no such version.
        EnvWeaveError: The Hub cannot be reached.
    """
    found = _ID.fullmatch(rest)
    if found is None:
        raise EnvIdError(
            f"'prime://{rest}' does not name an environment of the Hub. Use "
            "'prime://owner/name' or 'prime://owner/name@version'."
        )
    owner, name, version = found["owner"], found["name"], found["version"]
    if version is None or not _is_version(version):
        version = Hub().concrete_version(owner, name, version or "latest")
    module = name.replace("-", "_").lower()
    package = HubPackage(canonicalize_name(name), version, module, owner, name)
    return EnvSpec(
        package.env_id,
        f"{__name__}:make_environment",
        kwargs={"hub_id": f"{owner}/{name}@{version}"},
        description=f"{owner}/{name} {version} of the Prime Environments Hub",
        package=package,
    )


def make_environment(hub_id: str, **keywords: Any) -> Any:
    """Make a Hub environment whose package is installed.

    Raises:
        InstallError: The package is not installed, or not in this version.
    """
    spec = resolve(hub_id, Registry())
    assert spec.package is not None
    ensure_installed(spec.id, spec.package, PythonInterpreter(), "never")
    from envweave.adapters.verifiers.environments import from_verifiers

    return from_verifiers(spec.package.module, **keywords)


@final
@dataclass(frozen=True)
class HubPackage(PackageSource):
    """One version of an environment's package.

    Attributes:
        owner: Who published it.
        hub_name: Its name there.
    """

    owner: str
    hub_name: str

    @property
    def env_id(self) -> str:
        """The full ID, with its version."""
        return f"prime://{self.owner}/{self.hub_name}@{self.version}"

    @property
    def official_way(self) -> str:
        """What to do if only Prime's own command can install it."""
        pinned = f"{self.owner}/{self.hub_name}@{self.version}"
        return f"Install it with the Hub's own command: prime env install {pinned}"

    def locate(self) -> HubFiles:
        """Ask the Hub for the wheel, its checksum, and dependencies that are URLs.

        Raises:
            InstallError: There is no wheel or no checksum, or an address is not safe.
            EnvWeaveError: The Hub cannot be reached, or has no such version.
        """
        hub = Hub()
        details = hub.details(self.owner, self.hub_name, self.version)
        index = details.get("install_index_url") or details.get("simple_index_url")
        files = self._in_index(index) if index else None
        if files is None and details.get("wheel_url"):
            files = HubFiles(self, _check_url(details["wheel_url"]))
        if files is None:
            private = " It is private." if details.get("visibility") == "PRIVATE" else ""
            raise InstallError(
                f"The Hub has no wheel of {self.env_id!r}.{private} {self.official_way}"
            )
        if not self._is_in(files.filename):
            raise InstallError(
                f"The Hub's wheel of {self.env_id!r} is {files.filename!r}, which is not "
                f"{self.name} {self.version}. Report it to the owner."
            )
        others = details.get("url_dependencies") or ()
        return dataclasses.replace(
            files,
            sha256=files.sha256 or hub.checksum(self),
            url_dependencies=tuple(_check_dependency(str(one)) for one in others),
        )

    def _in_index(self, index: str) -> HubFiles | None:
        """Return the wheel that a PEP 503 index lists, preferably one for any platform."""
        page_url = _check_url(f"{str(index).rstrip('/')}/{self.name}/")
        with _client() as client:
            response = client.get(page_url, headers={"Accept": "text/html"})
        if response.status_code != 200:
            return None
        links = _Links()
        links.feed(response.text)
        wheels = []
        for link in links.found:
            url, _, fragment = urljoin(str(response.url), link).partition("#")
            sha256 = fragment.removeprefix("sha256=") if "sha256=" in fragment else ""
            files = HubFiles(self, url, sha256.lower())
            if self._is_in(files.filename):
                _check_url(url)
                wheels.append(files)
        return min(wheels, key=lambda one: not one.filename.endswith("-none-any.whl"), default=None)

    def _is_in(self, filename: str) -> bool:
        try:
            name, version, _, _ = parse_wheel_filename(filename)
            return name == self.name and version == Version(self.version)
        except (InvalidWheelFilename, InvalidVersion):
            return False


@final
@dataclass(frozen=True, slots=True)
class HubFiles(PackageFiles):
    """A wheel of the Hub, the checksum it must have, and its dependencies that are URLs."""

    package: HubPackage
    url: str
    sha256: str = ""
    url_dependencies: tuple[str, ...] = ()

    @property
    def filename(self) -> str:
        """The name of the wheel's file."""
        return unquote(urlsplit(self.url).path).rpartition("/")[2]  # %2F is a slash too

    def requirements(self) -> list[str]:
        """Return the URL of the wheel with its checksum, and the dependencies."""
        return [f"{self.package.name} @ {self.url}#sha256={self.sha256}", *self.url_dependencies]

    def download(self, folder: Path) -> list[str]:
        """Download the wheel, and return its path and the dependencies.

        Raises:
            InstallError: Its checksum is wrong, or it cannot be downloaded.
        """
        env_id, url = self.package.env_id, self.url
        target = folder / self.filename
        digest = hashlib.sha256()
        with _client() as client, client.stream("GET", url) as response:
            if response.status_code != 200:
                raise InstallError(
                    f"{env_id!r} cannot be downloaded: {url} answers {response.status_code}. "
                    f"{self.package.official_way}"
                )
            with target.open("wb") as file:
                for chunk in response.iter_bytes():
                    digest.update(chunk)
                    file.write(chunk)
        if digest.hexdigest() != self.sha256:
            raise InstallError(
                f"{env_id!r} was not installed: the SHA-256 of {url} is {digest.hexdigest()}, and "
                f"the Hub says {self.sha256}. The file was changed, or the download was damaged: "
                "try again, and report it to the owner if it happens again."
            )
        return [str(target), *self.url_dependencies]


@final
class Hub:
    """The Hub's API, at the address and with the key that Prime's own tools use."""

    def __init__(self) -> None:
        config = _read_config()
        given = os.environ.get("PRIME_API_BASE_URL") or os.environ.get("PRIME_BASE_URL")
        base_url = str(given or config.get("base_url") or PUBLIC_API)
        self._base_url = _check_url(base_url.rstrip("/").removesuffix("/api/v1"))
        self._key = str(os.environ.get("PRIME_API_KEY") or config.get("api_key") or "").strip()
        if not (self._key.isascii() and self._key.isprintable()):
            # Checked here, because an error of httpx2 would show the key.
            raise AccessError(
                "The API key of the Prime Hub has characters that a key cannot have. Set "
                "PRIME_API_KEY again, or run `prime login`."
            )

    def concrete_version(self, owner: str, name: str, version: str) -> str:
        """Return the version that `latest`, or a content hash, currently stands for."""
        details = self.details(owner, name, version)
        latest = details.get("latest_version")
        found = details.get("semantic_version")
        if found is None and isinstance(latest, dict):
            found = latest.get("semantic_version")
        if not isinstance(found, str) or not _is_version(found):
            raise ServerError(
                f"The Prime Hub does not say which version {owner}/{name}@{version} is. Name one: "
                f"prime://{owner}/{name}@VERSION."
            )
        return found

    def details(self, owner: str, name: str, version: str) -> dict[str, Any]:
        """Return the Hub's details of one version of an environment.

        Raises:
            EnvNotFoundError: There is no such environment or version; the message lists the
                existing versions.
        """
        status, found = self._get(f"{owner}/{name}/@{version}", f"{owner}/{name}@{version}")
        if status == 200 and isinstance(found, dict):
            return found
        known = [] if version == "latest" else self.versions(owner, name)
        if known:
            names = [str(one.get("semantic_version") or one.get("version")) for one in known]
            more = f" and {len(names) - _MANY} older ones" if len(names) > _MANY else ""
            raise EnvNotFoundError(
                f"{owner}/{name} has no version {version!r} on the Prime Hub. It has: "
                f"{', '.join(names[:_MANY])}{more}."
            )
        raise EnvNotFoundError(
            f"The Prime Hub at {self._base_url} has no environment {owner}/{name}, or it is "
            "private and your key does not show it (`prime login`). For one of your own, register "
            "it under this name first; `envweave list` shows those."
        )

    def versions(self, owner: str, name: str) -> list[dict[str, Any]]:
        """Return the versions of an environment, newest first; empty if it does not exist."""
        status, found = self._get(f"{owner}/{name}/versions", f"{owner}/{name}")
        listed = found.get("versions", []) if isinstance(found, dict) else found
        if status != 200 or not isinstance(listed, list):
            return []
        return [one for one in listed if isinstance(one, dict)]

    def checksum(self, package: HubPackage) -> str:
        """Return the SHA-256 of a wheel.

        Raises:
            InstallError: The Hub has none.
        """
        for one in self.versions(package.owner, package.hub_name):
            is_it = package.version in (one.get("version"), one.get("semantic_version"))
            if is_it and isinstance(one.get("sha256"), str) and one["sha256"]:
                return str(one["sha256"]).lower()
        raise InstallError(
            f"The Hub has no checksum of {package.env_id!r}, so it cannot be verified and is not "
            f"installed. {package.official_way}"
        )

    def _get(self, path: str, what: str) -> tuple[int, Any]:
        """Return the status, 200 or 404, and the answer without its envelope."""
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        with _client() as client:
            # A redirect to another host does not get the key: httpx2 removes it.
            response = client.get(
                f"{self._base_url}/api/v1/environmentshub/{path}", headers=headers
            )
        try:
            body = response.json()
        except ValueError:
            body = None
        status = response.status_code
        if status == 200 and body is not None:
            return status, body.get("data", body) if isinstance(body, dict) else body
        if status == 404:
            return status, None
        detail = body.get("detail") if isinstance(body, dict) else None
        answer = f"{status} ({detail})" if detail else str(status)
        raise self._refusal(
            status, f"The Prime Hub at {self._base_url} answers {answer} for {what}."
        )

    def _refusal(self, status: int, what: str) -> Exception:
        if status in (401, 403):
            wrong = "Your API key is not accepted" if self._key else "It requires an API key"
            return AccessError(f"{what} {wrong}: set PRIME_API_KEY, or run `prime login`.")
        if status == 402:
            return AccessError(
                f"{what} It requires a payment: see the billing page of your account."
            )
        if status == 422:
            return EnvIdError(f"{what} Write the ID as prime://owner/name@version.")
        return ServerError(f"{what} Try again later; `prime env info` shows whether it is the Hub.")


@final
class _Links(HTMLParser):
    """Collects the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]


@contextmanager
def _client() -> Iterator[Any]:
    """Open a client that follows redirects to safe addresses only, and sends no key by itself."""
    try:
        import httpx2
    except ImportError as error:
        raise MissingExtraError.for_extra("The Prime Hub needs httpx2.", "prime") from error

    def check(request: httpx2.Request) -> None:
        _check_url(str(request.url))

    try:
        with httpx2.Client(
            verify=_tls(httpx2.create_ssl_context),
            follow_redirects=True,
            timeout=_TIMEOUT_S,
            event_hooks={"request": [check]},
        ) as client:
            yield client
    except httpx2.HTTPError as error:
        where = urlsplit(str(error.request.url))
        raise ConnectionLostError(
            f"{where.scheme}://{where.netloc} does not answer: {error}. Check the network, and "
            "PRIME_API_BASE_URL if it is set. A version that is installed needs no network if the "
            "ID names it: prime://owner/name@version."
        ) from error


@functools.cache
def _tls(create: Callable[[], Any]) -> Any:
    return create()  # it reads all certificates, which takes longer than a call


def _check_url(url: Any) -> str:
    """Check that a URL is https, or http on this machine, and printable.

    Raises:
        InstallError: It is not.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except (ValueError, AttributeError, TypeError):
        parts, host = urlsplit(""), ""
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host))
    if host and is_safe and str(url).isprintable():
        return str(url)
    raise InstallError(
        f"{url!r} is refused: packages and their details must come over https, or http on this "
        "machine. Check PRIME_API_BASE_URL; if it came from the Hub, report it to the owner."
    )


def _check_dependency(dependency: str) -> str:
    try:
        url = Requirement(dependency).url or ""
    except InvalidRequirement:
        url = dependency
    _check_url(url.removeprefix("git+"))
    return dependency


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return text == text.strip()  # `Version` accepts surrounding spaces


def _read_config() -> dict[str, Any]:
    path = Path.home() / ".prime" / "config.json"
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise OptionError(f"{path} cannot be read: {error}. Run `prime login` again.") from error
    return found if isinstance(found, dict) else {}
