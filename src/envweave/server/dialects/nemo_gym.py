"""NeMo-Gym's dialect: an environment as its `GymnasiumServer`, driven by its `gymnasium_agent`.

`/reset` begins an episode and `/step` takes the response of a model, in the form of OpenAI's
Responses API: its function calls are tool calls, and without one its text is the action. They share
their paths with plain HTTP, whose bodies never have `responses_create_params`. The episode is found
by a cookie. `/close` ends it, and a repeated `/step` gets the first answer; a reset's info says so.

For its `simple_agent`, which asks once, `/seed_session` begins an episode and `/verify` takes its
only step.

The form of an answer has no place for a failure, so a failed episode is answered by an error, and
the agent drops the sample. What the model did wrong is an observation, which costs a step.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from starlette.responses import Response
from starlette.routing import Route

from envweave.errors import (
    ActionError,
    CallOrderError,
    OptionError,
    ResetNeededError,
)
from envweave.server.dialects.turns import (
    Turn,
    TurnEpisode,
    TurnSessions,
    answer_details,
    json_response,
    read_object,
)
from envweave.server.http.bodies import read_body

if TYPE_CHECKING:
    from starlette.requests import Request

    from envweave.server.http.routes import Endpoint
    from envweave.server.service import Service

COOKIE = "envweave_session"
"""The cookie with the id of the session, which cannot be guessed."""

MARK = b'"responses_create_params"'
"""What every body of this dialect has, and none of plain HTTP."""

MAX_INVALID = 5
"""An episode is truncated after this many invalid replies, as in the chat view."""

KEPT = 4096
"""How many closed sessions are remembered, for a client that repeats its last step."""

_RESET_FIELDS = ("seed", "task", "options", "episode_id")


@dataclass(eq=False)
class _Driven:
    """An episode, and the last state its client has seen.

    Attributes:
        episode: The episode.
        invalid: Number of replies that were not actions.
        is_scored: Whether any step had a reward.
        request_id: The id of the last step.
        answer: The answer to it.
        lock: Held during a step.
    """

    episode: TurnEpisode
    invalid: int = 0
    is_scored: bool = False
    request_id: str | None = None
    answer: dict[str, Any] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@final
class NemoGym:
    """The endpoints of the dialect."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._sessions = TurnSessions(service)
        self._driven: OrderedDict[str, _Driven] = OrderedDict()

    def routes(self) -> list[Route]:
        """Return the routes, each also with the prefix that names a rollout."""
        endpoints = {
            "reset": self.reset,
            "step": self.step,
            "close": self._close,
            "seed_session": self._seed_session,
            "verify": self._verify,
        }
        prefixed = [
            Route(f"/ng-rollout/{{rollout}}/{name}", answer_details(one), methods=["POST"])
            for name, one in endpoints.items()
        ]
        return [
            *(
                Route(f"/{name}", answer_details(one), methods=["POST"])
                for name, one in endpoints.items()
                if name not in ("reset", "step")  # shared with plain HTTP
            ),
            *prefixed,
        ]

    def share(self, name: str, plain: Endpoint) -> Endpoint:
        """Return the endpoint at a path that plain HTTP has too: `reset` or `step`."""
        own = answer_details(self.reset if name == "reset" else self.step)

        async def either(request: Request) -> Response:
            return await (own if MARK in await read_body(request) else plain)(request)

        return either

    async def reset(self, request: Request) -> Response:
        """Begin an episode with the fields of a row: `seed`, `task`, `options`."""
        fields = await read_object(request)
        driven = await self._begin(request, fields)
        turn = driven.episode.first
        tools = [
            {"type": "function", "name": one.name, "description": one.description,
             "parameters": one.parameters, "strict": False}
            for one in driven.episode.tools
        ]  # fmt: skip
        info = {
            **turn.details,
            "tools": tools,
            "supports_explicit_close": True,
            "supports_step_idempotency": True,
        }
        text = turn.text
        if not _has_tools(fields):
            text = "\n\n".join(one for one in (driven.episode.actions.instructions, text) if one)
        return self._with_cookie(driven, {"observation": text or None, "info": info})

    async def step(self, request: Request) -> Response:
        """Take the actions in the response of a model; a repeated call gets the first answer."""
        fields = await read_object(request)
        driven = self._find(request)
        async with driven.lock:
            request_id = fields.get("_ng_step_request_id")
            if request_id is None or request_id != driven.request_id:
                driven.answer = await self._take(driven, _output(fields))
                driven.request_id = request_id
            return json_response(driven.answer)

    async def _take(self, driven: _Driven, output: list[Any]) -> dict[str, Any]:
        """Take the actions of a model's response in order, up to the end of the episode."""
        episode = driven.episode
        if episode.is_over:
            raise ResetNeededError("The episode is over. Call POST /reset.")
        calls = [one for one in output if one.get("type") == "function_call"]
        total: float | None = None
        tool_outputs, text = [], ""
        turn = episode.first
        for call in calls or [None]:
            if turn.done:
                result = "The episode is over."
            else:
                turn, result = await self._act(driven, call, output)
                if turn.reward is not None:
                    total = turn.reward if total is None else total + turn.reward
            if call is None:
                text = result
            else:
                tool_outputs.append({"call_id": str(call.get("call_id")), "output": result})
        driven.is_scored = driven.is_scored or total is not None
        if turn.done:
            await self._sessions.close(episode)
            if not driven.is_scored:
                raise CallOrderError("The episode is over and has no reward: it is not scored.")
        info = {**turn.details, **({"tool_outputs": tool_outputs} if calls else {})}
        return {
            "observation": text or None,
            "reward": 0.0 if total is None else total,
            "terminated": turn.terminated,
            "truncated": turn.truncated,
            "info": info,
        }

    async def _act(
        self, driven: _Driven, call: Mapping[str, Any] | None, output: list[Any]
    ) -> tuple[Turn, str]:
        """Take one action; an invalid one is an observation, and too many end the episode."""
        episode = driven.episode
        actions = episode.actions
        try:
            if call is None:
                action = actions.of_text(_text(output))
            else:
                action = actions.of_call(str(call.get("name")), _arguments(call))
            turn = await episode.step(action)
        except ActionError as error:
            driven.invalid += 1
            episode.is_over = is_over = driven.invalid >= MAX_INVALID
            driven.is_scored = driven.is_scored or is_over  # the model's own fault
            details = {**episode.first.details, "invalid_reply": str(error)}
            text = f"That is not a valid action. {error}"
            if call is None:
                text = f"{text} {actions.instructions}".rstrip()
            refused = Turn([], [], None, terminated=False, truncated=is_over, details=details)
            return refused, text
        return turn, turn.text

    async def _close(self, request: Request) -> Response:
        with contextlib.suppress(ResetNeededError):  # there is none
            await self._sessions.close(self._find(request).episode)
        return json_response({})

    async def _seed_session(self, request: Request) -> Response:
        driven = await self._begin(request, await read_object(request))
        return self._with_cookie(driven, {})

    async def _verify(self, request: Request) -> Response:
        fields = await read_object(request)
        try:
            driven = self._find(request)
        except ResetNeededError:
            driven = await self._begin(request, fields)
        async with driven.lock:
            answer = await self._take(driven, _output(fields))
        if not (answer["terminated"] or answer["truncated"]):
            await self._sessions.close(driven.episode)
            raise CallOrderError(
                "/verify is for episodes of one step, and this one goes on. Use gymnasium_agent, "
                "which calls /reset and /step."
            )
        kept = {name: answer[name] for name in ("reward", "terminated", "truncated", "info")}
        return self._with_cookie(driven, {**fields, **kept})

    # Sessions

    async def _begin(self, request: Request, fields: Mapping[str, Any]) -> _Driven:
        """Begin the episode of a row. A client that was in another one leaves that."""
        with contextlib.suppress(ResetNeededError):  # there is none
            await self._sessions.close(self._find(request).episode)
        more = fields.get("verifier_metadata")
        row = {**(more if isinstance(more, dict) else {}), **fields}
        reset = {name: row[name] for name in _RESET_FIELDS if row.get(name) is not None}
        if "task" not in reset and isinstance(row.get("task_id"), str):
            reset["task"] = row["task_id"]
        wait_s = self._service.options.queue_timeout_s
        episode = await self._sessions.begin(request, reset, wait_s)
        driven = self._driven[episode.session.id] = _Driven(episode)
        if len(self._driven) > KEPT + self._service.options.max_sessions:
            self._driven = OrderedDict(
                (name, one) for name, one in self._driven.items() if one.episode.session.is_there
            )
        return driven

    def _find(self, request: Request) -> _Driven:
        driven = self._driven.get(request.cookies.get(COOKIE, ""))
        if driven is None:
            raise ResetNeededError(
                f"The request has no cookie {COOKIE!r} of a session here. Call POST /reset, and "
                "send the cookie that it sets."
            )
        return driven

    def _with_cookie(self, driven: _Driven, content: Any) -> Response:
        response = json_response(content)
        response.set_cookie(COOKIE, driven.episode.session.id, httponly=True, samesite="strict")
        return response


