"""What an environment emitted during a call, and the tool calls that wait for an answer."""

from __future__ import annotations

from typing import Any, final

from envweave.errors import BadReturnError, ToolCallOpenError
from envweave.types import EpisodeEnd, Event, LogEvent, ToolCallRequest, ToolResult


@final
class Outbox:
    """Collects what is emitted, and knows which tool calls are open."""

    def __init__(self) -> None:
        self.said: list[LogEvent | ToolCallRequest | EpisodeEnd] = []
        self.open_calls: dict[str, ToolCallRequest] = {}
        self.answering: str | None = None

    def clear(self) -> None:
        """Forget everything: a new episode begins."""
        self.said.clear()
        self.open_calls.clear()
        self.answering = None

    def read(self) -> tuple[EpisodeEnd | None, tuple[Event, ...]]:
        """Empty the box: the end that was declared, if any, and everything else in order.

        A tool call that was being answered is closed; those that were emitted are open.
        """
        if self.answering is not None:
            del self.open_calls[self.answering]
            self.answering = None
        end = None
        events: list[Event] = []
        emitted: list[object] = list(self.said)
        self.said.clear()
        for said in emitted:
            if isinstance(said, EpisodeEnd):
                end = said
            elif isinstance(said, LogEvent | ToolCallRequest):
                events.append(said)
                if isinstance(said, ToolCallRequest):
                    self.open_calls[said.call_id] = said
            else:
                raise BadReturnError(
                    f"emit() was given {said!r}; it takes a LogEvent, a ToolCallRequest or an "
                    "EpisodeEnd."
                )
        return end, tuple(events)

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
