"""What a Gymnasium vector can do: how it resets, and how it takes seeds.

Gymnasium knows three ways to begin the next episode. Ours wants its start in the result that
ends the last one, and every action to count:

    SAME_STEP   the end and the start come together: as we want it
    DISABLED    the caller resets, with `options={"reset_mask": …}`: so we do, at once
    NEXT_STEP   the step after an end resets, and drops its action: taken only where a reset
                with a mask comes first and clears what is pending
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

from gymnasium.vector import (
    AsyncVectorEnv,
    AutoresetMode,
    SyncVectorEnv,
    VectorObservationWrapper,
    VectorWrapper,
)

from envweave.environment.interface import reset_parameters
from envweave.errors import DefinitionError, OptionError

Seeding: TypeAlias = Literal["each", "batch", "none"]
"""Whether `reset` takes one seed an environment, one for the batch, or none at all."""

_PASSES_RESETS_ON = (VectorWrapper.reset, VectorObservationWrapper.reset)


class Abilities(NamedTuple):
    """What a Gymnasium vector can do.

    Attributes:
        same_step: Whether it resets what ended by itself, in the same step.
        resets_some: Whether it can reset some environments and leave the others alone.
        seeding: How it takes seeds.
        reset_takes: Which of `seed` and `options` its `reset` takes.
    """

    same_step: bool
    resets_some: bool
    seeding: Seeding
    reset_takes: frozenset[str]


def read_abilities(env: Any, name: str, *, autoreset: bool) -> Abilities:
    """Look at a Gymnasium vector.

    Raises:
        DefinitionError: It lacks what every such vector has.
        OptionError: It cannot be stepped as `autoreset` asks; the message says which can.
    """
    for needed in ("num_envs", "single_action_space", "single_observation_space"):
        if getattr(env, needed, None) is None:
            raise DefinitionError(f"{name} has no {needed}. Set it in its constructor.")
    mode = env.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        raise DefinitionError(
            f"{name} does not say how it resets: metadata['autoreset_mode'] is {mode!r}. Set it "
            "to a gymnasium.vector.AutoresetMode."
        )
    inner, is_direct = _unwrapped(env)
    pooled = _is_envpool(inner)
    if pooled and inner.is_async:
        raise OptionError(
            f"{name} is made with batch_size below num_envs, so that a step returns some rows. "
            "Make it without batch_size."
        )
    single = isinstance(inner, SyncVectorEnv | AsyncVectorEnv)
    takes = reset_parameters(env.reset, name) & {"seed", "options"}
    by_contract = mode is AutoresetMode.DISABLED
    some = (by_contract or (is_direct and (single or pooled))) and "options" in takes
    if mode is AutoresetMode.SAME_STEP and not autoreset:
        raise OptionError(
            f"{name} resets what ended by itself (autoreset_mode SAME_STEP), so autoreset=False "
            "cannot be honoured. Pass autoreset=True, or construct it with DISABLED."
        )
    if by_contract and not some:
        raise DefinitionError(
            f"{name} leaves resets to its caller (autoreset_mode DISABLED), so its reset() must "
            "take `options` with a 'reset_mask'."
        )
    if mode is AutoresetMode.NEXT_STEP and not (some and _clears_what_is_pending(inner)):
        raise OptionError(
            f"{name} resets what ended in the next step and drops that step's action "
            "(autoreset_mode NEXT_STEP), and cannot be told to reset it before. Construct it with "
            "autoreset_mode SAME_STEP or DISABLED, or pass what makes one environment."
        )
    return Abilities(
        same_step=mode is AutoresetMode.SAME_STEP,
        resets_some=some,
        seeding="none" if pooled else "each" if single else "batch",
        # EnvPool takes no seed but where it is made, and no options but the mask.
        reset_takes=frozenset() if pooled else takes,
    )


def _unwrapped(env: Any) -> tuple[Any, bool]:
    """Return the vector under its wrappers, and whether all of these pass resets on as they are."""
    is_direct = True
    while isinstance(env, VectorWrapper):
        is_direct = is_direct and type(env).reset in _PASSES_RESETS_ON
        env = env.env
    return env, is_direct


def _is_envpool(env: Any) -> bool:
    return any(cls.__module__.partition(".")[0] == "envpool" for cls in type(env).__mro__)


def _clears_what_is_pending(env: Any) -> bool:
    # Without shared memory its workers forget to, as of Gymnasium 1.4.
    return not isinstance(env, AsyncVectorEnv) or bool(env.shared_memory)
