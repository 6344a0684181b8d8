"""Every error envweave raises on purpose.

    EnvWeaveError
    ├── RegistryError           an ID, a definition or a plug-in
    │   ├── EnvNotFoundError        (LookupError)   no environment has this ID
    │   ├── EnvIdError              (ValueError)    the ID itself is malformed
    │   ├── AlreadyRegisteredError  (ValueError)    the ID is taken
    │   ├── DefinitionError         (TypeError)     the ID does not name an environment
    │   └── PluginError             (ImportError)   what the ID names cannot be imported
    │       └── InstallError                        a package that it needs is missing
    ├── BackendNotFoundError        (LookupError)   no backend has this name
    ├── MissingExtraError           (ImportError)   an optional dependency is missing
    ├── OptionError                 (ValueError)    an option that is unknown or cannot be honored
    ├── CallOrderError              (RuntimeError)  the right call at the wrong time
    │   ├── ResetNeededError                        no episode is running
    │   ├── ToolCallOpenError                       a tool call waits for its answer
    │   ├── BusyError                               another call is still under way
    │   └── ClosedError                             the environment is closed
    ├── SpecError                   (ValueError)    a value that does not fit its spec
    │   └── ActionError                             an action that was refused
    ├── SeedError                   (ValueError)    a seed that cannot be honored
    ├── TaskError                   (ValueError)    a task that is unknown or not taken
    ├── RolloutFailedError          (RuntimeError)  episodes failed, through no fault of the agent
    ├── DeadlineError               (TimeoutError)  a call took longer than allowed
    ├── StartupError                (RuntimeError)  a server could not be started
    ├── WireError                   (ValueError)    a message that cannot be read
    ├── RecordingError              (OSError)       a recording that cannot be written or read
    ├── ForkError                   (RuntimeError)  an episode that cannot be copied
    ├── ServerError                 (RuntimeError)  a failure at the other end of a connection
    │   ├── ConnectionLostError     (ConnectionError)   no server answers there
    │   ├── AccessError             (PermissionError)   it refuses this caller
    │   ├── CapacityError                           it has no room
    │   └── SessionGoneError        (LookupError)   it has no such session, or no longer
    ├── SandboxError                (RuntimeError)  sandboxed code, or the sandbox itself
    │   ├── IsolationError          (OSError)       this machine cannot isolate code
    │   ├── SessionLostError                        a session is gone, but its code did not cause it
    │   ├── SessionEndedError                       a session was ended by its own code
    │   ├── BranchError                             a session that cannot be copied
    │   ├── NameNotFoundError       (LookupError)   a session has no such variable
    │   ├── WorkFileError           (OSError)       a file of a session cannot be read or written
    │   └── PlainDataError          (TypeError)     a value that cannot cross the walls
    └── EnvironmentFailure          (RuntimeError)  the environment's own code failed
        ├── ResetFailedError                        in `reset`
        │   └── EnvironmentLostError                    the place where it ran is gone
        ├── StateFailedError                        in `state`
        └── BadReturnError          (TypeError)     it returned something invalid

Constructors take the message alone, so every error survives pickling.
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable
from pathlib import PurePath


class EnvWeaveError(Exception):
    """The base of every error that envweave raises on purpose."""


class RegistryError(EnvWeaveError):
    """An ID, or what it names, is at fault."""


class EnvNotFoundError(RegistryError, LookupError):
    """No environment answers to this ID."""

    @classmethod
    def for_id(cls, env_id: str, known: Iterable[str]) -> EnvNotFoundError:
        """Compose the message, with the nearest known ID."""
        return cls(
            f"No environment is registered as {env_id!r}.{suggest(env_id, known)} "
            "See `envweave list`."
        )


class EnvIdError(RegistryError, ValueError):
    """The ID is malformed, or its scheme is unknown."""


class AlreadyRegisteredError(RegistryError, ValueError):
    """The ID is taken."""


class DefinitionError(RegistryError, TypeError):
    """What the ID names is not something an environment can be made from."""


class PluginError(RegistryError, ImportError):
    """The target of an ID, a scheme or a backend cannot be imported."""


class InstallError(PluginError):
    """A package that an ID needs is not installed, or could not be."""


class BackendNotFoundError(EnvWeaveError, LookupError):
    """No backend has this name."""


class MissingExtraError(EnvWeaveError, ImportError):
    """An optional dependency is not installed."""

    @classmethod
    def for_extra(cls, what: str, extra: str) -> MissingExtraError:
        """Compose the message, with the exact command that installs `extra`."""
        return cls(f"{what} Install it with: pip install 'envweave[{extra}]'")


class OptionError(EnvWeaveError, ValueError):
    """An option is unknown, or this backend cannot honor it."""


class CallOrderError(EnvWeaveError, RuntimeError):
    """The right call at the wrong time. The episode, if any, is unharmed."""


class ResetNeededError(CallOrderError):
    """No episode is running."""


class ToolCallOpenError(CallOrderError):
    """The environment waits for the answer to a tool call."""


class BusyError(CallOrderError):
    """Another call on the same environment is still under way."""


class ClosedError(CallOrderError):
    """The environment has been closed."""


class SpecError(EnvWeaveError, ValueError):
    """A value does not fit its spec. The message begins with the path of the field."""


class ActionError(SpecError):
    """An action was refused. No step was taken, and the episode is unharmed."""


class SeedError(EnvWeaveError, ValueError):
    """A seed cannot be honored, so it is refused rather than dropped."""


class TaskError(EnvWeaveError, ValueError):
    """A task is unknown, or the environment takes none."""


class RolloutFailedError(EnvWeaveError, RuntimeError):
    """Episodes of a rollout failed, through no fault of the agent."""


class DeadlineError(EnvWeaveError, TimeoutError):
    """A call on an environment took longer than its `timeout_s`."""


class StartupError(EnvWeaveError, RuntimeError):
    """A server could not be started."""


class WireError(EnvWeaveError, ValueError):
    """A message cannot be read, or breaks a limit. Nothing was run."""


class RecordingError(EnvWeaveError, OSError):
    """A recording cannot be written, read, replayed or exported."""


class ForkError(EnvWeaveError, RuntimeError):
    """The running episode cannot be copied or brought back; it is unharmed."""


class RecordingWarning(UserWarning):
    """A recording is incomplete: it could not be written further, and the program went on."""


class ServerError(EnvWeaveError, RuntimeError):
    """The other end of a connection could not do what was requested."""


class ConnectionLostError(ServerError, ConnectionError):
    """No server answers, or the connection broke and could not be restored."""


class AccessError(ServerError, PermissionError):
    """The server refuses this caller: no token, a wrong one, or a foreign origin."""


class CapacityError(ServerError):
    """The server has no room for another session, or is stopping and accepts no more."""


class SessionGoneError(ServerError, LookupError):
    """The server has no such session, or no longer. Nothing continues in its place."""


class SandboxError(EnvWeaveError, RuntimeError):
    """Code could not be run, or its results could not be read."""


class IsolationError(SandboxError, OSError):
    """This machine cannot provide the requested walls; the message says which, and why."""


class SessionLostError(SandboxError):
    """The session is gone, and its code did not cause it."""


class SessionEndedError(SandboxError):
    """The session was ended by its own code: it exited, crashed, or was killed at a limit."""


class BranchError(SandboxError):
    """The session cannot be copied."""


class NameNotFoundError(SandboxError, LookupError):
    """The session has no variable of this name."""


class WorkFileError(SandboxError, OSError):
    """A file of a session's work folder cannot be read, written or listed."""


class PlainDataError(SandboxError, TypeError):
    """A value is not plain data, so it cannot cross the walls."""


class EnvironmentFailure(EnvWeaveError, RuntimeError):  # noqa: N818 - names whose failure it is
    """The environment's own code failed. `__cause__` is what it raised."""


class ResetFailedError(EnvironmentFailure):
    """The environment's `reset` raised. It ran once, and no episode is running."""


class EnvironmentLostError(ResetFailedError):
    """The process or server of the environment was lost during a reset. The next uses another."""


class StateFailedError(EnvironmentFailure):
    """The environment's `state` raised. The episode is unharmed."""


class BadReturnError(EnvironmentFailure, TypeError):
    """The environment returned something invalid."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the nearest of `known`, or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def format_error(error: BaseException) -> str:
    """Return the error on one line, with the line of the author's code that raised it."""
    name = type(error).__name__
    try:
        message = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - an author's __str__ may do anything
        message = "its message cannot be shown"
    text = f"{name}: {message}" if message else name
    if isinstance(error, EnvWeaveError):
        return text
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen")
    ]
    if not frames:
        return text
    return f"{text} ({PurePath(frames[-1].filename).name}:{frames[-1].lineno})"
