"""Values in a recording: JSON in our dialect, with large arrays and bytes in files of their own.

`{"$value": DIGEST, "kind": "ndarray", "shape": [...], "dtype": "...", "bytes": n}` stands for the
value in `values/DIGEST.msgpack`, which is written before the line that names it. Equal values are
stored once.
"""

from __future__ import annotations

import base64
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any, final

import msgspec
import numpy as np

from envweave.codec.digest import digest
from envweave.errors import RecordingError, WireError
from envweave.wire.encoding import MSGPACK
from envweave.wire.json_dialect import from_dialect, to_dialect

VALUES = "values"
"""The folder of large values, in the directory of a run."""

LARGE = 4096
"""From how many bytes on an array or bytes are stored aside."""

LARGE_TEXT = 256 * 1024
"""The same for a string."""

_KNOWN = 100_000  # how many digests of stored values a writer remembers
_CACHED_BYTES = 64 * 2**20  # how much a reader keeps of the values it has read

_write = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder().decode
_SCALARS = (str, bool, int, type(None))


@final
class ValueWriter:
    """Writes values as JSON, large ones into files of the run's directory."""

    def __init__(self, directory: Path) -> None:
        self._folder = directory / VALUES
        self._stored: OrderedDict[str, None] = OrderedDict()

    def to_json(self, plain: Any) -> msgspec.Raw:
        """Return plain data as JSON in our dialect.

        Raises:
            OSError: A large value could not be stored.
        """
        kind = type(plain)
        if kind is dict or kind is list or kind in _SCALARS:
            # Most values are the same in standard JSON, which reading them back shows in less
            # time than looking at each would take.
            try:
                text = _write(plain)
                if len(text) < LARGE_TEXT and b'"$' not in text and _read(text) == plain:
                    return msgspec.Raw(text)
            except (TypeError, ValueError, OverflowError, msgspec.MsgspecError):
                pass
        return msgspec.Raw(_write(self._dialect(plain)))

    def _dialect(self, plain: Any) -> Any:
        kind = type(plain)
        if kind is list or kind is tuple:
            return [self._dialect(one) for one in plain]
        if kind is dict:
            if not all(type(key) is str and _is_valid(key) for key in plain):
                pairs = plain.items()
                return {"$map": [[self._dialect(key), self._dialect(one)] for key, one in pairs]}
            inside = {key: self._dialect(one) for key, one in plain.items()}
            return {"$dict": inside} if any(key[:1] == "$" for key in plain) else inside
        if kind is np.ndarray and plain.nbytes >= LARGE:
            about = {"shape": list(plain.shape), "dtype": plain.dtype.str, "bytes": plain.nbytes}
            return {"$value": self._store(plain), "kind": "ndarray", **about}
        if kind is bytes and len(plain) >= LARGE:
            return {"$value": self._store(plain), "kind": "bytes", "bytes": len(plain)}
        if kind is str and len(plain) >= LARGE_TEXT:
            return {"$value": self._store(plain), "kind": "str", "bytes": len(plain)}
        if kind is str:
            return _text(plain)
        return to_dialect(plain)

    def _store(self, plain: Any) -> str:
        name = digest(plain)
        if name in self._stored:
            return name
        path = self._folder / f"{name}.msgpack"
        if not path.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            # Renamed when it is complete: another writer may store the same value now.
            part = path.with_name(f".{name}-{os.getpid()}-{id(self):x}.part")
            try:
                part.write_bytes(MSGPACK.encode(plain))
                part.replace(path)
            except OSError:
                part.unlink(missing_ok=True)
                raise
        self._stored[name] = None
        if len(self._stored) > _KNOWN:
            self._stored.popitem(last=False)
        return name


def _text(plain: str) -> Any:
    if _is_valid(plain):
        return plain
    packed = base64.b64encode(plain.encode("utf-8", "surrogatepass"))
    return {"$text": packed.decode("ascii")}


def _is_valid(plain: str) -> bool:
    """Whether JSON can express a string: it has no lone surrogates."""
    try:
        plain.encode()
    except UnicodeEncodeError:
        return False
    return True


@final
class ValueReader:
    """Reads values from the JSON of a recording."""

    def __init__(self, directory: Path) -> None:
        self._folder = directory / VALUES
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._cached_bytes = 0

    def read(self, value: Any, *, has_marks: bool = True) -> Any:
        """Return the plain data in a value of a line that was decoded as JSON.

        Raises:
            RecordingError: A large value is missing.
            WireError: The value is not in our dialect.
        """
        return from_dialect(self._resolve(value)) if has_marks else value

    def _resolve(self, value: Any) -> Any:
        if type(value) is list:
            return [self._resolve(one) for one in value]
        if type(value) is not dict:
            return value
        if "$value" in value:
            return self._load(str(value["$value"]))
        if "$dict" in value and type(value["$dict"]) is dict:
            return {"$dict": {key: self._resolve(one) for key, one in value["$dict"].items()}}
        return {key: self._resolve(one) for key, one in value.items()}

    def _load(self, name: str) -> Any:
        packed = self._cache.get(name)
        if packed is None:
            if not name.isalnum():
                raise RecordingError(
                    f"The recording names a value {name[:40]!r}, which is not a digest."
                )
            try:
                packed = (self._folder / f"{name}.msgpack").read_bytes()
            except OSError as error:
                raise RecordingError(
                    f"The recording's value {name} cannot be read from {str(self._folder)!r}: "
                    f"{error.strerror}. Copy a run with its folder {VALUES!r}."
                ) from error
            self._cache[name] = packed
            self._cached_bytes += len(packed)
            while self._cached_bytes > _CACHED_BYTES and len(self._cache) > 1:
                self._cached_bytes -= len(self._cache.popitem(last=False)[1])
        try:
            return MSGPACK.decode(packed)
        except WireError as error:
            raise RecordingError(f"The recording's value {name} is damaged: {error}") from error
