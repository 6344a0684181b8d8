"""What an operator may decide about a server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How a server runs its sessions.

    Attributes:
        max_sessions: How many there may be at once.
        queue_size: How many callers may wait for a session when there are so many. A caller waits
            only if it asks to, with `wait_s`.
        queue_timeout_s: How long one of them may wait at most, whatever its `wait_s`.
        session_ttl_s: How long a session may go without a call. It is never closed in mid-call.
        resume_ttl_s: How long a session waits for its caller when the connection is lost.
        timeout_s: How long an environment's own call may take, where the caller wants no less.
        drain_s: How long running episodes may go on when the server is told to stop.
        head_timeout_s: How long the head of a request may take to come. Only a server that is
            started by `serve` can keep to it; an application sees no heads.
        workers: How many processes run the environments; 0 for this one.
        threads: How many threads run plain functions, in each process.
        max_stuck: With more threads than this stuck in calls past their deadline, the server
            is not ready any more.
        max_message_bytes: How large a body or a frame may be.
        replies_kept: How many replies of a session are kept for a caller that asks again.
        token: What a caller must show; none is asked for if it is `None`.
        allowed_hosts: What a `Host` header may name besides loopback and the bound address;
            `"*"` for anything.
        allowed_origins: Which web pages may call, besides none.
        insecure: Whether anybody may call, also from other machines, where no token is asked for.
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
