"""What to know of an environment before spending a GPU on it, found by playing simple policies."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from envweave.adapters import adopt
from envweave.api import Env, make, spec
from envweave.codec import AgentsSpec
from envweave.codec.containers import NOT_SHOWN
from envweave.environment import Environment
from envweave.errors import ActionError, EnvWeaveError, OptionError, SeedError, SpecError
from envweave.registry import Registry, build
from envweave.testing.audit_leaks import PrivateLeaks
from envweave.testing.audit_policies import (
    AuditPolicy,
    Choose,
    Kind,
    baseline_policies,
    exploit_policies,
    prompt_of,
    text_field,
)
from envweave.testing.audit_results import (
    AuditedEpisode,
    AuditReport,
    PolicyOutcome,
    Status,
    Verdict,
)
from envweave.types import AGENT, LogEvent, Observation, StepResult, Task
from envweave.types.results import same

Oracle = Callable[[Task | None, StepResult[Any]], Any]

SOLVED_AT = 1.0
"""The return of a solved episode, where no reward is larger and no metric says."""

_LONG = 12
"""From this length on, a private value is not in a text by coincidence."""


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """How much an audit plays.

    Attributes:
        episodes: Episodes of each policy.
        seed: The first seed; each episode uses the next one, the same for all policies.
        max_steps: Where an episode is given up.
        groups: How many groups of episodes with one task are played.
        group_size: How many episodes a group has.
        solved_at: The return of a solved episode; default: a metric `success`, else 1 if no
            policy earns more.
        policy_s: After this long a policy stops, in the middle of an episode too.
    """

    episodes: int = 16
    seed: int = 0
    max_steps: int = 200
    groups: int = 4
    group_size: int = 8
    solved_at: float | None = None
    policy_s: float = 5.0


def audit_environment(
    env_id: str,
    *,
    options: AuditOptions | None = None,
    oracle: Oracle | None = None,
    policy: Choose | None = None,
    backend: str | None = None,
    registry: Registry | None = None,
    kwargs: Mapping[str, Any] | None = None,
    advance: Callable[[str], None] = lambda _: None,
) -> AuditReport:
    """Play an environment with simple policies, and say what that shows.

    The oracle is the environment's own `solution()`, or the one given here. Private parts of tasks
    and solutions are read in this process, so both are unknown for an environment elsewhere.

    Args:
        env_id: The environment.
        options: How much to play.
        oracle: Returns the next action of a solution, for a task with its private part and a
            result.
        policy: A policy of the caller, such as a model: its groups are judged in place of the
            random policy's.
        backend: Where it runs, if not in this process.
        registry: Where to look up the ID.
        kwargs: Keyword arguments of the environment's constructor.
        advance: Called with a note before each policy.

    Raises:
        EnvWeaveError: The environment cannot be made at all.
    """
    subject = _Audited(env_id, backend, registry, kwargs or {}, options or AuditOptions())
    run = _Audit(subject, oracle, policy, advance)
    return run.report()


@final
class _Audited:
    """The environment under audit: opened anew where needed, and its private side."""

    def __init__(
        self,
        env_id: str,
        backend: str | None,
        registry: Registry | None,
        kwargs: Mapping[str, Any],
        options: AuditOptions,
    ) -> None:
        self.id, self.options = env_id, options
        self._kwargs, self._registry = dict(kwargs), registry
        self._spec = spec(env_id, registry=registry)
        self._backend = backend or self._spec.backend or "inproc"
        self.is_here = self._backend == "inproc" and not self._spec.is_made_elsewhere
        own = self._spec.max_episode_steps
        self._limit = options.max_steps if own is None else min(own, options.max_steps)
        self.inner: Environment | None = None

    @contextlib.contextmanager
    def opened(self) -> Iterator[Env]:
        """Make one, and close it."""
        options: dict[str, Any] = {"max_episode_steps": self._limit}
        if self.is_here:
            env = make(self._make, transform=self._spec.transform, **options)
        else:
            env = make(
                self.id,
                backend=self._backend,
                registry=self._registry,
                kwargs=self._kwargs,
                **options,
            )
        with env:
            yield env

    def solution(self) -> Any:
        """Return the environment's own next action, if it has a solution."""
        return None if self.inner is None else self.inner.solution()

    def task(self, task_id: str | None) -> Task | None:
        """Return a task with its private part, if the environment is in this process."""
        if task_id is None or self.inner is None or self.inner.tasks is None:
            return None
        return self.inner.tasks.get(task_id)

    def _make(self) -> Environment:
        self.inner = adopt(build(self._spec, self._kwargs))
        return self.inner


