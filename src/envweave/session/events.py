"""What an environment emitted during a call, and the tool calls that wait for an answer."""

from __future__ import annotations

from typing import Any, final, get_args

import msgspec

from envweave.errors import BadReturnError, ToolCallOpenError
from envweave.types import (
    AgentEnd,
    Blame,
    EpisodeEnd,
    Event,
    LogEvent,
    Reason,
    StepResult,
    ToolCallRequest,
    ToolResult,
)

_REASONS, _BLAMES = get_args(Reason), (None, *get_args(Blame))


@final
class EventQueue:
    """Collects what is emitted, and knows which tool calls are open.

    Attributes:
        said: What was emitted since the last look.
        open_calls: The tool calls that wait for an answer.
        answering: The one whose answer is being worked on.
    """

    def __init__(self) -> None:
        self.events: list[LogEvent | ToolCallRequest | EpisodeEnd] = []
        self.open_calls: dict[str, ToolCallRequest] = {}
        self.answering: str | None = None

    def clear(self) -> None:
        """Forget everything: an episode is over, or a new one begins."""
        self.events.clear()
        self.open_calls.clear()
        self.answering = None

    def read(self) -> tuple[EpisodeEnd | None, tuple[Event, ...]]:
        """Empty the box: the end that was declared, if any, and everything else in order.

        A tool call that was being answered is closed; those that were emitted are open.

        Raises:
            BadReturnError: Something was emitted that no environment may emit.
        """
        if not self.events and not self.open_calls:
            return None, ()
        emitted: list[Any] = list(self.events)
        self.events.clear()
        still_open = {i: call for i, call in self.open_calls.items() if i != self.answering}
        end = None
        events: list[Event] = []
        for said in emitted:
            if isinstance(said, EpisodeEnd):
                end = _checked(said)
            elif isinstance(said, ToolCallRequest):
                if said.call_id in still_open:
                    raise BadReturnError(f"Two tool calls are called {said.call_id!r}.")
                still_open[said.call_id] = said
                events.append(said)
            elif isinstance(said, LogEvent):
                events.append(said)
            else:
                raise BadReturnError(
                    f"emit() was given {said!r}; it takes a LogEvent, a ToolCallRequest or an "
                    "EpisodeEnd."
                )
        self.open_calls.clear()
        self.open_calls.update(still_open)
        self.answering = None
        return end, tuple(events)

    def read_start(self) -> tuple[Event, ...]:
        """Empty the box of a reset.

        Raises:
            BadReturnError: What `read` refuses, or the end of an episode that has not begun.
        """
        end, events = self.read()
        if end is not None:
            raise BadReturnError(
                f"reset() declared {end!r}; an episode cannot end before it began."
            )
        return events

    def extend(self, outcome: StepResult[Any]) -> None:
        """Take what an author put into a result of their own as emitted."""
        if outcome.end is not None:
            self.events.append(outcome.end)
        self.events.extend(event for event in outcome.events if not isinstance(event, AgentEnd))

    def logs(self) -> tuple[Event, ...]:
        """Empty the box of a call that failed: what it logged is still worth knowing."""
        logged: tuple[Event, ...] = tuple(one for one in self.events if isinstance(one, LogEvent))
        self.events.clear()
        return logged

    def rollback(self) -> None:
        """Forget what a call emitted that refused its action, but for what it logged.

        A tool call whose answer was refused waits on.
        """
        self.events[:] = [said for said in self.events if isinstance(said, LogEvent)]
        self.answering = None

    def admit(self, answer: Any, name: str) -> ToolResult:
        """Return the answer to an open tool call.

        Raises:
            ToolCallOpenError: It is no answer, or none that anybody waits for.
        """
        waiting = ", ".join(f"{call.name}() as {i!r}" for i, call in self.open_calls.items())
        if not isinstance(answer, ToolResult):
            raise ToolCallOpenError(
                f"step() on {name} while it waits for {waiting}. "
                "Answer with step(ToolResult(call_id, value))."
            )
        if answer.call_id not in self.open_calls:
            raise ToolCallOpenError(
                f"No tool call {answer.call_id!r} waits for an answer; these do: {waiting}."
            )
        self.answering = answer.call_id
        return answer


def _checked(end: EpisodeEnd) -> EpisodeEnd:
    """Return an author's end as one of ours, so that nothing is written into theirs."""
    if end.reason not in _REASONS or end.blame not in _BLAMES:
        raise BadReturnError(
            f"{end!r} has a reason or a blame that nobody knows. Reasons: {', '.join(_REASONS)}. "
            f"Blames: {', '.join(map(str, _BLAMES))}."
        )
    return msgspec.structs.replace(end)
