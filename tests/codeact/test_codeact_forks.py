"""Snapshots of code environments: children continue from the very state, and are independent."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from processes import descendants
from sandbox_sessions import soon

from envweave import CodeAction, create_codeact_env
from envweave.codeact import ExactMatch
from envweave.codeact.environment import CodeActEnvironment
from envweave.codeact.executors.inproc import InprocExecutor
from envweave.codeact.executors.sandbox import SandboxExecutor, SandboxOptions
from envweave.codeact.grading.base import Attempt, Grade, Grader
from envweave.envs.coding_env import CodingEnvironment
from envweave.errors import ForkError, OptionError
from envweave.tools import Tool, ToolRegistry, ToolSource, current_episode
from envweave.types import Task, Tasks

OPTIONS = SandboxOptions(preload=("numpy",))


@pytest.fixture(scope="module", autouse=True)
def _kept() -> Iterator[None]:
    env = CodeActEnvironment(SandboxExecutor(OPTIONS))
    release = env.hold()
    asyncio.run(env.reset())  # uses up the session that the sandbox was tried with
    asyncio.run(env.close())
    yield
    release()


class Family:
    """Makes environments with equal options, and closes them."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._made: list[CodeActEnvironment] = []

    def make(self) -> CodeActEnvironment:
        env = CodeActEnvironment(SandboxExecutor(OPTIONS), **self._options)
        self._made.append(env)
        return env

    async def fork(self, env: CodeActEnvironment, count: int) -> list[CodeActEnvironment]:
        """Return copies of the running episode."""
        snapshot = await env.snapshot()
        children = [self.make() for _ in range(count)]
        await asyncio.gather(*(child.restore(snapshot) for child in children))
        return children

    async def __aenter__(self) -> Family:
        return self

    async def __aexit__(self, *_: object) -> None:
        for env in self._made:
            await env.close()


async def value(env: CodeActEnvironment, code: str) -> Any:
    """Run code, and return its value."""
    result = (await env.step(CodeAction(code))).execution_result
    assert result.success, result
    return result.return_value


def in_loop(test: Callable[[], Any]) -> Callable[[], None]:
    """Run an `async` test."""

    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


PREFIX = """
import random, numpy
random.gauss(0, 1)
path = ["start"]
generator = iter(range(10)); next(generator)
log = open("log", "w"); log.write("start ")
own = numpy.random.default_rng()
"""
LOOK = """
log.flush()
[path, next(generator), open("log").read(), random.gauss(0, 1), random.random(),
 numpy.random.rand(), own.random()]
"""


@in_loop
async def test_children_have_the_variables_files_and_random_numbers_of_the_parent() -> None:
    async with Family() as family:
        parent = family.make()
        await parent.reset()
        await value(parent, PREFIX)

        children = await family.fork(parent, 2)

        seen = [await value(one, LOOK) for one in (*children, parent)]
    assert seen[0] == seen[1] == seen[2]


@in_loop
async def test_children_are_independent_and_the_parent_goes_on() -> None:
    async with Family() as family:
        parent = family.make()
        await parent.reset(seed=1)
        await value(parent, PREFIX)
        everyone = {"parent": parent}
        everyone |= zip(("first", "second"), await family.fork(parent, 2), strict=True)

        for name, env in everyone.items():
            await value(env, f"path.append({name!r}); log.write({name!r})")

        for name, env in everyone.items():
            seen = await value(env, LOOK)
            assert (seen[0], seen[2]) == (["start", name], f"start {name}")


@in_loop
async def test_steps_and_state_continue_from_where_the_parent_was() -> None:
    async with Family(tools=[note]) as family:
        parent = family.make()
        await parent.reset()
        await value(parent, "x = 1")
        await parent.step(CodeAction("1 / 0"))
        there, here = [await env.state for env in (*await family.fork(parent, 1), parent)]

    assert there == here
    assert (there.step_count, there.last_exit_code) == (2, 1)


