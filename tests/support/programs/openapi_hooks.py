"""Requests that schemathesis does not send, because no schema decides whether they are valid.

Its command loads this module by `SCHEMATHESIS_HOOKS`.
"""

from __future__ import annotations

from typing import Any

import schemathesis

from envweave.wire.faults import KINDS

CODES = {kind.code for kind in KINDS}


def is_decidable(body: Any) -> bool:
    """Whether the schema alone decides if a body is accepted.

    It does not for the answer to a tool call, which must be open, for the id of a task, which must
    exist, and for a deadline that cannot be met. A whole number with a fraction, such as 1.0, is
    an integer to JSON Schema, and none to a field of an action whose type is `int`.
    """
    if not isinstance(body, dict):
        return True
    timeout_s = body.get("timeout_s")
    is_hasty = isinstance(timeout_s, int | float) and 0 < timeout_s < 1
    depends = "answer" in body or body.get("task") is not None or is_hasty
    return not (depends or _has_whole_float(body))


def _has_whole_float(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_whole_float, value.values()))
    if isinstance(value, list):
        return any(map(_has_whole_float, value))
    return isinstance(value, float) and value.is_integer()


@schemathesis.hook
def filter_body(context: Any, body: Any) -> bool:
    return is_decidable(body)


@schemathesis.check
def refusal_has_a_known_code(context: Any, response: Any, case: Any) -> None:
    """A custom check: what is refused says why by a code of the table."""
    if response.status_code >= 400 and case.path != "/ready":
        body = response.json()
        code = body["error"]["code"]
        if case.path == "/mcp" and "jsonrpc" in body:  # the SDK's refusals have JSON-RPC's codes
            assert code == -32600, code
            return
        assert code in CODES, code
