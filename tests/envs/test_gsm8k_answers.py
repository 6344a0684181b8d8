"""Answers are read from what people and models write: a table of texts and their answers."""

from __future__ import annotations

from fractions import Fraction

import pytest
from installations import real_gsm8k

from envweave.envs.gsm8k_env import GSM8KEnv
from envweave.envs.gsm8k_env.answers import (
    exact_answer,
    exact_choice,
    lenient_answer,
    lenient_choice,
)

NONE = None
TABLE = [  # text, lenient value, exact value
    # GSM8K's own form
    ("#### 42", 42, 42),
    ("48/2 = <<48/2=24>>24\n#### 42", 42, 42),
    ("#### 1,234", 1234, 1234),
    ("#### 109,200,000", 109_200_000, 109_200_000),
    ("#### -7", -7, -7),
    ("#### 0", 0, 0),
    ("#### 3.5", "7/2", "7/2"),
    ("#### 42\n\n", 42, 42),
    ("  #### 42  ", 42, 42),
    ("#### 42\n#### 42", 42, 42),
    # nearly so
    ("####42", 42, NONE),
    ("#### 42.", 42, NONE),
    ("#### $42", 42, NONE),
    ("#### 42 apples", 42, NONE),
    ("#### **42**", 42, NONE),
    ("#### −42", -42, NONE),
    ("#### +42", 42, NONE),
    ("#### 42%", 42, NONE),
    ("#### 1,23", 1, NONE),
    ("#### x = 42", 42, NONE),
    ("#### 6 * 7 = 42", 42, NONE),
    ("#### forty", NONE, NONE),
    ("####", NONE, NONE),
    ("### 42", 42, NONE),
    ("##### 42", 42, NONE),
    ("The answer is #### 42", 42, NONE),
    ("#### 42\nSo she has 10 left.", 42, NONE),
    ("#### 41\n#### 42", 42, NONE),
    ("#### 1 or 2", 1, NONE),
    # a sentence
    ("The answer is 42.", 42, NONE),
    ("The answer is $1,234.00.", 1234, NONE),
    ("The answer is: 42", 42, NONE),
    ("The answer is:\n\n42", 42, NONE),
    ("the final answer is 42 apples in 3 days", 42, NONE),
    ("Final answer: 42", 42, NONE),
    ("Answer = 42", 42, NONE),
    ("**Answer:** 42", 42, NONE),
    ("**Final Answer**: **42**", 42, NONE),
    ("Answer: 42 (which is 6 times 7)", 42, NONE),
    ("The answer is 6 * 7 = 42.", 42, NONE),
    ("The answer is 5. No, the answer is 6.", 6, NONE),
    ("The result is 17, since 20 - 3 = 17", 17, NONE),
    ("The answer was 8 dollars. Check: 4 + 4 = 8, and 9 is wrong.", 8, NONE),
    ("The answer is forty-two, or 42", 42, NONE),
    ("The answer is unclear. She has 12", 12, NONE),
    ("ANSWER IS 9", 9, NONE),
    # LaTeX
    (r"\boxed{42}", 42, NONE),
    (r"$\boxed{42}$.", 42, NONE),
    (r"\boxed{1{,}234}", 1234, NONE),
    (r"\boxed{1,234}", 1234, NONE),
    (r"\boxed{1\,234}", 1234, NONE),
    (r"\boxed{\$18.00}", 18, NONE),
    (r"\boxed{\text{42 apples}}", 42, NONE),
    (r"\boxed{42\text{ cm}^2}", 42, NONE),
    (r"\boxed{x = 42}", 42, NONE),
    (r"\boxed{-5}", -5, NONE),
    (r"\boxed{\frac{3}{4}}", "3/4", NONE),
    (r"\boxed{\dfrac{1}{2}}", "1/2", NONE),
    (r"\boxed{41} and then \boxed{42}", 42, NONE),
    (r"\boxed{42} of the 100 apples", 42, NONE),
    (r"The answer is \(72\).", 72, NONE),
    (r"\[ 6 \times 7 = 42 \]", 42, NONE),
    (r"\boxed{", NONE, NONE),
    (r"\boxed{none}, 5", NONE, NONE),
    (r"The answer is \boxed{7}, not 8", 7, NONE),
    # the last number
    ("She has 3 + 4 = 7 apples", 7, NONE),
    ("42", 42, NONE),
    ("  42\n", 42, NONE),
    ("$42", 42, NONE),
    ("$ 42", 42, NONE),
    ("€42", 42, NONE),
    ("£1,000,000", 1_000_000, NONE),
    ("US$42", 42, NONE),
    ("Rs.500", 500, NONE),
    ("42 dollars", 42, NONE),
    ("42km", 42, NONE),
    ("42 m²", 42, NONE),
    ("10 cm^3", 10, NONE),
    ("50%", 50, NONE),
    ("(42)", 42, NONE),
    ("`42`", 42, NONE),
    ("*42*", 42, NONE),
    ("no number at all", NONE, NONE),
    ("", NONE, NONE),
    # signs
    ("-5", -5, NONE),
    ("- 5", 5, NONE),
    ("So:\n- 5", 5, NONE),
    ("= - 5", -5, NONE),
    ("−5", -5, NONE),
    ("–5 degrees", -5, NONE),
    ("－５", -5, NONE),
    ("+7", 7, NONE),
    ("The answer is -$5.", -5, NONE),
    ("The answer is $-5.", -5, NONE),
    ("it is -5", -5, NONE),
    ("= -5", -5, NONE),
    ("(-5)", -5, NONE),
    ("20 - 5", 5, NONE),
    ("20-5", 5, NONE),
    ("20 – 5", 5, NONE),
    ("between 3-5", 5, NONE),
    ("(2 + 1) - 5", 5, NONE),
    ("COVID-19", 19, NONE),
    # separators, decimals, fractions, powers
    ("1,234,567", 1_234_567, NONE),
    ("1'234", 1234, NONE),
    ("1\u202f234\u202f567", 1_234_567, NONE),
    ("1\u00a0234", 1234, NONE),
    ("1.234,50", "1234.5", NONE),
    ("12,34", 34, NONE),
    ("42.0", 42, NONE),
    ("42.50", "85/2", NONE),
    (".5", "1/2", NONE),
    ("0.5", "1/2", NONE),
    ("1/2", "1/2", NONE),
    ("50/100", "1/2", NONE),
    ("48 / 2", 24, NONE),
    ("2 1/2 hours", "5/2", NONE),
    ("½", "1/2", NONE),
    ("2½ hours", "5/2", NONE),
    ("5/0", 5, NONE),
    ("1.5e3", 1500, NONE),
    ("1.5 × 10^3", 1500, NONE),
    (r"1.5 \times 10^{3}", 1500, NONE),
    ("2 million", 2_000_000, NONE),
    ("1.5 thousand", 1500, NONE),
    ("x2 + y_3", NONE, NONE),
    ("٤٢", 42, NONE),
    ("４２", 42, NONE),
]


