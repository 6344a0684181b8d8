"""Reading what the caller of a new session wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from envweave.codec.spec import short
from envweave.errors import OptionError
from envweave.server.place import Wishes
from envweave.session import Position

MAX_S = 1e8
"""How many seconds a caller may ask for at most: three years."""


def read_wishes(params: dict[str, Any], limit_s: float | None) -> Wishes:
    """Return what the caller of `open` wants.

    Raises:
        OptionError: It is something that cannot be had.
    """
    unknown = params.keys() - {"autoreset", "timeout_s", "position", "wait_s"}
    if unknown:
        raise OptionError(f"open() takes no {sorted(map(str, unknown))[0]!r}.")
    autoreset = params.get("autoreset", False)
    if not isinstance(autoreset, bool):
        raise OptionError(f"autoreset={short(autoreset)} is neither true nor false.")
    timeout_s = read_seconds(params.get("timeout_s"))
    if limit_s is not None:
        timeout_s = limit_s if timeout_s is None else min(timeout_s, limit_s)
    return Wishes(autoreset, timeout_s, _read_position(params.get("position")))


def read_seconds(value: Any) -> float | None:
    """Return how long a caller grants.

    Raises:
        OptionError: It is no number of seconds.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_S:
        raise OptionError(f"timeout_s={short(value)} is no number of seconds above 0.")
    return float(value)


CANNOT_WAIT: Mapping[str, Any] = {"wait_s": None}
"""What opens a session for a caller that has no way to ask for `wait_s`, nor is advised to."""


def read_wait(value: Any) -> float:
    """Return how long a caller wants to wait for a session where none is free.

    Raises:
        OptionError: It is no number of seconds.
    """
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_S:
        raise OptionError(f"wait_s must be a number of seconds of 0 or more, got {short(value)}.")
    return float(value)


def _read_position(value: Any) -> Position | None:
    if value is None:
        return None
    checks: tuple[Callable[[Any], bool], ...] = (
        lambda base: base is None or (_is_whole(base) and base >= 0),
        _is_whole,
        _is_whole,
        lambda prefix: isinstance(prefix, str) and len(prefix) <= 200,
    )
    if not isinstance(value, list) or len(value) != len(checks):
        raise OptionError("position is none that a reset has told.")
    if not all(check(one) for check, one in zip(checks, value, strict=True)):
        raise OptionError("position is none that a reset has told.")
    return Position(*value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -1 <= value < 2**64
