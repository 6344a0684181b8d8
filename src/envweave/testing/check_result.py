"""A check and its outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from envweave.errors import EnvWeaveError, format_error

SubjectT = TypeVar("SubjectT")


class CheckFailedError(EnvWeaveError, AssertionError):
    """A promise is broken; the message says what was observed."""


class NotApplicable(EnvWeaveError):  # noqa: N818 - an outcome, not an error
    """The check does not apply to this environment; the message says why."""


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """The outcome of one check.

    Attributes:
        name: Name of the check, a sentence with underscores.
        promise: The promise that was checked.
        status: Whether it passed, failed or was skipped.
        detail: What was observed when it failed, or why it was skipped.
    """

    name: str
    promise: str
    status: Literal["passed", "failed", "skipped"]
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether the check passed or does not apply."""
        return self.status != "failed"


@dataclass(frozen=True, slots=True)
class Check(Generic[SubjectT]):
    """One promise, as a function that raises if it is broken."""

    run: Callable[[SubjectT], None]

    @property
    def name(self) -> str:
        """The name of the function: a sentence about behavior."""
        return self.run.__name__

    @property
    def promise(self) -> str:
        """The promise, from the docstring of the function."""
        return (self.run.__doc__ or "").partition("\n")[0].rstrip(".")

    def outcome(self, subject: SubjectT) -> CheckOutcome:
        """Run the check and return its outcome; only an interrupt is raised."""
        try:
            self.run(subject)
        except NotApplicable as reason:
            return CheckOutcome(self.name, self.promise, "skipped", str(reason))
        except CheckFailedError as failure:
            return CheckOutcome(self.name, self.promise, "failed", str(failure))
        except Exception as error:  # noqa: BLE001 - the environment under test may do anything
            return CheckOutcome(self.name, self.promise, "failed", format_error(error))
        return CheckOutcome(self.name, self.promise, "passed")


def run_each(checks: Sequence[Check[SubjectT]], subject: SubjectT) -> Iterator[CheckOutcome]:
    """Run checks one by one, and yield each outcome as it is known."""
    for check in checks:
        yield check.outcome(subject)


def require(condition: Any, message: str) -> None:
    """Fail the check that is running, unless the condition holds."""
    if not condition:
        raise CheckFailedError(message)


def refuses(call: Callable[[], Any], error: type[EnvWeaveError], what: str) -> EnvWeaveError:
    """Fail unless the call raises exactly this kind of error; return it."""
    try:
        got = call()
    except error as refusal:
        require(str(refusal), f"{what} was refused without a message.")
        return refusal
    except Exception as other:
        raise CheckFailedError(
            f"{what} raised {format_error(other)}; expected {error.__name__}."
        ) from other
    raise CheckFailedError(f"{what} was accepted and returned {got!r}; expected {error.__name__}.")
