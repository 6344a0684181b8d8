"""Adapters from and to verifiers environments, in both of its generations.

The classic generation is `verifiers` 0.3: a module has a function `load_environment`. The second
one, v1, is `verifiers` 0.4: a module exports a `Taskset`, and perhaps an `Env` and a `Harness`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from types import ModuleType
from typing import Any, Literal

from packaging.version import Version

from envweave.adapters.export import open_env
from envweave.adapters.verifiers.chat_turns import ChatEnvironment
from envweave.adapters.verifiers.text_episodes import TextEnvironments
from envweave.conversation.messages import (
    ChatAction,
    ChatObservation,
    ChatTool,
    ChatToolCall,
    TurnMessage,
)
from envweave.environment import Environment
from envweave.errors import (
    DefinitionError,
    MissingExtraError,
    OptionError,
    PluginError,
    format_error,
)
from envweave.registry.plugins import load_path

__all__ = [
    "ChatAction",
    "ChatObservation",
    "ChatTool",
    "ChatToolCall",
    "TurnMessage",
    "from_verifiers",
    "to_verifiers",
]

Generation = Literal["classic", "v1"]


def is_foreign(candidate: Any) -> bool:
    """Whether this is a verifiers environment, of either generation."""
    return _find_generation(candidate) is not None


def from_verifiers(source: Any, **kwargs: Any) -> Environment:
    """Return a verifiers environment as an `Environment` that is driven turn by turn.

    Every call of the model is a step: the observation is a `ChatObservation`, the action a text or
    a `ChatAction` with tool calls. The last step carries the score as its reward, with
    `reward_parts` and `metrics`; every other step earns 0. Tasks are the rows of its dataset
    (splits `"train"` and `"eval"` where it has both), and the seed of a reset chooses the row.
    Answers stay inside. Where its code, its tools' servers or its scoring fail, the episode ends
    with reason `error` and blame `environment`.

    Args:
        source: A module, its name, or an environment object. What the module has decides the
            generation: a function `load_environment` is classic, a `Taskset` in `__all__` is v1.
        **kwargs: For a classic module, passed to `load_environment`. For a v1 module, fields of its
            taskset's config; `config={…}` holds the rest of its configuration (`max_turns`, harness
            and runtime of a role, time limits), as in `--env.*` of `vf-eval`. By default a role
            is played by a chat loop in this process.

    Raises:
        MissingExtraError: verifiers is not installed, or not in the generation that it needs.
        PluginError: The module cannot be imported.
        DefinitionError: It is not a verifiers environment, or could not be loaded.
        OptionError: It does not take a keyword.
    """
    _require_verifiers()
    if isinstance(source, str):
        source = _import_environment(source)
    generation = _find_generation(source)
    if generation is None:
        name = getattr(source, "__name__", type(source).__name__)
        raise DefinitionError(
            f"{name} is not a verifiers environment: it has neither load_environment() (classic) "
            "nor a Taskset in __all__ (v1)."
        )
    _require_generation(generation)
    if not isinstance(source, ModuleType) and kwargs:
        raise OptionError(
            f"{next(iter(kwargs))!r} comes too late: the {type(source).__name__} was already made."
        )
    if generation == "classic":
        from envweave.adapters.verifiers.classic import load_classic

        return ChatEnvironment(load_classic(source, kwargs))
    from envweave.adapters.verifiers.v1 import load_v1

    return ChatEnvironment(load_v1(source, kwargs))


def _require_verifiers() -> None:
    if importlib.util.find_spec("verifiers") is None:
        raise MissingExtraError.for_extra(
            "Environments of verifiers need the package verifiers.", "verifiers"
        )


def _has_classic() -> bool:
    # verifiers 0.3 forwards its classic names from `verifiers.legacy`; older ones have them there.
    return any(
        importlib.util.find_spec(f"verifiers.{name}") is not None for name in ("legacy", "envs")
    )


def _has_v1() -> bool:
    # verifiers 0.3 has an early form of it, under the same name.
    return Version(importlib.metadata.version("verifiers")) >= Version("0.4.dev0")


def _require_generation(generation: Generation) -> None:
    if generation == "classic" and not _has_classic():
        raise MissingExtraError(
            "Classic environments need verifiers 0.3. Install it with: pip install 'verifiers<0.4'"
        )
    if generation == "v1" and not _has_v1():
        raise MissingExtraError(
            "v1 environments need verifiers 0.4. Install it with: pip install 'verifiers>=0.4,<0.5'"
        )


def _import_environment(name: str) -> ModuleType:
    module = name.replace("-", "_")
    try:
        return importlib.import_module(module)
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == module
        advice = " Install the package that has it." if missing else ""
        raise PluginError(
            f"The verifiers environment {name!r} cannot be imported: {format_error(error)}.{advice}"
        ) from error


def _find_generation(source: Any) -> Generation | None:
    """Return the generation of a module or an environment object; `None` if it is neither."""
    if isinstance(source, ModuleType):
        if callable(getattr(source, "load_environment", None)):
            return "classic"
        exported = [getattr(source, name, None) for name in getattr(source, "__all__", ())]
        v1 = sys.modules.get("verifiers.v1")
        return "v1" if v1 is not None and _has_subclass(exported, v1.Taskset) else None
    # Such an object can only exist if that part of verifiers was imported.
    classic = sys.modules.get("verifiers.legacy") or sys.modules.get("verifiers.envs.environment")
    if classic is not None and isinstance(source, classic.Environment):
        return "classic"
    v1 = sys.modules.get("verifiers.v1")
    return "v1" if v1 is not None and isinstance(source, v1.Env) else None


def _has_subclass(candidates: list[Any], base: type) -> bool:
    return any(isinstance(one, type) and issubclass(one, base) for one in candidates)


def to_verifiers(
    env: Any,
    *,
    generation: Generation | None = None,
    split: str | None = None,
    eval_split: str | None = None,
    num_examples: int = 100,
    max_turns: int = 100,
    system_prompt: str | None = None,
    **kwargs: Any,
) -> Any:
    """Return an environment as a verifiers environment, for `vf-eval` and trainers.

    The model sees each observation as text (see the guide for its form). Its reply is the action:
    unchanged if the action is a string, or a dataclass with one string field; otherwise as JSON,
    whose schema is in the system prompt. An invalid reply costs a turn, and the model gets an error
    message. The score is the sum of the episode's rewards; their parts and the
    metrics are reported with it. An episode that fails or is lost is an error of its rollout
    (classic: `error`; v1: `errors`, without a reward).

    Args:
        env: An ID, a class, or an `Env`, whose episodes are then played one after the other.
        generation: `"classic"` or `"v1"`; by default that of the installed verifiers, and
            `"classic"` if it has both.
        split: Which tasks the rollouts are about; the first split by default. An environment
            without tasks is reset with the seeds from 0.
        eval_split: Which tasks to evaluate on (classic only); by default those of the split
            `"eval"`, `"test"` or `"validation"`, and otherwise the same.
        num_examples: How many tasks to take of an endless split, and how many seeds.
        max_turns: How many replies a rollout may have; -1 for any number.
        system_prompt: A system prompt instead of the schema of the actions.
        **kwargs: Passed to `make`.

    Returns:
        For the classic generation a `verifiers.MultiTurnEnv`, to be returned by
        `load_environment`. For v1 three classes, a `Taskset`, an `Env` and a `Harness`, to be
        named in the `__all__` of a module.

    Raises:
        MissingExtraError: verifiers is not installed, or not in this generation.
        DefinitionError: The environment has several agents.
        OptionError: An unknown generation or keyword.
    """
    _require_verifiers()
    if generation is None:
        generation = "classic" if _has_classic() else "v1"
    elif generation not in ("classic", "v1"):
        raise OptionError(f"generation={generation!r} is unknown. Use 'classic' or 'v1'.")
    _require_generation(generation)
    is_one = isinstance(env, load_path("envweave.api").Env)

    def make_environments() -> TextEnvironments:
        return TextEnvironments(lambda: open_env(env, kwargs), is_one=is_one)

    if generation == "classic":
        from envweave.adapters.verifiers.classic import AsClassic

        return AsClassic(
            make_environments(),
            split=split,
            eval_split=eval_split,
            num_examples=num_examples,
            max_turns=max_turns,
            system_prompt=system_prompt,
        )
    from envweave.adapters.verifiers.v1 import v1_classes

    return v1_classes(
        make_environments,
        split=split,
        num_examples=num_examples,
        max_turns=max_turns,
        system_prompt=system_prompt,
    )
