"""The datasets of reasoning-gym as environments: one generated question, one answer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, final

from envweave.adapters.global_random import GlobalRandomState
from envweave.environment import Environment
from envweave.errors import EnvNotFoundError, MissingExtraError, OptionError, TaskError, suggest
from envweave.types import Action, Observation, State, Task, Tasks

INSTRUCTION = "Give the final answer between <answer> and </answer>, and nothing else in there."
SPLITS = ("train", "test")
TEST_SHARE = 4
"""One in this many questions belongs to the test split."""

_ATTEMPTS = 64
_CHUNK = 500
_LIMIT = 2**32 - 1
"""Seed and index of a dataset sum to at most this, which is what numpy takes as a seed."""

_ANSWER = re.compile(r"<answer>\s?(.*?)\s?</answer>", re.DOTALL)


def reasoning_gym_module() -> ModuleType:
    """Import and return reasoning-gym.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import reasoning_gym
    except ImportError:
        raise MissingExtraError.for_extra(
            "reasoning-gym is not installed.", "reasoning-gym"
        ) from None
    return reasoning_gym  # type: ignore[no-any-return]


@dataclass
class ReasoningAction(Action):
    """The agent's text. What stands last in `<answer>…</answer>` is graded, else all of it."""

    text: str


@dataclass
class ReasoningObservation(Observation):
    """The question and how to answer it; empty after the answer."""

    prompt: str = ""


@dataclass(kw_only=True)
class ReasoningState(State):
    """The current task and its dataset."""

    task_id: str | None = None
    dataset: str = ""


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """What reasoning-gym generated: question, answer and metadata, which its scorers need."""

    values: dict[str, Any]


@final
class ReasoningGymEnv(Environment):
    """A question of one of reasoning-gym's datasets, and one answer.

    The reward is the score that the dataset gives, from 0 to 1; an answer may be partly right. The
    metric `success` is 1 for the full score. The right answer is never shown.

    Tasks are endless. A task is made from `seed` and its index alone, and `data` of a task says
    how: `create_dataset(dataset, seed=seed, …)[index]`. No question is in both splits: one of four,
    by its hash, belongs to `test`.

    Args:
        dataset: The name of the dataset.
        seed: Seed of all questions.
        difficulty: A level of the dataset's curriculum, from 0; default: the dataset's defaults.
        curriculum: Whether each level has its own splits, `train-level0`, `test-level0`, ….
        instruction: How to answer; shown below the question.
        **config: The dataset's own settings. They override those of a level.

    Raises:
        OptionError: A setting is unknown or invalid, or the dataset has no such level.
    """

    def __init__(
        self,
        dataset: str,
        *,
        seed: int = 0,
        difficulty: int | None = None,
        curriculum: bool = False,
        instruction: str = INSTRUCTION,
        **config: Any,
    ) -> None:
        find_dataset(dataset)
        self._dataset = dataset
        self._instruction = instruction
        # Some datasets take long to make.
        self._questions, self.tasks = _share(
            dataset, seed, difficulty, curriculum=curriculum, config=config
        )
        self._task: Task | None = None

    def reset(self, *, task: Task, seed: int | None = None) -> ReasoningObservation:  # noqa: ARG002 - it seeds the choice of the task
        """Return the question of a task."""
        self._task = task
        question = str(task.private["entry"].values["question"])
        parts = [question, self._instruction] if self._instruction else [question]
        return ReasoningObservation("\n\n".join(parts))

    def step(self, action: ReasoningAction) -> ReasoningObservation:
        """Score the answer, which ends the episode."""
        assert self._task is not None
        found = _ANSWER.findall(action.text)
        answer = (found[-1] if found else action.text).strip()
        score, complaint = self._questions.score(answer, self._task)
        metadata: dict[str, Any] = {"metrics": {"success": float(score >= 1)}}
        if complaint is not None:
            metadata["scorer_error"] = complaint
        return ReasoningObservation(reward=score, done=True, metadata=metadata)

    def solution(self) -> ReasoningAction | None:
        """Return the dataset's answer; `None` if it has none, or several that it does not list."""
        assert self._task is not None
        answer = self._task.private["answer"]
        return None if answer is None else ReasoningAction(f"<answer>{answer}</answer>")

    @property
    def state(self) -> ReasoningState:
        """The current task, without its answer."""
        task_id = None if self._task is None else self._task.id
        return ReasoningState(task_id=task_id, dataset=self._dataset)


