"""Classic verifiers environments (`verifiers` 0.3): runs theirs, exports ours.

Their rollouts run with the caller as model.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType, SimpleNamespace
from typing import Any, final

import verifiers as vf
from datasets import Dataset
from verifiers.types import Response, ResponseMessage, ToolCall

from envweave.adapters.verifiers.chat_turns import (
    Ask,
    Rollouts,
    RolloutScore,
    after_last_reply,
)
from envweave.adapters.verifiers.text_episodes import TextEnvironments, in_thread
from envweave.conversation.messages import ChatAction, ChatTool, TurnMessage
from envweave.errors import DefinitionError, EnvironmentFailure, OptionError, format_error, suggest

MODEL = "envweave"
"""The name of the model for environments that ask for it."""

_failed_rewards: ContextVar[list[str] | None] = ContextVar("failed_rewards", default=None)
_loading = threading.Lock()  # protects the names that `_without_signal_handlers` replaces


def load_classic(source: Any, kwargs: Mapping[str, Any]) -> Rollouts:
    """Return the rollouts of a module with `load_environment`, or of an environment object.

    Raises:
        OptionError: `load_environment` does not take a keyword.
        DefinitionError: It failed, or returned something else.
    """
    if not isinstance(source, ModuleType):
        return ClassicRollouts(source, [])
    parameters = inspect.signature(source.load_environment).parameters
    if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        for name in kwargs:
            if name not in parameters:
                known = f" It takes: {', '.join(parameters) or 'none'}."
                raise OptionError(
                    f"load_environment() of {source.__name__} takes no {name!r}."
                    f"{suggest(name, parameters) or known}"
                )
    exit_handlers: list[Callable[[], Any]] = []
    try:
        with _without_signal_handlers(exit_handlers):
            env: Any = source.load_environment(**kwargs)
    except Exception as error:
        raise DefinitionError(
            f"load_environment() of {source.__name__} failed: {format_error(error)}"
        ) from error
    if not isinstance(env, vf.Environment):
        raise DefinitionError(
            f"load_environment() of {source.__name__} returned a {type(env).__name__}, not a "
            "verifiers.Environment."
        )
    env.env_id, env.env_args = env.env_id or source.__name__, env.env_args or dict(kwargs)
    return ClassicRollouts(env, exit_handlers)


@contextlib.contextmanager
def _without_signal_handlers(exit_handlers: list[Callable[[], Any]]) -> Iterator[None]:
    """Keep the constructor of environments from changing signal handlers.

    It sets handlers for SIGINT and SIGTERM, which belong to the program and can only be set in
    the main thread. Its `atexit` handlers are collected in `exit_handlers`.
    """
    from verifiers.envs import environment as module

    def register(handler: Callable[[], Any]) -> None:
        atexit.register(handler)
        exit_handlers.append(handler)

    with _loading:
        signal, atexit = module.signal, module.atexit
        module.signal = SimpleNamespace(
            SIGINT=signal.SIGINT,
            SIGTERM=signal.SIGTERM,
            default_int_handler=signal.default_int_handler,
            signal=lambda *_: None,
        )
        module.atexit = SimpleNamespace(register=register)
        try:
            yield
        finally:
            module.signal, module.atexit = signal, atexit


@final
class ClassicRollouts(Rollouts):
    """A classic environment of verifiers."""

    def __init__(self, env: Any, exit_handlers: list[Callable[[], Any]]) -> None:
        self._env = env
        self._exit_handlers = exit_handlers
        self.name = env.env_id or type(env).__name__
        self._rows: dict[str, Any] = {}
        for split, rows in (("train", env.build_dataset()), ("eval", env.build_eval_dataset())):
            if rows is not None:
                self._rows[split] = rows
        self.splits = {split: len(rows) for split, rows in self._rows.items()}

    async def run(self, split: str, index: int, ask: Ask) -> RolloutScore:
        """Play one row."""
        env, row = self._env, self._rows[split][index]
        weights = _watch_rewards(env.rubric)
        failed: list[str] = []
        _failed_rewards.set(failed)  # this is a separate task with its own context
        client = _TurnClient(ask)
        if env.requires_group_rollouts:
            output = (await env.run_group([row], client, MODEL, {}))[0]
        else:
            output = await env.run_rollout(row, client, MODEL, {})
        if (error := output["error"]) is not None:
            reason = f"{error['error_chain_str']}: {error['message']}"
            raise EnvironmentFailure(f"The rollout failed: {reason}")
        if failed:
            raise EnvironmentFailure(f"The rollout cannot be scored: {'; '.join(failed)}")
        reward, metrics = float(output["reward"]), dict(output["metrics"] or {})
        stop = output["stop_condition"]
        return RolloutScore(
            reward=reward,
            parts=_parts(reward, metrics, weights),
            metrics=metrics,
            messages=after_last_reply(output["completion"] or ()),
            truncated=bool(output["is_truncated"]) or self._is_limit(stop),
            stop=stop,
        )

    def _is_limit(self, stop: str | None) -> bool:
        if stop == "max_turns_reached":
            return int(self._env.max_turns) > 1  # the only turn of a single-turn episode is its end
        return stop in ("timeout_reached", "prompt_too_long", "max_total_completion_tokens_reached")

    async def close(self) -> None:
        """Tear down the environment, as verifiers does when a program ends."""
        import atexit

        for handler in self._exit_handlers:
            atexit.unregister(handler)
        await self._env._teardown()  # noqa: SLF001 - there is no public name for it


def _watch_rewards(rubric: Any) -> list[tuple[str, float]]:
    """Record failures of a rubric's reward functions; return their names and weights.

    verifiers logs the error of a reward function, and continues with a reward of 0.
    """
    weights = []
    for one in getattr(rubric, "rubrics", ()):
        weights += _watch_rewards(one)
    for index, (function, weight) in enumerate(zip(rubric.funcs, rubric.weights, strict=True)):
        if weight:
            weights.append((function.__name__, float(weight)))
            if not hasattr(function, "__envweave__"):
                rubric.funcs[index] = _watch(function)
    return weights


def _watch(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def watched(*args: Any, **kwargs: Any) -> Any:
        try:
            value = function(*args, **kwargs)
            value = await value if inspect.isawaitable(value) else value
            return value if isinstance(value, list) else float(value)
        except Exception as error:
            failed = _failed_rewards.get()
            if failed is not None:
                failed.append(f"reward function {function.__name__} raised {format_error(error)}")
            raise

    watched.__envweave__ = True  # type: ignore[attr-defined]
    return watched


def _parts(
    reward: float, metrics: Mapping[str, float], weights: list[tuple[str, float]]
) -> dict[str, float]:
    """Return the parts of the reward; a single one if their names are not unique."""
    parts = {name: weight * metrics.get(name, 0.0) for name, weight in weights}
    if len(parts) == len(weights) and math.isclose(sum(parts.values()), reward, abs_tol=1e-9):
        return parts
    return {"reward": reward}


@final
class _TurnClient(vf.Client):  # type: ignore[misc] # verifiers is not installed where mypy runs
    """A model client whose model is the caller of `step`."""

    def __init__(self, ask: Ask) -> None:
        super().__init__(object())
        self._ask = ask

    async def get_native_response(
        self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **kwargs: Any
    ) -> ChatAction:
        """Show the conversation to the caller, and wait for the reply."""
        del model, sampling_args, kwargs
        return await self._ask(prompt, tools or [], "")

    async def to_native_prompt(self, messages: Any) -> tuple[list[TurnMessage], dict[str, Any]]:
        """Convert the messages."""
        read = [TurnMessage.from_openai(one.model_dump(exclude_none=True)) for one in messages]
        return read, {}

    async def to_native_tool(self, tool: Any) -> ChatTool:
        """Convert a tool."""
        return ChatTool(name=tool.name, description=tool.description, parameters=tool.parameters)

    async def from_native_response(self, response: ChatAction) -> Any:
        """Return the caller's reply as a response of a model."""
        calls = [
            ToolCall(id=call.id, name=call.name, arguments=call.arguments_json())
            for call in response.tool_calls
        ]
        message = ResponseMessage(
            content=response.content,
            tool_calls=calls or None,
            finish_reason="tool_calls" if calls else "stop",
            is_truncated=False,
        )
        return Response(id="envweave", created=0, model=MODEL, usage=None, message=message)

    async def raise_from_native_response(self, response: ChatAction) -> None:
        """Accept every reply, also an empty one: the rubric scores it."""

    def setup_client(self, config: Any) -> Any:
        """Never called: there is no config."""

    async def close(self) -> None:
        """Do nothing: it holds no resources."""


