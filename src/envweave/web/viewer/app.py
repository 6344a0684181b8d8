"""The application behind `envweave view`: the viewer's files, and what it asks for as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.routing import Route

from envweave.errors import EnvWeaveError, OptionError
from envweave.web.assets import SECURITY_HEADERS, asset, data, page
from envweave.web.viewer.folder import RunsFolder
from envweave.web.viewer.index import IndexedEpisode, RunIndex, read_rewards
from envweave.wire.json_dialect import from_dialect

if TYPE_CHECKING:
    from starlette.middleware import Middleware
    from starlette.requests import Request

PAGE = 500
"""Maximum number of rows in one reply."""

SHOWN_NUMBERS = 200_000
"""How many numbers of one array are sent."""

AGENT_STEPS = 2000
"""Up to how many steps have a curve of rewards for each agent: their lines are read for it."""

NODES = 3000
"""How many episodes the tree of forks shows."""

_DECODED = frozenset({"$array", "$bytes", "$complex", "$map", "$text", "$time"})
"""The marks of the recording that the page does not know."""

_SORTS: dict[str, Callable[[IndexedEpisode], Any]] = {
    "started": lambda one: one.started,
    "id": lambda one: one.id,
    "steps": lambda one: one.steps,
    "reward": lambda one: -math.inf if math.isnan(one.reward) or not one.is_scored else one.reward,
    "reason": lambda one: (one.reason or "", one.blame or ""),
    "task": lambda one: one.task,
    "seed": lambda one: one.seed if isinstance(one.seed, int) else -1,
    "duration_s": lambda one: -1.0 if one.duration_s is None else one.duration_s,
}


def viewer_app(folder: RunsFolder, middleware: Sequence[Middleware]) -> Starlette:
    """Return the application.

    Args:
        folder: What it shows, and nothing else.
        middleware: Checks who may call; it must refuse everybody else.
    """
    calls = _Queries(folder)

    async def index(request: Request) -> Response:  # noqa: ARG001 - an endpoint
        return page("viewer.html")

    def route(name: str, call: Callable[[Any], Any]) -> Route:
        async def answer(request: Request) -> Response:
            try:
                found = await run_in_threadpool(call, request.query_params)
            except EnvWeaveError as error:
                return _refuse(404, "not_found", str(error))
            except OSError as error:
                return _refuse(404, "unreadable", f"The run cannot be read: {error.strerror}.")
            return found if isinstance(found, Response) else data(found)

        return Route(f"/api/{name}", answer, methods=["GET"])

    return Starlette(
        routes=[
            Route("/", index, methods=["GET"]),
            route("runs", calls.runs),
            route("run", calls.run),
            route("metrics", calls.metrics),
            route("rewards", calls.rewards),
            route("episodes", calls.episodes),
            route("episode", calls.episode),
            route("steps", calls.steps),
            route("event", calls.event),
            route("raw", calls.raw),
            route("value", calls.value),
            route("tree", calls.tree),
            Route("/{name}", asset, methods=["GET"]),
        ],
        middleware=list(middleware),
    )


def _refuse(status: int, code: str, message: str) -> Response:
    response = data({"error": {"code": code, "message": message}})
    response.status_code = status
    return response


@final
class _Queries:
    """What the viewer asks for. Each takes the parameters of a query."""

    def __init__(self, folder: RunsFolder) -> None:
        self._folder = folder

    def runs(self, query: Any) -> Any:  # noqa: ARG002 - as every call
        found = [one.summary() for one in self._folder.runs()]
        return {"name": self._folder.folder.name, "runs": sorted(found, key=lambda one: one["id"])}

    def run(self, query: Any) -> Any:
        run = self._run(query)
        tasks = sorted({one.task for one in run.all_episodes() if one.task})
        return {**run.summary(), "header": shown(run.header), "tasks": tasks[:PAGE]}

    def metrics(self, query: Any) -> Any:
        return self._run(query).metrics(_integer(query, "since"))

    def rewards(self, query: Any) -> Any:
        """The return of every usable episode, in the order in which they ended."""
        since = _integer(query, "since")
        ended = [one for one in self._run(query).all_episodes() if one.reason is not None]
        ended.sort(key=lambda one: one.started + (one.duration_s or 0.0))
        usable = [one for one in ended if one.blame in (None, "agent")]
        points = [(i + 1, one.returned, one.steps) for i, one in enumerate(usable)]
        return {"points": points[since:], "offset": len(points)}

    def episodes(self, query: Any) -> Any:
        run = self._run(query)
        found = [one for one in run.all_episodes() if _matches(one, query)]
        sort = query.get("sort") or "started"
        if sort not in _SORTS:
            raise OptionError(f"sort must be one of {', '.join(_SORTS)}, got {sort[:80]!r}.")
        found.sort(key=_SORTS[sort], reverse=query.get("order") == "desc")
        offset = _integer(query, "offset")
        rows = [one.summary() for one in found[offset : offset + PAGE]]
        return {"total": len(run.episodes), "matching": len(found), "rows": shown(rows)}

    def episode(self, query: Any) -> Any:
        run, episode = self._episode(query)
        children = [
            {**one.summary(), "parent": one.parent}
            for one in run.all_episodes()
            if one.parent is not None and one.parent["episode"] == episode.id
        ]
        end = None if episode.end < 0 else shown(run.event(episode.end))
        return {
            **shown(episode.summary()),
            "lines": len(episode.lines),
            "rewards": _curves(run, episode),
            "children": shown(children[:PAGE]),
            "end": end,
            "is_live": run.is_live,
        }

    def steps(self, query: Any) -> Any:
        """A page of an episode's lines, each in a few words."""
        run, episode = self._episode(query)
        offset = _integer(query, "offset")
        limit = min(_integer(query, "limit") or 100, PAGE)
        places = episode.lines[offset : offset + limit]
        rows = [_in_short(run.event(place)) for place in places]
        return {"total": len(episode.lines), "rows": rows}

    def event(self, query: Any) -> Any:
        run, place = self._place(query)
        return {"event": shown(run.event(place)), "where": run.where(place)}

    def raw(self, query: Any) -> Any:
        run, place = self._place(query)
        line = run.raw_line(place)
        return Response(line, 200, SECURITY_HEADERS, "text/plain; charset=utf-8")

    def value(self, query: Any) -> Any:
        return {"value": shown(self._run(query).value(query.get("digest", "")))}

    def tree(self, query: Any) -> Any:
        """Every episode that is a fork or has one."""
        episodes = self._run(query).all_episodes()
        parents = {one.parent["episode"] for one in episodes if one.parent is not None}
        nodes = [one for one in episodes if one.parent is not None or one.id in parents]
        return {"total": len(nodes), "nodes": shown([one.summary() for one in nodes[:NODES]])}

    def _run(self, query: Any) -> RunIndex:
        return self._folder.find(query.get("run", ""))

    def _episode(self, query: Any) -> tuple[RunIndex, IndexedEpisode]:
        run = self._run(query)
        episode = run.episodes.get(query.get("episode", ""))
        if episode is None:
            raise OptionError(f"The run has no episode {query.get('episode', '')[:200]!r}.")
        return run, episode

    def _place(self, query: Any) -> tuple[RunIndex, int]:
        run, episode = self._episode(query)
        if query.get("line") == "end":
            if episode.end < 0:
                raise OptionError("The episode has not ended.")
            return run, episode.end
        line = _integer(query, "line")
        if line >= len(episode.lines):
            raise OptionError(f"The episode has {len(episode.lines)} lines, not {line + 1}.")
        return run, episode.lines[line]


