"""The log format of Inspect, for `inspect view` and `inspect score`: a zip of JSON files."""

from __future__ import annotations

import json
import math
import os
import statistics
import zipfile
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from envweave.recording.export.tables import encodable, json_text, replacing
from envweave.recording.reader import EpisodeSummary, Recording
from envweave.types import Episode
from envweave.types.messages import plain_of

_SCORER = "reward"


def to_eval(recording: Recording, path: str | os.PathLike[str]) -> int:
    """Write a log with a sample for each episode; return how many.

    The samples of a task, or of a seed where there are no tasks, are its epochs. A sample's score
    is the episode's reward; an episode that is not usable is a sample with an error, and has no
    score. Everything else is in the sample's metadata.

    Raises:
        RecordingError: An episode cannot be read, or the file not be written.
    """
    several = len({run.env_id for run in recording.runs}) > 1
    epochs: Counter[str] = Counter()
    summaries: list[dict[str, Any]] = []
    scores: list[float] = []
    with replacing(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:

        def write(name: str, document: Any) -> None:
            archive.writestr(name, json_text(document))

        log = _start(recording)
        write("_journal/start.json", log)
        for summary in recording.summaries:
            sample_id = summary.task_id or (
                str(summary.id) if summary.seed is None else f"seed-{summary.seed}"
            )
            if several:
                sample_id = f"{summary.run.env_id} {sample_id}"
            epochs[sample_id] += 1
            sample = _sample(recording.load(summary), summary, sample_id, epochs[sample_id])
            write(f"samples/{_file_name(sample_id)}_epoch_{epochs[sample_id]}.json", sample)
            summaries.append(_summary(sample))
            if "scores" in sample:
                scores.append(sample["scores"][_SCORER]["value"])
        write("_journal/summaries/1.json", summaries)
        write("summaries.json", summaries)
        log["eval"]["dataset"] = {
            "name": str(recording.path.name),
            "samples": len(epochs),
            "sample_ids": list(epochs),
            "shuffled": False,
        }
        log["eval"]["config"] = {"epochs": max(epochs.values(), default=1)}
        write("header.json", {**log, "status": "success", **_outcome(summaries, scores)})
    return len(summaries)


def _start(recording: Recording) -> dict[str, Any]:
    runs = recording.runs
    first = runs[0] if runs else None
    env_ids = list(dict.fromkeys(run.env_id for run in runs))
    return {
        "version": 2,
        "eval": {
            "eval_id": first.id if first else "envweave",
            "run_id": first.id if first else "envweave",
            "created": _time(first.header.get("t", 0.0) if first else 0.0),
            "task": ", ".join(env_ids) or "envweave",
            "task_id": first.id if first else "envweave",
            "task_version": 0,
            "task_attribs": {},
            "task_args": {},
            "dataset": {"name": recording.path.name},
            "model": "envweave/recorded",
            "model_args": {},
            "config": {},
            "packages": dict(first.versions) if first else {},
            "metadata": {"runs": [plain_of(dict(run.header)) for run in runs]},
        },
        "plan": {"name": "plan", "steps": [], "config": {}},
    }


def _outcome(summaries: list[dict[str, Any]], scores: list[float]) -> dict[str, Any]:
    began = [one["started_at"] for one in summaries]
    metrics = {}
    if scores:
        spread = statistics.stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else 0.0
        for name, value in (("mean", statistics.fmean(scores)), ("stderr", spread)):
            metrics[name] = {"name": name, "value": value, "params": {}}
    return {
        "results": {
            "total_samples": len(summaries),
            "completed_samples": len(scores),
            "scores": [{"name": _SCORER, "scorer": _SCORER, "params": {}, "metrics": metrics}],
        },
        "stats": {
            "started_at": min(began, default=_time(0.0)),
            "completed_at": max((one["completed_at"] for one in summaries), default=_time(0.0)),
            "model_usage": {},
        },
    }


def _sample(
    episode: Episode, summary: EpisodeSummary, sample_id: str, epoch: int
) -> dict[str, Any]:
    messages = [
        _message(one, f"{episode.episode_id}-{place}")
        for place, one in enumerate(episode.messages())
    ]
    opening = messages[:1] if messages and messages[0]["role"] == "user" else []
    answer = next((one for one in reversed(messages) if one["role"] == "assistant"), None)
    made: dict[str, Any] = {
        "id": sample_id,
        "epoch": epoch,
        "input": opening[0]["content"] if opening else "",
        "target": "",
        "messages": messages,
        "output": {
            "model": "envweave/recorded",
            "choices": [] if answer is None else [{"message": answer, "stop_reason": "stop"}],
        },
        "metadata": _without_messages(episode),
        "store": {},
        "events": [],
        "model_usage": {},
        "attachments": {},
        "started_at": _time(summary.began),
        "completed_at": _time(summary.began + max(summary.duration_s, 0.0)),
        "total_time": summary.duration_s,
        "uuid": str(episode.episode_id),
    }
    if not episode.usable:
        why = episode.end.cause or episode.end.reason
        made["error"] = {"message": why, "traceback": "", "traceback_ansi": ""}
    elif (reward := _number(episode.reward)) is not None:
        parts = plain_of({"reward_parts": episode.reward_parts, "reason": episode.end.reason})
        made["scores"] = {_SCORER: {"value": reward, "metadata": parts}}
    return made


def _number(reward: Any) -> float | None:
    """Return a reward as one number: with several agents, their mean."""
    if isinstance(reward, dict):
        given = [one for one in reward.values() if one is not None]
        return statistics.fmean(given) if given else None
    return None if reward is None else float(reward)


def _without_messages(episode: Episode) -> dict[str, Any]:
    plain = episode.to_dict()
    plain.pop("final_observation")
    return plain


def _message(message: dict[str, Any], message_id: str) -> dict[str, Any]:
    made = {"id": message_id, **message}
    if message["role"] == "assistant":
        made["source"] = "generate"
        made["model"] = "envweave/recorded"
    if "tool_calls" in message:
        made["tool_calls"] = [
            {
                "id": one["id"],
                "function": one["function"]["name"],
                "arguments": json.loads(one["function"]["arguments"]),
                "type": "function",
            }
            for one in message["tool_calls"]
        ]
    return made


def _summary(sample: dict[str, Any]) -> dict[str, Any]:
    names = ("id", "epoch", "input", "target", "scores", "started_at", "completed_at")
    shown = {name: sample[name] for name in (*names, "total_time", "uuid") if name in sample}
    shown |= {"metadata": {}, "model_usage": {}, "completed": True}
    if "error" in sample:
        shown["error"] = sample["error"]["message"]
    return shown


def _file_name(sample_id: str) -> str:
    return encodable(sample_id).replace("/", "_").replace("\\", "_")


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
