"""The host that attacks are aimed at: what it hides, and what it would notice."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

VARIABLE = "ENVWEAVE_ATTACKED_SECRET"


@dataclass
class Victim:
    """This process, with a secret wherever a host may have one, and listeners that remember.

    Attributes:
        secret: In a file that anybody may read, in the environment and all over the memory.
        mark: Text that lies before each copy of the secret in memory.
        answer: A secret number.
        listeners: Sockets of the host, by the placeholder that names them. There is no accept on
            them until `connections` looks: the kernel remembers.
    """

    folder: Path
    secret: str = field(default_factory=lambda: os.environ.get(VARIABLE) or secrets.token_hex(24))
    mark: str = field(default_factory=lambda: "mark" + secrets.token_hex(12))
    answer: int = field(default_factory=lambda: secrets.randbits(60))
    listeners: dict[str, socket.socket] = field(default_factory=dict)
    in_memory: list[bytes] = field(default_factory=list)

    def placeholders(self, code: str) -> dict[str, str]:
        """Return what to fill in for each placeholder that the host decides."""
        kind = "datagram" if "sendto" in code or "DGRAM" in code else "stream"
        names = {
            "PORT": str(self.listeners["PORT"].getsockname()[1]),
            "ABSTRACT": self.listeners[f"ABSTRACT {kind}"].getsockname()[1:].decode(),
            "UNIXPATH": self.listeners[f"UNIXPATH {kind}"].getsockname(),
        }
        return names | {
            "SECRET_PATH": str(self.folder / "secret.txt"),
            "SECRET_MARK": self.mark,
            "SECRET_MARK_HEX": self.mark.encode().hex(),
            "HOSTPID": str(os.getpid()),
        }

    def connections(self) -> list[str]:
        """Return who came since the last call, and what they sent."""
        return [
            f"{name.split()[0]}: {sent!r}"
            for name, listener in self.listeners.items()
            for sent in _came(listener)
        ]


def _came(listener: socket.socket) -> Iterator[bytes]:
    while True:
        try:
            if listener.type is socket.SOCK_DGRAM:
                yield listener.recv(4096)
                continue
            connection, _ = listener.accept()
        except BlockingIOError:
            return
        with connection:
            connection.setblocking(False)
            try:
                yield connection.recv(4096)
            except OSError:
                yield b""


@contextlib.contextmanager
def victim() -> Iterator[Victim]:
    """Be a host that has something to lose, until the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="envweave-victim-"))
    folder.chmod(0o755)
    one = Victim(folder)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        file = folder / "secret.txt"
        file.write_text(one.secret)
        file.chmod(0o644)
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = one.secret
        stack.callback(_restore, before)
        # More copies, a page apart, than the threshold of attacks that scan memory for it.
        one.in_memory.extend(f"{one.mark}{one.secret}{i:08}".encode() * 64 for i in range(256))
        one.listeners.update(_listen(folder))
        for listener in one.listeners.values():
            listener.setblocking(False)
            stack.callback(listener.close)
        yield one


def _restore(before: str | None) -> None:
    if before is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = before


def _listen(folder: Path) -> Iterator[tuple[str, socket.socket]]:
    yield "PORT", socket.create_server(("127.0.0.1", 0), backlog=128)
    for kind, number in (("stream", socket.SOCK_STREAM), ("datagram", socket.SOCK_DGRAM)):
        path = folder / f"{kind}.sock"
        for name, address in (
            ("ABSTRACT", f"\0envweave-{secrets.token_hex(8)}"),
            ("UNIXPATH", str(path)),
        ):
            listener = socket.socket(socket.AF_UNIX, number)
            listener.bind(address)
            if number == socket.SOCK_STREAM:
                listener.listen(128)
            yield f"{name} {kind}", listener
        path.chmod(0o777)
