"""ATIF 1.8, the Agent Trajectory Interchange Format of Harbor."""

from __future__ import annotations

import os
from typing import Any

from envweave.recording.export.tables import write_lines
from envweave.recording.reader import Recording
from envweave.types import Episode, EpisodeStep
from envweave.types.messages import action_text, first_text, observation_text, plain_of
from envweave.types.requests import ToolCallRequest

VERSION = "ATIF-v1.8"

_COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens")
_TOKENS = ("prompt_token_ids", "completion_token_ids")


def to_atif(recording: Recording, path: str | os.PathLike[str]) -> int:
    """Write a JSON line with the trajectory of each episode; return how many.

    Raises:
        RecordingError: An episode cannot be read, or the file not be written.
    """
    trajectories = (
        trajectory_of(recording.load(one), version=one.run.versions.get("envweave"))
        for one in recording.summaries
    )
    return write_lines(path, trajectories)


def trajectory_of(episode: Episode, *, version: str | None = None) -> dict[str, Any]:
    """Return an episode as an ATIF trajectory.

    The first observation is the user's step. Each action is a step of the agent, with a tool call
    for the action and its outcome as the observation. Rewards, flags and what else the format has
    no place for are in `extra`. If the agent attached `prompt_token_ids`, `completion_token_ids`,
    `logprobs`, token counts or `cost_usd` (`Decision.extra`), they are in the step's `metrics`.
    """
    seen = episode.observations
    opening: dict[str, Any] = {"step_id": 1, "source": "user", "message": first_text(seen[0])}
    extra = _given({"observation": seen[0], "info": episode.info})
    steps = [{**opening, "extra": extra}]
    pairs = zip(episode.steps, seen[1:], strict=True)
    for number, (step, after) in enumerate(pairs, start=2):
        steps.append(_step(number, step, after))
    about = {
        "env_id": episode.env_id,
        "task_id": episode.task_id,
        "task": episode.task,
        "seed": episode.seed,
        "options": episode.options,
        "group": episode.group,
        "member": episode.member,
        "attempts": episode.attempts,
        "parent": episode.parent,
        "definition": episode.definition,
    }
    outcome = {
        "reward": episode.reward,
        "reward_parts": episode.reward_parts,
        "metrics": episode.metrics,
        "end": episode.end,
        "usable": episode.usable,
        "duration_s": episode.duration_s,
    }
    return {
        "schema_version": VERSION,
        "session_id": str(episode.episode_id),
        "trajectory_id": str(episode.episode_id),
        "agent": {"name": "envweave", "version": version or "unknown"},
        "steps": steps,
        "final_metrics": {"total_steps": len(steps), **_totals(steps), "extra": _given(outcome)},
        "extra": _given(about),
    }


def _step(number: int, step: EpisodeStep, after: Any) -> dict[str, Any]:
    call_id = f"call-{number}"
    text = action_text(step.action)
    arguments = plain_of(step.action)
    if not isinstance(arguments, dict):
        arguments = {"action": arguments}
    is_code = isinstance(arguments.get("code"), str)
    name = "answer" if step.is_answer else "python" if is_code else "step"
    asked = [event for event in step.events if isinstance(event, ToolCallRequest)]
    extra = {
        "step_index": step.step_index,
        "reward": step.reward,
        "terminated": step.terminated,
        "truncated": step.truncated,
        "observation": after,
        "info": step.info,
        "action_mask": step.action_mask,
        "events": list(step.events),
        "extra": step.extra,
    }
    made: dict[str, Any] = {
        "step_id": number,
        "source": "agent",
        "message": text,
        "tool_calls": [{"tool_call_id": call_id, "function_name": name, "arguments": arguments}],
        "observation": {
            "results": [
                {"source_call_id": call_id, "content": observation_text(after)},
                *({"content": f"{one.name}({one.arguments})"} for one in asked),
            ]
        },
        "extra": _given(extra),
    }
    metrics = _metrics(step.extra)
    if metrics:
        made["metrics"] = metrics
    return made


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    plain = {name: plain_of(one) for name, one in fields.items()}
    return {name: one for name, one in plain.items() if one not in (None, [], {})}


def _metrics(extra: Any) -> dict[str, Any]:
    """Return what an agent attached that the format has a place for."""
    if not isinstance(extra, dict):
        return {}
    plain = plain_of(extra)
    found = {name: plain[name] for name in _COUNTS if _is_whole(plain.get(name))}
    found |= {name: plain[name] for name in _TOKENS if _is_list(plain.get(name), int)}
    if _is_list(plain.get("logprobs"), (int, float)):
        found["logprobs"] = plain["logprobs"]
    if isinstance(plain.get("cost_usd"), int | float):
        found["cost_usd"] = plain["cost_usd"]
    return found


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_list(value: Any, kind: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, kind) for one in value)


def _totals(steps: list[dict[str, Any]]) -> dict[str, Any]:
    metrics = [step["metrics"] for step in steps if "metrics" in step]
    totals = {}
    for name in (*_COUNTS, "cost_usd"):
        given = [one[name] for one in metrics if name in one]
        if given:
            totals[f"total_{name}"] = sum(given)
    return totals
