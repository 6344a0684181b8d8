"""The options of a server."""

from __future__ import annotations

from dataclasses import dataclass

DIALECTS = ("openenv", "mcp", "ors", "nemo-gym")
"""The dialects besides envweave's own: OpenEnv, MCP, the Open Reward Standard, NeMo-Gym."""


OF_ONE_AGENT = ("ors", "nemo-gym")
"""Those that cannot serve an environment with several agents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How a server runs its sessions.

    Attributes:
        max_sessions: Maximum number of concurrent sessions.
        queue_size: Maximum number of clients that wait for a session when all are in use. A client
            waits only if it asks to, with `wait_s`.
        queue_timeout_s: Maximum time that a client waits, whatever its `wait_s`.
        session_ttl_s: Time without a call after which a session is closed, never during a call.
        resume_ttl_s: Time that a session waits for its client after a lost connection.
        timeout_s: Time limit of one call of an environment; a client can ask for less.
        drain_s: Time that running episodes may continue when the server is stopping.
        head_timeout_s: Time limit for receiving the head of a request. Only enforced by a server
            that is started by `serve`; an application does not see heads.
        workers: Number of processes that run the environments; 0 for the server process.
        threads: Maximum number of threads for synchronous environments, in each process.
        max_stuck: With more threads than this stuck in calls past their deadline, the server
            reports that it is not ready.
        max_message_bytes: Maximum size of a body or a frame.
        replies_kept: Number of replies of a session that are stored for retries.
        token: The token that a client must send; `None` for none.
        allowed_hosts: Valid `Host` headers besides loopback and the bound address; `"*"` for any.
        allowed_origins: Origins of web pages that may call; none by default.
        insecure: Whether other machines may call although no token is required.
        record: The directory to record the episodes of all sessions into; `None` for none.
        dialects: Which of `DIALECTS` clients may use besides envweave's own; `None` for all.
    """

    max_sessions: int = 1024
    queue_size: int = 256
    queue_timeout_s: float = 600.0
    session_ttl_s: float = 3600.0
    resume_ttl_s: float = 60.0
    timeout_s: float | None = None
    drain_s: float = 30.0
    head_timeout_s: float = 20.0
    workers: int = 0
    threads: int = 64
    max_stuck: int = 8
    max_message_bytes: int = 16 * 2**20
    replies_kept: int = 8
    token: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    insecure: bool = False
    record: str | None = None
    dialects: tuple[str, ...] | None = None

    def has_dialect(self, name: str) -> bool:
        """Whether clients may use a dialect."""
        return self.dialects is None or name in self.dialects
