"""One episode as a conversation: for dialects whose sessions are one episode each.

Their clients show text and images to a model, and know no episode that failed. So observations and
replies have the form of the chat view, and an episode that must not be trained on ends in an error,
never in a reward.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from envweave.codec import to_plain
from envweave.conversation import ChatAction, ChatTool, ChatToolCall, TurnMessage
from envweave.conversation.rendering import is_chat_observation, render_messages
from envweave.conversation.replies import ReplyReader
from envweave.errors import (
    ActionError,
    EnvironmentLostError,
    EnvWeaveError,
    OptionError,
    SessionGoneError,
    ToolCallOpenError,
    WireError,
)
from envweave.server.http.bodies import read_body
from envweave.server.http.routes import Endpoint, wait_for_disconnect
from envweave.server.http.sessions import HTTPSession, HTTPSessions
from envweave.types import ToolCallRequest
from envweave.wire.description import Rebuilt
from envweave.wire.encoding import PLAIN_JSON
from envweave.wire.faults import fault_of, kind_by_code
from envweave.wire.openenv import END
from envweave.wire.results import Wired, decode_result

if TYPE_CHECKING:
    from starlette.requests import Request

    from envweave.server.service import Service
    from envweave.wire.description import Description
    from envweave.wire.messages import WireFault

REPLY = "reply"
"""The tool for a text, where actions are texts."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What an episode answers to a reset or a step.

    Attributes:
        messages: What a model is shown.
        tools: The tools that the observation offers, if the environment has its own.
        reward: The reward of the step; `None` if it is not scored.
        terminated: Whether the task is over.
        truncated: Whether a limit ended the episode.
        details: The info, the ids of the episode and its task, and how it ended, as plain data.
    """

    messages: list[TurnMessage]
    tools: list[ChatTool]
    reward: float | None
    terminated: bool
    truncated: bool
    details: dict[str, Any]

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.terminated or self.truncated

    @property
    def parts(self) -> list[dict[str, Any]]:
        """What it shows, as parts of a message: texts, and images with a data URL."""
        return [part for message in self.messages for part in parts_of(message)]

    @property
    def text(self) -> str:
        """What it shows, without the images."""
        return "\n\n".join(part["text"] for part in self.parts if part["type"] == "text")


def parts_of(message: TurnMessage) -> list[dict[str, Any]]:
    """Return the content of a message as parts, without empty texts."""
    content = message.content
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [part for part in parts if part.get("text") != ""]


@final
class TurnActions:
    """The actions of an environment as tools, and what a model replies as actions.

    Attributes:
        tools: The tools that are there in every episode.
        instructions: Tells a model without tools the form of its replies.

    Raises:
        OptionError: The environment has several agents.
    """

    def __init__(self, about: Description) -> None:
        if about.possible_agents is not None:
            raise OptionError(
                f"{about.name} has {len(about.possible_agents)} agents, and this dialect has one. "
                "Use the client of envweave or OpenEnv, or MCP."
            )
        rebuilt = Rebuilt(about)
        self.rebuild = rebuilt.rebuild
        self._reader = reader = ReplyReader(rebuilt.interface.action_spec)
        self.instructions = reader.instructions
        self.tools = [
            ChatTool(
                name=one.name,
                description=" ".join([about.description, one.description]).strip(),
                parameters=one.parameters,
            )
            for one in reader.tools or [_reply_tool()]
        ]

    def of_call(self, name: str, arguments: dict[str, Any] | str) -> Any:
        """Return the action of a tool call.

        Raises:
            ActionError: There is no such tool, or its arguments are invalid.
        """
        if self._reader.tools or (self._reader.is_chat and name != REPLY):
            return self._read(ChatAction(tool_calls=[ChatToolCall(name=name, arguments=arguments)]))
        text = arguments.get("text") if isinstance(arguments, dict) else None
        if name != REPLY or not isinstance(text, str):
            raise ActionError(f"There is one tool: {REPLY}, with the argument `text`, a string.")
        return self._read(ChatAction(content=text))

    def of_text(self, text: str) -> Any:
        """Return the action of a text.

        Raises:
            ActionError: It is not a valid reply.
        """
        return self._read(ChatAction(content=text))

    def _read(self, reply: ChatAction) -> Any:
        return to_plain(self._reader.read(reply))


def _reply_tool() -> ChatTool:
    text = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    return ChatTool(name=REPLY, description="Reply with a text.", parameters=text)


@final
class TurnEpisode:
    """An episode in a session of its own.

    Attributes:
        session: The session.
        actions: Its actions as tools.
        tools: All tools of the episode.
        first: What the reset answered.
        is_over: Whether the episode has ended.
    """

    def __init__(self, service: Service, session: HTTPSession, actions: TurnActions) -> None:
        self._service = service
        self.session = session
        self.actions = actions
        self.is_over = False

    async def reset(self, params: Mapping[str, Any]) -> None:
        """Begin the episode.

        Raises:
            EnvWeaveError: It cannot begin.
        """
        self.first = await self._call("reset", dict(params))
        self.tools = [*self.first.tools, *self.actions.tools]

    async def step(self, action: Any) -> Turn:
        """Take a step. If the caller is cancelled, the step still runs to its end.

        Raises:
            ActionError: The action is refused, and the episode is unharmed.
            EnvironmentLostError: The episode has failed, and must not be trained on.
            EnvWeaveError: The session is gone.
        """
        turn = await self._call("step", {"action": action})
        self.is_over = turn.done
        return turn

    async def _call(self, method: str, params: dict[str, Any]) -> Turn:
        """Make a call; return its turn, or raise why the episode must not be trained on."""
        result = await self.session.call(method, params)
        sent = result if isinstance(result, Wired) else decode_result(result)
        end = sent.end
        if end is not None and not end.valid:
            raise EnvironmentLostError(
                f"The episode has failed ({end.reason}, caused by the {end.blame}) and has no "
                f"reward: {end.cause}"
            )
        asked = [one for one in sent.events if isinstance(one, ToolCallRequest)]
        if asked:
            raise ToolCallOpenError(
                f"The environment asks its caller to run the tool {asked[0].name!r}, which clients "
                "of this dialect cannot. Use envweave's own client."
            )
        details: dict[str, Any] = {
            "info": sent.info,
            "episode_id": sent.episode_id,
            "task_id": sent.task_id,
            "step_index": sent.step_index,
            "terminated": sent.terminated,
            "truncated": sent.truncated,
        }
        if end is not None:
            details[END] = {"reason": end.reason, "blame": end.blame, "cause": end.cause}
        seen = sent.observation if sent is result else self.actions.rebuild(sent.observation)
        messages, _ = render_messages(seen, None)
        offered = seen.tools if is_chat_observation(seen) else []
        reward = sent.reward
        is_number = isinstance(reward, bool | int | float) and math.isfinite(reward)
        return Turn(
            [message for message in messages if message.role != "assistant"],
            [ChatTool(**to_plain(tool)) for tool in offered],
            float(reward) if is_number else None,
            bool(sent.terminated),
            bool(sent.truncated),
            PLAIN_JSON.decode(PLAIN_JSON.encode(details)),
        )

    def fault_for(self, error: BaseException) -> WireFault:
        """Return the fault for an error of a step; internal details go to the log only."""
        return self._service.table.fault_for("step", error)


@final
class TurnSessions:
    """The sessions of a dialect, each with one episode."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._sessions = HTTPSessions(service)
        self._about: Description | None = None
        self._actions: TurnActions | None = None

    async def describe(self) -> tuple[Description, TurnActions]:
        """Return the description of the environment, and its actions.

        Raises:
            OptionError: It has several agents.
            EnvWeaveError: It cannot be made.
        """
        await self._service.start()
        about = self._service.runtime.description
        if self._actions is None or self._about is not about:
            self._about, self._actions = about, TurnActions(about)
        return about, self._actions

    async def begin(
        self, request: Request, params: Mapping[str, Any], wait_s: float
    ) -> TurnEpisode:
        """Open a session and begin its episode. A client that has gone leaves no session behind.

        Raises:
            CapacityError: The server is full, and no session was freed within `wait_s`.
            EnvWeaveError: The episode cannot begin.
        """
        _, actions = await self.describe()
        disconnected = asyncio.ensure_future(wait_for_disconnect(request))
        try:
            session = await self._sessions.open({"wait_s": wait_s}, disconnected)
            episode = TurnEpisode(self._service, session, actions)
            try:
                await episode.reset(params)
            except BaseException:
                await self._sessions.close(session.id)
                raise
            if disconnected.done():
                session.disconnect()
        finally:
            disconnected.cancel()
        return episode

    async def close(self, episode: TurnEpisode) -> None:
        """Close a session. May be called twice."""
        with contextlib.suppress(SessionGoneError):
            await self._sessions.close(episode.session.id)


