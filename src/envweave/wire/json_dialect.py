"""Our dialect of JSON, for values that JSON cannot express.

{"$float": "nan"}                                NaN; "inf" and "-inf" likewise
{"$int": "36893488147419103232"}                 an integer beyond 64 bits; a very long one in
                                                 hexadecimal, with 0x
{"$bytes": "aGVsbG8="}                           bytes, in base64
{"$array": "AACAPw==", "dtype": "<f4", "shape": [1]}   an array, its elements in base64 or in
                                                 nested lists
{"$complex": [1.0, 0.0]}                         a complex number
{"$time": "2026-01-01T00:00:00Z"}                a datetime
{"$text": "7aCA"}                                a string with lone surrogates
{"$map": [[1, "one"]]}                           a dict with keys that are not strings
{"$dict": {"$float": "nan"}}                     a dict with a key that begins with `$`
"""

from __future__ import annotations

import base64
import binascii
import datetime
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec
import numpy as np

from envweave.codec import Mismatch
from envweave.codec.scalars import ArraySpec
from envweave.errors import WireError
from envweave.wire import arrays

_DIGITS = 4000
"""How long an integer in decimal may be; reading one takes quadratic time."""

_DECIMAL = re.compile("-?[0-9]+")
_HEXADECIMAL = re.compile("-?0x[0-9a-f]+")

SAME_HASH = 32
"""How many keys of one dict may share a hash; a lookup takes time proportional to it."""


class Surrogates(NamedTuple):
    """A string with lone surrogates, encoded with `surrogatepass`."""

    utf8: bytes

    @property
    def text(self) -> str:
        """The string itself."""
        return self.utf8.decode("utf-8", "surrogatepass")


def to_dialect(plain: Any) -> Any:
    """Return plain data in our dialect of JSON."""
    kind = type(plain)
    if kind is str or kind is bool or plain is None:
        return plain
    if kind is float:
        return plain if math.isfinite(plain) else {"$float": repr(plain)}
    if kind is int:
        return plain if -(2**63) <= plain < 2**64 else {"$int": digits(plain)}
    if kind is list or kind is tuple:  # a key may be a tuple
        return [to_dialect(one) for one in plain]
    if kind is dict:
        return _dict_to_dialect(plain)
    return _leaf_to_dialect(plain)


def _dict_to_dialect(plain: dict[Any, Any]) -> dict[str, Any]:
    if not all(type(key) is str for key in plain):
        return {"$map": [[to_dialect(key), to_dialect(one)] for key, one in plain.items()]}
    inside = {key: to_dialect(one) for key, one in plain.items()}
    return {"$dict": inside} if any(key[:1] == "$" for key in plain) else inside


def _leaf_to_dialect(plain: Any) -> Any:
    if isinstance(plain, bytes):
        return {"$bytes": _base64(plain)}
    if isinstance(plain, np.ndarray):
        flat = np.ascontiguousarray(plain)
        shape = list(plain.shape)
        return {"$array": _base64(flat.tobytes()), "dtype": flat.dtype.str, "shape": shape}
    if isinstance(plain, complex):
        return {"$complex": [to_dialect(plain.real), to_dialect(plain.imag)]}
    if isinstance(plain, datetime.datetime):
        return {"$time": plain.isoformat()}
    if isinstance(plain, Surrogates):
        return {"$text": _base64(plain.utf8)}
    raise WireError(f"A {type(plain).__name__} is not plain data.")


def standard(plain: Any) -> Any:
    """Return plain data for standard JSON.

    Arrays become nested lists, bytes base64, and keys strings. NaN and infinities become null.
    """
    kind = type(plain)
    if kind is str or kind is bool or kind is float or plain is None:
        return plain  # the encoder writes NaN as null
    if kind is int:
        return plain if -(2**63) <= plain < 2**64 else _long(plain)
    if kind is list or kind is tuple:
        return [standard(one) for one in plain]
    if kind is dict:
        return {_name(key): standard(one) for key, one in plain.items()}
    if isinstance(plain, Surrogates):
        return plain.text.encode("utf-8", "replace").decode()
    if isinstance(plain, np.ndarray):
        if plain.dtype.kind == "U":  # its strings are not wrapped in `Surrogates`
            replaced = np.char.decode(np.char.encode(plain, "utf-8", "replace"), "utf-8")
            return replaced.tolist()
        return standard(arrays.to_lists(plain))
    if isinstance(plain, complex):
        return [plain.real, plain.imag]
    return plain  # bytes and datetimes, which the encoder knows


def _name(key: Any) -> str:
    plain = standard(key)
    if isinstance(plain, msgspec.Raw):
        return bytes(plain).decode()
    return plain if isinstance(plain, str) else str(plain)


