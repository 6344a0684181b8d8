"""Tree search in a code environment: forks of the live session against restarts, step for step.

An agent cleans a table in six stages. Each stage's code changes the table in place, and of the four
variants that the agent can think of one is right, so a wrong one spoils the episode. It acts at
random, as a model does at high temperature; the grader scores the table after every step. Three
ways to spend the same number of steps:

- `episodes`: play whole episodes, keep the best;
- `replay`: try variants of each stage, going back by playing the code again from the start;
- `fork`: try variants of each stage, each in a fork of the live session.
"""

import argparse
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import envweave as ew
from envweave.codeact import Attempt, Grade, Grader

SETUP = """
import random
rng = random.Random(seed)
names = [rng.choice("abcdefgh") * rng.randint(2, 4) for _ in range(30)]
rows = [[f" {name}", f"{rng.randint(-9999, 9999):,}", rng.choice(["EUR", "USD"])] for name in names]
"""
STAGES = [  # the first variant is right
    ["r[0] = r[0].strip()", "r[0] = r[0].strip()[:3]", "r[0] = r[0].upper()", "r[0] = ''"],
    [f"r[1] = int(r[1].replace(',', {one!r}) or 0)" for one in ("", "0", "00", "1")],
    [f"r[1] = {one}" for one in ("max(r[1], 0)", "abs(r[1])", "min(r[1], 0)", "-r[1]")],
    [f"r[1] = r[1] * {one} // 100 if r[2] == 'USD' else r[1]" for one in (90, 110, 9, 99)],
    [f"r[2] = {one!r}" for one in ("EUR", "USD", "", None)],
    [f"r[1] = round(r[1], {one})" for one in (-1, -2, -3, -4)],
]


def code(stage: int, variant: int) -> str:
    """Return the code of a variant; its last expression shows the table to the grader."""
    return f"for r in rows:\n    {STAGES[stage][variant]}\nrows"


def tables(seed: int) -> list[list[list[object]]]:
    """Return what the table should be after each stage."""
    names: dict[str, object] = {"seed": seed}
    exec(SETUP, names)
    shown = []
    for stage in range(len(STAGES)):
        exec(f"for r in rows:\n    {STAGES[stage][0]}", names)
        shown.append(json.loads(json.dumps(names["rows"])))
    return shown


class Stages(Grader):
    """Scores the share of the stages that the table has passed."""

    async def grade(self, attempt: Attempt) -> Grade:
        assert attempt.task is not None
        expected = attempt.task.private["tables"]
        passed = expected.index(attempt.answer) + 1 if attempt.answer in expected else 0
        return Grade(passed / len(expected), passed == len(expected))


def make_env() -> ew.Environment:
    tasks = ew.Tasks(
        {"train": [ew.Task(str(i), private={"tables": tables(i)}) for i in range(200)]}
    )
    return ew.create_codeact_env(tasks=tasks, grader=Stages(), grade="every_step")


class Search:
    """Spends a budget of steps on one problem.

    Attributes:
        best: The best score so far, after each step.
    """

    def __init__(self, problem: int, budget: int) -> None:
        self.problem = problem
        self.rng = random.Random(problem)
        self.budget = budget
        self.best: list[float] = []

    def step(self, env: ew.Env, action: str) -> float:
        score = env.step({"code": action}).reward or 0.0
        if len(self.best) < self.budget:
            self.best.append(max([score, *self.best[-1:]]))
        return score

    def start(self, env: ew.Env) -> None:
        env.reset(task=str(self.problem))
        self.step(env, f"seed = {self.problem}{SETUP}")

    @property
    def is_over(self) -> bool:
        return len(self.best) >= self.budget or self.best[-1:] == [1.0]

    def guess(self) -> int:
        return self.rng.randrange(4)


def episodes(search: Search, env: ew.Env) -> None:
    while not search.is_over:
        search.start(env)
        for stage in range(len(STAGES)):
            if not search.is_over:
                search.step(env, code(stage, search.guess()))


def replay(search: Search, env: ew.Env) -> None:
    right: list[str] = []
    while not search.is_over:
        search.start(env)
        for action in right:
            search.step(env, action)
        action = code(len(right), search.guess())
        if search.step(env, action) > len(right) / len(STAGES):
            right.append(action)


def fork(search: Search, env: ew.Env) -> None:
    search.start(env)
    here, stage = env.snapshot(), 0
    while not search.is_over:
        if search.step(env, code(stage, search.guess())) > stage / len(STAGES):
            stage += 1
            if not search.is_over:
                here = env.snapshot()
        else:
            env.restore(here)


WAYS: list[Callable[[Search, ew.Env], None]] = [episodes, replay, fork]


def run(problems: int, budget: int) -> Iterator[tuple[str, list[float]]]:
    """Yield the mean score after each step, by the way of spending it."""
    with ew.make(make_env) as env:
        for way in WAYS:
            curves = []
            for problem in range(problems):
                search = Search(problem, budget)
                way(search, env)
                curves.append(search.best + search.best[-1:] * (budget - len(search.best)))
            yield way.__name__, [sum(column) / problems for column in zip(*curves, strict=True)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=5)
    parser.add_argument("--budget", type=int, default=100, help="steps for each problem")
    parser.add_argument("--json", type=Path, help="write the curves to this file")
    options = parser.parse_args()
    curves = dict(run(options.problems, options.budget))
    shown = [step for step in (10, 25, 50, 100, 200) if step <= options.budget]
    print("steps   ", "".join(f"{step:>7}" for step in shown))
    for name, curve in curves.items():
        print(f"{name:9}", "".join(f"{curve[step - 1]:7.0%}" for step in shown))
    if options.json is not None:
        options.json.write_text(json.dumps(curves))
