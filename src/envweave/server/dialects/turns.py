"""One episode in turns of text: for dialects whose sessions are one episode each.

What their clients show to a model is text, and they know no episode that failed. So an observation
is given as text, and an episode that must not be trained on ends in an error, never in a reward.
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from envweave.errors import (
    ActionError,
    EnvironmentLostError,
    EnvWeaveError,
    OptionError,
    ToolCallOpenError,
    WireError,
    suggest,
)
from envweave.server.dialects.action_tools import EnvTool, action_tools
from envweave.server.http.bodies import read_body
from envweave.server.http.routes import Endpoint, wait_for_disconnect
from envweave.types import ToolCallRequest
from envweave.wire.encoding import PLAIN_JSON
from envweave.wire.faults import fault_of, kind_by_code
from envweave.wire.openenv import END, VALUE, shown
from envweave.wire.results import Wired, decode_result

if TYPE_CHECKING:
    from starlette.requests import Request

    from envweave.server.http.sessions import HTTPSession, HTTPSessions
    from envweave.server.service import Service
    from envweave.wire.description import Description
    from envweave.wire.messages import WireFault


@dataclass(frozen=True, slots=True)
class Turn:
    """What an episode answers to a reset or a step, as plain data.

    Attributes:
        text: The observation.
        reward: The reward of the step; `None` if it is not scored.
        terminated: Whether the task is over.
        truncated: Whether a limit ended the episode.
        details: The info, the ids of the episode and its task, and how it ended.
    """

    text: str
    reward: float | None
    terminated: bool
    truncated: bool
    details: dict[str, Any]

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.terminated or self.truncated


@final
class TurnEpisode:
    """An episode in a session of its own.

    Attributes:
        session: The session.
        tools: The tools that take a step, by name.
        first: What the reset answered.
        is_over: Whether the episode has ended.
    """

    def __init__(
        self, service: Service, session: HTTPSession, tools: Mapping[str, EnvTool], first: Turn
    ) -> None:
        self._service = service
        self.session = session
        self.tools = tools
        self.first = first
        self.is_over = False

    async def step(self, action: Any) -> Turn:
        """Take a step. If the caller is cancelled, the step still runs to its end.

        Raises:
            ActionError: The action is refused, and the episode is unharmed.
            EnvironmentLostError: The episode has failed, and must not be trained on.
            EnvWeaveError: The session is gone.
        """
        turn = _turn_of(await self.session.call("step", {"action": action}))
        self.is_over = turn.done
        return turn

    def fault_for(self, error: BaseException) -> WireFault:
        """Return the fault for an error of a step; internal details go to the log only."""
        return self._service.table.fault_for("step", error)


async def begin_episode(
    service: Service,
    sessions: HTTPSessions,
    request: Request,
    reset: Mapping[str, Any],
    wait_s: float,
) -> TurnEpisode:
    """Open a session and begin its episode. A client that has gone leaves no session behind.

    Raises:
        OptionError: The environment has several agents.
        CapacityError: The server is full.
        EnvWeaveError: The episode cannot begin.
    """
    await service.start()
    about = service.runtime.description
    refuse_agents(about)
    disconnected = asyncio.ensure_future(wait_for_disconnect(request))
    try:
        session = await sessions.open({"wait_s": wait_s}, disconnected)
        try:
            first = _turn_of(await session.call("reset", dict(reset)))
        except BaseException:
            await sessions.close(session.id)
            raise
        if disconnected.done():
            session.disconnect()
    finally:
        disconnected.cancel()
    return TurnEpisode(service, session, action_tools(about), first)


def refuse_agents(about: Description) -> None:
    """Refuse an environment with several agents.

    Raises:
        OptionError: It has several.
    """
    if about.possible_agents is not None:
        raise OptionError(
            f"{about.name} has {len(about.possible_agents)} agents, and this dialect has one. Use "
            "the client of envweave or OpenEnv, or MCP."
        )


def action_from_text(tools: Mapping[str, EnvTool], text: str) -> Any:
    """Return the action that a model wrote as text.

    It is the text itself if the action is a text, or needs nothing else. Otherwise the text must be
    the JSON of the action.

    Raises:
        ActionError: It is not.
    """
    if len(tools) > 1:
        raise ActionError(f"Call one of the tools: {', '.join(tools)}.")
    (tool,) = tools.values()
    properties = tool.schema["properties"]
    needed = tool.schema.get("required") or list(properties)
    if len(needed) == 1 and _is_text(properties[needed[0]]):
        return tool.action({needed[0]: text})
    try:
        written = json.loads(text)
    except ValueError as error:
        example = json.dumps(dict.fromkeys(needed, "..."))
        raise ActionError(f"The action must be JSON such as {example}: {error}.") from None
    if isinstance(written, dict) and not tool.holds_action:
        return tool.action(written)
    if len(needed) != 1:
        raise ActionError(f"The action must be a JSON object, got {text[:80]!r}.")
    return tool.action({needed[0]: written})


def _is_text(schema: Mapping[str, Any]) -> bool:
    choices = schema.get("enum")
    if choices:
        return all(isinstance(one, str) for one in choices)
    return schema.get("type") == "string"


def action_of_call(tools: Mapping[str, EnvTool], name: str, arguments: Any) -> Any:
    """Return the action of a tool call.

    Raises:
        ActionError: There is no such tool, or an argument is invalid.
    """
    tool = tools.get(name)
    if tool is None:
        known = ", ".join(tools)
        raise ActionError(f"There is no tool {name[:80]!r}.{suggest(name, tools)} Known: {known}.")
    if not isinstance(arguments, dict):
        raise ActionError(f"The arguments of {name} must be an object.")
    return tool.action(arguments)


def _turn_of(result: Any) -> Turn:
    """Return a turn, or raise why the episode must not be trained on."""
    sent = result if isinstance(result, Wired) else decode_result(result)
    end = sent.end
    if end is not None and not end.valid:
        raise EnvironmentLostError(
            f"The episode has failed ({end.reason}, caused by the {end.blame}) and has no reward: "
            f"{end.cause}"
        )
    asked = [one for one in sent.events if isinstance(one, ToolCallRequest)]
    if asked:
        raise ToolCallOpenError(
            f"The environment asks its caller to run the tool {asked[0].name!r}, which clients of "
            "this dialect cannot. Use envweave's own client."
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
    # Values of the author's code become plain data here, only once.
    plain = PLAIN_JSON.decode(PLAIN_JSON.encode([shown(sent.observation), sent.reward, details]))
    observation, reward, details = plain
    is_number = isinstance(reward, bool | int | float) and math.isfinite(reward)
    return Turn(
        text_of(observation),
        float(reward) if is_number else None,
        bool(sent.terminated),
        bool(sent.truncated),
        details,
    )


def text_of(observation: Mapping[str, Any]) -> str:
    """Return the fields of an observation as text: its only text, or JSON."""
    if len(observation) == 1:
        (value,) = observation.values()
        if isinstance(value, str):
            return value
        if VALUE in observation:
            return PLAIN_JSON.encode(value).decode()
    return PLAIN_JSON.encode(observation).decode()


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