def value(given):
    return None if given is None else Fraction(given)


@pytest.mark.parametrize(("text", "lenient", "exact"), TABLE, ids=[repr(row[0]) for row in TABLE])
def test_a_text_is_read_as_an_answer(text, lenient, exact):
    assert (lenient_answer(text), exact_answer(text)) == (value(lenient), value(exact))


FORMATS = [  # how the answer of a real row may be written; {n} is plain, {c} has commas
    *("#### {c}", "#### {n}", "{n}", "{c}", "{n}.", "{n}.0", "{n}.00", "${c}", "${c}.00", "€{c}"),
    *("{c} dollars", "{n} apples", "{n}%", "**{c}**", "`{n}`", "({n})", "= {n}", "x = {n}"),
    *("The answer is {n}.", "The answer is ${c}.00.", "Final answer: {c}", "**Answer:** {n}"),
    *("The answer is {c} apples, in 3 days.", "Answer = {n}", "The result is {n}", "answer: {c}"),
    *("The answer is:\n\n{n}", "Answer:\n**{c}**", "12 + 30 = 42, so the answer is {n}."),
    *(r"\boxed{{{n}}}", r"\boxed{{{c}}}", r"$\boxed{{{n}}}$", r"\boxed{{\${c}}}", r"\[ {n} \]"),
    *(r"\boxed{{{n}\text{{ apples}}}}", r"\boxed{{x = {n}}}", r"\(\boxed{{{n}}}\).", r"\({n}\)"),
    *("#### ${c}", "#### {n} apples", "####{n}", "#### {n}.", "#### **{n}**", "#### 6 + 1 = {n}"),
    *(
        "So {c} is left.",
        "There are {n} of them",
        "Total: {n}",
        "Total: {c} km",
        "**Total**: {n}\n",
    ),
    *("1. One\n2. Two\n3. {n}", "- {n}", "A: {n}", "We get {n}/1", "{n} is my answer", "…{n}"),
]


