"""Addresses of servers: `http://host:port/prefix`, `https://…`, `unix:///path.sock`."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from envweave.errors import EnvIdError

SCHEMES = ("http", "https", "unix")
_PORTS = {"http": 80, "https": 443}
_EXAMPLES = "'http://127.0.0.1:8000', 'https://host/prefix' or 'unix:///path/to.sock'"


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server.

    Attributes:
        url: The URL, for messages.
        host: The host name or IP address; empty for a unix socket.
        port: The port; 0 for a unix socket.
        prefix: The prefix of every path, without a trailing slash.
        is_secure: Whether to use TLS.
        socket_path: The path of a unix socket; `None` for a host.
    """

    url: str
    host: str = ""
    port: int = 0
    prefix: str = ""
    is_secure: bool = False
    socket_path: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine, as far as the address says."""
        host = self.host
        return (
            self.socket_path is not None
            or host in ("localhost", "::1")
            or (host.startswith("127.") and host.replace(".", "").isdigit())
        )

    @property
    def host_header(self) -> str:
        """The value of the `Host` header."""
        if self.socket_path is not None:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        is_default = self.port == _PORTS["https" if self.is_secure else "http"]
        return host if is_default else f"{host}:{self.port}"


def parse_address(url: str) -> Address:
    """Parse a server's URL.

    Raises:
        EnvIdError: It is not a valid URL of a server.
    """
    if not isinstance(url, str):
        raise EnvIdError(f"{url!r} is not the URL of a server. Use one such as {_EXAMPLES}.")
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in SCHEMES:
        raise EnvIdError(f"{url!r} is not the URL of a server. Use one such as {_EXAMPLES}.")
    if any(character.isspace() or character < " " or character == "\x7f" for character in url):
        raise EnvIdError(f"{url!r} is not a valid URL: it contains whitespace.")
    if scheme == "unix":
        if not rest.startswith("/"):
            raise EnvIdError(
                f"{url!r} has no absolute path. Use 'unix:///path/to.sock', with three slashes."
            )
        return Address(url, socket_path=rest)
    return _of_host(url, scheme)


def _of_host(url: str, scheme: str) -> Address:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise EnvIdError(f"{url!r} is not a valid URL: {error}.") from None
    if not host:
        raise EnvIdError(f"{url!r} has no host. Use one such as {_EXAMPLES}.")
    if parts.username is not None or parts.password is not None:
        raise EnvIdError(
            "A server's URL must not contain a user name or password. Pass token=…, or set "
            "$ENVWEAVE_TOKEN."
        )
    if parts.query or parts.fragment:
        raise EnvIdError(f"{url!r} has a query or a fragment; a server's URL has neither.")
    try:
        host = host.encode("idna").decode("ascii") if not host.isascii() else host
        parts.path.encode("ascii")
    except UnicodeError:
        raise EnvIdError(f"{url!r} is not a valid URL: it is not ASCII.") from None
    if port == 0:
        raise EnvIdError(f"{url!r} has port 0. Use the port that the server listens on.")
    prefix = parts.path.rstrip("/")
    return Address(url.rstrip("/"), host, port or _PORTS[scheme], prefix, scheme == "https")