def find_dataset(name: str) -> None:
    """Make sure that there is a dataset.

    Raises:
        EnvNotFoundError: There is none of this name.
        MissingExtraError: reasoning-gym is not installed.
    """
    known = reasoning_gym_module().factory.DATASETS
    if name not in known:
        hint = suggest(name, known).replace("'", "'rg://", 1)
        raise EnvNotFoundError(
            f"reasoning-gym has no dataset {name!r}.{hint} `envweave list --available rg` shows "
            "all of them."
        )


_SHARED: dict[tuple[Any, ...], tuple[Questions, Tasks]] = {}
_MAX_SHARED = 32


def _share(
    name: str, seed: int, difficulty: int | None, *, curriculum: bool, config: dict[str, Any]
) -> tuple[Questions, Tasks]:
    """Return the questions and tasks of a dataset, which the environments of a process share."""
    key = (name, seed, difficulty, curriculum, repr(sorted(config.items())))
    if key not in _SHARED:
        questions = Questions(name, seed, config, difficulty)
        splits = list(SPLITS)
        if curriculum:
            questions.refuse_without_curriculum("curriculum=True")
            levels = range(questions.num_levels)
            splits += [f"{split}-level{level}" for level in levels for split in SPLITS]
        if len(_SHARED) >= _MAX_SHARED:
            _SHARED.pop(next(iter(_SHARED)))
        _SHARED[key] = questions, Tasks.endless(questions, splits=splits)
    return _SHARED[key]


@final
class Questions:
    """Makes the tasks of a dataset, and scores answers to them."""

    def __init__(
        self, name: str, seed: int, config: Mapping[str, Any], difficulty: int | None
    ) -> None:
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**31:
            raise OptionError(f"seed must be an integer from 0 to 2**31 - 1, got {seed!r}.")
        self.name = name
        self._seed = seed
        self._config = dict(config)
        self._difficulty = difficulty
        self._random = GlobalRandomState()
        curriculum = reasoning_gym_module().factory.CURRICULA.get(name)
        attributes = [] if curriculum is None else curriculum().attributes.values()
        self.num_levels = max((len(one.levels) for one in attributes), default=0)
        self._by_level: dict[int | None, _Dataset] = {}
        self._level(difficulty)

    def __call__(self, split: str, index: int) -> Task:
        """Return the task at an index of a split.

        Raises:
            TaskError: The dataset has too few different questions for this split.
        """
        kind, _, level = split.partition("-level")
        dataset = self._level(int(level) if level else self._difficulty)
        for number in range(index * _ATTEMPTS, (index + 1) * _ATTEMPTS):
            self._random.seed(number)  # some datasets draw from the global generators too
            with self._random:
                entry = dataset.entry(number)
            if _split_of(entry["question"]) == kind:
                seed, position = dataset.source(number)
                data = {"dataset": self.name, "seed": seed, "index": position, **dataset.shown}
                private = {"answer": entry["answer"], "entry": Entry(entry)}
                return Task(f"{split}-{index}", split, data, private=private)
        raise TaskError(
            f"'rg://{self.name}' has too few different questions for the split {split!r}: none in "
            f"{_ATTEMPTS} belongs to it. Use other settings of the dataset."
        )

    def score(self, answer: str, task: Task) -> tuple[float, str | None]:
        """Return the score of an answer, and the error if it cannot be scored.

        Raises:
            Exception: The dataset cannot score its own answer either.
        """
        entry = task.private["entry"].values
        level = task.split.partition("-level")[2]
        dataset = self._level(int(level) if level else self._difficulty)
        self._random.seed(0)
        with self._random:
            try:
                return float(dataset.score(answer, entry)), None
            except Exception as error:
                # Some scorers raise for text that is not an answer at all. If the scorer works for
                # the right answer, the text is at fault.
                if entry["answer"] is not None:
                    dataset.score(entry["answer"], entry)
                elif not isinstance(error, ValueError | TypeError | SyntaxError):
                    raise
                return 0.0, f"{type(error).__name__}: {error}"

    def _level(self, level: int | None) -> _Dataset:
        if level not in self._by_level:
            with self._random:
                self._by_level[level] = _Dataset(self, level)
        return self._by_level[level]

    def make(self, seed: int, level: int | None) -> Any:
        """Make a dataset at a level of the curriculum.

        Raises:
            OptionError: A setting is unknown or invalid, or there is no such level.
        """
        factory = reasoning_gym_module().factory
        dataset_class, config_class = factory.DATASETS[self.name]
        known = [name for name in config_class.__dataclass_fields__ if name not in ("seed", "size")]
        for name in self._config:
            if name not in known:
                hint = suggest(name, known) or f" It has: {', '.join(known)}."
                raise OptionError(f"'rg://{self.name}' has no setting {name!r}.{hint}")
        settings = {**self._config, "seed": seed}
        if "datasets" in settings:
            settings["datasets"] = [_part(one) for one in settings["datasets"] or ()]
        try:
            if level is not None:
                settings = {**self._settings_of(level), **settings}
            config = config_class(**settings)
            if hasattr(config, "validate"):
                config.validate()
        except OptionError:
            raise
        except (AssertionError, ValueError, TypeError) as error:
            raise OptionError(f"'rg://{self.name}' refuses its settings: {error}.") from error
        return dataset_class(config)

    def refuse_without_curriculum(self, given: str) -> None:
        """Refuse an option that needs a curriculum.

        Raises:
            OptionError: The dataset has none.
        """
        if not self.num_levels:
            raise OptionError(f"'rg://{self.name}' has no curriculum, so {given} has no meaning.")

    def _settings_of(self, level: int) -> dict[str, Any]:
        self.refuse_without_curriculum(f"difficulty={level!r}")
        if level not in range(self.num_levels) or isinstance(level, bool):
            raise OptionError(
                f"'rg://{self.name}' has the levels 0 to {self.num_levels - 1}, "
                f"got difficulty={level!r}."
            )
        curriculum = reasoning_gym_module().factory.CURRICULA[self.name]()
        curriculum.set_global_level(level)
        return dict(vars(curriculum.generate_configuration()))

    @property
    def seed(self) -> int:
        """The seed of all questions."""
        return self._seed


