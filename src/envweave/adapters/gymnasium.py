"""Adapters from and to Gymnasium environments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, final

import numpy as np

from envweave.adapters.export import open_env, open_vector
from envweave.environment import Environment, Interface
from envweave.environment.introspection import reset_parameters
from envweave.errors import DefinitionError, MissingExtraError, OptionError

if TYPE_CHECKING:
    import gymnasium

MAX_TABLE = 4096
"""Up to how many actions are kept as `np.int64`."""


def gymnasium_module() -> ModuleType:
    """Import and return Gymnasium.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import gymnasium
    except ImportError:
        raise MissingExtraError.for_extra("Gymnasium is not installed.", "gym") from None
    return gymnasium


def is_foreign(candidate: Any) -> bool:
    """Whether this is a Gymnasium environment or vector."""
    try:
        from gymnasium import Env
        from gymnasium.vector import VectorEnv
    except ImportError:
        return False
    return isinstance(candidate, Env | VectorEnv)


def is_vector(candidate: Any) -> bool:
    """Whether this is a Gymnasium vector environment, or the class of one."""
    from gymnasium.vector import VectorEnv

    return issubclass(candidate if isinstance(candidate, type) else type(candidate), VectorEnv)


def from_gymnasium(env: gymnasium.Env[Any, Any]) -> Environment:
    """Return a Gymnasium environment as an `Environment`.

    Its spaces become specs, its `reset` takes `seed` and `options`, and the return value of its
    `step` is passed on unchanged. `info["action_mask"]` is shown in `NeedAction`. Float actions
    outside a `Box` are passed to the environment, as in Gymnasium; a wrong shape or dtype is
    refused.

    Raises:
        MissingExtraError: Gymnasium is not installed.
        DefinitionError: It is not a single Gymnasium environment, or has no spaces.
    """
    gymnasium = gymnasium_module()
    many = isinstance(env, gymnasium.vector.VectorEnv)
    if many or not isinstance(env, gymnasium.Env):  # EnvPool's are both
        why = (
            "a vector of environments; pass it to make_vector()" if many else "not a gymnasium.Env"
        )
        raise DefinitionError(f"{type(env).__name__} cannot be adapted: it is {why}.")
    return FromGymnasium(env)


@final
class FromGymnasium(Environment):
    """A Gymnasium environment, as an `Environment`."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        from envweave.codec.gymnasium_spaces import from_space

        self.env = env
        self._name = type(env.unwrapped).__name__
        for space in ("action_space", "observation_space"):
            if getattr(env, space, None) is None:
                raise DefinitionError(f"{self._name} has no {space}. Set it in its constructor.")
        self.action_spec = from_space(env.action_space)
        self.observation_spec = from_space(env.observation_space)
        self.deterministic = env.spec is None or not env.spec.nondeterministic
        self._takes = reset_parameters(env.reset, self._name) & {"seed", "options"}
        # Bound here to save a call per step.
        self.step = _choose_step(env)  # type: ignore[method-assign, assignment]

    def reset(self, **given: Any) -> Any:
        """Begin an episode, with `seed` and `options` where the environment takes them."""
        return self.env.reset(**given)

    def step(self, action: Any) -> Any:
        """Replaced by the environment's own."""

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def describe(self) -> Interface:
        """Describe the environment by its spaces."""
        return dataclasses.replace(super().describe(), reset_takes=self._takes, name=self._name)


def _choose_step(env: gymnasium.Env[Any, Any]) -> Callable[[Any], Any]:
    """Return the environment's `step`, with actions as `np.int64` if it checks them itself.

    `Discrete.contains` takes 1 to 2 µs longer for an int than for the `np.int64` that Gymnasium's
    own vectors pass. An environment that does not ask gets the int, which costs nothing.
    """
    from gymnasium.spaces import Discrete

    step, space = env.step, env.action_space
    code = getattr(type(env.unwrapped).step, "__code__", None)
    asks = code is not None and "contains" in code.co_names
    if not asks or type(space) is not Discrete or space.n > MAX_TABLE:
        return step
    first = int(space.start)
    table = {action: np.int64(action) for action in range(first, first + int(space.n))}
    return lambda action: step(table[action])