@in_loop
async def test_a_child_outlives_its_parent_and_the_snapshot() -> None:
    async with Family() as family:
        parent = family.make()
        await parent.reset()
        await value(parent, "x = 41")
        (child,) = await family.fork(parent, 1)

        await parent.close()

        assert await value(child, "x + 1") == 42
        (grandchild,) = await family.fork(child, 1)
        assert await value(grandchild, "x + 2") == 43


@in_loop
async def test_an_environment_returns_to_the_same_snapshot_twice() -> None:
    async with Family() as family:
        env = family.make()
        await env.reset(seed=5)
        await value(env, "x = []; import random")
        snapshot = await env.snapshot()
        seen = []

        for _ in range(2):
            await env.restore(snapshot)
            seen.append(await value(env, "x.append(1); [x, random.random()]"))
            await env.reset()

    assert seen[0] == seen[1]
    assert seen[0][0] == [1]


@in_loop
async def test_children_of_children_can_be_copied_for_some_thirty_generations() -> None:
    async with Family() as family:
        env = family.make()
        await env.reset()
        await value(env, "x = 0")
        with pytest.raises(ForkError, match="at most 32 deep"):  # noqa: PT012 - on which one?
            for _ in range(40):
                await env.restore(await env.snapshot())
                await value(env, "x += 1")

        assert await value(env, "x") >= 25


def note(word: str) -> list[str]:
    """Keep a word, and return all of the episode."""
    state = current_episode().state
    state.setdefault("words", []).append(word)
    return list(state["words"])


class Words(Grader):
    """Passes an answer that equals the words that the episode has kept."""

    async def grade(self, attempt: Attempt) -> Grade:
        passed = attempt.answer == attempt.tool_state["words"]
        return Grade(float(passed), passed)


@in_loop
async def test_answers_and_the_state_of_tools_are_separate() -> None:
    async with Family(tools=[note], files=True, grader=Words()) as family:
        parent = family.make()
        await parent.reset()
        await value(parent, "note('both'); file_write('a', 'both')")
        children = await family.fork(parent, 2)

        assert await value(children[0], "note('one')") == ["both", "one"]
        assert await value(children[1], "note('two')") == ["both", "two"]
        assert await value(children[1], "file_append('a', ' two'); file_read('a')") == "both two"
        wrong = await children[0].step(CodeAction("final_answer(['both'])"))
        right = await children[1].step(CodeAction("final_answer(['both', 'two'])"))
        later = await parent.step(CodeAction("final_answer(['both'])"))

    assert [one.reward for one in (wrong, right, later)] == [0.0, 1.0, 1.0]


@in_loop
async def test_a_child_is_graded_by_the_task_and_the_programs_of_its_episode() -> None:
    tasks = Tasks({"train": [Task("a", "train", {"prompt": "?"}, private={"answer": 42})]})
    graded: list[str] = []

    class Recorded(ExactMatchLike):
        seen = graded

    async with Family(tasks=tasks, grader=Recorded()) as family:
        parent = family.make()
        await parent.reset(task=next(iter(tasks.split("train"))))
        await value(parent, "x = 40")
        (child,) = await family.fork(parent, 1)
        await value(parent, "x = 0")

        last = await child.step(CodeAction("final_answer(x + 2)"))

    assert (last.reward, last.done) == (1.0, True)
    assert graded == ["x = 40\nfinal_answer(x + 2)"]


class ExactMatchLike(Grader):
    """Compares with the task's answer, and records the programs."""

    seen: list[str]

    async def grade(self, attempt: Attempt) -> Grade:
        self.seen.append(attempt.program)
        return await ExactMatch(from_task="answer").grade(attempt)


@in_loop
async def test_calls_of_tools_are_counted_on_in_each_child() -> None:
    registry = ToolRegistry([note], max_calls=2)
    async with Family(tools=registry) as family:
        parent = family.make()
        await parent.reset()
        await value(parent, "note('a')")
        children = await family.fork(parent, 2)

        for child in children:
            assert await value(child, "note('b')") == ["a", "b"]
            refused = await child.step(CodeAction("note('c')"))
            assert "limit" in str(refused.execution_result.exception_message)


