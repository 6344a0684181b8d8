"""The closed table of faults: how an error of the server's becomes the same error at its caller.

A fault has a code and a message, and never a traceback. What is in no row is `internal`.
"""

from __future__ import annotations

from dataclasses import dataclass

from envweave import errors
from envweave.errors import EnvWeaveError
from envweave.wire.messages import Fault


@dataclass(frozen=True, slots=True)
class Kind:
    """One row of the table.

    Attributes:
        code: What it is called on the wire.
        error: What it is at either end.
        status: Its HTTP status.
        openenv: What OpenEnv's dialect calls it.
    """

    code: str
    error: type[EnvWeaveError]
    status: int
    openenv: str


KINDS = (
    Kind("unreadable", errors.WireError, 400, "INVALID_JSON"),
    Kind("access_refused", errors.AccessError, 401, "SESSION_ERROR"),
    Kind("connection_lost", errors.ConnectionLostError, 503, "SESSION_ERROR"),
    Kind("session_gone", errors.SessionGoneError, 404, "SESSION_ERROR"),
    Kind("reset_needed", errors.ResetNeededError, 409, "EXECUTION_ERROR"),
    Kind("tool_call_open", errors.ToolCallOpenError, 409, "EXECUTION_ERROR"),
    Kind("busy", errors.BusyError, 409, "SESSION_ERROR"),
    Kind("closed", errors.ClosedError, 409, "SESSION_ERROR"),
    Kind("out_of_order", errors.CallOrderError, 409, "EXECUTION_ERROR"),
    Kind("action_refused", errors.ActionError, 422, "VALIDATION_ERROR"),
    Kind("seed_refused", errors.SeedError, 422, "VALIDATION_ERROR"),
    Kind("task_refused", errors.TaskError, 422, "VALIDATION_ERROR"),
    Kind("option_refused", errors.OptionError, 422, "VALIDATION_ERROR"),
    Kind("value_refused", errors.SpecError, 422, "VALIDATION_ERROR"),
    Kind("environment_lost", errors.EnvironmentLostError, 503, "EXECUTION_ERROR"),
    Kind("reset_failed", errors.ResetFailedError, 502, "EXECUTION_ERROR"),
    Kind("state_failed", errors.StateFailedError, 502, "EXECUTION_ERROR"),
    Kind("bad_return", errors.BadReturnError, 502, "EXECUTION_ERROR"),
    Kind("definition_failed", errors.DefinitionError, 502, "FACTORY_ERROR"),
    Kind("plugin_failed", errors.PluginError, 502, "FACTORY_ERROR"),
    Kind("extra_missing", errors.MissingExtraError, 502, "FACTORY_ERROR"),
    Kind("no_capacity", errors.CapacityError, 503, "CAPACITY_REACHED"),
    Kind("deadline", errors.DeadlineError, 504, "EXECUTION_ERROR"),
    Kind("internal", errors.ServerError, 500, "EXECUTION_ERROR"),
)

_BY_CODE = {kind.code: kind for kind in KINDS}
_BY_ERROR = {kind.error: kind for kind in KINDS}
INTERNAL = _BY_CODE["internal"]


def kind_of(error: BaseException) -> Kind:
    """Return the row of an error: that of its class, or of the nearest class above it."""
    for cls in type(error).__mro__:
        if cls in _BY_ERROR:
            return _BY_ERROR[cls]
    return INTERNAL


def fault_of(error: BaseException) -> Fault:
    """Return an error as it travels. What is not ours is not told to strangers."""
    kind = kind_of(error)
    if not isinstance(error, EnvWeaveError):
        return Fault(code=kind.code, message="The server failed. Its log says how.")
    return Fault(code=kind.code, message=str(error))


def error_of(fault: Fault) -> EnvWeaveError:
    """Return the error that a fault stands for."""
    return _BY_CODE.get(fault.code, INTERNAL).error(fault.message)


def kind_named(code: str) -> Kind:
    """Return the row with this code; `internal` where there is none."""
    return _BY_CODE.get(code, INTERNAL)