def to_gymnasium(
    env: Any, *, render_mode: str | None = None, flatten: bool = False, **kwargs: Any
) -> gymnasium.Env[Any, Any]:
    """Return an environment as a `gymnasium.Env`.

    The spaces come from the specs (see `Spec.to_space`): a dataclass becomes a `Dict` of the
    author's own fields, without `reward`, `done`, `truncated` and `metadata`; an `Action` of one
    field that field's space; and a `Literal` the index of its value. A number is a `Box` of one
    item, unless it is an integer with both bounds. A reward that is not scored yet becomes NaN.
    A seed that the environment cannot honor is refused, and so are options, unless they are
    empty.

    Args:
        env: An ID, an environment object, a class, or an `Env` made without `autoreset`.
            From an ID or a class it can be recreated, so it has a `spec`.
        render_mode: `"ansi"`, to let `render` return the last observation as text.
        flatten: Whether to flatten observations to one `Box`, in which a choice is one-hot (with
            more than 1,000 values, a number), and to take actions as `Discrete`, `MultiDiscrete`
            (both from 0) or a flat `Box`, as stable-baselines3 needs it.
        **kwargs: Passed to `make`.

    Raises:
        MissingExtraError: Gymnasium is not installed.
        SpecError: Gymnasium has no space for a part of an action or observation, or with
            `flatten` no flat one.
        DefinitionError: It has several agents.
        OptionError: The render mode or a keyword is unknown, or `flatten` is not a bool.

    While stepping, it raises what `Env` raises, and `EnvironmentFailure` for a failed episode,
    which has no reward.
    """
    gymnasium_module()
    from envweave.adapters.gymnasium_out import AsGymnasium, spec_of

    if not isinstance(flatten, bool):
        raise OptionError(f"flatten must be True or False, got {flatten!r}.")
    opened = open_env(env, kwargs)
    try:
        adapted = AsGymnasium(opened, render_mode, flatten=flatten)
    except Exception:
        if opened is not env:
            opened.close()
        raise
    if isinstance(env, str | type):
        again = {**kwargs, "flatten": flatten}
        adapted.spec = spec_of(opened, lambda **more: to_gymnasium(env, **{**again, **more}))
    return adapted


def to_gymnasium_vector(
    env: Any, *, num_envs: int | None = None, **kwargs: Any
) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """Return many environments as a `gymnasium.vector.VectorEnv`.

    Ended episodes are reset in the same step (`AutoresetMode.SAME_STEP`): observations are those
    to act on, and `infos["final_obs"]` and `infos["final_info"]` hold the last ones of each ended
    episode. Spaces, rewards, seeds and options are as with `to_gymnasium`; `reset` takes one seed
    per environment, and `options={"reset_mask": …}`.

    Args:
        env: An ID, a class, or a `VectorEnv` made with `autoreset=True`.
        num_envs: How many, unless it is a `VectorEnv`.
        **kwargs: Passed to `make_vector`.

    Raises:
        MissingExtraError: Gymnasium is not installed.
        SpecError: Gymnasium has no space for a part of an action or observation.
        DefinitionError: It has several agents.
        OptionError: A keyword is unknown, or comes too late.

    While stepping, it raises what `VectorEnv` raises, and `EnvironmentFailure` for a failed
    episode, which has no reward.
    """
    gymnasium_module()
    from envweave.adapters.gymnasium_out import AsGymnasiumVector

    venv = open_vector(env, num_envs, kwargs)
    try:
        return AsGymnasiumVector(venv)
    except Exception:
        if venv is not env:
            venv.close()
        raise
