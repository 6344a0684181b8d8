"""The questions of GSM8K: from a folder, from the cache, downloaded, or the sample in this package.

GSM8K is by OpenAI, under the MIT license, which is in the sample folder. A row is a JSON object
with a `question` and an `answer`, whose last line is `#### 42`.
"""

from __future__ import annotations

import functools
import hashlib
import http.client
import json
import logging
import os
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import final

import envweave as ew
from envweave.envs.gsm8k_env.answers import exact_answer
from envweave.errors import OptionError, StartupError

logger = logging.getLogger("envweave.envs.gsm8k")

PATH_VARIABLE = "ENVWEAVE_GSM8K"
SPLITS = ("train", "test")
SHA256 = {
    "train": "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
    "test": "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
}
OFFICIAL = (
    "https://raw.githubusercontent.com/openai/grade-school-math/"
    "3101c7d5072418e28b9008a6636bde82a006892c/grade_school_math/data"
)
SAMPLE = Path(__file__).parent / "sample"
_DOWNLOAD_TIMEOUT_S = 60.0
_MAX_BYTES = 64 * 2**20


@final
@dataclass(frozen=True)
class Dataset:
    """GSM8K, or a part of it.

    Attributes:
        name: `gsm8k`; `gsm8k-sample`; or `custom`, if the rows are not the official ones.
        tasks: A task for each row, called `train-0`, `train-1`, …, `test-0`, …. The question is its
            public data; the solution is private.
    """

    name: str
    tasks: ew.Tasks


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    download: bool | str = False,
    first_split: str = "train",
    max_examples: int | None = None,
) -> Dataset:
    """Return the questions, from the first source that exists.

    1. `path`, or `$ENVWEAVE_GSM8K`: a folder with `train.jsonl` or `test.jsonl` or both;
    2. with `download`, the cache, after downloading missing files into it;
    3. the cache, `~/.cache/envweave/gsm8k`;
    4. the sample in this package, with a warning.

    Args:
        path: The folder.
        download: Whether to download; a string is the URL of another copy of the two files. Their
            checksums must be the official ones.
        first_split: The split that tasks are drawn from by default.
        max_examples: Maximum number of rows of each split, from its start.

    Raises:
        OptionError: `path` has no valid rows, or another option is invalid.
        StartupError: The download failed, or its checksum is wrong.
    """
    if first_split not in SPLITS:
        raise OptionError(f"split={first_split!r} is not a split of GSM8K. Use 'train' or 'test'.")
    if max_examples is not None and not (isinstance(max_examples, int) and max_examples >= 1):
        raise OptionError(f"max_examples must be an integer >= 1, got {max_examples!r}.")
    given = path if path is not None else os.environ.get(PATH_VARIABLE) or None
    cache = cache_dir()
    if given is not None:
        folder = Path(given).expanduser()
        is_official = all(_checksum(folder, split) in (None, SHA256[split]) for split in SPLITS)
        name = "gsm8k" if is_official else "custom"
    elif download:
        for split in SPLITS:
            if _checksum(cache, split) != SHA256[split]:
                base = download if isinstance(download, str) else OFFICIAL
                fetch(f"{base.rstrip('/')}/{split}.jsonl", cache / f"{split}.jsonl", SHA256[split])
        folder, name = cache, "gsm8k"
    elif all(_checksum(cache, split) == SHA256[split] for split in SPLITS):
        folder, name = cache, "gsm8k"
    else:
        folder, name = SAMPLE, "gsm8k-sample"
        _warn_about_sample()
    rows = {split: _read(folder / f"{split}.jsonl", split) for split in SPLITS}
    if not any(rows.values()):
        raise OptionError(
            f"There is no GSM8K in {str(folder)!r}: neither train.jsonl nor test.jsonl. "
            "Pass the folder that has them, or no path and download=True."
        )
    if not rows[first_split]:
        raise OptionError(f"split={first_split!r}: {str(folder)!r} has no {first_split}.jsonl.")
    order = sorted((s for s in SPLITS if rows[s]), key=lambda s: s != first_split)
    return Dataset(name, ew.Tasks({split: rows[split][:max_examples] for split in order}))


def cache_dir() -> Path:
    """Return the folder of downloaded files."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "envweave" / "gsm8k"


def fetch(url: str, target: Path, sha256: str) -> None:
    """Download a file, and store it if it has this checksum.

    Raises:
        StartupError: The download failed, or the checksum differs.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise OptionError(f"download={url!r} is not an http or https address.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(url, timeout=_DOWNLOAD_TIMEOUT_S) as response:  # noqa: S310 - checked above
            content = response.read(_MAX_BYTES)
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise StartupError(
            f"GSM8K could not be downloaded from {url}: {error}. Try again, or put train.jsonl and "
            f"test.jsonl into a folder and pass it as path=… or ${PATH_VARIABLE}."
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise StartupError(
            f"{url} is not the official file: its sha256 is {found}, not {sha256}. It was not "
            "stored. Download from elsewhere, or pass a folder as path=…."
        )
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
        file.write(content)
    Path(file.name).replace(target)  # atomic: another process may download it at the same time


def _checksum(folder: Path, split: str) -> str | None:
    path = folder / f"{split}.jsonl"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


@functools.cache
def _warn_about_sample() -> None:
    logger.warning(
        "GSM8K: the full dataset was not found; using a sample of 64 training and 32 test "
        "questions. For all 8,792, pass download=True, or a folder as path=… or $%s.",
        PATH_VARIABLE,
    )


@functools.lru_cache(maxsize=8)
def _read_once(path: Path, split: str, _changed_ns: int) -> tuple[ew.Task, ...]:
    """Read a file into tasks. All environments of a process share them."""
    tasks = []
    # Lines of JSON end with "\n" alone; str.splitlines() would also split at U+2028.
    for index, line in enumerate(path.read_bytes().removesuffix(b"\n").split(b"\n")):
        try:
            row = json.loads(line)
            question, solution = row["question"], row["answer"]
            answer = exact_answer(solution)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _row_error(path, index, f"{type(error).__name__}: {error}") from None
        if answer is None or not isinstance(question, str):
            raise _row_error(path, index, "its answer does not end with a line '#### NUMBER'")
        private = {"solution": solution, "answer": str(answer)}
        tasks.append(ew.Task(f"{split}-{index}", split, {"question": question}, private=private))
    return tuple(tasks)


def _read(path: Path, split: str) -> tuple[ew.Task, ...]:
    return _read_once(path, split, path.stat().st_mtime_ns) if path.is_file() else ()


def _row_error(path: Path, index: int, why: str) -> OptionError:
    return OptionError(
        f"Line {index + 1} of {str(path)!r} is not a row of GSM8K: {why}. A line is a JSON object "
        'with "question" and "answer".'
    )
