"""Environments and vectors as Gymnasium's: `gymnasium.Env` and `gymnasium.vector.VectorEnv`.

Kept apart from `gymnasium.py`, since the classes need Gymnasium to be defined.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, final

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from envweave.adapters.export import (
    check_result,
    decode_action,
    encode_observation,
    number_of_actions,
    to_reward,
    with_mask,
)
from envweave.codec import Mismatch, Spec
from envweave.codec.containers import DataclassSpec, DictSpec, PydanticSpec
from envweave.codec.flat_spaces import flatten_actions, flatten_observations
from envweave.codec.gymnasium_spaces import bridge
from envweave.codec.hints import Declared
from envweave.codec.scalars import ArraySpec, BoolSpec, FloatSpec, IntSpec
from envweave.errors import BadReturnError, DefinitionError, EnvironmentFailure, OptionError
from envweave.types import StepResult
from envweave.vector import StepBatch, VectorEnv
from envweave.vector.batch import tick_of


@final
class AsGymnasium(gymnasium.Env[Any, Any]):
    """An `Env` as a `gymnasium.Env`. See `to_gymnasium`."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 4}  # type: ignore[misc] # theirs is an instance variable

    def __init__(self, env: Any, render_mode: str | None, *, flatten: bool) -> None:
        if env.possible_agents is not None:
            raise DefinitionError(
                f"{env.id!r} has several agents, but a gymnasium.Env has one. Use to_pettingzoo()."
            )
        if render_mode not in (None, "ansi"):
            raise OptionError(
                f"render_mode must be 'ansi' or None, got {render_mode!r}. Observations are shown "
                "as text."
            )
        self._env = env
        self._actions = bridge(env.action_spec, "action")
        self._observations = bridge(env.observation_spec, "observation")
        if flatten:
            self._actions = flatten_actions(self._actions, "action")
            self._observations = flatten_observations(self._observations, "observation")
        self.action_space = self._actions.space
        self.observation_space = self._observations.space
        self._number_of_actions = number_of_actions(self.action_space)
        self.render_mode = render_mode
        self._shown: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        result = self._env.reset(seed=seed, options=options or None)
        check_result(result, self._env.id)
        return self._show(result.observation), self._export_info(result.info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Act once."""
        result = self._env.step(decode_action(self._actions.decode, action, "action"))
        check_result(result, self._env.id)
        return (
            self._show(result.observation),
            to_reward(result.reward),
            result.terminated,
            result.truncated,
            self._export_info(result.info),
        )

    def _show(self, observation: Any) -> Any:
        self._shown = observation
        return encode_observation(self._observations.encode, observation, "observation")

    def _export_info(self, info: dict[str, Any]) -> dict[str, Any]:
        return with_mask(info, info.get("action_mask"), self._number_of_actions)

    def render(self) -> str | None:
        """Return the last observation as text; `None` without a render mode."""
        return None if self.render_mode is None else repr(self._shown)

    def close(self) -> None:
        """Close the environment. May be called twice."""
        self._env.close()

    def __repr__(self) -> str:
        return f"AsGymnasium({self._env!r})"


def spec_of(env: Any, make_again: Callable[..., Any]) -> EnvSpec:
    """Return Gymnasium's spec of an environment, under a name that Gymnasium allows."""
    name = re.sub(r"[^\w.-]+", "_", env.id.removeprefix("local://"))
    return EnvSpec(f"envweave/{name}", make_again, nondeterministic=not env.deterministic)


Encoder = Callable[[Any], Any]


@final
class AsGymnasiumVector(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A `VectorEnv` as a `gymnasium.vector.VectorEnv`. See `to_gymnasium_vector`."""

    def __init__(self, venv: VectorEnv) -> None:
        if venv.possible_agents is not None:
            raise DefinitionError("A gymnasium.vector.VectorEnv has one agent; this has several.")
        self._venv = venv
        self._actions = bridge(venv.action_spec, "action")
        self._observations = bridge(venv.observation_spec, "observation")
        self.num_envs = venv.num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_action_space = self._actions.space
        self.single_observation_space = self._observations.space
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self._number_of_actions = number_of_actions(self.single_action_space)
        self._takes_arrays = _takes_arrays(venv.action_spec)
        self._drops_axis = _is_number(venv.action_spec)
        self._encode = column_encoder(venv.observation_spec, self.num_envs)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every environment, or in those of `options["reset_mask"]`."""
        rest = dict(options or {})
        mask = rest.pop("reset_mask", None)
        ids = None if mask is None else np.flatnonzero(mask).tolist()
        if ids is not None and isinstance(seed, Sequence):
            seed = [seed[i] for i in ids]
        batch = self._venv.reset(seed=seed, options=rest or None, ids=ids)
        infos: dict[str, Any] = {}
        for i in np.flatnonzero(batch.began).tolist():
            check_result(batch[i], f"environment {i}")
            infos = self._add_info(infos, self._export_info(batch[i].info), i)
        return self._show(batch.current), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take one step in every environment."""
        batch = self._venv.step(self._decode(actions))
        infos = self._read_rows(batch)
        return self._show(batch.current), batch.reward, batch.terminated, batch.truncated, infos

    def _decode(self, actions: Any) -> Any:
        if self._takes_arrays and isinstance(actions, np.ndarray):
            return actions[:, 0] if self._drops_axis and actions.shape[1:] == (1,) else actions
        rows = enumerate(iterate(self.action_space, actions))
        return [decode_action(self._actions.decode, one, f"actions[{i}]") for i, one in rows]

    def _read_rows(self, batch: StepBatch) -> dict[str, Any]:
        """Return the info in Gymnasium's layout; refuse results that it cannot express."""
        infos: dict[str, Any] = {}
        tick = tick_of(batch)
        for i in sorted({*tick.special, *tick.infos}):
            result = batch[i]
            if result.end is None:
                check_result(result, f"environment {i}")
                infos = self._add_info(infos, self._export_info(result.info), i)
                continue
            first = self._first_info(result, i)
            last = encode_observation(self._observations.encode, result.observation, "observation")
            ended = {"final_obs": last, "final_info": self._export_info(result.info)}
            infos = self._add_info(infos, ended, i)
            infos = self._add_info(infos, self._export_info(first), i)
        return infos

    def _first_info(self, result: StepResult[Any], i: int) -> dict[str, Any]:
        """Return the info of the episode that began after another ended."""
        if not result.valid:
            check_result(result, f"environment {i}")
        if result.ready is None:
            failure = result.info.get("reset_error")
            if failure is not None:
                raise EnvironmentFailure(f"Environment {i} could not be reset: {failure}")
            raise OptionError(
                "The vector was made without autoreset, but Gymnasium's trainers do not reset. "
                "Make it with autoreset=True."
            )
        return result.ready.initial_info

    def _show(self, columns: Any) -> Any:
        try:
            return self._encode(columns)
        except Mismatch as mismatch:
            raise BadReturnError(
                f"{mismatch.describe('observation')}, which the observation space does not allow."
            ) from None

    def _export_info(self, info: dict[str, Any]) -> dict[str, Any]:
        return with_mask(info, info.get("action_mask"), self._number_of_actions)

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002 - Gymnasium's signature
        """Close the vector."""
        self._venv.close()

    def __repr__(self) -> str:
        return f"AsGymnasiumVector({self._venv!r})"


def column_encoder(spec: Spec, count: int) -> Encoder:
    """Return a function that makes a batch of the spec's Gymnasium space from its columns.

    Columns of numbers within their bounds are passed on unchanged; anything else is converted
    value by value, and raises `Mismatch` if one does not fit.
    """
    if isinstance(spec, Declared):
        return column_encoder(spec.spec, count)
    one = bridge(spec)

    def by_value(column: Any) -> Any:
        empty: Any = create_empty_array(one.space, count)
        return concatenate(one.space, [one.encode(value) for value in column], empty)

    if isinstance(spec, DataclassSpec | PydanticSpec | DictSpec) and isinstance(
        one.space, gymnasium.spaces.Dict
    ):
        fields = spec.fields or {}
        inner = {name: column_encoder(fields[name], count) for name in one.space.spaces}

        def by_field(columns: Any) -> Any:
            if not isinstance(columns, dict):
                return by_value(columns)
            return {name: encode(columns[name]) for name, encode in inner.items()}

        return by_field
    if isinstance(spec, ArraySpec | IntSpec | FloatSpec | BoolSpec):
        batch = batch_space(one.space, count)

        def by_array(column: Any) -> Any:
            if isinstance(column, np.ndarray) and _is_within(spec, column):
                return column.astype(batch.dtype, copy=False).reshape(batch.shape)
            return by_value(column)

        return by_array
    return by_value


def _is_within(
    spec: ArraySpec | IntSpec | FloatSpec | BoolSpec, column: np.ndarray[Any, Any]
) -> bool:
    if isinstance(spec, BoolSpec):
        return bool(column.dtype.kind == "b")
    if isinstance(spec, ArraySpec):
        if column.shape[1:] != spec.shape:
            return False
        if spec.clips:
            return True
    low, high = spec.low, spec.high
    above = low is None or bool((column >= low).all())
    return above and (high is None or bool((column <= high).all()))


def _takes_arrays(spec: Spec) -> bool:
    """Whether an array of a space's values can be used as an array of actions unchanged."""
    if isinstance(spec, DataclassSpec | PydanticSpec):
        fields = _own_fields(spec)
        nested = fields and isinstance(fields[0], DataclassSpec | PydanticSpec)
        return len(fields) == 1 and not nested and _takes_arrays(fields[0])
    if isinstance(spec, ArraySpec):
        return spec.dtype is not None and spec.dtype.kind != "b"
    return isinstance(spec, IntSpec | FloatSpec)


def _is_number(spec: Spec) -> bool:
    """Whether an action is one number, which the space may represent as an array of one item."""
    if isinstance(spec, DataclassSpec | PydanticSpec):
        fields = _own_fields(spec)
        return len(fields) == 1 and _is_number(fields[0])
    return isinstance(spec, IntSpec | FloatSpec)


def _own_fields(spec: DataclassSpec | PydanticSpec) -> list[Spec]:
    return [one for name, one in spec.fields.items() if name != "metadata"]