def _matches(episode: IndexedEpisode, query: Any) -> bool:
    reason, blame, task = query.get("reason"), query.get("blame"), query.get("task")
    if reason and (episode.reason or "running") != reason:
        return False
    if blame and (episode.blame or "none") != blame:
        return False
    if task and task not in episode.task:
        return False
    text = query.get("q")
    if text and text not in episode.id and text not in episode.message:
        return False
    low, high = _float(query, "min"), _float(query, "max")
    if low is None and high is None:
        return True
    low, high = -math.inf if low is None else low, math.inf if high is None else high
    return episode.is_scored and low <= episode.reward <= high


def _integer(query: Any, name: str) -> int:
    text = query.get(name) or "0"
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise OptionError(f"{name} must be an integer >= 0, got {text[:80]!r}.")
    return int(text)


def _float(query: Any, name: str) -> float | None:
    text = query.get(name)
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise OptionError(f"{name} must be a number, got {text[:80]!r}.") from None


def _curves(run: RunIndex, episode: IndexedEpisode) -> dict[str, list[tuple[int, float]]]:
    """The rewards of each step, by agent; of many steps of several agents, their sums."""
    if episode.by_agent is None:
        return {"reward": _thinned(episode.rewards)}
    if len(episode.lines) > AGENT_STEPS:
        return {"sum of all agents": _thinned(episode.rewards)}
    curves: dict[str, list[tuple[int, float]]] = {name: [] for name in episode.by_agent}
    for i, place in enumerate(episode.lines):
        for name, reward in (read_rewards(run.event(place).get("reward")) or {}).items():
            curves.setdefault(name, []).append((i, reward))
    return curves