async def read_object(request: Request) -> dict[str, Any]:
    """Return the JSON object in a body; an empty body is an empty one.

    Raises:
        WireError: It is something else.
        HTTPException: It did not arrive in time.
    """
    body = await read_body(request)
    fields = PLAIN_JSON.decode(body) if body else {}
    if not isinstance(fields, dict):
        raise WireError("The body must be a JSON object.")
    return fields


def json_response(content: Any) -> Response:
    """Return a response with this content."""
    return Response(PLAIN_JSON.encode(content), media_type="application/json")


def answer_details(endpoint: Endpoint) -> Endpoint:
    """Answer errors of an endpoint in the form of FastAPI, which these clients show."""

    @functools.wraps(endpoint)
    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except HTTPException as error:
            content = PLAIN_JSON.encode({"detail": error.detail})
            return Response(content, error.status_code, error.headers, "application/json")
        except EnvWeaveError as error:
            return detail_response(error)

    return answer


def detail_response(error: Exception, status: int | None = None, **headers: str) -> Response:
    """Return an error as `{"detail": …}`."""
    fault = fault_of(error)
    content = {"detail": fault.message, "code": fault.code}
    return Response(
        PLAIN_JSON.encode(content),
        status or kind_by_code(fault.code).status,
        headers,
        "application/json",
    )
