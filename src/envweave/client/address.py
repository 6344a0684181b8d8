"""Where a server is: `http://host:port/prefix`, `https://…`, `unix:///path.sock`."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from envweave.errors import EnvIdError

SCHEMES = ("http", "https", "unix")
_PORTS = {"http": 80, "https": 443}
_EXAMPLES = "'http://127.0.0.1:8000', 'https://host/prefix' or 'unix:///path/to.sock'"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is.

    Attributes:
        url: The same as text, for messages.
        host: Its name or number; empty for a unix socket.
        port: Its port; 0 for a unix socket.
        prefix: What every path begins with; without a slash at its end.
        is_secure: Whether TLS is spoken there.
        socket_path: The path of a unix socket; `None` for a host.
    """

    url: str
    host: str = ""
    port: int = 0
    prefix: str = ""
    is_secure: bool = False
    socket_path: str | None = None

    @property
    def host_header(self) -> str:
        """What to put into the `Host` header."""
        if self.socket_path is not None:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == _PORTS["https" if self.is_secure else "http"]
        return host if usual else f"{host}:{self.port}"


def parse_address(url: str) -> Address:
    """Read a server's URL.

    Raises:
        EnvIdError: It is none.
    """
    if not isinstance(url, str):
        raise EnvIdError(f"{url!r} is no URL of a server. Use one such as {_EXAMPLES}.")
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in SCHEMES:
        raise EnvIdError(f"{url!r} is no URL of a server. Use one such as {_EXAMPLES}.")
    if any(character.isspace() or character < " " or character == "\x7f" for character in url):
        raise EnvIdError(f"{url!r} is no URL of a server: it holds blanks.")
    if scheme == "unix":
        if not rest.startswith("/"):
            raise EnvIdError(
                f"{url!r} names no absolute path. Use 'unix:///path/to.sock', with three slashes."
            )
        return Address(url, socket_path=rest)
    return _of_host(url, scheme)


def _of_host(url: str, scheme: str) -> Address:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise EnvIdError(f"{url!r} is no URL of a server: {error}.") from None
    if not host:
        raise EnvIdError(f"{url!r} names no host. Use one such as {_EXAMPLES}.")
    if parts.username is not None or parts.password is not None:
        raise EnvIdError(
            "The URL of a server holds a name or a password. Pass token=…, or set $ENVWEAVE_TOKEN."
        )
    if parts.query or parts.fragment:
        raise EnvIdError(f"{url!r} holds a query or a fragment; a server's URL has none.")
    try:
        host = host.encode("idna").decode("ascii") if not host.isascii() else host
        parts.path.encode("ascii")
    except UnicodeError:
        raise EnvIdError(f"{url!r} is no URL of a server: it is no ASCII.") from None
    if port == 0:
        raise EnvIdError(f"{url!r} names port 0; use the one that the server listens on.")
    prefix = parts.path.rstrip("/")
    return Address(url.rstrip("/"), host, port or _PORTS[scheme], prefix, scheme == "https")
