"""Messages that were written one by one, put into one frame: of calls, or of replies.

What is written by itself can be sent again by itself, and a frame never grows past a limit that
its parts keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from envweave.wire.encoding import Encoding
from envweave.wire.messages import MAX_CALLS

CALLS_BYTES: Final = 1 << 14
"""How large a frame of gathered calls may be."""

REPLIES_BYTES: Final = 1 << 18
"""How large a frame of gathered replies may be."""

_CALLS: Final = {
    False: (b"\x82\xa5calls", b"\xa8together\xc2"),
    True: (b'{"calls":[', b'],"together":false}'),
}
_REPLIES: Final = {False: (b"\x81\xa7replies", b""), True: (b'{"replies":[', b"]}")}

_AROUND: Final = 64  # no less than what is put around the parts


def gather_calls(
    encoding: Encoding, calls: Iterable[bytes], limit_bytes: int = 0
) -> Iterator[bytes]:
    """Yield encoded calls in as few frames as they fit in; each call is answered by itself.

    Args:
        encoding: How they are encoded.
        calls: At most one a session.
        limit_bytes: How large a frame the server takes; 0 if that is not known.
    """
    limit = min(CALLS_BYTES, limit_bytes - _AROUND) if limit_bytes else CALLS_BYTES
    return _gather(encoding, _CALLS[encoding.is_text], calls, limit)


def gather_replies(encoding: Encoding, replies: Iterable[bytes]) -> Iterator[bytes]:
    """Yield encoded replies in as few frames as they fit in. They are asked for one by one."""
    return _gather(encoding, _REPLIES[encoding.is_text], replies, REPLIES_BYTES)


def _gather(
    encoding: Encoding, around: tuple[bytes, bytes], parts: Iterable[bytes], limit: int
) -> Iterator[bytes]:
    some: list[bytes] = []
    size = 0
    for part in parts:
        if some and (size + len(part) > limit or len(some) == MAX_CALLS):
            yield _joined(some, around, is_text=encoding.is_text)
            some, size = [], 0
        some.append(part)
        size += len(part) + 1  # in JSON, a comma
    if some:
        yield _joined(some, around, is_text=encoding.is_text)


def _joined(parts: list[bytes], around: tuple[bytes, bytes], *, is_text: bool) -> bytes:
    if len(parts) == 1:
        return parts[0]
    before, after = around
    if is_text:
        return before + b",".join(parts) + after
    count = len(parts)
    length = bytes((0x90 | count,)) if count < 16 else b"\xdc" + count.to_bytes(2, "big")
    return b"".join((before, length, *parts, after))
