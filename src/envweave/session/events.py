"""The events that an environment emits during a call, and the open tool calls."""

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
    """Collects emitted events, and tracks which tool calls are open.

    Attributes:
        events: The events since the last read.
        open_calls: The tool calls that wait for an answer.
        answering: The id of the tool call that is being answered.
    """

    def __init__(self) -> None:
        self.events: list[LogEvent | ToolCallRequest | EpisodeEnd] = []
        self.open_calls: dict[str, ToolCallRequest] = {}
        self.answering: str | None = None

    def clear(self) -> None:
        """Drop everything: an episode is over, or a new one begins."""
        self.events.clear()
        self.open_calls.clear()
        self.answering = None

    def read(self) -> tuple[EpisodeEnd | None, tuple[Event, ...]]:
        """Empty the queue: return the emitted end, if any, and all other events in order.

        A tool call that was being answered is closed; emitted ones are now open.

        Raises:
            BadReturnError: Something invalid was emitted.
        """
        if not self.events and not self.open_calls:
            return None, ()
        emitted: list[Any] = list(self.events)
        self.events.clear()
        still_open = {i: call for i, call in self.open_calls.items() if i != self.answering}
        end = None
        events: list[Event] = []
        for event in emitted:
            if isinstance(event, EpisodeEnd):
                end = _checked(event)
            elif isinstance(event, ToolCallRequest):
                if event.call_id in still_open:
                    raise BadReturnError(f"Two tool calls have the id {event.call_id!r}.")
                still_open[event.call_id] = event
                events.append(event)
            elif isinstance(event, LogEvent):
                events.append(event)
            else:
                raise BadReturnError(
                    f"emit() was given {event!r}; it takes a LogEvent, a ToolCallRequest or an "
                    "EpisodeEnd."
                )
        self.open_calls.clear()
        self.open_calls.update(still_open)
        self.answering = None
        return end, tuple(events)

    def read_start(self) -> tuple[Event, ...]:
        """Empty the queue after a reset.

        Raises:
            BadReturnError: `read` refuses it, or the episode ended before it began.
        """
        end, events = self.read()
        if end is not None:
            raise BadReturnError(
                f"reset() declared {end!r}; an episode cannot end before it began."
            )
        return events

    def extend(self, outcome: StepResult[Any]) -> None:
        """Add the end and the events of an author's own result."""
        if outcome.end is not None:
            self.events.append(outcome.end)
        self.events.extend(event for event in outcome.events if not isinstance(event, AgentEnd))

    def logs(self) -> tuple[Event, ...]:
        """Empty the queue after a failed call, and return its log events."""
        logged: tuple[Event, ...] = tuple(one for one in self.events if isinstance(one, LogEvent))
        self.events.clear()
        return logged

    def rollback(self) -> None:
        """Drop the events of a call that refused its action, except log events.

        A tool call whose answer was refused stays open.
        """
        self.events[:] = [event for event in self.events if isinstance(event, LogEvent)]
        self.answering = None

    def admit(self, answer: Any, name: str) -> ToolResult:
        """Return the answer to an open tool call.

        Raises:
            ToolCallOpenError: It is not an answer, or not to an open call.
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
    """Return a copy of an author's end, so that ours can be changed."""
    if end.reason not in _REASONS or end.blame not in _BLAMES:
        raise BadReturnError(
            f"{end!r} has an unknown reason or blame. Reasons: {', '.join(_REASONS)}. "
            f"Blames: {', '.join(map(str, _BLAMES))}."
        )
    return msgspec.structs.replace(end)
