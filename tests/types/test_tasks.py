"""`Task` and `Tasks`: listed or endless, by split, by id and by seed."""

from __future__ import annotations

import copy
import itertools
import pickle
from itertools import islice
from typing import Any

import pytest

from envweave.errors import TaskError
from envweave.types import Task, Tasks


def listed() -> Tasks:
    return Tasks(
        {
            "train": [Task(f"sum-{i}", data={"a": i}) for i in range(20)],
            "test": [Task("last", split="test")],
        }
    )


def endless() -> Tasks:
    return Tasks.endless(
        lambda split, index: Task(f"{split}-{index}", split, {"a": index}), splits=("train", "eval")
    )


def test_listed_tasks_have_splits_lengths_and_an_order():
    tasks = listed()

    assert tasks.splits == ("train", "test")
    assert (tasks.length("train"), tasks.length("test")) == (20, 1)
    assert [task.id for task in islice(tasks.split("train"), 2)] == ["sum-0", "sum-1"]
    assert list(tasks.split("test")) == [Task("last", split="test")]


def test_endless_tasks_are_made_on_demand():
    tasks = endless()

    assert (tasks.splits, tasks.length("train")) == (("train", "eval"), None)
    assert [task.id for task in islice(tasks.split("eval"), 3)] == ["eval-0", "eval-1", "eval-2"]
    assert tasks.get("eval-1000000").data == {"a": 1_000_000}


@pytest.mark.parametrize("tasks", [listed(), endless()], ids=["listed", "endless"])
def test_a_seed_draws_the_same_task_and_seeds_draw_different_ones(tasks: Tasks):
    drawn = [tasks.draw(seed) for seed in range(50)]

    assert [tasks.draw(seed) for seed in range(50)] == drawn
    assert len({task.id for task in drawn}) > 5
    assert {task.split for task in drawn} == {"train"}
    assert all(tasks.get(task.id) == task for task in drawn)


def test_a_task_is_drawn_from_the_given_split():
    assert listed().draw(0, "test").id == "last"
    assert endless().draw(0, "eval").split == "eval"
    assert listed().draw(None).split == "train"


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: listed().get("sum-99x"), r"There is no task 'sum-99x'. Did you mean 'sum-9'\?"),
        (
            lambda: listed().split("tset"),
            r"no split 'tset'. Did you mean 'test'\? Known: train, te",
        ),
        (lambda: listed().length("x"), "There is no split 'x'. Known: train, test."),
        (lambda: listed().draw(0, "x"), "There is no split 'x'"),
        (lambda: endless().draw(0, "x"), "There is no split 'x'"),
        (lambda: endless().get("train-x"), "There is no task 'train-x'"),
        (lambda: endless().get("test-1"), "There is no task 'test-1'"),
        (lambda: endless().get("train-01"), "There is no task 'train-01'"),
        (lambda: endless().get("train-²"), "There is no task"),
        (lambda: endless().get(""), "There is no task ''"),
    ],
)
def test_an_unknown_task_or_split_is_refused_by_name(ask, message):
    with pytest.raises(TaskError, match=message):
        ask()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tasks({}), "at least one split"),
        (lambda: Tasks({"train": []}), "at least one task"),
        (lambda: Tasks({"train": [Task("a"), Task("a")]}), "Two tasks have the id 'a'"),
        (
            lambda: Tasks({"train": [Task("a")], "test": [Task("a", split="test")]}),
            "Two tasks have the id 'a'",
        ),
        (lambda: Tasks({"test": [Task("a")]}), "'a' has split='train' but is listed in 'test'"),
        (lambda: Tasks({"train": ["a"]}), "A str in split 'train' is not a Task"),  # type: ignore[list-item]
        (lambda: Tasks.endless(lambda split, index: Task("x")), "must be 'train-0'"),
        (
            lambda: Tasks.endless(lambda split, index: None),
            "returned a NoneType, which is not a Task",
        ),  # type: ignore[arg-type, return-value]
        (
            lambda: Tasks.endless(lambda s, i: Task(f"{s}-{i}"), splits=("test",)),
            "of split 'train'",
        ),
    ],
)
def test_tasks_that_could_not_be_found_again_are_refused_at_once(make, message):
    with pytest.raises(TaskError, match=message):
        make()


def test_an_endless_maker_that_forgets_its_ids_is_caught_later_too():
    tasks = Tasks.endless(lambda split, index: Task(f"{split}-{min(index, 3)}", split))

    with pytest.raises(TaskError, match=r"make\('train', 7\) returned task 'train-3'"):
        tasks.get("train-7")


def test_calling_tasks_goes_through_a_split():
    listed = Tasks({"train": [Task("a"), Task("b")]})
    endless = Tasks.endless(lambda split, index: Task(f"{split}-{index}", split))

    assert list(listed("train")) == list(listed.split("train"))
    assert [task.id for task in itertools.islice(endless("train"), 2)] == ["train-0", "train-1"]
    with pytest.raises(TaskError, match="There is no split 'tarin'"):
        listed("tarin")


def test_an_empty_split_beside_another_cannot_be_drawn_from():
    tasks = Tasks({"train": [], "test": [Task("a", split="test")]})

    with pytest.raises(TaskError, match="Split 'train' is empty"):
        tasks.draw(0)


def test_a_task_is_a_value():
    task = Task("a", data={"k": [1]}, limits={"steps": 3})
    same: Any = Task("a", data={"k": [1]}, limits={"steps": 3})

    assert {task: 1}[same] == 1
    assert pickle.loads(pickle.dumps(task)) == copy.deepcopy(task) == task
    with pytest.raises(AttributeError):
        task.id = "b"  # type: ignore[misc]


def test_tasks_that_are_fetched_are_public_without_their_private_parts():
    fetched = []

    def fetch():
        fetched.append(1)
        return {"train": [Task("a", private={"answer": 1})]}

    tasks = Tasks.fetched({"train": 1}, fetch)
    public = tasks.public()

    assert (fetched, public.length("train"), public is tasks.public()) == ([], 1, True)
    assert public.get("a").private.is_withheld
    assert next(public.split("train")).private.is_withheld
    assert tasks.get("a").private["answer"] == 1
    assert tasks.public().get("a").private.is_withheld
    assert fetched == [1]


def test_tasks_that_were_fetched_can_be_pickled():
    tasks = Tasks.fetched({"train": 1}, lambda: {"train": [Task("a")]})
    tasks.get("a")

    assert pickle.loads(pickle.dumps(tasks)).get("a") == Task("a")


def test_tasks_without_private_parts_are_looked_through_once():
    class Counted(Task):
        looks = 0

        def __getattribute__(self, name):
            if name == "private":
                Counted.looks += 1
            return super().__getattribute__(name)

    tasks = Tasks({"train": [Counted("a"), Counted("b")]})
    Counted.looks = 0

    assert tasks.public() is tasks
    assert tasks.public() is tasks
    assert Counted.looks == 2