def _thinned(rewards: Any) -> list[tuple[int, float]]:
    """At most a few thousand points: of a long episode the extremes of every stretch."""
    count = len(rewards)
    stretch = max(1, count // 1000)
    if stretch <= 2:
        return [(i, one) for i, one in enumerate(rewards) if i]
    points: list[tuple[int, float]] = []
    for start in range(1, count, stretch):
        finite = [i for i in range(start, min(start + stretch, count)) if math.isfinite(rewards[i])]
        if finite:
            ends = {min(finite, key=rewards.__getitem__), max(finite, key=rewards.__getitem__)}
            points += ((i, rewards[i]) for i in sorted(ends))
    return points


def _in_short(event: dict[str, Any]) -> dict[str, Any]:
    """A line in a few words, for a list."""
    observation = event.get("observation")
    seen = observation if isinstance(observation, dict) else {}
    inside = seen.get("execution_result")
    inside = inside if isinstance(inside, dict) else {}
    requests = event.get("requests")
    kinds = [one.get("type") for one in requests or () if isinstance(one, dict)]
    failed = seen.get("exit_code") not in (None, 0) or inside.get("success") is False
    calls = seen.get("tool_calls") or inside.get("tool_calls") or []
    return {
        "event": str(event.get("event"))[:20],
        "step": event.get("step") if isinstance(event.get("step"), int) else None,
        "reward": _reward_in_short(event.get("reward")),
        "action": _brief(event.get("action") if "action" in event else event.get("value")),
        "failed": failed or bool(event.get("error")),
        "logs": kinds.count("log_event"),
        "tools": len(calls) + kinds.count("tool_call_request"),
    }


def _reward_in_short(value: Any) -> Any:
    if isinstance(value, dict) and "$float" not in value:
        return {str(name)[:20]: one for name, one in list(value.items())[:4]}
    return value if isinstance(value, int | float | dict) else None


def _brief(action: Any) -> str:
    plain = _filled(shown(action))
    if _is_plain(plain) and plain and all(map(_is_plain, plain.values())):  # by agent
        words = ", ".join(f"{name}: {_short(_bare(one))}" for name, one in plain.items())
    else:
        words = _short(_bare(plain))
    return " ".join(words[:400].split())[:120]


def _is_plain(value: Any) -> bool:
    """Whether a value, as `shown` returns it, is an object, and no mark of another value."""
    return isinstance(value, dict) and not any(name.startswith("$") for name in value)


def _bare(action: Any) -> Any:
    """An action without the fields that are empty; of a message or a single field, the content."""
    filled = _filled(action)
    if _is_plain(filled) and filled.keys() == {"role", "content"}:
        return filled["content"]
    return next(iter(filled.values())) if _is_plain(filled) and len(filled) == 1 else filled


def _filled(action: Any) -> Any:
    if not _is_plain(action):
        return action
    return {name: one for name, one in action.items() if one not in ({}, None)}


def _short(value: Any) -> str:
    """A value, as `shown` returns it, on one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(_short, value[:20]))}{', …' if len(value) > 20 else ''}]"
    if not isinstance(value, dict):
        return "" if value is None else str(value)
    for mark in ("$float", "$int", "$bytes"):
        if mark in value:
            return str(value[mark])
    if isinstance(about := value.get("$array"), dict):
        numbers = about.get("values")
        if isinstance(numbers, list) and len(numbers) <= 20:
            return _short(numbers)
        return f"{about.get('dtype')} {about.get('shape')}"
    if "$value" in value:
        return f"{value.get('kind')} of {value.get('bytes')} bytes"
    return f"{{{', '.join(f'{name}: {_short(one)}' for name, one in list(value.items())[:20])}}}"


def shown(value: Any) -> Any:
    """Return a value for JSON: arrays and numbers as marks that the page knows.

    The marks of the recording are kept, except that an array has its numbers in lists.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, dict):
        if isinstance(inner := value.get("$dict"), dict):
            return {str(name): shown(one) for name, one in inner.items()}
        if not _DECODED.isdisjoint(value):
            try:
                return shown(from_dialect(value))
            except EnvWeaveError:
                return {str(name): str(one)[:1000] for name, one in value.items()}
        return {str(name): shown(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [shown(one) for one in value]
    if isinstance(value, np.ndarray):
        about = {"dtype": str(value.dtype), "shape": list(value.shape)}
        if value.size <= SHOWN_NUMBERS and value.dtype.kind in "biufU":
            about["values"] = shown(value.tolist())
        return {"$array": about}
    if isinstance(value, bytes):
        return {"$bytes": f"{len(value)} B: {value[:32].hex(' ')}"}
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**53:
        return {"$int": str(value) if value.bit_length() < 4000 else hex(value)}
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, int | bool) or value is None:
        return value
    return str(value)