@final
class AsClassic(vf.MultiTurnEnv):  # type: ignore[misc] # verifiers is not installed where mypy runs
    """An envweave environment as a classic verifiers environment. See `to_verifiers`."""

    def __init__(
        self,
        environments: TextEnvironments,
        *,
        split: str | None,
        eval_split: str | None,
        num_examples: int,
        max_turns: int,
        system_prompt: str | None,
    ) -> None:
        self._environments = environments
        evaluated = eval_split or environments.eval_split()
        super().__init__(
            dataset=_dataset(environments.rows(split, num_examples)),
            eval_dataset=None
            if evaluated is None
            else _dataset(environments.rows(evaluated, num_examples)),
            system_prompt=system_prompt or environments.actions.instructions or None,
            rubric=_EpisodeRubric(),
            max_turns=max_turns,
        )

    async def setup_state(self, state: Any) -> Any:
        """Begin an episode; its first observation is the prompt."""
        with _failures():
            episode = state["envweave_episode"] = await self._environments.acquire()
            shown = await in_thread(episode.start, state["info"])
        system = [message for message in state["prompt"] if message.role == "system"]
        state["prompt"] = [*system, vf.UserMessage(content=shown)]
        return state

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        """Take the model's reply as an action."""
        del kwargs
        episode, content = state["envweave_episode"], messages[-1].content
        with _failures():
            message = await in_thread(episode.act, content if isinstance(content, str) else "")
        state["trajectory"][-1]["reward"] = episode.step_reward
        response = [vf.UserMessage(content=message)]
        if episode.is_over or 0 < self.max_turns <= len(state["trajectory"]):
            state["final_env_response"] = response
            state["is_truncated"] = episode.truncated or not episode.is_over
        return response

    @vf.stop  # type: ignore[untyped-decorator]
    async def max_turns_reached(self, state: Any) -> bool:  # noqa: ARG002 - verifiers' signature
        """Leave the limit to `env_response`: verifiers would drop the last reply."""
        return False

    @vf.cleanup  # type: ignore[untyped-decorator]
    async def release_environment(self, state: Any) -> None:
        """Return the environment to the pool."""
        if "envweave_episode" in state:
            await self._environments.release(state["envweave_episode"])

    @vf.teardown  # type: ignore[untyped-decorator]
    async def close_environments(self) -> None:
        """Close all environments."""
        self._environments.close()


