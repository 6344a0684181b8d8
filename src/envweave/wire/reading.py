"""From decoded data to a message of a known kind."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from envweave.errors import WireError

T = TypeVar("T")


def read_as(plain: Any, kind: type[T], refusal: str) -> T:
    """Return decoded data as a `kind`.

    Raises:
        WireError: It is none; the message begins with `refusal`.
    """
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise WireError(f"{refusal}: {error}") from None
    except Exception as error:  # noqa: BLE001 - whatever a stranger sent
        raise WireError(f"{refusal}: {type(error).__name__}") from None
