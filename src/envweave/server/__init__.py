"""Environments behind HTTP and WebSocket: sessions, exactly once, in threads or workers."""