@in_loop
async def test_a_dropped_snapshot_ends_and_the_episode_goes_on() -> None:
    async with Family() as family:
        env = family.make()
        await env.reset()
        first = await env.snapshot()
        gc.collect()
        before = living(), descriptors()
        others = [await env.snapshot() for _ in range(3)]
        held = living() - before[0]

        del others
        gc.collect()

        assert len(held) >= 3
        assert soon(lambda: living() <= before[0])
        assert descriptors() <= before[1]
        del first  # its process is the first of the namespace, and ends with the episode
        assert await value(env, "1 + 1") == 2


@in_loop
async def test_snapshots_and_children_end_with_the_last_that_holds_them() -> None:
    gc.collect()
    before = living(), descriptors()
    async with Family() as family:
        env = family.make()
        await env.reset()
        children = await family.fork(env, 3)
        snapshot = await children[0].snapshot()
        held = living() - before[0]
    kept = living() - before[0]
    del snapshot
    gc.collect()

    assert len(held) >= 6  # the first, the parent, the children, and the snapshot of one
    assert kept
    assert soon(lambda: living() <= before[0])
    assert descriptors() <= before[1]


@in_loop
async def test_a_snapshot_keeps_the_sandbox_of_closed_environments() -> None:
    before = living()
    options = SandboxOptions(visible=("/usr/share",))
    env = CodeActEnvironment(SandboxExecutor(options))
    await env.reset()
    await value(env, "x = 1")
    snapshot = await env.snapshot()
    await env.close()

    other = CodeActEnvironment(SandboxExecutor(options))
    await other.restore(snapshot)
    seen = await value(other, "x")
    await other.close()
    held = living() - before
    del snapshot
    gc.collect()

    assert (seen, bool(held)) == (1, True)
    assert soon(lambda: living() <= before)


def descriptors() -> int:
    """Return how many descriptors this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def living() -> set[int]:
    """Return the processes below this one."""
    return {one.pid for one in descendants() if not one.is_dead}


@in_loop
async def test_a_snapshot_is_refused_when_the_sandbox_has_ended() -> None:
    options = SandboxOptions(visible=("/usr/lib",))
    env = CodeActEnvironment(SandboxExecutor(options))
    await env.reset()
    snapshot = await env.snapshot()

    snapshot.session.sandbox.end()

    with pytest.raises(ForkError, match="cannot be copied"):
        await env.restore(snapshot)
    await env.close()


@in_loop
async def test_a_snapshot_of_another_sandbox_is_refused_and_the_episode_continues() -> None:
    async with Family() as family:
        env = family.make()
        await env.reset()
        snapshot = await env.snapshot()
        other = CodeActEnvironment(SandboxExecutor(SandboxOptions()))
        await other.reset()
        await value(other, "x = 1")

        with pytest.raises(ForkError, match="in another sandbox"):
            await other.restore(snapshot)

        assert await value(other, "x") == 1
        await other.close()


@in_loop
async def test_a_snapshot_is_copied_as_itself_and_not_pickled() -> None:
    async with Family() as family:
        env = family.make()
        await env.reset()
        session = (await env.snapshot()).session

        assert copy.deepcopy(session) is session
        with pytest.raises(ForkError, match="cannot leave its process"):
            pickle.dumps(session)


@in_loop
async def test_a_parent_or_child_whose_code_ends_its_session_ends_no_other() -> None:
    async with Family() as family:
        parent = family.make()
        await parent.reset()
        await value(parent, "x = 1")
        snapshot = await parent.snapshot()
        first, second = family.make(), family.make()
        await first.restore(snapshot)
        await second.restore(snapshot)

        for env in (parent, first):
            last = await env.step(CodeAction("import os; os._exit(3)"))
            assert last.execution_result.session_ended
            with pytest.raises(ForkError, match="has ended its session"):
                await env.snapshot()

        assert await value(second, "x") == 1
        await parent.restore(snapshot)
        assert await value(parent, "x + 1") == 2


@in_loop
async def test_a_long_episode_has_a_snapshot_of_each_step() -> None:
    async with Family() as family:
        env = family.make()
        await env.reset()
        await value(env, "x = 0")
        for _ in range(40):
            snapshot = await env.snapshot()
            await value(env, "x += 1")

        await env.restore(snapshot)

        assert await value(env, "x") == 39


@in_loop
async def test_a_snapshot_before_the_first_episode_is_refused() -> None:
    async with Family() as family:
        with pytest.raises(ForkError, match="No episode has begun"):
            await family.make().snapshot()


@in_loop
async def test_a_snapshot_during_a_step_is_refused_and_the_step_goes_on() -> None:
    async with Family() as family:
        env = family.make()
        await env.reset()
        step = asyncio.create_task(env.step(CodeAction("import time; time.sleep(0.2); 'done'")))
        await asyncio.sleep(0)

        with pytest.raises(ForkError, match="A step is under way"):
            await env.snapshot()

        assert (await step).execution_result.return_value == "done"


class Waiting(Grader):
    """Grades when it is allowed to."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()

    async def grade(self, attempt: Attempt) -> Grade:
        self.began.set()
        await self.may_end.wait()
        return Grade(1.0, passed=True)


