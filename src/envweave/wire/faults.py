"""The closed table of faults: how an error at the server becomes the same error at the client.

A fault has a code and a message, never a traceback. An error that is in no row is `internal`.
"""

from __future__ import annotations

from dataclasses import dataclass

from envweave import errors
from envweave.errors import EnvWeaveError
from envweave.wire.messages import WireFault


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One row of the table.

    Attributes:
        code: Its code on the wire.
        error: The class of the error.
        status: Its HTTP status.
        openenv: Its code in OpenEnv's dialect.
    """

    code: str
    error: type[EnvWeaveError]
    status: int
    openenv: str


KINDS = (
    FaultKind("unreadable", errors.WireError, 400, "INVALID_JSON"),
    FaultKind("access_refused", errors.AccessError, 401, "SESSION_ERROR"),
    FaultKind("connection_lost", errors.ConnectionLostError, 503, "SESSION_ERROR"),
    FaultKind("session_gone", errors.SessionGoneError, 404, "SESSION_ERROR"),
    FaultKind("reset_needed", errors.ResetNeededError, 409, "EXECUTION_ERROR"),
    FaultKind("tool_call_open", errors.ToolCallOpenError, 409, "EXECUTION_ERROR"),
    FaultKind("busy", errors.BusyError, 409, "SESSION_ERROR"),
    FaultKind("closed", errors.ClosedError, 409, "SESSION_ERROR"),
    FaultKind("out_of_order", errors.CallOrderError, 409, "EXECUTION_ERROR"),
    FaultKind("action_refused", errors.ActionError, 422, "VALIDATION_ERROR"),
    FaultKind("seed_refused", errors.SeedError, 422, "VALIDATION_ERROR"),
    FaultKind("task_refused", errors.TaskError, 422, "VALIDATION_ERROR"),
    FaultKind("option_refused", errors.OptionError, 422, "VALIDATION_ERROR"),
    FaultKind("value_refused", errors.SpecError, 422, "VALIDATION_ERROR"),
    FaultKind("environment_lost", errors.EnvironmentLostError, 503, "EXECUTION_ERROR"),
    FaultKind("reset_failed", errors.ResetFailedError, 502, "EXECUTION_ERROR"),
    FaultKind("state_failed", errors.StateFailedError, 502, "EXECUTION_ERROR"),
    FaultKind("bad_return", errors.BadReturnError, 502, "EXECUTION_ERROR"),
    FaultKind("definition_failed", errors.DefinitionError, 502, "FACTORY_ERROR"),
    FaultKind("plugin_failed", errors.PluginError, 502, "FACTORY_ERROR"),
    FaultKind("extra_missing", errors.MissingExtraError, 502, "FACTORY_ERROR"),
    FaultKind("no_capacity", errors.CapacityError, 503, "CAPACITY_REACHED"),
    FaultKind("deadline", errors.DeadlineError, 504, "EXECUTION_ERROR"),
    FaultKind("fork_refused", errors.ForkError, 409, "EXECUTION_ERROR"),
    FaultKind("internal", errors.ServerError, 500, "EXECUTION_ERROR"),
)

_BY_CODE = {kind.code: kind for kind in KINDS}
_BY_ERROR = {kind.error: kind for kind in KINDS}
INTERNAL = _BY_CODE["internal"]


def kind_of(error: BaseException) -> FaultKind:
    """Return the row of an error: that of its class, or of the nearest class above it."""
    for cls in type(error).__mro__:
        if cls in _BY_ERROR:
            return _BY_ERROR[cls]
    return INTERNAL


def fault_of(error: BaseException) -> WireFault:
    """Return the fault of an error. Messages of errors that are not ours are not disclosed."""
    kind = kind_of(error)
    if not isinstance(error, EnvWeaveError):
        return WireFault(code=kind.code, message="The server failed. See its log.")
    return WireFault(code=kind.code, message=str(error))


def error_of(fault: WireFault) -> EnvWeaveError:
    """Return the error of a fault."""
    return _BY_CODE.get(fault.code, INTERNAL).error(fault.message)


def kind_by_code(code: str) -> FaultKind:
    """Return the row with this code; `internal` if there is none."""
    return _BY_CODE.get(code, INTERNAL)
