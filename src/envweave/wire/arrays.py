"""Arrays as bytes: a short header with dtype and shape, then the elements."""

from __future__ import annotations

import functools
import math
import re
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from envweave.errors import WireError

_DTYPES = re.compile(
    r"\|b1|[|<>][iu][1248]|\|S[1-9][0-9]{0,8}|[<>]U[1-9][0-9]{0,8}|[<>](?:f[248]|c8|c16)"
)
_MAX_DIMENSIONS = 32  # supported by every numpy version
_MAX_EMPTY = 2**20  # how many empty rows an array without elements may have

AnyArray = np.ndarray[Any, Any]


class Layout(NamedTuple):
    """Dtype, shape and size in bytes of an array."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    size: int


def as_contiguous(array: AnyArray) -> AnyArray | None:
    """Return the array in C order with a dtype that can be sent; `None` if there is none."""
    kind = array.dtype.kind
    if kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    elif kind == "c" and array.dtype.itemsize > 16:
        array = array.astype(np.complex128)
    elif kind not in "biufcSU" or not array.dtype.itemsize:
        return None
    # Not `ascontiguousarray`, which turns a 0-d array into a 1-d one.
    return np.asarray(array, order="C")


def stack_rows(rows: Sequence[Any]) -> AnyArray | None:
    """Return one array of many; `None` if dtypes or shapes differ, or they are not numeric."""
    first = rows[0]
    count, dtype, shape = len(rows), first.dtype, first.shape
    if dtype.kind not in "biuf" or dtype.itemsize > 8 or not first.size:
        return None
    if list(map(type, rows)).count(np.ndarray) < count:
        return None
    if [row.dtype for row in rows].count(dtype) < count:
        return None
    if [row.shape for row in rows].count(shape) < count:
        return None
    try:
        blob = b"".join(rows)  # fast; raises for arrays that are not contiguous
    except (BufferError, TypeError, ValueError):
        blob = b"".join([row.tobytes() for row in rows])
    return np.ndarray((count, *shape), dtype, blob)


def to_lists(array: AnyArray) -> Any:
    """Return the elements in nested lists of Python values; dates and times as strings."""
    if array.dtype.kind in "mM":
        array = array.astype(str)
    elif array.dtype.kind == "f":
        array = array.astype(np.float64)  # `tolist` of a longdouble returns no floats
    elif array.dtype.kind == "c":
        array = array.astype(np.complex128)
    return array.tolist()


def pack(array: AnyArray) -> bytes:
    """Return the header and the elements of a `as_contiguous` array."""
    if array.dtype.kind == "U":
        # numpy arrays of strings have no buffer.
        return header(array.dtype, array.shape) + array.tobytes()
    return b"".join((header(array.dtype, array.shape), array.data))


@functools.lru_cache(maxsize=256)
def header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return what `pack` writes before the elements."""
    name = dtype.str.encode()
    return struct.pack(f"<BB{len(name)}s{len(shape)}Q", len(name), len(shape), name, *shape)


def unpack(data: bytes | memoryview) -> AnyArray:
    """Return the array that was packed. It is writable, and shares nothing with `data`.

    Raises:
        WireError: The data is not a valid array.
    """
    if len(data) < 2:
        raise WireError("The header of an array is cut off.")
    end = 2 + data[0] + 8 * data[1]
    if len(data) < end:
        raise WireError("The header of an array is cut off.")
    return fill(_layout_in(bytes(data[:end])), data, end)


@functools.lru_cache(maxsize=256)
def _layout_in(header: bytes) -> Layout:
    size, dimensions = header[0], header[1]
    try:
        name = header[2 : 2 + size].decode("ascii")
    except UnicodeDecodeError:
        raise WireError("An array has a dtype that is not ASCII.") from None
    return layout(name, struct.unpack_from(f"<{dimensions}Q", header, 2 + size))


def layout(dtype: str, shape: tuple[int, ...]) -> Layout:
    """Return the layout of an array with a dtype and a shape.

    Raises:
        WireError: The dtype is not supported, or the shape is invalid.
    """
    if not _DTYPES.fullmatch(dtype):
        raise WireError(f"An array has the dtype {dtype[:40]!r}, which is not supported.")
    if len(shape) > _MAX_DIMENSIONS:
        raise WireError(f"An array has {len(shape)} dimensions.")
    rows = math.prod(length for length in shape if length)
    if 0 in shape and rows > _MAX_EMPTY:
        raise WireError("An array without elements is too large.")
    kind = np.dtype(dtype)
    return Layout(kind, shape, math.prod(shape) * kind.itemsize)


def fill(layout: Layout, data: bytes | memoryview, start: int = 0) -> AnyArray:
    """Return the array whose elements begin at `start`, as a writable copy.

    Raises:
        WireError: There are too few or too many bytes, or invalid characters or bools.
    """
    dtype, shape, size = layout
    if size != len(data) - start:
        raise WireError(f"An array of {dtype} and shape {shape[:8]} has {len(data) - start} bytes.")
    if not size:
        return np.empty(shape, dtype)
    array: AnyArray = np.ndarray(shape, dtype, data, start).copy()
    if dtype.kind == "U":
        points = np.frombuffer(data, dtype.str[0] + "u4", offset=start)
        if int(points.max()) > 0x10FFFF:
            raise WireError("An array of strings contains invalid characters.")
    elif dtype.kind == "b" and bool((array.view(np.uint8) > 1).any()):
        raise WireError("An array of bools contains other values.")
    return array
