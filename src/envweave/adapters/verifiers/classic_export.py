"""Export environments as classic verifiers environments. Needs verifiers 0.3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import verifiers as vf
from datasets import Dataset

from envweave.adapters.verifiers.text_episodes import TextEnvironments, in_thread
from envweave.errors import format_error


@final
class AsClassic(vf.MultiTurnEnv):  # type: ignore[misc] # verifiers is not installed where mypy runs
    """An envweave environment as a classic verifiers environment. See `to_verifiers`."""

    def __init__(
        self,
        environments: TextEnvironments,
        *,
        split: str | None,
        eval_split: str | None,
        num_examples: int,
        max_turns: int,
        system_prompt: str | None,
    ) -> None:
        self._environments = environments
        evaluated = eval_split or environments.eval_split()
        super().__init__(
            dataset=_dataset(environments.rows(split, num_examples)),
            eval_dataset=None
            if evaluated is None
            else _dataset(environments.rows(evaluated, num_examples)),
            system_prompt=system_prompt or environments.actions.instructions or None,
            rubric=_EpisodeRubric(),
            max_turns=max_turns,
        )

    async def setup_state(self, state: Any) -> Any:
        """Begin an episode; its first observation is the prompt."""
        with _failures():
            episode = state["envweave_episode"] = await self._environments.acquire()
            shown = await in_thread(episode.start, state["info"])
        system = [message for message in state["prompt"] if message.role == "system"]
        state["prompt"] = [*system, vf.UserMessage(content=shown)]
        return state

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        """Take the model's reply as an action."""
        del kwargs
        episode, content = state["envweave_episode"], messages[-1].content
        with _failures():
            message = await in_thread(episode.act, content if isinstance(content, str) else "")
        state["trajectory"][-1]["reward"] = episode.step_reward
        response = [vf.UserMessage(content=message)]
        if episode.is_over or 0 < self.max_turns <= len(state["trajectory"]):
            state["final_env_response"] = response
            state["is_truncated"] = episode.truncated or not episode.is_over
        return response

    @vf.stop  # type: ignore[untyped-decorator]
    async def max_turns_reached(self, state: Any) -> bool:  # noqa: ARG002 - verifiers' signature
        """Leave the limit to `env_response`: verifiers would drop the last reply unplayed."""
        return False

    @vf.cleanup  # type: ignore[untyped-decorator]
    async def release_environment(self, state: Any) -> None:
        """Return the environment to the pool."""
        if "envweave_episode" in state:
            await self._environments.release(state["envweave_episode"])

    @vf.teardown  # type: ignore[untyped-decorator]
    async def close_environments(self) -> None:
        """Close all environments."""
        self._environments.close()


def _dataset(rows: list[dict[str, Any]]) -> Any:
    # The prompt is replaced by the first observation, which only a reset returns.
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": row["task_id"] or f"seed {row['seed']}"}],
                "info": row,
            }
            for row in rows
        ]
    )


@contextmanager
def _failures() -> Iterator[None]:
    """Raise failures as a verifiers error, which is recorded in the rollout."""
    try:
        yield
    except Exception as error:
        raise vf.InfraError(format_error(error)) from error


@final
class _EpisodeRubric(vf.Rubric):  # type: ignore[misc]
    """Scores a rollout by the rewards of its episode; their parts and metrics are shown beside."""

    def __init__(self) -> None:
        super().__init__(funcs=[episode_return])

    async def score_rollout(self, state: Any) -> None:
        await super().score_rollout(state)
        state["metrics"] |= _figures(state)

    async def score_group(self, states: Any) -> None:
        await super().score_group(states)
        for state in states:
            state["metrics"] |= _figures(state)


async def episode_return(state: Any) -> float:
    """The sum of the episode's rewards."""
    episode = state.get("envweave_episode")
    return 0.0 if episode is None else float(episode.total)


def _figures(state: Any) -> dict[str, float]:
    episode = state.get("envweave_episode")
    figures = {} if episode is None else {**episode.metrics, **episode.parts}
    figures.pop("reward", None)  # it has its own column
    return figures