@final
class _Dataset:
    """One dataset at one level, as an endless sequence of entries.

    Most datasets generate the entry at any index. Those that hold a list are made again with the
    next seed for each chunk.
    """

    def __init__(self, questions: Questions, level: int | None) -> None:
        self._questions, self._level = questions, level
        self.shown = {} if level is None else {"difficulty": level}
        self._first = questions.make(questions.seed, level)
        self._is_endless = True
        try:
            self._first[_LIMIT - questions.seed]
        except IndexError:
            self._is_endless = False
        self._chunk: tuple[int, Any] = (questions.seed, self._first)

    def source(self, number: int) -> tuple[int, int]:
        """Return the seed and the index of the dataset that make an entry."""
        seed = self._questions.seed
        number %= _LIMIT - seed
        if self._is_endless:
            return seed, number
        # Most add the index to the seed, so the next chunk begins where this one ends.
        return seed + number // _CHUNK * _CHUNK, number % _CHUNK

    def entry(self, number: int) -> dict[str, Any]:
        """Generate the entry of a number."""
        seed, index = self.source(number)
        if self._chunk[0] != seed:
            self._chunk = seed, self._questions.make(seed, self._level)
        entry: dict[str, Any] = self._chunk[1][index]
        return entry

    def score(self, answer: str, entry: dict[str, Any]) -> Any:
        """Score an answer."""
        return self._first.score_answer(answer, entry)


def _split_of(question: Any) -> str:
    digest = hashlib.sha256(str(question).encode()).digest()
    return SPLITS[int.from_bytes(digest[:4], "big") % TEST_SHARE == 0]


def _part(given: Any) -> Any:
    """Return a part of a composite dataset: given by name, or as a dict with weight and config."""
    from reasoning_gym.composite import DatasetSpec

    if isinstance(given, DatasetSpec):
        return given
    if isinstance(given, str):
        given = {"name": given}
    if not isinstance(given, Mapping) or "name" not in given:
        raise OptionError(
            f"A part of rg://composite is a name or {{'name': …, 'weight': 1, 'config': {{}}}}, "
            f"got {given!r}."
        )
    find_dataset(given["name"])
    return DatasetSpec(given["name"], given.get("weight", 1), dict(given.get("config", {})))
