"""v1 verifiers environments (`verifiers` 0.4): run theirs with the caller as model; export ours.

A v1 environment calls its model over HTTP. This module serves an OpenAI-compatible endpoint on
loopback, and answers each request with the caller's next action.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, final

import verifiers.v1 as vf
from aiohttp import web
from pydantic import ValidationError
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.utils.loaders import default_harness_id

from envweave.adapters.verifiers import harness
from envweave.adapters.verifiers.chat_turns import (
    Ask,
    Rollouts,
    RolloutScore,
    after_last_reply,
)
from envweave.adapters.verifiers.harness import ChatHarness
from envweave.adapters.verifiers.text_episodes import TextEnvironments, in_thread
from envweave.conversation.messages import ChatAction, ChatTool, TurnMessage
from envweave.errors import DefinitionError, EnvironmentFailure, OptionError, format_error

MAX_ENDLESS_TASKS = 1000
"""How many tasks are taken from an endless taskset."""

_HARNESS = "envweave_chat"
_MAX_BODY = 1 << 30


def load_v1(source: Any, kwargs: Mapping[str, Any]) -> Rollouts:
    """Return the rollouts of a module with a `Taskset`, or of an `Env` object.

    Raises:
        OptionError: The configuration has no such field, or the value is invalid.
        DefinitionError: It could not be loaded.
    """
    # Harnesses are looked up by name, first in this package.
    sys.modules.setdefault(f"verifiers.v1.harnesses.{_HARNESS}", harness)
    if not isinstance(source, ModuleType):
        return V1Rollouts(type(source)(_with_local_defaults(source.config)))
    name, options = source.__name__, dict(kwargs)
    config = options.pop("config", {})
    try:
        resolved = vf.resolve_env_config({**config, "taskset": {"id": name, **options}})
        return V1Rollouts(vf.load_environment(_with_local_defaults(resolved)))
    except ValidationError as error:
        raise OptionError(f"The options of {name} are not valid: {error}") from error
    except Exception as error:
        raise DefinitionError(f"{name} could not be loaded: {format_error(error)}") from error


def _with_local_defaults(config: Any) -> Any:
    """Return the configuration with local defaults: each role is a chat loop in this process.

    The defaults of verifiers are a shell agent in a cloud sandbox.
    """
    has_harness = default_harness_id(config.taskset.id) == config.taskset.id
    roles = {}
    for role, agent in agent_config_fields(config).items():
        change: dict[str, Any] = {}
        if "runtime" not in agent.model_fields_set:
            change["runtime"] = vf.SubprocessConfig()
        if agent.harness is None and not has_harness:
            change["harness"] = harness.ChatHarnessConfig(id=_HARNESS)
        roles[role] = agent.model_copy(update=change)
    return config.model_copy(update=roles)


@final
class V1Rollouts(Rollouts):
    """A v1 environment of verifiers."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.name = env.config.taskset.id
        tasks = env.taskset if env.taskset.bounded else env.taskset.take(MAX_ENDLESS_TASKS)
        self._tasks = list(tasks)
        self.splits = {"train": len(self._tasks)}
        self._serving: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None]
        self._endpoint = ""
        self._ask: Ask | None = None
        self._roles: dict[str, str] = {}  # the role that makes a call, by the id of its trace

    async def run(self, split: str, index: int, ask: Ask) -> RolloutScore:  # noqa: ARG002
        """Play one task."""
        await self._start()
        self._ask, self._roles = ask, {}
        client = vf.EvalClientConfig(base_url=self._endpoint, api_key_var="ENVWEAVE_NO_KEY")
        try:
            episode = await self._env.run_episode(
                self._tasks[index],
                vf.ModelContext(model="envweave", client=client),
                on_trace=self._note_role,
            )
        finally:
            self._ask = None
        return _score(episode)

    def _note_role(self, trace: Any) -> None:
        self._roles[trace.id] = trace.agent.name or ""

    async def _start(self) -> None:
        """Wait until the endpoint and the shared servers of the environment are running."""
        if self._serving is None or self._serving.done():
            self._ready = asyncio.get_running_loop().create_future()
            self._serving = asyncio.create_task(self._serve(self._ready))
        await asyncio.wait({self._ready, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        if self._serving.done():
            self._serving.result()  # raises what it failed with

    async def _serve(self, ready: asyncio.Future[None]) -> None:
        """Hold everything that outlives an episode, in one task, until it is cancelled."""
        app = web.Application(client_max_size=_MAX_BODY)
        path = f"/{secrets.token_urlsafe(16)}/v1"  # other users of this machine cannot guess it
        app.router.add_post(f"{path}/chat/completions", self._complete)
        # With cancellation, a turn whose client is gone stops waiting.
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self._endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}{path}"
            async with self._env.serving():
                ready.set_result(None)
                await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        """Answer one call of the model."""
        session = request.headers.get("X-Session-ID", "")
        if self._ask is None or session not in self._roles:
            return web.json_response({"error": {"message": "no such episode"}}, status=410)
        body = await request.json()
        messages = [TurnMessage.from_openai(one) for one in body["messages"]]
        tools = [_tool(one) for one in body.get("tools") or ()]
        reply = await self._ask(messages, tools, self._roles[session])
        if not body.get("stream"):
            return web.json_response(_completion(reply))
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        for chunk in _chunks(reply):
            await stream.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await stream.write(b"data: [DONE]\n\n")
        await stream.write_eof()
        return stream

    async def close(self) -> None:
        """Stop the servers."""
        serving, self._serving = self._serving, None
        if serving is not None and not serving.done():
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving


def _score(episode: Any) -> RolloutScore:
    """Return the score of an episode: the sum of the rewards of its roles.

    Raises:
        EnvironmentFailure: It failed.
    """
    traces = episode.traces
    if not episode.ok:
        errors = [*episode.errors, *(error for trace in traces for error in trace.errors)]
        reason = (
            "; ".join(f"{error.type}: {error.message}" for error in errors) or "no reason given"
        )
        raise EnvironmentFailure(f"The rollout failed: {reason}")
    parts: dict[str, float] = {}
    metrics: dict[str, float] = {}
    for trace in traces:
        prefix = f"{trace.agent.name}/" if len(traces) > 1 else ""
        for name, reward in trace.rewards.items():
            if reward is not None:
                parts[f"{prefix}{name}"] = parts.get(f"{prefix}{name}", 0.0) + reward.value
        metrics |= {f"{prefix}{n}": one for n, one in trace.metrics.items() if one is not None}
    last = traces[-1]
    return RolloutScore(
        reward=sum(parts.values()),
        parts=parts,
        metrics=metrics,
        messages=after_last_reply(one.model_dump() for one in last.messages),
        truncated=any(trace.is_truncated or trace.is_timeout for trace in traces),
        stop=last.stop_condition,
    )


def _tool(tool: Mapping[str, Any]) -> ChatTool:
    function = tool["function"]
    return ChatTool(
        name=function["name"],
        description=function.get("description") or "",
        parameters=function.get("parameters") or {},
    )


def _completion(reply: ChatAction) -> dict[str, Any]:
    return {
        **_envelope("chat.completion"),
        "choices": [{"index": 0, "finish_reason": _finish(reply), "message": reply.to_openai()}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


def _chunks(reply: ChatAction) -> list[dict[str, Any]]:
    """Return a reply as the events of a stream: the whole message, then its end."""
    delta = reply.to_openai()
    for index, call in enumerate(delta.get("tool_calls", ())):
        call["index"] = index
    envelope = _envelope("chat.completion.chunk")
    return [
        {**envelope, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**envelope, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(reply)}]},
        {
            **envelope,
            "choices": [],
            "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        },
    ]


def _envelope(kind: str) -> dict[str, Any]:
    return {"id": "envweave", "object": kind, "created": 0, "model": "envweave"}


def _finish(reply: ChatAction) -> str:
    return "tool_calls" if reply.tool_calls else "stop"


class EpisodeData(vf.TaskData):  # type: ignore[misc] # verifiers is not installed where mypy runs
    """The subject of an episode: a task of the environment, or a seed."""

    task_id: str | None = None
    seed: int | None = None


class EpisodeTask(vf.Task[EpisodeData, vf.State, vf.TaskConfig]):  # type: ignore[misc]
    """An episode. Its rewards are recorded while it is played."""


def v1_classes(
    make_environments: Callable[[], TextEnvironments],
    *,
    split: str | None,
    num_examples: int,
    max_turns: int,
    system_prompt: str | None,
) -> tuple[type, type, type]:
    """Return the `Taskset`, the `Env` and the `Harness` that a module exports."""
    default_split, default_number = split, num_examples

    class EpisodesConfig(vf.TasksetConfig):  # type: ignore[misc]
        split: str | None = default_split
        """Which split the tasks are of; the first one by default."""
        num_examples: int = default_number
        """How many tasks to take from an endless split, and how many seeds."""

    class EpisodesTaskset(vf.Taskset[EpisodeTask, EpisodesConfig]):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.environments = make_environments()

        def load(self) -> Iterator[Any]:
            """List the tasks, without a prompt: the environment sends the first message."""
            environments = self.environments
            prompt = system_prompt or environments.actions.instructions or None
            for row in environments.rows(self.config.split, self.config.num_examples):
                name = row["task_id"] or f"seed-{row['seed']}"
                data = EpisodeData(name=name, prompt=None, system_prompt=prompt, **row)
                yield EpisodeTask(data, self.config.task)

    class EpisodesEnvConfig(vf.EnvConfig):  # type: ignore[misc]
        player: vf.AgentConfig = vf.AgentConfig(
            runtime=vf.SubprocessConfig(), max_turns=None if max_turns < 0 else max_turns
        )

    class EpisodesEnv(vf.Env[EpisodesEnvConfig]):  # type: ignore[misc]
        async def run(self, task: Any, agents: Any) -> None:
            """Play one episode. An error here fails the episode, which then has no reward."""
            environments = self.taskset.environments
            episode = await environments.acquire()
            try:
                message = await in_thread(episode.start, task.data.model_dump())
                async with agents.player.interaction(task) as interaction:
                    segment = await interaction.turn(message)
                    while not segment.terminated:
                        message = await in_thread(episode.act, segment.last_reply)
                        if episode.is_over:
                            break
                        segment = await interaction.turn(message)
            finally:
                await environments.release(episode)
            for name, part in (episode.parts or {"reward": 0.0}).items():
                interaction.trace.record_reward(name, part)
            interaction.trace.record_metrics(episode.metrics)

        async def stop(self) -> None:
            self.taskset.environments.close()

    return EpisodesTaskset, EpisodesEnv, ChatHarness