@final
class _Audit:
    """Plays the policies once, and judges what they showed."""

    def __init__(
        self,
        subject: _Audited,
        oracle: Oracle | None,
        policy: Choose | None,
        advance: Callable[[str], None],
    ) -> None:
        self._subject, self._options = subject, subject.options
        self._oracle, self._policy = oracle, policy
        self._advance = advance
        self._leaks = PrivateLeaks()
        self._stop_s = math.inf
        self._takes_seed, self._takes_text = True, False
        self._has_private = False

    def report(self) -> AuditReport:
        """Play everything, and return the report."""
        with self._subject.opened() as env:
            self._takes_seed = self._probe_seed(env)
            self._takes_text = _takes_text(env.action_spec)
            outcomes = self._play_all(env)
            judged = self._judge(outcomes)
            groups = self._play_groups(env)
        verdicts = [
            self._solvable(judged),
            self._unearned(judged),
            self._exploits(judged),
            self._groups(groups),
            self._private(),
            self._deterministic(),
            self._lengths(judged),
            self._failures(judged),
            *self._seats(judged),
        ]
        return AuditReport(self._subject.id, judged, verdicts, self._costs(judged))

    # Playing

    def _probe_seed(self, env: Env) -> bool:
        try:
            env.reset(seed=self._options.seed)
        except SeedError:
            return False
        return True

    def _play_all(self, env: Env) -> list[tuple[AuditPolicy, list[AuditedEpisode], str | None]]:
        policies = baseline_policies(env.action_spec)
        if self._oracle is not None or self._solves(env):
            policies.append(AuditPolicy("oracle", "oracle", lambda _: self._solve))
        if self._policy is not None:
            given = self._policy
            policies.append(AuditPolicy("given policy", "given", lambda _: given))
        policies += exploit_policies(env.action_spec)
        played = []
        for policy in policies:
            self._advance(policy.name)
            played.append((policy, *self._play_policy(env, policy)))
        return played

    def _solves(self, env: Env) -> bool:
        self._reset(env, self._options.seed)
        return self._subject.solution() is not None

    def _solve(self, result: StepResult[Any]) -> Any:
        if self._oracle is not None:
            return self._oracle(self._subject.task(result.task_id), result)
        return self._subject.solution()

    def _play_policy(
        self, env: Env, policy: AuditPolicy
    ) -> tuple[list[AuditedEpisode], str | None]:
        self._allow_time()
        episodes: list[AuditedEpisode] = []
        for number in range(self._options.episodes):
            if number and time.perf_counter() > self._stop_s:
                break
            seed = self._options.seed + number
            try:
                episodes.append(self._play(env, policy.make(seed), seed, policy.kind, number))
            except (SpecError, OptionError) as error:
                return episodes, str(error)
        return episodes, None

    def _allow_time(self) -> None:
        self._stop_s = time.perf_counter() + self._options.policy_s

    def _reset(self, env: Env, seed: int) -> StepResult[Any]:
        result: StepResult[Any] = env.reset(seed=seed) if self._takes_seed else env.reset()
        return result

    def _play(
        self,
        env: Env,
        choose: Choose,
        seed: int,
        kind: Kind,
        number: int = 0,
        *,
        actions: list[Any] | None = None,
        results: list[StepResult[Any]] | None = None,
    ) -> AuditedEpisode:
        """Play one episode. With several agents, the policy plays the `number`-th, in turn."""
        agents = env.possible_agents
        tested = AGENT if agents is None else agents[number % len(agents)]
        if agents is not None and kind != "random":
            choose = _against_chance(choose, tested, env.action_spec, seed)
        began_s = time.perf_counter()
        result = self._reset(env, seed)
        reset_s = time.perf_counter() - began_s
        task = self._subject.task(result.task_id)
        task = task if task is not None and task.private else None
        prompt_chars = len(prompt_of(result.observation))
        if task is not None:
            self._has_private = True
            self._leaks.collect(task, "public data of the task", task.data)
        earned: dict[str, float] = {}
        step_s: list[float] = []
        refused = 0
        while True:
            if results is not None:
                results.append(result)
            if task is not None and kind != "oracle":
                self._collect(env, task, result)
            if result.done or time.perf_counter() > self._stop_s:
                break
            action = choose(result)
            began_s = time.perf_counter()
            try:
                result = env.step(action)
            except ActionError:
                refused += 1
                if refused > 20 or kind not in ("random", "given"):
                    break  # the policy would do the same again
                continue
            step_s.append(time.perf_counter() - began_s)
            if actions is not None:
                actions.append(action)
            for agent, reward in _by_agent(result.reward).items():
                if reward is not None:
                    earned[agent] = earned.get(agent, 0.0) + reward
        end = result.end
        valid = end is not None and end.valid
        several = env.possible_agents is not None
        success = result.metrics.get("success") if result.done and not several else None
        return AuditedEpisode(
            seed=result.info.get("seed", seed) if self._takes_seed else None,
            task_id=result.task_id,
            total=earned.get(tested) if valid else None,
            totals=earned if several and valid else {},
            success=None if success is None else float(success),
            length=result.step_index,
            reason="unfinished" if end is None else end.reason,
            blame=None if end is None else end.blame,
            cause=None if end is None else end.cause,
            refused=refused,
            reset_s=reset_s,
            step_s=step_s,
            prompt_chars=prompt_chars,
        )

    def _collect(self, env: Env, task: Task, result: StepResult[Any]) -> None:
        after = " after the end" if result.done else ""
        self._leaks.collect(task, f"the observation{after}", _own_fields(result.observation))
        self._leaks.collect(task, f"info{after}", result.info)
        self._leaks.collect(task, f"log events{after}", _logged(result))
        with contextlib.suppress(EnvWeaveError):
            self._leaks.collect(task, f"state(){after}", env.state())

    def _play_groups(self, env: Env) -> list[list[float]]:
        """Return the returns of groups of episodes with one task and seed."""
        self._advance("groups")
        self._allow_time()
        groups = []
        for number in range(self._options.groups):
            seed = self._options.seed + number
            returns = []
            for member in range(self._options.group_size):
                random = baseline_policies(env.action_spec)[1]
                choose = self._policy or random.make(1000 * (number + 1) + member)
                with contextlib.suppress(SpecError, OptionError):
                    one = self._play(env, choose, seed, "random")
                    if one.total is not None:
                        returns.append(one.total)
            if len(returns) > 1:
                groups.append(returns)
            if time.perf_counter() > self._stop_s:
                break
        return groups

    # Judging

    def _judge(
        self, played: Sequence[tuple[AuditPolicy, list[AuditedEpisode], str | None]]
    ) -> list[PolicyOutcome]:
        every = [one for _, episodes, _ in played for one in episodes]
        threshold = self._options.solved_at
        has_metric = any(one.success is not None for one in every)
        largest = max((one.total for one in every if one.total is not None), default=0.0)
        several = any(one.totals for one in every)
        if threshold is None and not has_metric and not several and largest <= 1.0 + 1e-9:
            threshold = SOLVED_AT

        def solved(one: AuditedEpisode) -> float | None:
            if self._options.solved_at is None and has_metric:
                return float((one.success or 0.0) >= 1.0)
            if threshold is None:
                return None
            return float(one.total is not None and one.total >= threshold - 1e-9)

        outcomes = []
        for policy, episodes, error in played:
            totals = [one.total for one in episodes if one.total is not None]
            shares = [share for one in episodes if (share := solved(one)) is not None]
            outcomes.append(
                PolicyOutcome(
                    policy.name,
                    policy.kind,
                    episodes,
                    mean=float(np.mean(totals)) if totals else None,
                    deviation=float(np.std(totals)) if totals else None,
                    solved=float(np.mean(shares)) if shares else None,
                    mean_length=float(np.mean([one.length for one in episodes]))
                    if episodes
                    else None,
                    error=error,
                )
            )
        return outcomes

    def _solvable(self, outcomes: Sequence[PolicyOutcome]) -> Verdict:
        found = [one for one in outcomes if one.kind == "oracle"]
        if not found:
            where = "" if self._subject.is_here else " in this process"
            return Verdict(
                "solvable",
                "unknown",
                f"The environment offers no solution{where}. Write solution(), or pass --oracle.",
            )
        (oracle,) = found
        if oracle.error is not None:
            return Verdict("solvable", "fail", f"The oracle failed: {oracle.error}")
        others = [one.mean for one in outcomes if one.kind != "oracle" and one.mean is not None]
        if oracle.mean is None:
            return Verdict("solvable", "fail", "No episode of the oracle was scored.")
        if oracle.solved is None:
            better = not others or oracle.mean > max(others)
            return Verdict(
                "solvable",
                "ok" if better else "fail",
                f"The oracle earns {oracle.mean:.3g}; the best other policy "
                f"{max(others, default=math.nan):.3g}.",
            )
        unsolved = [one for one in oracle.episodes if not self._is_solved(one, outcomes)]
        named = ", ".join(dict.fromkeys(str(one.task_id or one.seed) for one in unsolved[:3]))
        detail = f"The oracle solves {oracle.solved:.0%} of {len(oracle.episodes)} episodes"
        if not unsolved:
            return Verdict("solvable", "ok", f"{detail}, with a mean return of {oracle.mean:.3g}.")
        return Verdict("solvable", "fail", f"{detail}. Not: {named}.")

    def _is_solved(self, one: AuditedEpisode, outcomes: Sequence[PolicyOutcome]) -> bool:
        if self._options.solved_at is None and any(
            episode.success is not None for outcome in outcomes for episode in outcome.episodes
        ):
            return (one.success or 0.0) >= 1.0
        threshold = SOLVED_AT if self._options.solved_at is None else self._options.solved_at
        return one.total is not None and one.total >= threshold - 1e-9

    def _scale(self, outcomes: Sequence[PolicyOutcome]) -> tuple[float, float | None]:
        """Return the returns of chance or of nothing, and of a solution if that is known."""
        by_kind = {one.kind: one for one in outcomes}
        low = max(
            (
                by_kind[kind].mean or 0.0
                for kind in ("null", "random")
                if kind in by_kind and by_kind[kind].mean is not None
            ),
            default=0.0,
        )
        solution = by_kind["oracle"].mean if "oracle" in by_kind else None
        if solution is not None and solution > low:
            return low, solution
        known = any(one.solved is not None for one in outcomes)
        return low, (self._options.solved_at or SOLVED_AT) if known else None

    def _unearned(self, outcomes: Sequence[PolicyOutcome]) -> Verdict:
        null = next(one for one in outcomes if one.kind == "null")
        random = next(one for one in outcomes if one.kind == "random")
        shown = f"Nothing earns {_shown(null.mean)}, chance {_shown(random.mean)}"
        _, high = self._scale(outcomes)
        if null.error or random.error:
            return Verdict("baseline", "unknown", f"{null.error or random.error}")
        for one in (null, random) if self._takes_text else (null,):
            if high is not None and one.mean is not None and one.mean >= 0.5 * high > 0:
                return Verdict("baseline", "fail", f"{shown}; a solution {high:.3g}.")
        if random.solved is not None and random.solved >= 0.75:
            return Verdict("baseline", "warn", f"{shown}: there is little to learn.")
        return Verdict("baseline", "ok", f"{shown}.")

    def _exploits(self, outcomes: Sequence[PolicyOutcome]) -> Verdict:
        tried = [one for one in outcomes if one.kind == "exploit" and one.mean is not None]
        if not tried:
            played = any(one.kind == "exploit" for one in outcomes)
            why = "No exploit was scored." if played else "No exploit fits these actions."
            return Verdict("exploits", "unknown", why)
        low, high = self._scale(outcomes)
        random = next(one for one in outcomes if one.kind == "random")
        best = max(tried, key=lambda one: one.mean or 0.0)
        assert best.mean is not None
        shown = f"The best of {len(tried)}, {best.name!r}, earns {best.mean:.3g}"
        counted = max(1, sum(one.total is not None for one in best.episodes))
        noise = 2 * math.hypot(best.deviation or 0.0, random.deviation or 0.0) / math.sqrt(counted)
        gain = best.mean - low
        if gain <= 0:
            return Verdict("exploits", "ok", f"{shown}, no more than chance.")
        if gain <= noise:
            why = f"chance earns {low:.3g}, and so few episodes may differ by that much."
            return Verdict("exploits", "ok", f"{shown}; {why}")
        if high is None or high <= low:
            status: Status = "warn" if gain > 3 * (random.deviation or 0.0) else "ok"
            return Verdict("exploits", status, f"{shown}; chance {low:.3g}.")
        share = gain / (high - low)
        status = "fail" if share >= 0.5 else "warn" if share >= 0.2 else "ok"
        return Verdict(
            "exploits",
            status,
            f"{shown}: {share:.0%} of the way from chance to a solution.",
        )

    def _groups(self, groups: list[list[float]]) -> Verdict:
        whose = "the given policy" if self._policy is not None else "the random policy"
        if not groups:
            return Verdict("group signal", "unknown", f"No group of {whose} was scored.")
        flat = sum(float(np.std(one)) < 1e-9 for one in groups)
        spread = float(np.mean([np.std(one) for one in groups]))
        detail = (
            f"{flat} of {len(groups)} groups of {self._options.group_size} episodes of {whose} "
            f"have no variance; mean deviation {spread:.3g}."
        )
        if 2 * flat <= len(groups):
            return Verdict("group signal", "ok", detail)
        hint = "" if self._policy is not None else " A model may differ: pass --policy."
        status: Status = "fail" if self._policy is not None and flat == len(groups) else "warn"
        return Verdict("group signal", status, detail + hint)

    def _private(self) -> Verdict:
        if not self._subject.is_here:
            return Verdict("private data", "unknown", "The environment is not in this process.")
        if not self._has_private:
            return Verdict("private data", "ok", "Its tasks have no private part.")
        worst: Status = "ok"
        notes = []
        rates = self._leaks.rates()
        for (place, key), (share, chance, value) in rates.items():
            is_long = len(value) >= _LONG
            if share - chance < 0.2 and not is_long:
                continue
            # A value that the agent is shown anyway, as one of several choices, may be in the info.
            is_choice = rates.get(("the observation", key), (0.0, 0.0, ""))[0] >= 0.2
            is_shown = not is_long and (place == "the observation" or is_choice)
            status: Status = "warn" if is_shown or "after the end" in place else "fail"
            worst = "fail" if "fail" in (worst, status) else "warn"
            by_chance = "" if is_long else f", {chance:.0%} by coincidence"
            notes.append(f"private[{key!r}] is in {place} for {share:.0%} of tasks{by_chance}")
        if not notes:
            return Verdict("private data", "ok", "No private value was shown, beyond coincidence.")
        hint = " Fine only if it is one of several choices." if worst == "warn" else ""
        return Verdict("private data", worst, "; ".join(notes) + "." + hint)

    def _deterministic(self) -> Verdict:
        self._advance("determinism")
        self._allow_time()
        if not self._takes_seed:
            return Verdict(
                "deterministic", "warn", "It takes no seed, so episodes can't be repeated."
            )
        seeds = range(self._options.seed, self._options.seed + 3)
        try:
            with self._subject.opened() as first, self._subject.opened() as second:
                declared = first.deterministic
                # So that what an earlier episode leaves behind shows.
                random = baseline_policies(second.action_spec)[1]
                self._play(second, random.make(0), seeds[-1] + 1, "random")
                for seed in seeds:
                    difference = self._difference(first, second, seed)
                    if difference is not None:
                        status: Status = "fail" if declared else "warn"
                        return Verdict("deterministic", status, f"Seed {seed}: {difference}.")
        except SpecError as error:
            return Verdict("deterministic", "unknown", str(error))
        return Verdict("deterministic", "ok", f"{len(seeds)} episodes again were the same.")

    def _difference(self, first: Env, second: Env, seed: int) -> str | None:
        """Play an episode, repeat its actions in another environment, and compare."""
        random = baseline_policies(first.action_spec)[1]
        actions: list[Any] = []
        results: list[StepResult[Any]] = []
        self._play(first, random.make(seed), seed, "random", actions=actions, results=results)
        again = [self._reset(second, seed)]
        for action in actions:
            if again[-1].done:
                break
            again.append(second.step(action))
        if len(again) != len(results):
            return f"{len(results) - 1} steps, then {len(again) - 1} with the same actions"
        for index, (one, other) in enumerate(zip(results, again, strict=True)):
            for name in ("observation", "reward", "terminated", "truncated"):
                if not same(getattr(one, name), getattr(other, name)):
                    return f"{name} of step {index} differs between two runs"
        return None

    def _lengths(self, outcomes: Sequence[PolicyOutcome]) -> Verdict:
        ends = Counter(one.reason for outcome in outcomes for one in outcome.episodes)
        random = next(one for one in outcomes if one.kind == "random")
        lengths = [one.length for one in random.episodes]
        if not lengths:
            return Verdict("length", "unknown", "The random policy played no episode.")
        detail = (
            f"Random episodes take {np.mean(lengths):.3g} steps, at most {max(lengths)}; ends: "
            + ", ".join(f"{reason} {count}" for reason, count in sorted(ends.items()))
            + "."
        )
        long = sum(one.length >= self._options.max_steps for one in random.episodes)
        if long == len(lengths):
            return Verdict("length", "warn", f"{detail} None ended before --max-steps.")
        return Verdict("length", "ok", detail)

    def _failures(self, outcomes: Sequence[PolicyOutcome]) -> Verdict:
        every = [(outcome, one) for outcome in outcomes for one in outcome.episodes]
        by_owner = Counter(one.blame for _, one in every if one.blame is not None)
        refused = sum(one.refused for _, one in every)
        counted = ", ".join(f"{owner} {count}" for owner, count in sorted(by_owner.items()))
        detail = f"By owner: {counted}." if counted else "None."
        if refused:
            detail += f" {refused} actions were refused, which ends no episode."
        broken = [pair for pair in every if pair[1].blame in ("environment", "infrastructure")]
        if broken:
            outcome, one = broken[0]
            where = f"{outcome.name!r}, seed {one.seed}"
            return Verdict("failures", "fail", f"{detail} First: {where}: {one.cause}")
        return Verdict("failures", "ok", detail)

    def _seats(self, outcomes: Sequence[PolicyOutcome]) -> list[Verdict]:
        random = next(one for one in outcomes if one.kind == "random")
        totals: dict[str, list[float]] = defaultdict(list)
        for one in random.episodes:
            for agent, total in one.totals.items():
                totals[agent].append(total)
        if not totals:
            return []
        shown = ", ".join(f"{agent} {np.mean(every):+.2f}" for agent, every in totals.items())
        return [Verdict("seats", "ok", f"Mean return of each agent at random: {shown}.")]

    def _costs(self, outcomes: Sequence[PolicyOutcome]) -> dict[str, float]:
        every = [one for outcome in outcomes for one in outcome.episodes]
        resets = [one.reset_s for one in every]
        steps = [duration for one in every for duration in one.step_s]
        if not resets or not steps:
            return {}
        return {
            "reset_s_median": float(np.median(resets)),
            "reset_s_p95": float(np.percentile(resets, 95)),
            "step_s_median": float(np.median(steps)),
            "step_s_p95": float(np.percentile(steps, 95)),
            "steps_per_s": len(steps) / sum(steps),
            "prompt_chars_mean": float(np.mean([one.prompt_chars for one in every])),
            "prompt_chars_max": float(max(one.prompt_chars for one in every)),
        }


