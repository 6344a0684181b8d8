"""What a check is, and how it can come out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from envweave.errors import EnvWeaveError, format_error

SubjectT = TypeVar("SubjectT")


class CheckFailedError(EnvWeaveError, AssertionError):
    """A promise is broken; the message says what was seen."""


class NotApplicable(EnvWeaveError):  # noqa: N818 - an outcome, not an error
    """The check says nothing about this environment; the message says why."""


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """How one check came out.

    Attributes:
        name: The check, as a sentence with underscores.
        promise: What is promised.
        status: How it came out.
        detail: What was seen when it failed, or why it was skipped.
    """

    name: str
    promise: str
    status: Literal["passed", "failed", "skipped"]
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong: it passed, or does not apply."""
        return self.status != "failed"


@dataclass(frozen=True, slots=True)
class Check(Generic[SubjectT]):
    """One promise as a function that raises where it is broken."""

    run: Callable[[SubjectT], None]

    @property
    def name(self) -> str:
        """The function's name: a sentence about behaviour."""
        return self.run.__name__

    @property
    def promise(self) -> str:
        """What is promised, in words."""
        return (self.run.__doc__ or "").partition("\n")[0].rstrip(".")

    def outcome(self, subject: SubjectT) -> CheckOutcome:
        """Run the check and say how it came out; only an interrupt gets through."""
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
    """Run checks one by one, and tell each outcome as it is known."""
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
        require(str(refusal), f"{what} was refused without a word.")
        return refusal
    except Exception as other:
        raise CheckFailedError(
            f"{what} raised {format_error(other)}; expected {error.__name__}."
        ) from other
    raise CheckFailedError(f"{what} was accepted, and returned {got!r}; expected {error.__name__}.")
