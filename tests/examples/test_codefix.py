from __future__ import annotations

import re

import pytest

import envweave as ew

COMPUTE = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
}


def prompts(split, count):
    with ew.make("codefix-v0") as env:
        return [env.reset(task=f"{split}-{i}").observation.prompt for i in range(count)]


def spec_of(prompt):
    return prompt.splitlines()[0]


def fitting_operators(prompt):
    """Return the operators that agree with the prompt's example."""
    a, b, result = map(int, re.search(r"f\((\d+), (\d+)\) == (-?\d+)$", prompt).groups())
    return [name for name, compute in COMPUTE.items() if compute(a, b) == result]


def test_a_prompt_has_the_spec_the_code_and_one_example():
    (prompt,) = prompts("train", 1)

    spec, code, example = prompt.splitlines()
    assert spec.startswith("Spec: ")
    assert code == "Code: def f(a, b): return a ? b"
    assert re.fullmatch(r"Example: f\(\d+, \d+\) == -?\d+", example)


@pytest.mark.parametrize("split", ["train", "test"])
def test_exactly_one_operator_fits_the_example_and_is_rewarded(split):
    with ew.make("codefix-v0") as env:
        for i in range(100):
            task = f"{split}-{i}"
            (right,) = fitting_operators(env.reset(task=task).observation.prompt)

            results = {}
            for name in COMPUTE:
                env.reset(task=task)
                results[name] = env.step({"operator": name})

            assert {name: result.reward for name, result in results.items()} == {
                name: 1.0 if name == right else -1.0 for name in COMPUTE
            }
            assert results[right].metrics["success"] == 1.0
            assert all(result.terminated for result in results.values())


def test_the_operators_are_equally_frequent():
    counts = dict.fromkeys(COMPUTE, 0)
    for prompt in prompts("train", 2000):
        counts[fitting_operators(prompt)[0]] += 1

    assert all(400 < count < 600 for count in counts.values())


def test_train_and_test_share_no_prompt_not_even_a_spec():
    train = {spec_of(prompt) for prompt in prompts("train", 4000)}
    test = {spec_of(prompt) for prompt in prompts("test", 2000)}

    assert not train & test
    assert len(test) > 100
    assert len(train) > 300


def test_every_word_of_the_test_split_occurs_in_the_train_split():
    words = [
        {word for prompt in prompts(split, 2000) for word in re.findall(r"\w+", spec_of(prompt))}
        for split in ("train", "test")
    ]

    assert words[1] <= words[0]


def test_the_seed_draws_wording_and_numbers_from_the_train_split():
    with ew.make("codefix-v0") as env:
        starts = [env.reset(seed=seed) for seed in range(20)]
        again = [env.reset(seed=seed).observation for seed in range(20)]

    assert [start.observation for start in starts] == again
    assert all(start.task_id.startswith("train-") for start in starts)
    assert len({start.observation.prompt for start in starts}) == 20


def test_an_operator_that_is_not_offered_is_refused():
    with ew.make("codefix-v0") as env:
        env.reset(seed=0)

        with pytest.raises(ew.errors.ActionError, match=r"'/'"):
            env.step({"operator": "/"})


def test_the_answer_is_private():
    with ew.make("codefix-v0") as env:
        env.reset(task="test-0")
        task = env.tasks.get("test-0")

        assert "operator" not in task.data
        assert "withheld" in repr(task)
        assert not hasattr(env.state(), "operator")
