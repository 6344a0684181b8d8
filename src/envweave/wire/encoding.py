"""Encodes messages as bytes and back: MessagePack, our dialect of JSON, and standard JSON.

Encoding accepts anything: dataclasses, pydantic models, arrays, enums, an author's own objects.
Decoding returns plain data: `None`, bools, numbers, strings, bytes, lists, dicts, arrays and
datetimes. MessagePack and our dialect of JSON preserve all of these, including NaN, infinities,
integers of any length and keys of any type; tuples and sets arrive as lists.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import logging
import os
import struct
import sys
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, final

import msgspec
import numpy as np
from msgspec.msgpack import Ext

from envweave.errors import WireError, format_error
from envweave.types.tasks import Private
from envweave.wire import arrays
from envweave.wire.json_dialect import SAME_HASH, Surrogates, from_dialect, standard, to_dialect

ARRAY, INT, COMPLEX, TEXT = 1, 2, 3, 4
"""Our MessagePack extensions; `TEXT` is a string with lone surrogates."""

MAX_DEPTH = 100
"""How deep lists and dicts may be nested in a sanitized message."""

_MAX_REPR = 10_000
_NATIVE = (
    bytearray,
    memoryview,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    uuid.UUID,
)
_logger = logging.getLogger("envweave.wire")
_warned: set[str] = set()


@final
class _ExtKey:
    """A hashable wrapper of an extension, for keys of dicts."""

    def __init__(self, ext: Ext) -> None:
        self.ext = ext


def encode_fallback(value: Any) -> Any:
    """Return what MessagePack writes in place of a value that it does not know.

    Never raises, whatever the value's own code does.
    """
    if isinstance(value, np.ndarray):
        flat = arrays.as_contiguous(value)
        return arrays.to_lists(value) if flat is None else Ext(ARRAY, arrays.pack(flat))
    if isinstance(value, complex):
        return Ext(COMPLEX, np.array(value, "<c16").tobytes())
    if isinstance(value, _ExtKey):
        return value.ext
    return encode_without_extensions(value)


def encode_without_extensions(value: Any) -> Any:
    """Return the same for an encoder without extensions."""
    if isinstance(value, np.ndarray):
        return arrays.to_lists(value)
    if isinstance(value, Private):
        return {"withheld": True} if value else {}
    if isinstance(value, np.generic):
        return _scalar(value)
    if isinstance(value, complex):
        return [value.real, value.imag]
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, bytes):
        return memoryview(value)
    if isinstance(value, BaseException):
        return format_error(value)
    try:
        return _opened(value)
    except Exception as error:  # noqa: BLE001 - an author's code
        _logger.debug("%s could not be encoded: %s", type(value).__name__, format_error(error))
        return repr_of(value)


def _scalar(value: np.generic) -> Any:
    if value.dtype.kind in "mM":
        return str(value)
    if value.dtype.kind == "f":
        return float(value)  # `item` of a longdouble returns no float
    item = complex(value) if value.dtype.kind == "c" else value.item()
    return repr_of(value) if isinstance(item, np.generic) else item


def _opened(value: Any) -> Any:
    """The contents of a container, model, path or tensor; the `repr` of anything else."""
    if isinstance(value, type):
        return repr_of(value)
    if isinstance(value, Mapping):
        return dict(value.items())
    if isinstance(value, Sequence | Set):
        return list(value)
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(value, pydantic.BaseModel):
        return value.model_dump(warnings=False)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "__array__"):  # a tensor of another library
        return np.asarray(value)
    return repr_of(value)


def repr_of(value: Any) -> str:
    """Return a value's `repr`, which is sent in its place."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if kind not in _warned and len(_warned) < 1000:
        _warned.add(kind)
        _logger.warning("Values of %s have no wire form. They are sent as their repr.", kind)
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - an author's __repr__
        return f"<{kind}, whose repr failed with {type(error).__name__}>"
    return text if len(text) <= _MAX_REPR else text[: _MAX_REPR - 3] + "..."


def sanitized(value: Any) -> Any:
    """Return a message in a form that can always be encoded.

    It is slower than encoding the message directly, so that is tried first. Integers beyond 64
    bits and strings with lone surrogates become extensions. A value that contains itself, or is
    nested deeper than `MAX_DEPTH`, is replaced by a note.
    """
    return _sanitized(value, ())


def _sanitized(value: Any, within: tuple[int, ...]) -> Any:
    if value is None or isinstance(value, bool | float | bytes | Ext):
        return value
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, str):
        return _text(str.__str__(value))
    if isinstance(value, int):
        return _whole(int.__int__(value))
    if id(value) in within:
        return f"<a {type(value).__name__} within itself>"
    if len(within) >= MAX_DEPTH:
        return f"<a {type(value).__name__} nested too deeply>"
    within = (*within, id(value))
    if isinstance(value, dict):
        return {_key(key, within): _sanitized(one, within) for key, one in list(value.items())}
    if isinstance(value, list | tuple | set | frozenset):
        return [_sanitized(one, within) for one in list(value)]
    if isinstance(value, msgspec.Struct) or (
        dataclasses.is_dataclass(value) and not isinstance(value, type)
    ):
        return {name: _sanitized(one, within) for name, one in _fields(value)}
    return value if isinstance(value, _NATIVE) else _sanitized(encode_fallback(value), within)


def _fields(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        tag: list[Any] = [] if config.tag is None else [(config.tag_field, config.tag)]
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return [*tag, *((sent, getattr(value, name)) for sent, name in names)]
    return [
        (field.name, getattr(value, field.name))
        for field in dataclasses.fields(value)
        if hasattr(value, field.name)
    ]


def _key(key: Any, within: tuple[int, ...]) -> Any:
    return _frozen(_sanitized(key, within))


def _frozen(key: Any) -> Any:
    """A hashable form of a key."""
    if isinstance(key, list):
        return tuple(_frozen(one) for one in key)
    if isinstance(key, Ext):
        return _ExtKey(key)
    return str(key) if isinstance(key, dict) else key


def _text(value: str) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:
        return Ext(TEXT, value.encode("utf-8", "surrogatepass"))
    return value


def _whole(value: int) -> Any:
    if -(2**63) <= value < 2**64:
        return value
    size = (value.bit_length() + 8) // 8
    return Ext(INT, value.to_bytes(size, "little", signed=True))


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
