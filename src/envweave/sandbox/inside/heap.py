"""Uses up the gaps of the template's heap, so that what a session allocates lies together.

A page that a session shares with the template is copied when the session first writes to it. New
objects in gaps between old ones are spread over hundreds of pages; without gaps they share a few.
"""

from __future__ import annotations

import ctypes

_POOL_BYTES = 1 << 14  # of pymalloc; objects of one size class share a pool
_POOL_HEADER_BYTES = 64
_SIZES = range(48, 513, 16)
_BYTES_OVERHEAD = 33  # of a `bytes` object, besides its content
_MALLOC_SIZES = (65536, 32768, 16384, 8192, 4096, 2048, *range(1040, 0, -16))
_MAX_BYTES = 1 << 22  # of objects, and again of blocks; half a megabyte is usual
_TOP_BYTES = 120_000  # below what malloc maps apart
_IN_ORDER = 4  # objects from the start of a pool on; a pool with gaps has none or few
_kept: list[bytes] = []


def fill_gaps() -> None:
    """Fill the gaps.

    Where the interpreter or malloc gives out addresses in another order, this finds no end of the
    gaps, and uses `_MAX_BYTES`.
    """
    left = _MAX_BYTES
    for size in _SIZES:
        last = in_order = 0
        while left > 0:
            left -= size
            one = bytes(size - _BYTES_OVERHEAD)
            _kept.append(one)
            if id(one) % _POOL_BYTES < _POOL_HEADER_BYTES:
                in_order = 1
            elif in_order:
                in_order = in_order + 1 if id(one) == last + size else 0
            if in_order == _IN_ORDER:
                break
            last = id(one)
    malloc = ctypes.CDLL(None).malloc
    malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    top = malloc(_TOP_BYTES) or 0
    left = _MAX_BYTES
    for size in _MALLOC_SIZES:
        while left > 0:
            left -= size
            if (malloc(size - 8) or 0) > top:
                break
