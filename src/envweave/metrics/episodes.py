"""`episode_metrics`: the outcome of a batch of episodes, as figures for a sink."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from envweave.types import Episode


def episode_metrics(episodes: Iterable[Episode]) -> dict[str, float]:
    """Return the usual figures of some episodes. A figure that nothing is known of is left out.

    | name | what it is |
    | --- | --- |
    | `episodes` | how many there are |
    | `usable` | the share of them that may be trained on |
    | `lost/environment`, `lost/infrastructure` | how many may not, by who caused it |
    | `retried` | the share that was played more than once |
    | `reward/mean`, `reward/std`, `reward/min`, `reward/max` | with several agents, of their mean |
    | `reward/AGENT` | the mean reward of an agent, where there are several |
    | `parts/NAME`, `metrics/NAME` | means of reward parts and metrics, such as `metrics/success` |
    | `length/mean`, `length/max`, `duration_s/mean` | in steps, and in seconds |
    | `truncated` | the share that a limit ended |

    Rewards, parts, metrics, lengths and durations are those of usable episodes alone: a failure is
    never counted as a reward of 0. Where many episodes are lost, the rest is biased to short ones,
    so look at `usable` beside them.
    """
    given = list(episodes)
    usable = [episode for episode in given if episode.usable]
    figures: dict[str, float] = {"episodes": len(given)}
    if not given:
        return figures
    owners = Counter(episode.end.blame for episode in given if not episode.usable)
    figures["usable"] = len(usable) / len(given)
    figures["lost/environment"] = owners["environment"]
    figures["lost/infrastructure"] = owners["infrastructure"]
    figures["retried"] = sum(episode.attempts > 1 for episode in given) / len(given)
    if not usable:
        return figures
    rewards = [reward for episode in usable if (reward := _mean_reward(episode.reward)) is not None]
    if rewards:
        figures |= {
            "reward/mean": statistics.fmean(rewards),
            "reward/std": statistics.pstdev(rewards),
            "reward/min": min(rewards),
            "reward/max": max(rewards),
        }
    figures |= _means("reward", (_by_agent(episode.reward) for episode in usable))
    figures |= _means("parts", (_flat(episode.reward_parts) for episode in usable))
    figures |= _means("metrics", (_flat(episode.metrics) for episode in usable))
    figures["length/mean"] = statistics.fmean(episode.length for episode in usable)
    figures["length/max"] = max(episode.length for episode in usable)
    figures["duration_s/mean"] = statistics.fmean(episode.duration_s for episode in usable)
    cut = sum(episode.end.reason == "truncated" for episode in usable)
    figures["truncated"] = cut / len(usable)
    return figures


def _mean_reward(reward: Any) -> float | None:
    if not isinstance(reward, Mapping):
        return None if reward is None else float(reward)
    earned = list(_by_agent(reward).values())
    return statistics.fmean(earned) if earned else None


def _by_agent(reward: Any) -> dict[str, float]:
    if not isinstance(reward, Mapping):
        return {}
    return {agent: float(one) for agent, one in reward.items() if one is not None}


def _means(prefix: str, each: Iterable[Mapping[str, float]]) -> dict[str, float]:
    columns: dict[str, list[float]] = {}
    for figures in each:
        for name, value in figures.items():
            columns.setdefault(f"{prefix}/{name}", []).append(value)
    return {name: statistics.fmean(values) for name, values in columns.items()}


def _flat(values: Mapping[str, Any], path: str = "") -> dict[str, float]:
    """Return the numbers of nested dicts by path; other values are omitted."""
    flat: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{path}{name}/")
        elif isinstance(value, int | float):
            flat[f"{path}{name}"] = float(value)
    return flat