def _has_tools(fields: Mapping[str, Any]) -> bool:
    """Whether the row offers tools to the model; otherwise it must be told how to reply."""
    params = fields.get("responses_create_params")
    return bool(isinstance(params, dict) and params.get("tools"))


def _output(fields: Mapping[str, Any]) -> list[Any]:
    """Return the output items of the model's response."""
    response = fields.get("response")
    output = response.get("output") if isinstance(response, dict) else None
    if not isinstance(output, list) or not all(isinstance(one, dict) for one in output):
        raise OptionError("The body has no `response` of a model, with a list `output`.")
    return output


def _text(output: list[Any]) -> str:
    """Return the text of a response, as NeMo-Gym's `extract_text` does."""
    parts: list[str] = []
    for item in output:
        content = item.get("content") if item.get("type") == "message" else None
        if isinstance(content, str):
            parts.append(content)
        elif isinstance(content, list):
            texts = [one for one in content if isinstance(one, dict)]
            parts += [str(one["text"]) for one in texts if one.get("type") == "output_text"]
    return "".join(parts)


def _arguments(call: Mapping[str, Any]) -> dict[str, Any] | str:
    """Return the arguments of a function call, which are JSON text."""
    arguments = call.get("arguments") or "{}"
    try:
        read = json.loads(arguments)
    except (TypeError, ValueError):
        return str(arguments)
    return read if isinstance(read, dict) else str(arguments)
