"""Recordings as JSON lines, one for each episode, and as Parquet, a row for each step."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from envweave.errors import MissingExtraError, RecordingError
from envweave.recording.reader import Recording
from envweave.types import Episode
from envweave.types.messages import plain_of

_ROWS = 10_000  # in a row group


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a path beside `path` to write to, which replaces it once all is written.

    Raises:
        RecordingError: The file cannot be written.
    """
    whole = Path(path)
    part = whole.with_name(f".{whole.name}.part")
    try:
        whole.parent.mkdir(parents=True, exist_ok=True)
        yield part
        part.replace(whole)
    except OSError as error:
        if isinstance(error, RecordingError):
            raise
        raise RecordingError(
            f"{str(whole)!r} cannot be written: {error.strerror or error}."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def to_json(recording: Recording, path: str | os.PathLike[str]) -> int:
    """Write a JSON line for each episode, `Episode.to_dict()`; return how many.

    Raises:
        RecordingError: An episode cannot be read, or the file not be written.
    """
    return write_lines(path, (episode.to_dict() for episode in recording))


def write_lines(path: str | os.PathLike[str], documents: Iterator[dict[str, Any]]) -> int:
    """Write a JSON line for each document; return how many."""
    count = 0
    with replacing(path) as part, part.open("w", encoding="utf-8") as file:
        for document in documents:
            _write_line(file, document)
            count += 1
    return count


def _write_line(file: IO[str], document: dict[str, Any]) -> None:
    file.write(json_text(document) + "\n")


def json_text(document: Any) -> str:
    """Return a document as JSON that UTF-8 can express: a lone surrogate becomes `?`."""
    return encodable(json.dumps(document, allow_nan=False, ensure_ascii=False))


def encodable(text: str) -> str:
    """Return a text with `?` for what UTF-8 cannot express."""
    return text.encode("utf-8", "replace").decode()


def to_parquet(recording: Recording, path: str | os.PathLike[str]) -> int:
    """Write a row for each step; return how many episodes there were.

    Values without a fixed type, such as observations, are JSON in text columns. `reward` is a
    number; with several agents it is null, and `rewards` is their JSON.

    Raises:
        MissingExtraError: pyarrow is not installed.
        RecordingError: An episode cannot be read, or the file not be written.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtraError.for_extra("Writing Parquet needs pyarrow.", "parquet") from error
    text, number, whole, flag = pa.string(), pa.float64(), pa.int64(), pa.bool_()
    kinds = {
        "episode_id": text, "env_id": text, "task_id": text, "seed": pa.decimal128(38),
        "group": whole, "member": whole, "attempts": whole, "episode_reward": number,
        "usable": flag, "reason": text, "blame": text, "step": whole, "is_answer": flag,
        "observation": text, "action": text, "reward": number, "rewards": text,
        "reward_parts": text, "terminated": flag, "truncated": flag, "next_observation": text,
        "info": text, "extra": text,
    }  # fmt: skip
    schema = pa.schema(list(kinds.items()))
    count = 0
    rows: list[dict[str, Any]] = []
    with replacing(path) as part, pq.ParquetWriter(part, schema) as writer:
        for episode in recording:
            count += 1
            rows += _rows(episode)
            if len(rows) >= _ROWS:
                writer.write_table(pa.Table.from_pylist(rows, schema))
                rows = []
        writer.write_table(pa.Table.from_pylist(rows, schema))
    return count


def _rows(episode: Episode) -> Iterator[dict[str, Any]]:
    about = {
        "episode_id": episode.episode_id,
        "env_id": episode.env_id,
        "task_id": episode.task_id,
        "seed": episode.seed,
        "group": episode.group,
        "member": episode.member,
        "attempts": episode.attempts,
        "episode_reward": None if isinstance(episode.reward, dict) else episode.reward,
        "usable": episode.usable,
        "reason": episode.end.reason,
        "blame": episode.end.blame,
    }
    for step, after in zip(episode.steps, episode.observations[1:], strict=True):
        several = isinstance(step.reward, dict)
        yield {
            **about,
            "step": step.step_index,
            "is_answer": step.is_answer,
            "observation": _json(step.observation),
            "action": _json(step.action),
            "reward": None if several else step.reward,
            "rewards": _json(step.reward) if several else None,
            "reward_parts": _json(step.info.get("reward_parts")),
            "terminated": _all(step.terminated),
            "truncated": _all(step.truncated),
            "next_observation": _json(after),
            "info": _json(step.info) if step.info else None,
            "extra": _json(step.extra),
        }


def _all(flag: Any) -> bool:
    return all(flag.values()) if isinstance(flag, dict) else bool(flag)


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(plain_of(value), allow_nan=False)