def _dataset(rows: list[dict[str, Any]]) -> Any:
    # The prompt is replaced by the first observation, which only a reset returns.
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": row["task_id"] or f"seed {row['seed']}"}],
                "info": row,
            }
            for row in rows
        ]
    )


@contextmanager
def _failures() -> Iterator[None]:
    """Raise failures as a verifiers error, which is recorded in the rollout."""
    try:
        yield
    except Exception as error:
        raise vf.InfraError(format_error(error)) from error


@final
class _EpisodeRubric(vf.Rubric):  # type: ignore[misc]
    """Scores a rollout by the rewards of its episode; reports parts and metrics, too."""

    def __init__(self) -> None:
        super().__init__(funcs=[episode_return])

    async def score_rollout(self, state: Any) -> None:
        await super().score_rollout(state)
        state["metrics"] |= _figures(state)

    async def score_group(self, states: Any) -> None:
        await super().score_group(states)
        for state in states:
            state["metrics"] |= _figures(state)


async def episode_return(state: Any) -> float:
    """The sum of the episode's rewards."""
    episode = state.get("envweave_episode")
    return 0.0 if episode is None else float(episode.total)


def _figures(state: Any) -> dict[str, float]:
    episode = state.get("envweave_episode")
    figures = {} if episode is None else {**episode.metrics, **episode.parts}
    figures.pop("reward", None)  # it has its own column
    return figures