@in_loop
async def test_a_snapshot_while_a_step_is_graded_is_refused() -> None:
    grader = Waiting()
    async with Family(grader=grader) as family:
        env = family.make()
        await env.reset()
        step = asyncio.create_task(env.step(CodeAction("final_answer(1)")))
        await grader.began.wait()

        with pytest.raises(ForkError, match="A step is under way"):
            await env.snapshot()

        grader.may_end.set()
        assert (await step).reward == 1.0


@in_loop
async def test_a_session_with_threads_is_refused() -> None:
    async with Family() as family:
        env = family.make()
        await env.reset()
        await value(env, "import threading; e = threading.Event()")
        await value(env, "t = threading.Thread(target=e.wait, daemon=True); t.start()")

        with pytest.raises(ForkError, match="runs threads"):
            await env.snapshot()

        await value(env, "e.set(); t.join()")
        await env.snapshot()


@in_loop
async def test_a_session_with_an_open_database_is_refused() -> None:
    async with Family() as family:
        env = family.make()
        await env.reset()
        await value(env, "import sqlite3; base = sqlite3.connect('x.db')")
        await value(env, "_ = base.execute('create table t (a)'); base.commit()")

        with pytest.raises(ForkError, match="SQLite database open"):
            await env.snapshot()

        await value(env, "base.close()")
        await env.snapshot()


class Cart:
    """Keeps state in an object."""

    def __init__(self) -> None:
        self.items: list[str] = []

    def put(self, item: str) -> None:
        self.items.append(item)


def counter() -> Callable[[], int]:
    count = 0

    def up() -> int:
        nonlocal count
        count += 1
        return count

    return up


def cached(key: str, table: dict[str, int] = {}) -> int:  # noqa: B006 - what is tested
    return table.setdefault(key, len(table))


def of_list(known: list[str]) -> Callable[[], list[str]]:
    return lambda: known


@pytest.mark.parametrize(
    "tool",
    [Cart().put, [].append, counter(), cached, of_list([]), partial(note, [])],
    ids=["method", "builtin method", "nonlocal", "default", "closure", "partial"],
)
def test_tools_that_may_keep_state_elsewhere_are_refused_by_name(tool: Any) -> None:
    async def play() -> None:
        async with Family(tools={"odd": tool}) as family:
            env = family.make()
            await env.reset()
            with pytest.raises(ForkError, match="The tool 'odd' may keep state"):
                await env.snapshot()

    asyncio.run(play())


def of_words(*words: str) -> Callable[[], tuple[str, ...]]:
    def known() -> tuple[str, ...]:
        return words

    return known


