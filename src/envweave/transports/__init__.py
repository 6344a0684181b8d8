"""What carries calls to a session: in this process, and later beyond it."""

from envweave.transports.protocol import AsyncTransport, Transport

__all__ = ["AsyncTransport", "Transport"]
