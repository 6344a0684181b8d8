"""Fingerprints of values, which recordings and restored episodes are compared by."""

from __future__ import annotations

import enum
import hashlib
import sys
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from msgspec.msgpack import Ext

from envweave.codec.to_builtins import to_plain


def digest(value: Any) -> str:
    """Return a fingerprint of `value`: 32 hexadecimal digits, equal for equal values.

    It is of the content, not of the class: a dataclass has the fingerprint of a dict of its
    fields, a tuple that of a list, so that an observation has the same one on every backend.
    Arrays differ by dtype and shape.
    """
    try:
        packed = _pack(value)
    except (TypeError, ValueError, OverflowError):
        # Integers over 64 bits, keys of several types, lone surrogates.
        packed = repr(_sorted(to_plain(value))).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(packed, digest_size=16).hexdigest()


def _as_native(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OV":
        flat = np.ascontiguousarray(value)
        return Ext(1, f"{flat.dtype.str}{value.shape}".encode() + flat.tobytes())
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, enum.Enum):
        return value.value
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(value, pydantic.BaseModel):
        return value.model_dump(warnings=False)
    return to_plain(value)


_pack = msgspec.msgpack.Encoder(enc_hook=_as_native, order="sorted").encode


def _sorted(plain: Any) -> Any:
    if isinstance(plain, dict):
        return sorted((key, _sorted(one)) for key, one in plain.items())
    return [_sorted(one) for one in plain] if isinstance(plain, list) else plain
