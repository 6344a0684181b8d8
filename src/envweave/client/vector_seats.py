"""What a vector knows of the session of one environment, to refuse what it would refuse."""

from __future__ import annotations

from typing import Any, final

from envweave.codec import Mismatch
from envweave.environment import Interface
from envweave.errors import ActionError
from envweave.session.ledger import AgentLedger
from envweave.session.outbox import Outbox
from envweave.session.plan import Position
from envweave.types import AgentEnd, ResetResult, StepResult, ToolCallRequest, ToolResult
from envweave.wire.exchange import Caller


@final
class Seat:
    """One environment of a vector.

    Attributes:
        caller: Names its session, and numbers the calls.
        loss: Why it has no session; `None` while it has one.
        position: Where its stream of episodes stands.
    """

    def __init__(self, interface: Interface) -> None:
        self.caller = Caller()
        self.loss: str | None = "it was never opened"
        self.position: Position | None = None
        self._name = interface.name
        self._read = interface.action_spec.read
        self._outbox = Outbox()
        agents = interface.possible_agents
        self._ledger = None if agents is None else AgentLedger(agents, interface.action_spec)
        self._gone: set[str] = set()

    @property
    def has_tool_calls(self) -> bool:
        """Whether a tool call waits for its answer."""
        return bool(self._outbox.open_calls)

    @property
    def tool_calls(self) -> tuple[ToolCallRequest, ...]:
        """The tool calls that wait for an answer."""
        return tuple(self._outbox.open_calls.values())

    def admit(self, action: Any) -> Any:
        """Return the action as it travels, or refuse, as the session itself would.

        Raises:
            ActionError, ToolCallOpenError: It is refused.
        """
        if self._outbox.open_calls:
            return self._outbox.admit(action, self._name)
        if type(action) is ToolResult:
            raise ActionError(f"action: no tool call {action.call_id!r} waits for an answer")
        if self._ledger is not None:
            return self._ledger.read_actions(action)
        try:
            return self._read(action)
        except Mismatch as mismatch:
            raise ActionError(mismatch.describe("action")) from None

    def follow(self, result: StepResult[Any], agents: list[str] | None) -> None:
        """Take note of a result, and who takes part after it."""
        self._outbox.clear()
        if not result.done or result.ready is not None:
            self._outbox.open_calls.update({call.call_id: call for call in result.tool_calls})
        if self._ledger is None:
            return
        if result.ready is not None or isinstance(result, ResetResult):
            self._gone.clear()
        else:
            self._gone.update(e.agent_id for e in result.events if isinstance(e, AgentEnd))
        asked = [need.agent_id for need in result.needs]
        self._ledger.stand(agents or (), self._gone, asked)
