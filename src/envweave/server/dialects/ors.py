"""The Open Reward Standard: a session is one episode, and a step is a tool call.

A client opens a session (`/create_session`), begins its episode with a task (`/create`), reads the
prompt, and calls tools (`/call`), which are made from the action spec. The answer to a call is a
stream of server-sent events: first an id, by which a client resumes if its connection breaks, then
the result. The environment needs no name in a path; `/list_environments` says its name.

The standard has no seed, no truncation and no failure. A seed is in the task. A truncated episode
is `finished`, and its `metadata` says more. A failed one ends in an error event, after which the
official client regards the session as terminated.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from envweave.errors import ActionError, CapacityError
from envweave.server.dialects.turns import (
    TurnEpisode,
    TurnSessions,
    answer_details,
    detail_response,
    json_response,
    parts_of,
    read_object,
)
from envweave.server.http.bodies import read_body
from envweave.server.http.routes import Endpoint
from envweave.server.service import PAGE
from envweave.wire.encoding import PLAIN_JSON
from envweave.wire.faults import error_of
from envweave.wire.messages import Call

if TYPE_CHECKING:
    from starlette.requests import Request

    from envweave.conversation import ChatTool
    from envweave.server.service import Service
    from envweave.wire.description import Description

ENDLESS = 1000
"""How many tasks an endless split is said to have; a client may ask for any other by its index."""

MAX_LISTED = 100_000
"""How many tasks one answer may list."""

WAIT_S = 25.0
"""How long a call waits for a free session, before the client must ask again."""

PING_S = 10.0
"""How often a client that waits for a step gets a sign of life; the official one waits for 30 s."""

CHUNK = 4096
"""The largest number of characters in one event."""

ANSWERS_KEPT = 16
"""How many answers of a session are stored for clients that resume."""

KEPT = 4096
"""How many closed sessions are remembered, so that late calls get the reason."""

_TYPES = ("train", "validation", "test")


@dataclass(eq=False)
class _Answer:
    """A tool call and its answer.

    Attributes:
        call: The name and the arguments.
        task: Carries it out.
        is_lost: Whether the connection of its client broke before the answer was written.
    """

    call: tuple[str, bytes]
    task: asyncio.Task[tuple[str, str]]
    is_lost: bool = False


@dataclass(eq=False)
class _Begun:
    """A session whose client has begun its episode.

    Attributes:
        body: The body of the request that began it.
        episode: Its episode; `None` until it has begun.
        answers: The answers to its calls, by their id.
        lock: Held while it begins.
    """

    body: bytes
    episode: TurnEpisode | None = None
    answers: OrderedDict[str, _Answer] = field(default_factory=OrderedDict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@final
class OpenReward:
    """The endpoints of the standard."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._sessions = TurnSessions(service)
        self._begun: OrderedDict[str, _Begun] = OrderedDict()

    def routes(self) -> list[Route]:
        """Return the routes. Those about the environment are there with and without its name."""
        gets: dict[str, Endpoint] = {
            "tools": self._tools,
            "task_tools": self._task_tools,
            "splits": self._splits,
            "prompt": self._prompt,
            "messages": self._messages,
        }
        posts: dict[str, Endpoint] = {
            "call": self._call,
            "tasks": self._tasks,
            "num_tasks": self._num_tasks,
            "task": self._task,
            "task_range": self._task_range,
            "score_group": self._score_group,
        }
        about_sessions: dict[str, Endpoint] = {
            "create_session": self._create_session,
            "create": self._create,
            "ping": self._ping,
            "delete": self._delete,
            "delete_session": self._delete,
        }
        routes = [
            Route("/version", answer_details(self._version), methods=["GET"]),
            Route("/list_environments", answer_details(self._list_environments), methods=["GET"]),
            *(
                Route(f"/{n}", answer_details(one), methods=["POST"])
                for n, one in about_sessions.items()
            ),
        ]
        for method, endpoints in (("GET", gets), ("POST", posts)):
            for name, endpoint in endpoints.items():
                answer = answer_details(self._checked(endpoint))
                routes += [
                    Route(f"/{name}", answer, methods=[method]),
                    Route(f"/{{env_name}}/{name}", answer, methods=[method]),
                ]
        return routes

    # The environment and its tasks

    async def _about(self) -> Description:
        about, _ = await self._sessions.describe()
        return about

    def _checked(self, endpoint: Endpoint) -> Endpoint:
        async def checked(request: Request) -> Response:
            self._check_name(request.path_params.get("env_name"), await self._about())
            return await endpoint(request)

        return checked

    def _check_name(self, name: str | None, about: Description) -> None:
        if name is not None and name.lower() not in (_name_of(about), about.name.lower()):
            raise HTTPException(404, f"unknown environment {name!r}")

    async def _version(self, request: Request) -> Response:  # noqa: ARG002 - an endpoint
        return json_response({"version": (await self._about()).version, "build_sha": None})

    async def _list_environments(self, request: Request) -> Response:  # noqa: ARG002 - an endpoint
        return json_response([_name_of(await self._about())])

    async def _tools(self, request: Request) -> Response:  # noqa: ARG002 - an endpoint
        _, actions = await self._sessions.describe()
        return _listed_tools(actions.tools)

    async def _task_tools(self, request: Request) -> Response:
        return _listed_tools(self._find(request).tools)

    async def _splits(self, request: Request) -> Response:  # noqa: ARG002 - an endpoint
        names = self._lengths(await self._about())
        return json_response(
            [{"name": one, "type": one if one in _TYPES else "validation"} for one in names]
        )

    def _lengths(self, about: Description) -> dict[str, int | None]:
        """Return how many tasks each split has; `None` for an endless one."""
        if about.splits is not None:
            return about.splits
        return {"train": None if "seed" in about.reset_takes else 1}

    async def _length(self, split: Any) -> tuple[int, bool]:
        """Return how many tasks a split has, and whether it is endless."""
        lengths = self._lengths(await self._about())
        if not isinstance(split, str) or split not in lengths:
            raise HTTPException(400, f"Invalid split {split!r:.80}. Known: {', '.join(lengths)}.")
        length = lengths[split]
        return (ENDLESS, True) if length is None else (length, False)

    async def _specs(self, split: str, start: int, stop: int) -> list[dict[str, Any]]:
        """Return the tasks of a range, as clients see them."""
        about = await self._about()
        if stop - start > MAX_LISTED:
            raise HTTPException(
                400, f"More than {MAX_LISTED} tasks: use /num_tasks and /task_range."
            )
        if about.splits is None:
            has_seed = "seed" in about.reset_takes
            return [{"seed": index} if has_seed else {} for index in range(start, stop)]
        specs: list[dict[str, Any]] = []
        while start + len(specs) < stop:
            begin = start + len(specs)
            params = {"split": split, "start": begin, "count": min(PAGE, stop - begin)}
            page = await self._ask("tasks", params)
            if not page:
                raise HTTPException(400, "Invalid index")
            specs += page
        return specs

    async def _ask(self, method: str, params: dict[str, Any]) -> Any:
        reply = await self._service.call(Call(id=1, method=method, params=params))
        if reply.fault is not None:
            raise error_of(reply.fault)
        plain = PLAIN_JSON.decode(PLAIN_JSON.encode(reply.result))
        return [
            {name: one for name, one in task.items() if one is not None and name != "private"}
            for task in plain
        ]

    async def _tasks(self, request: Request) -> Response:
        body = await read_object(request)
        length, _ = await self._length(body.get("split"))
        return await self._listed(body["split"], 0, length)

    async def _num_tasks(self, request: Request) -> Response:
        length, _ = await self._length((await read_object(request)).get("split"))
        return json_response({"num_tasks": length})

    async def _task(self, request: Request) -> Response:
        body = await read_object(request)
        task = await self._spec(body.get("split"), body.get("index"))
        return json_response({"task": task, "env_name": _name_of(await self._about())})

    async def _spec(self, split: Any, index: Any) -> dict[str, Any]:
        length, is_endless = await self._length(split)
        if not _is_index(index) or (index >= length and not is_endless):
            raise HTTPException(400, f"Invalid index {index!r:.80}: the split has {length} tasks.")
        return (await self._specs(split, index, index + 1))[0]

    async def _task_range(self, request: Request) -> Response:
        body = await read_object(request)
        start, stop = body.get("start"), body.get("stop")
        length, is_endless = await self._length(body.get("split"))
        if not all(one is None or isinstance(one, int) for one in (start, stop)):
            raise HTTPException(400, "start and stop must be integers.")
        if is_endless:
            length = max(length, start or 0, stop or 0)
        chosen = range(length)[start:stop]
        return await self._listed(body["split"], chosen.start, max(chosen.stop, chosen.start))

    async def _listed(self, split: str, start: int, stop: int) -> Response:
        specs = await self._specs(split, start, stop)
        return json_response({"tasks": specs, "env_name": _name_of(await self._about())})

    async def _score_group(self, request: Request) -> Response:  # noqa: ARG002 - an endpoint
        raise HTTPException(404, "This environment does not score groups.")

    # Sessions

    async def _create_session(self, request: Request) -> Response:  # noqa: ARG002 - an endpoint
        return _stream(_events(("task_id", str(uuid.uuid4())), ("end", "")))

    async def _create(self, request: Request) -> Response:
        sid = _sid(request)
        body = await read_body(request)
        fields = await read_object(request)
        about = await self._about()
        self._check_name(fields.get("env_name"), about)
        if fields.get("toolset_name") is not None:
            raise HTTPException(400, "This server has no toolsets.")
        known = self._begun.get(sid)
        if known is not None and known.body != body:
            raise HTTPException(400, "Session already exists")
        begun = known or self._remember(sid, _Begun(body))
        async with begun.lock:  # a repeated request waits for the first, and then has its session
            if begun.episode is None:
                reset = await self._reset_of(fields)
                try:
                    begun.episode = await self._sessions.begin(request, reset, WAIT_S)
                except CapacityError as error:
                    # The official client then asks again, for ten minutes.
                    headers = {"X-Backend-State": "starting", "Retry-After": "2"}
                    return detail_response(error, 503, **headers)
        return json_response({"sid": sid})

    def _remember(self, sid: str, begun: _Begun) -> _Begun:
        self._begun[sid] = begun
        if len(self._begun) > KEPT + self._service.options.max_sessions:
            self._begun = OrderedDict(
                (name, one) for name, one in self._begun.items() if not _is_gone(one)
            )
        return begun

    async def _reset_of(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters of the reset that begins an episode with a task."""
        spec, split, index = (fields.get(name) for name in ("task_spec", "split", "index"))
        if (spec is None) == (split is None and index is None):
            raise HTTPException(422, "Give either task_spec, or both split and index.")
        if spec is None:
            spec = await self._spec(split, index)
        if not isinstance(spec, dict):
            raise HTTPException(422, "task_spec must be an object, as /tasks lists it.")
        given = {name: spec[name] for name in ("seed", "options") if name in spec}
        task = {name: one for name, one in spec.items() if name not in given}
        return {**given, "task": task} if task else given

    async def _ping(self, request: Request) -> Response:
        self._find(request).session.touch()
        return json_response({"status": "ok"})

    async def _delete(self, request: Request) -> Response:
        sid = _sid(request)
        begun = self._begun.get(sid)
        if begun is not None and begun.episode is not None:
            await self._sessions.close(begun.episode)
        return json_response({"sid": sid})

    def _find(self, request: Request) -> TurnEpisode:
        begun = self._begun.get(_sid(request))
        if begun is None or begun.episode is None:
            raise HTTPException(404, "There is no such session: it was not begun with /create.")
        if not begun.episode.session.is_there:
            raise HTTPException(410, "The session is closed: deleted, or not called for too long.")
        return begun.episode

    async def _prompt(self, request: Request) -> Response:
        return json_response(_blocks(self._find(request).first.parts))

    async def _messages(self, request: Request) -> Response:
        messages = [
            {
                "role": "system" if one.role == "system" else "user",
                "blocks": _blocks(parts_of(one)),
                "detail": None,
            }
            for one in self._find(request).first.messages
        ]
        return json_response(messages)

    # Tool calls

    async def _call(self, request: Request) -> Response:
        episode = self._find(request)
        answers = self._begun[_sid(request)].answers
        fields = await read_object(request)
        name, given, task_id = (fields.get(one) for one in ("name", "input", "task_id"))
        if not isinstance(name, str) or not isinstance(given, dict):
            raise HTTPException(422, "A call needs `name`, a string, and `input`, an object.")
        if task_id is None:
            call = name, PLAIN_JSON.encode(given)
            # Repeated by a client whose connection broke before it had read the id.
            again = (key for key, one in answers.items() if one.call == call and one.is_lost)
            task_id = next(again, None)
            if task_id is None:
                task_id = secrets.token_hex(16)
                task = asyncio.ensure_future(_answer(episode, name, given))
                answers[task_id] = _Answer(call, task)
                while len(answers) > ANSWERS_KEPT and next(iter(answers.values())).task.done():
                    answers.popitem(last=False)
        found = answers.get(task_id) if isinstance(task_id, str) else None
        if found is None:
            return _stream(_events(("error", "unknown task_id")))
        return _stream(_follow(str(task_id), found))


def _is_gone(begun: _Begun) -> bool:
    if begun.episode is None:
        return not begun.lock.locked()  # it could not begin
    return not begun.episode.session.is_there


def _is_index(index: Any) -> bool:
    return isinstance(index, int) and not isinstance(index, bool) and 0 <= index < 2**53


def _name_of(about: Description) -> str:
    """Return the name of the environment, which can be a part of a path: `counter-v0`."""
    return re.sub(r"[^a-z0-9._-]+", "-", about.env_id.rpartition("://")[2].lower()).strip("-.")


async def _answer(episode: TurnEpisode, name: str, given: dict[str, Any]) -> tuple[str, str]:
    """Carry out a tool call; return the last event of its answer. Raises nothing."""
    if episode.is_over:
        return _refused("The episode has finished. Begin another session.", "episode_finished")
    known = [tool.name for tool in episode.tools]
    if name not in known:
        return _refused(f"There is no tool {name[:80]!r}. Known: {', '.join(known)}.", "not_found")
    try:
        turn = await episode.step(episode.actions.of_call(name, given))
    except ActionError as error:
        return _refused(str(error), "input_validation")
    except Exception as error:  # noqa: BLE001 - becomes an event of the answer
        return "error", " ".join(episode.fault_for(error).message.split())
    output = {
        "blocks": _blocks(turn.parts),
        "metadata": turn.details,
        "reward": turn.reward,
        "finished": turn.done,
    }
    return "end", PLAIN_JSON.encode({"ok": True, "output": output}).decode()


def _refused(message: str, reason: str) -> tuple[str, str]:
    return "end", PLAIN_JSON.encode({"ok": False, "error": message, "reason": reason}).decode()


def _blocks(parts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return parts of a message as blocks of the standard."""
    return [
        {"type": "text", "text": part["text"], "detail": None}
        if part["type"] == "text"
        else _image(part["image_url"]["url"])
        for part in parts
    ]


def _image(url: str) -> dict[str, Any]:
    kind, _, data = url.removeprefix("data:").partition(";base64,")
    return {"type": "image", "mimeType": kind, "data": data, "detail": None}


def _listed_tools(tools: Iterable[ChatTool]) -> Response:
    return json_response(
        {
            "tools": [
                {"name": one.name, "description": one.description, "input_schema": one.parameters}
                for one in tools
            ],
            "terminal_tool": None,
            "supports_score_group": False,
            "message_block_types": ["text", "image"],
        }
    )


async def _follow(task_id: str, answer: _Answer) -> AsyncIterator[bytes]:
    """Yield the events of a call: its id, signs of life, and its result in pieces."""
    is_written = False
    answer.is_lost = False
    try:
        yield _event("task_id", task_id)
        while not answer.task.done():
            await asyncio.wait((answer.task,), timeout=PING_S)
            if not answer.task.done():
                yield b": ping\n\n"
        last, text = answer.task.result()
        *pieces, piece = _pieces(text)
        for one in pieces:
            yield _event("chunk", one)
        yield _event(last, piece)
        is_written = True
    finally:
        answer.is_lost = not is_written


def _pieces(text: str) -> list[str]:
    """Cut a text into pieces. None begins with a space, which the official client would drop."""
    pieces, start = [], 0
    while len(text) - start > CHUNK:
        end = start + CHUNK
        while end > start + 1 and text[end].isspace():
            end -= 1
        pieces.append(text[start:end])
        start = end
    return [*pieces, text[start:]]


async def _events(*events: tuple[str, str]) -> AsyncIterator[bytes]:
    for name, data in events:
        yield _event(name, data)


def _event(name: str, data: str) -> bytes:
    return f"event: {name}\ndata: {data}\n\n".encode()


def _stream(events: AsyncIterator[bytes]) -> Response:
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, headers=headers, media_type="text/event-stream")


def _sid(request: Request) -> str:
    sid = request.headers.get("x-session-id", "").strip()
    if not 16 <= len(sid) <= 200:
        raise HTTPException(400, "The X-Session-ID header must be an id of POST /create_session.")
    return sid
