"""What the player sees: observations, rewards, events and ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np

from envweave.cli import output
from envweave.codec import to_plain
from envweave.types import (
    Action,
    AgentEnd,
    EpisodeEnd,
    LogEvent,
    NeedAction,
    Observation,
    StepResult,
    ToolCallRequest,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_HIDDEN = frozenset({"metadata", "reward", "done", "truncated"})
_LONGEST = 4_000
_LEVELS = {"debug": "dim", "info": "cyan", "warning": "yellow", "error": "red"}


@final
class PlayScreen:
    """Prints the course of a game. Text of the environment is shown without control characters."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def write(self, text: str) -> None:
        """Print text, without a line break after it."""
        self._console.print(text, end="", soft_wrap=True)

    def note(self, text: str) -> None:
        """Print a hint."""
        self._console.print(_clean(text), style="dim", soft_wrap=True)

    def mistake(self, text: str) -> None:
        """Print what is wrong with what the player typed."""
        self._console.print(_clean(text), style="yellow", soft_wrap=True)

    def begin(self, number: int, result: StepResult[Any]) -> None:
        """Print the start of an episode."""
        about = [f"episode {number}"]
        if "seed" in result.info:
            about.append(f"seed {result.info['seed']}")
        if result.task_id is not None:
            about.append(f"task {result.task_id}")
        self._rule(" · ".join(about))
        self._events(result)
        self._observations(result)

    def step(self, result: StepResult[Any], total: Any) -> None:
        """Print the outcome of a step."""
        self._rule(f"step {result.step_index}")
        self._events(result)
        self._observations(result)
        self._reward(result, total)

    def end(self, end: EpisodeEnd, total: Any, length: int) -> None:
        """Print the end of an episode."""
        reason = end.reason if end.blame is None else f"{end.reason} (by {end.blame})"
        style = "bold green" if end.valid else "bold red"
        self._rule(f"over: {reason}", style)
        if end.cause:
            self._console.print(_clean(end.cause), style="red", soft_wrap=True)
        steps = "1 step" if length == 1 else f"{length} steps"
        self._console.print(f"return {_format_reward(total)} in {steps}", style="bold")

    def needs(self, need: NeedAction[Any]) -> None:
        """Print whose turn it is, where there are several agents."""
        self._console.print(f"{need.agent_id} acts", style="bold cyan")

    def value(self, title: str, value: Any) -> None:
        """Print any value under a title."""
        self._console.print(title, style="bold")
        self._show(value)

    def _rule(self, title: str, style: str = "bold") -> None:
        from rich.rule import Rule
        from rich.text import Text

        self._console.print(Rule(Text(_clean(title), style=style), align="left", style="dim"))

    def _events(self, result: StepResult[Any]) -> None:
        for event in result.events:
            match event:
                case LogEvent(message=message, level=level):
                    self._console.print(_clean(f"{level}: {message}"), style=_LEVELS[level])
                case AgentEnd(agent_id=agent, reward=reward):
                    self._console.print(
                        f"{agent} leaves, still owed {_format_reward(reward)}", style="magenta"
                    )
                case ToolCallRequest(name=name, arguments=arguments):
                    call = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
                    self._console.print(_clean(f"tool call: {name}({call})"), style="magenta")

    def _observations(self, result: StepResult[Any]) -> None:
        if result.needs and isinstance(result.observation, dict):
            seen = {need.agent_id: need.observation for need in result.needs}
            if seen.keys() <= result.observation.keys():
                for agent, observation in seen.items():
                    self.value(agent, observation)
                return
        if isinstance(result.terminated, dict):
            for agent, observation in result.observation.items():
                self.value(agent, observation)
            return
        self._show(result.observation)

    def _show(self, value: Any) -> None:
        if _is_conversation(value):
            self._conversation(value)
            return
        if isinstance(value, Action | Observation):
            value = {k: v for k, v in _fields_of(value).items() if k not in _HIDDEN}
        rows = list(_flatten(value, "")) or [("", "(nothing)")]
        short = [(name, text) for name, text in rows if name and "\n" not in text]
        if short:
            self._console.print(_facts(short))
        for name, text in rows:
            if not name:
                self._console.print(text, soft_wrap=True)
            elif "\n" in text:
                self._console.print(f"{name}", style="bold")
                self._console.print(_indent(text), soft_wrap=True)

    def _conversation(self, messages: list[Mapping[str, Any]]) -> None:
        new = list(messages)
        for index in reversed(range(len(messages))):
            if messages[index]["role"] == "assistant":
                new = new[index + 1 :]
                break
        for message in new:
            self._console.print(_clean(f"{message['role']}"), style="bold cyan")
            self._console.print(_indent(_shorten(str(message["content"]))), soft_wrap=True)

    def _reward(self, result: StepResult[Any], total: Any) -> None:
        from rich.text import Text

        line = Text("reward ")
        line.append(_format_reward(result.reward), style=_sign(result.reward))
        parts = result.reward_parts
        if parts:
            named = ", ".join(f"{name} {_format_reward(one)}" for name, one in parts.items())
            line.append(f" = {_clean(named)}")
        if result.step_index > 1:
            line.append(f"   so far {_format_reward(total)}", style="dim")
        if result.metrics:
            named = ", ".join(f"{name} {value}" for name, value in result.metrics.items())
            line.append(f"   {_clean(named)}", style="dim")
        self._console.print(line)


def _fields_of(observation: Action | Observation) -> dict[str, Any]:
    return {name: getattr(observation, name) for name in observation.__dataclass_fields__}


def _flatten(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield names and texts; fields that are empty are left out."""
    if isinstance(value, np.ndarray):
        yield path, _shorten(np.array2string(value, threshold=200, precision=4))
        return
    plain = to_plain(value)
    if isinstance(plain, dict) and plain:
        inside = value if isinstance(value, dict) else plain
        for name, one in inside.items():
            inner = f"{path}.{name}" if path else str(name)
            is_empty = isinstance(one, str | list | dict | None) and not one
            if not is_empty:
                yield from _flatten(one, inner)
        return
    text = plain if isinstance(plain, str) else repr(plain)
    yield path, _shorten(text)


def _is_conversation(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(one, dict) and {"role", "content"} <= one.keys() for one in value)
    )


def _facts(rows: list[tuple[str, str]]) -> Table:
    return output.facts(rows)


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def _shorten(text: str) -> str:
    """Return text to show: the middle of long text is left out."""
    text = _clean(text.removesuffix("\n"))
    if len(text) <= _LONGEST:
        return text
    left = len(text) - _LONGEST
    return f"{text[: _LONGEST // 2]}\n… {left:,} characters …\n{text[-_LONGEST // 2 :]}"


def _clean(text: str) -> str:
    """Show control characters instead of obeying them: the text is not ours."""
    text = text.replace("\r\n", "\n").replace("\t", "    ")
    return "".join(one if one == "\n" or one.isprintable() else repr(one)[1:-1] for one in text)


def _format_reward(reward: Any) -> str:
    if isinstance(reward, dict):
        return ", ".join(f"{agent} {_format_reward(one)}" for agent, one in reward.items()) or "–"
    return "–" if reward is None else f"{reward:+.4g}"


def _sign(reward: Any) -> str:
    if isinstance(reward, int | float):
        return "bold green" if reward > 0 else "bold red" if reward < 0 else "bold"
    return "bold"