@in_loop
async def test_tools_that_cannot_change_are_copied() -> None:
    tools = {"note": note, "known": of_words("a", "b"), "part": partial(note, "a"), "len": len}
    async with Family(tools=tools) as family:
        env = family.make()
        await env.reset()
        (child,) = await family.fork(env, 1)

        assert await value(child, "[known(), part(), len('abc')]") == [("a", "b"), ["a"], 3]


class Remote(ToolSource):
    """Stands for an MCP server."""

    name = "the MCP server 'books'"

    async def start(self) -> list[Tool]:
        return [Tool.of(note)]

    async def close(self) -> None:
        pass


@in_loop
async def test_the_tools_of_servers_are_refused_by_the_name_of_the_server() -> None:
    registry = ToolRegistry()
    registry.add_source(Remote())
    async with Family(tools=registry) as family:
        env = family.make()
        await env.reset()

        with pytest.raises(ForkError, match="the MCP server 'books'"):
            await env.snapshot()


@in_loop
async def test_tool_state_that_cannot_be_copied_is_refused() -> None:
    async with Family(tools=[keep_generator]) as family:
        env = family.make()
        await env.reset()
        await value(env, "keep_generator()")

        with pytest.raises(ForkError, match="The state of the tools cannot be copied"):
            await env.snapshot()


def keep_generator() -> None:
    current_episode().state["generator"] = iter(x for x in [1])


@in_loop
async def test_executors_that_cannot_copy_an_episode_refuse_by_name() -> None:
    env = CodeActEnvironment(InprocExecutor())
    await env.reset()

    with pytest.raises(ForkError, match="'inproc' cannot copy"):
        await env.snapshot()

    await env.close()


@pytest.mark.slow  # starts two sandboxes
@pytest.mark.parametrize("options", [{"isolation": "landlock"}, {"profile": "shell"}])
def test_sandboxes_without_branches_refuse_with_the_reason(options: dict[str, Any]) -> None:
    async def play() -> None:
        env = CodeActEnvironment(SandboxExecutor(SandboxOptions(**options)))
        await env.reset()

        with pytest.raises(ForkError, match="'namespace' and the profile 'python'"):
            await env.snapshot()

        assert await value(env, "1 + 1") == 2
        await env.close()

    asyncio.run(play())


@in_loop
async def test_the_coding_environment_forks_and_its_shell_refuses() -> None:
    python, other, shell = (
        CodingEnvironment(),
        CodingEnvironment(),
        CodingEnvironment(profile="shell"),
    )
    await python.reset()
    await python.step(CodeAction("x = 1"))
    await other.restore(await python.snapshot())
    seen = await other.step(CodeAction("print(x + 1)"))
    await shell.reset()

    with pytest.raises(ForkError, match="shell"):
        await shell.snapshot()

    assert seen.stdout == "2\n"
    for env in (python, other, shell):
        await env.close()


def test_an_environment_that_is_used_directly_is_forked() -> None:
    env = create_codeact_env()
    env.step(CodeAction(code="import random; random.seed(1); x = [1]"))

    children = env.fork(2)
    shown = [one.step(CodeAction(code="x.append(random.random()); x")) for one in (env, *children)]

    values = [one.execution_result.return_value for one in shown]
    assert values == [values[0]] * 3
    assert [one.state.step_count for one in children] == [2, 2]
    for one in (env, *children):
        one.close()


def test_one_with_an_executor_of_the_callers_is_restored_but_not_forked() -> None:
    with create_codeact_env(executor=SandboxExecutor()) as env:
        env.step(CodeAction(code="x = 1"))
        point = env.snapshot()
        env.step(CodeAction(code="x = 2"))

        with pytest.raises(ForkError, match="made with an executor, which cannot be two"):
            env.fork()
        env.restore(point)

        assert env.step(CodeAction(code="x")).execution_result.return_value == 1


@pytest.mark.parametrize("n", [0, -1, True, "two"])
def test_a_number_of_forks_that_is_not_positive_is_refused(n: Any) -> None:
    with create_codeact_env() as env:
        env.reset()

        with pytest.raises(OptionError, match="n must be an integer >= 1"):
            env.fork(n)