def test_reference_solutions_of_all_real_rows_score_100_percent():
    env = GSM8KEnv(path=real_gsm8k())
    tasks = [task for split in ("train", "test") for task in env.tasks.split(split)]
    right = [Fraction(task.private["answer"]) for task in tasks]
    solutions = [task.private["solution"] for task in tasks]

    assert env.dataset == "gsm8k"
    assert len(tasks) == 7473 + 1319
    assert [exact_answer(text) for text in solutions] == right
    assert [lenient_answer(text) for text in solutions] == right


def test_shuffled_solutions_of_all_real_rows_score_0_percent():
    env = GSM8KEnv(path=real_gsm8k())
    tasks = [task for split in ("train", "test") for task in env.tasks.split(split)]
    # Sorted by answer and moved by half: no two rows that are paired have the same one.
    tasks.sort(key=lambda task: Fraction(task.private["answer"]))
    half = len(tasks) // 2
    pairs = list(zip(tasks, tasks[half:] + tasks[:half], strict=True))
    wrong = [(Fraction(one.private["answer"]), other.private["solution"]) for one, other in pairs]

    assert sum(lenient_answer(text) == answer for answer, text in wrong) == 0
    assert sum(exact_answer(text) == answer for answer, text in wrong) == 0


@pytest.mark.slow  # 1,319 rows in every format
@pytest.mark.parametrize("template", FORMATS)
def test_the_answers_of_real_test_rows_are_read_in_every_format(template):
    tasks = list(GSM8KEnv(path=real_gsm8k()).tasks.split("test"))
    wrong = []
    for task in tasks:
        answer = Fraction(task.private["answer"])
        text = template.format(n=answer, c=f"{int(answer):,}")
        if template == "- {n}" and answer < 0:
            continue  # "- -3" is not a usual way to write it
        if lenient_answer(text) != answer:
            wrong.append(text)

    assert wrong == []


@pytest.mark.parametrize(
    ("text", "lenient", "exact"),
    [
        ("B", "B", "B"),
        (" B\n", "B", "B"),
        ("b", "B", None),
        ("(b)", "B", None),
        ("B)", "B", None),
        ("**B**", "B", None),
        ("B) 42", "B", None),
        ("B. 42", "B", None),
        ("The answer is B.", "B", None),
        ("The answer is (C) 42", "C", None),
        ("Answer: D", "D", None),
        ("#### A", "A", None),
        (r"\boxed{D}", "D", None),
        ("I think it is (C), since 42.", "C", None),
        ("Not A) but B)", "B", None),
        ("A man has 5 apples", None, None),
        ("E", None, None),
        ("AB", None, None),
        ("42", None, None),
        ("", None, None),
    ],
)
def test_a_text_is_read_as_a_choice(text, lenient, exact):
    assert (lenient_choice(text), exact_choice(text)) == (lenient, exact)


@pytest.mark.parametrize(
    "text",
    [
        "1" * 200_000,
        "1e999999999",
        "9" * 30 + "e99",
        "answer" + " " * 100_000,
        "answer is 1 " * 10_000,
        "1 " * 50_000,
        "\\frac{" * 20_000,
        "\\boxed{" * 20_000,
        "1," * 50_000,
        "- 1" * 20_000,
    ],
    ids=lambda text: text[:12],
)
@pytest.mark.timeout(60)  # a quadratic way takes minutes
def test_no_text_takes_long_to_read(text):
    assert exact_answer(text) is None
    assert exact_choice(text) is None
    assert lenient_choice(text) is None
    assert lenient_answer(text) is None or lenient_answer(text) < 10**130