def _long(number: int) -> Any:
    text = digits(number)
    return text if text.lstrip("-").startswith("0x") else msgspec.Raw(text.encode())


def digits(number: int) -> str:
    """Return an integer in decimal; a very long one in hexadecimal."""
    return str(number) if number.bit_length() < 3 * _DIGITS else hex(number)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _from_base64(text: Any) -> bytes:
    return binascii.a2b_base64(_text_in(text), strict_mode=True)


def from_dialect(value: Any) -> Any:
    """Return the plain data in a value of our dialect of JSON.

    Raises:
        WireError: It does not follow the dialect.
    """
    if type(value) is list:
        return [from_dialect(one) for one in value]
    if type(value) is not dict:
        return value
    for key in value:
        if key[:1] == "$" and key in _MARKS:
            return _read_mark(key, value)
    return {key: from_dialect(one) for key, one in value.items()}


def _read_mark(mark: str, value: dict[str, Any]) -> Any:
    if len(value) > 1 and mark != "$array":
        raise WireError(f"{mark} must be the only key of its object.")
    try:
        return _MARKS[mark](value)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        if isinstance(error, WireError):
            raise
        raise WireError(f"A {mark} cannot be read: {type(error).__name__}.") from None


def _read_float(value: dict[str, Any]) -> float:
    if value["$float"] not in ("nan", "inf", "-inf"):
        raise WireError("A $float must be nan, inf or -inf.")
    return float(value["$float"])


def _read_int(value: dict[str, Any]) -> int:
    text = _text_in(value["$int"])
    if _HEXADECIMAL.fullmatch(text):
        return int(text, 16)
    if len(text) > _DIGITS + 1 or not _DECIMAL.fullmatch(text):
        raise WireError(f"A $int must have at most {_DIGITS} digits, or be hexadecimal.")
    return int(text)


def _read_bytes(value: dict[str, Any]) -> bytes:
    return _from_base64(value["$bytes"])


def _read_array(value: dict[str, Any]) -> Any:
    dtype, elements = _text_in(value["dtype"]), value["$array"]
    if isinstance(elements, list):
        return _from_lists(dtype, elements)
    shape = value["shape"]
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise WireError("The shape of a $array must be a list of integers >= 0.")
    data = _from_base64(elements)
    return arrays.fill(arrays.layout(dtype, tuple(shape)), data)


def _from_lists(dtype: str, elements: list[Any]) -> Any:
    kind = arrays.layout(dtype, ()).dtype
    if kind.kind not in "biuf":
        raise WireError(f"A $array of {kind} must have its elements in base64.")
    try:
        return ArraySpec(dtype=kind).read(from_dialect(elements))
    except Mismatch as mismatch:
        raise WireError(f"The elements of a $array are not {kind}: {mismatch}") from None


def _read_complex(value: dict[str, Any]) -> complex:
    real, imaginary = (from_dialect(one) for one in value["$complex"])
    return complex(real, imaginary)


def _read_time(value: dict[str, Any]) -> datetime.datetime:
    return msgspec.convert(_text_in(value["$time"]), datetime.datetime)


def _read_text(value: dict[str, Any]) -> str:
    return _from_base64(value["$text"]).decode("utf-8", "surrogatepass")


def _read_map(value: dict[str, Any]) -> dict[Any, Any]:
    pairs = [(_frozen(from_dialect(key)), from_dialect(one)) for key, one in value["$map"]]
    refuse_colliding(key for key, _ in pairs)
    return dict(pairs)


def _read_dict(value: dict[str, Any]) -> dict[str, Any]:
    return {key: from_dialect(one) for key, one in dict.items(value["$dict"])}


def _frozen(key: Any) -> Any:
    return tuple(_frozen(one) for one in key) if isinstance(key, list) else key


def _text_in(value: Any) -> str:
    if not isinstance(value, str):
        raise WireError("The value of a mark must be a string.")
    return value


def refuse_colliding(keys: Iterable[Any]) -> None:
    """Refuse keys that were chosen to make a dict slow.

    Raises:
        WireError: Many of them share a hash.
    """
    hashes = Counter(map(hash, keys))
    if hashes and max(hashes.values()) > SAME_HASH:
        raise WireError("Many keys of one dict share a hash.")


_MARKS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "$float": _read_float,
    "$int": _read_int,
    "$bytes": _read_bytes,
    "$array": _read_array,
    "$complex": _read_complex,
    "$time": _read_time,
    "$text": _read_text,
    "$map": _read_map,
    "$dict": _read_dict,
}
