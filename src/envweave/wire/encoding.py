"""Encodes messages as bytes and back: MessagePack, our dialect of JSON, and standard JSON.

Encoding accepts anything: dataclasses, pydantic models, arrays, enums, an author's own objects.
Decoding returns plain data: `None`, bools, numbers, strings, bytes, lists, dicts, arrays and
datetimes. MessagePack and our dialect of JSON preserve all of these, including NaN, infinities,
integers of any length and keys of any type; tuples and sets arrive as lists.
"""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import msgspec

from envweave.errors import WireError, format_error
from envweave.wire import arrays
from envweave.wire.fallback_encoding import (
    ARRAY,
    COMPLEX,
    INT,
    TEXT,
    encode_fallback,
    encode_without_extensions,
    sanitized,
)
from envweave.wire.json_dialect import SAME_HASH, Surrogates, from_dialect, standard, to_dialect

Data = bytes | bytearray | memoryview | str


@final
@dataclass(frozen=True, slots=True)
class Encoding:
    """An encoding of messages.

    Attributes:
        name: Its name in options.
        subprotocol: The WebSocket subprotocol that selects it; empty for plain JSON.
        is_text: Whether it is sent as text.
        encode: Returns a message as bytes. Values without a wire form become their `repr`.
            Raises `WireError` only if it runs out of memory or recursion depth.
        decode: Returns the plain data in bytes or a string, or raises `WireError`.
    """

    name: str
    subprotocol: str
    is_text: bool
    encode: Callable[[Any], bytes]
    decode: Callable[[Data], Any]


class _LongNumbers(Exception):  # noqa: N818 - a signal, which no caller sees
    """A frame has numbers that must be read with `_careful`."""


def read_extension(code: int, data: memoryview) -> Any:
    """Return the value of one of our MessagePack extensions.

    Raises:
        WireError: It is not a valid one.
        Exception: It is a number, which only `Encoding.decode` reads.
    """
    if code == ARRAY:
        return arrays.unpack(data)
    if code == TEXT:
        return bytes(data).decode("utf-8", "surrogatepass")
    raise _LongNumbers


def _careful() -> Callable[[int, memoryview], Any]:
    """An extension reader for one frame that refuses numbers chosen to make dicts slow."""
    seen: defaultdict[int, set[bytes]] = defaultdict(set)

    def read(code: int, data: memoryview) -> Any:
        if code == INT:
            number: Any = int.from_bytes(data, "little", signed=True)
        elif code == COMPLEX:
            if len(data) != 16:
                raise WireError("A complex number has 16 bytes.")
            number = complex(*struct.unpack("<dd", data))
        elif code in (ARRAY, TEXT):
            return read_extension(code, data)
        else:
            raise WireError(f"There is no extension {code}.")
        colliding = seen[hash(number)]
        colliding.add(bytes(data))
        if len(colliding) > SAME_HASH:
            raise WireError("Many numbers of the frame share a hash.")
        return number

    return read


_pack = msgspec.msgpack.Encoder(enc_hook=encode_fallback).encode
_unpack = msgspec.msgpack.Decoder(ext_hook=read_extension).decode
_write_json = msgspec.json.Encoder().encode
_write_standard = msgspec.json.Encoder(enc_hook=encode_without_extensions).encode
_read_json = msgspec.json.Decoder().decode


def _encode_msgpack(message: Any) -> bytes:
    try:
        return _pack(message)
    except Exception:  # noqa: BLE001 - an author's code, or a value that MessagePack cannot write
        return _second_try(lambda: _pack(sanitized(message)))


def _encode_json(message: Any) -> bytes:
    try:
        return _write_json(to_dialect(_unpack(_pack(message))))
    except Exception:  # noqa: BLE001
        return _second_try(lambda: _write_json(to_dialect(_in_between(_pack(sanitized(message))))))


def _encode_standard(message: Any) -> bytes:
    try:
        return _write_standard(message)
    except Exception:  # noqa: BLE001
        return _second_try(
            lambda: _write_standard(standard(_in_between(_pack(sanitized(message)))))
        )


def _second_try(encode: Callable[[], bytes]) -> bytes:
    try:
        return encode()
    except Exception as error:
        raise WireError(f"A message cannot be encoded: {format_error(error)}") from error


def _in_between(packed: bytes) -> Any:
    """Decode data on its way to JSON, marking strings that JSON cannot express."""
    careful = _careful()

    def read(code: int, data: memoryview) -> Any:
        return Surrogates(bytes(data)) if code == TEXT else careful(code, data)

    return msgspec.msgpack.Decoder(ext_hook=read).decode(packed)


def _decode_msgpack(data: Data) -> Any:
    if isinstance(data, str):
        raise WireError("A MessagePack frame must be binary, got text.")
    try:
        try:
            return _unpack(data)
        except _LongNumbers:
            return msgspec.msgpack.Decoder(ext_hook=_careful()).decode(data)
    except Exception as error:  # noqa: BLE001 - untrusted input
        raise _unreadable("MessagePack", error) from None


def _decode_json(data: Data) -> Any:
    try:
        text = data if isinstance(data, str | bytes) else bytes(data)
        value = _read_json(text)
        return from_dialect(value) if _may_have_marks(text) else value
    except Exception as error:  # noqa: BLE001 - untrusted input
        raise _unreadable("JSON", error) from None


def _may_have_marks(text: str | bytes) -> bool:
    if isinstance(text, str):
        return '"$' in text or "\\u" in text
    return b'"$' in text or b"\\u" in text


def _decode_standard(data: Data) -> Any:
    """Read JSON, including Python's extensions: NaN, and strings with lone surrogates."""
    try:
        text = data if isinstance(data, str | bytes) else bytes(data)
        try:
            return _read_json(text)
        except (msgspec.MsgspecError, UnicodeError):
            return json.loads(text)
    except Exception as error:  # noqa: BLE001 - untrusted input
        raise _unreadable("JSON", error) from None


def _unreadable(what: str, error: Exception) -> WireError:
    if isinstance(error, WireError):
        return error
    if isinstance(error, RecursionError):
        return WireError(f"The {what} is nested too deeply.")
    if isinstance(error, msgspec.MsgspecError | UnicodeError | json.JSONDecodeError):
        return WireError(f"Invalid {what}: {error}")
    return WireError(f"The {what} cannot be read: {type(error).__name__}.")


MSGPACK = Encoding(
    name="msgpack",
    subprotocol="envweave.v1.msgpack",
    is_text=False,
    encode=_encode_msgpack,
    decode=_decode_msgpack,
)
"""MessagePack, in binary frames."""

JSON = Encoding(
    name="json",
    subprotocol="envweave.v1.json",
    is_text=True,
    encode=_encode_json,
    decode=_decode_json,
)
"""Our dialect of JSON (`json_dialect.py`), in text frames."""

PLAIN_JSON = Encoding(
    name="plain_json",
    subprotocol="",
    is_text=True,
    encode=_encode_standard,
    decode=_decode_standard,
)
"""Standard JSON: arrays as lists, bytes as base64, NaN and infinities as null."""

ENCODINGS: dict[str, Encoding] = {"msgpack": MSGPACK, "json": JSON}
"""The encodings of our own dialect, by name."""

SUBPROTOCOLS: dict[str, Encoding] = {one.subprotocol: one for one in ENCODINGS.values()}
"""The same by WebSocket subprotocol."""