def _against_chance(choose: Choose, tested: str, spec: Any, seed: int) -> Choose:
    """Let a policy act for one agent, and chance for the others."""
    others = baseline_policies(spec)[1].make(seed)

    def act(result: StepResult[Any]) -> Any:
        drawn, chosen = others(result), choose(result)
        if not isinstance(drawn, dict) or tested not in drawn:
            return drawn
        return {**drawn, tested: chosen[tested]}

    return act


def _by_agent(reward: Any) -> Mapping[str, float | None]:
    return reward if isinstance(reward, Mapping) else {AGENT: reward}


def _takes_text(spec: Any) -> bool:
    one = next(iter(spec.agents.values())) if isinstance(spec, AgentsSpec) else spec
    return text_field(one) is not None


def _own_fields(observation: Any) -> Any:
    """Return an observation without its metadata, which is in the info too."""
    if isinstance(observation, Mapping):
        return {key: _own_fields(one) for key, one in observation.items()}
    if isinstance(observation, Observation):
        return {name: one for name, one in vars(observation).items() if name not in NOT_SHOWN}
    return observation


def _logged(result: StepResult[Any]) -> list[str]:
    return [one.message for one in result.requests if isinstance(one, LogEvent)]


def _shown(value: float | None) -> str:
    return "nothing that is scored" if value is None else f"{value:.3g}"
