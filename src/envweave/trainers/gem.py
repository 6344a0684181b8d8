"""GEM: any environment as a text environment of GEM.

`gem.register(NAME, "envweave.trainers.gem:GemEnv", source="lineworld-v0")` names it for `gem.make`.
"""

from __future__ import annotations

import json
from typing import Any, Self

import numpy as np

from envweave.codec import to_plain
from envweave.errors import MissingExtraError, OptionError
from envweave.trainers.episodes import EpisodeScore, chat_of_one, text_of

try:
    from gem.core import Env as TextEnv
except ImportError as error:
    raise MissingExtraError(
        "envweave.trainers.gem needs GEM. Install it with: pip install gem-llm"
    ) from error


class GemEnv(TextEnv):
    """An environment that shows text and takes a model's replies. It may be reset many times.

    A failed episode raises `EnvironmentFailure`; the next `reset` begins another.

    Args:
        source: What `chat` takes: an ID, or what `make` takes.
        seed: The seed of the first `reset` that gets none, as `gem.make_vec` passes it.
        **options: The options of `chat` and `make`.
    """

    def __init__(self, source: Any, *, seed: int | None = None, **options: Any) -> None:
        super().__init__()
        self._source, self._options = source, options
        self._seed = seed
        self._random = np.random.default_rng(seed)
        self._chat = chat_of_one(source, **options)
        self._score = EpisodeScore()

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode. Global random state is left alone."""
        seed, self._seed = self._seed if seed is None else seed, None
        result = self._chat.reset(seed=seed)
        self._score = EpisodeScore()
        return text_of(result.observation.messages), dict(result.info)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take the action of a reply.

        Raises:
            EnvironmentFailure: The episode has failed.
        """
        result = self._chat.step(action)
        text, reward = text_of(result.observation.messages), self._score.add(result)
        return text, reward, bool(result.terminated), bool(result.truncated), dict(result.info)

    def sample_random_action(self) -> str:
        """Return a random action, as a model would write it."""
        action = to_plain(self._chat.env.action_spec.sample(self._random))
        if isinstance(action, dict):
            action.pop("metadata", None)  # it is the caller's, not the model's
        return action if isinstance(action, str) else json.dumps(action)

    def spawn(self, same_state: bool = False, **kwargs: Any) -> Self:  # noqa: FBT001, FBT002 - as GEM calls it
        """Return another environment of the same kind, with some options changed.

        Raises:
            OptionError: It should continue from this one's state.
        """
        if same_state:
            raise OptionError("spawn(same_state=True) is not supported. Begin an episode anew.")
        return type(self)(self._source, **{**self._options, **kwargs})

    def close(self) -> None:
        """Close the environment. May be called twice."""
        self._chat.close()
