"""`Sandbox` and `AsyncSandbox`: options, tiers, sessions, seeds, and closing."""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
from pathlib import Path

import pytest
from processes import Leftovers

from envweave.errors import ClosedError, OptionError, SandboxError
from envweave.sandbox import AsyncSandbox, Limits, Sandbox, Tier


@pytest.fixture(scope="module", params=["namespace", "landlock"])
def box(request):
    with Sandbox(isolation=request.param, preload=["numpy"]) as box:
        yield box


def test_a_session_runs_code_and_keeps_its_variables(box):
    with box.session() as session:
        session.run("x = 20")
        result = session.run("x + 1")

    assert (result.success, result.return_value, result.return_repr) == (True, 21, "21")


def test_sessions_share_nothing(box):
    with box.session() as one, box.session() as other:
        one.run("import json; json.x = secret = 1; open('file', 'w').write('mine')")
        result = other.run("import json, os; [hasattr(json, 'x'), os.listdir('.')]")
        missing = other.run("secret")

    assert result.return_value == [False, ["tmp"]]
    assert missing.exception_type == "NameError"


def test_the_tier_is_reported(box):
    assert isinstance(box.tier, Tier)
    assert str(box.tier) == box.tier.name
    assert (box.tier.name == "namespace") == (
        not any("namespaces" in one for one in box.tier.missing)
    )


def test_auto_never_selects_the_tier_none():
    with Sandbox() as box:
        assert box.tier.name in ("namespace", "landlock")


def test_one_seed_gives_equal_numbers_and_none_gives_different_ones(box):
    code = "import random, numpy; [random.random(), numpy.random.rand()]"
    with_seed = box.sessions(3, seeds=[7, 7, 8])
    without = box.sessions(3)

    drawn = [session.run(code).return_value for session in with_seed + without]

    for session in with_seed + without:
        session.close()
    assert drawn[0] == drawn[1]
    assert len({tuple(one) for one in drawn[1:]}) == 5


@pytest.mark.slow  # starts several sandboxes
def test_numpy_is_seeded_even_where_it_was_not_preloaded():
    with Sandbox() as box:
        code = "import numpy; numpy.random.rand(2).tolist()"
        drawn = [box.session(seed=seed) for seed in (1, 1, 2, None, None)]
        values = [session.run(code).return_value for session in drawn]

    assert values[0] == values[1]
    assert len({tuple(one) for one in values}) == 4


def test_many_sessions_are_made_at_once(box):
    sessions = box.sessions(40)

    values = [one.run(f"x = {at}\nx * 2").return_value for at, one in enumerate(sessions)]

    for session in sessions:
        session.close()
    assert values == [2 * at for at in range(40)]


@pytest.mark.slow  # starts several sandboxes
def test_a_warm_session_is_as_fresh_as_any():
    with Sandbox(warm=2, preload=["numpy"], tools={"double": lambda x: 2 * x}) as box:
        for seed in (5, 5, 5, 5, 5):
            with box.session(seed=seed) as session:
                first = session.run("import random; [double(4), random.random(), dir()]")
                if seed:
                    seen = first.return_value

            assert first.return_value == seen


def test_shards_spread_sessions_over_cores():
    cores = len(os.sched_getaffinity(0))
    with Sandbox(shards=cores) as box:
        sessions = box.sessions(2 * cores) + [box.session() for _ in range(cores)]
        code = "import os; sorted(os.sched_getaffinity(0))"
        used = {tuple(one.run(code).return_value) for one in sessions}

        assert len(box.template_pids()) == cores
    assert all(len(one) == 1 for one in used)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives sessions user ids of their own")
def test_a_visible_folder_that_sessions_cannot_read_is_refused(tmp_path):
    tmp_path.chmod(0o700)

    with pytest.raises(OptionError, match="chmod -R o\\+rX"):
        Sandbox(visible=[tmp_path])


def test_a_session_sees_only_visible_files(tmp_path, box):
    tmp_path.chmod(0o755)
    shown, hidden = tmp_path / "shown", tmp_path / "hidden"
    for folder in (shown, hidden):
        folder.mkdir()
        (folder / "module_of_mine.py").write_text("VALUE = 42\n")
        folder.chmod(0o777)  # so that only the walls refuse access
    with Sandbox(isolation=box.tier.name, visible=[shown]) as own, own.session() as session:
        read = session.run("import module_of_mine; module_of_mine.VALUE")
        written = session.run(f"open({str(shown / 'new')!r}, 'w')")
        other = session.run(f"open({str(hidden / 'module_of_mine.py')!r})")

    assert read.return_value == 42
    assert written.exception_type in ("OSError", "PermissionError")
    assert other.exception_type in ("FileNotFoundError", "PermissionError")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"profile": "bash"}, "profile='bash'.*'python', 'shell'"),
        ({"isolation": "docker"}, "isolation='docker'.*'namespace'"),
        ({"preload": "numpy"}, "list of module names"),
        ({"preload": ["no_such_module_xyz"]}, "no module 'no_such_module_xyz'"),
        ({"preload": ["a b"]}, "not a valid module name"),
        ({"shards": 0}, "shards=0"),
        ({"shards": 10_000}, "one core"),
        ({"warm": -1}, "warm=-1"),
        ({"visible": ["/"]}, "defeat the isolation"),
        ({"visible": ["/proc/self"]}, "defeat the isolation"),
        ({"visible": ["/tmp/../proc/self"]}, "defeat the isolation"),
        ({"visible": ["/no/such/folder"]}, "does not exist"),
        ({"visible": None}, "list of paths"),
        ({"visible": [3]}, "3 is not a path"),
        ({"preload": None}, "list of module names"),
        ({"tools": [len]}, "dict of functions by name"),
        ({"limits": {"timeout_s": 1}}, "expected a Limits"),
        ({"tools": {"not a name": len}}, "not a name"),
    ],
)
def test_an_invalid_option_is_refused(options, message):
    with pytest.raises(OptionError, match=message):
        Sandbox(**options)


@pytest.mark.parametrize(
    "limits",
    [
        {"timeout_s": 0},
        {"timeout_s": float("nan")},
        {"timeout_s": 10**400},
        {"memory_bytes": 1},
        {"memory_bytes": 1 << 64},
        {"message_bytes": 1 << 32},
        {"files": True},
    ],
)
def test_an_invalid_limit_is_refused(limits):
    with pytest.raises(OptionError, match=next(iter(limits))):
        Limits(**limits)


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize("seed", [-1, 1 << 63, True, "7", 1.5])
def test_an_invalid_seed_is_refused(box, seed):
    with pytest.raises(OptionError, match="seed="):
        box.session(seed=seed)


def test_a_failing_preload_is_reported_with_its_own_message(tmp_path, monkeypatch):
    tmp_path.chmod(0o755)
    (tmp_path / "broken_module_xyz.py").write_text("raise RuntimeError('not today')\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(SandboxError, match="RuntimeError: not today"):
        Sandbox(preload=["broken_module_xyz"], visible=[tmp_path])


def test_a_closed_sandbox_refuses_sessions_and_may_be_closed_again():
    box = Sandbox()
    session = box.session()
    box.close()
    box.close()

    with pytest.raises(ClosedError, match="closed"):
        box.session()
    with pytest.raises(ClosedError):
        session.run("1")
    session.close()


def test_a_dropped_sandbox_warns_and_leaves_no_process():
    box = Sandbox()
    pids = box.template_pids()

    held = [box]
    del box

    with pytest.warns(ResourceWarning, match="Sandbox was dropped"):
        held.clear()

    gc.collect()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_closing_leaves_no_process_thread_descriptor_or_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    left = Leftovers()
    box = Sandbox(warm=2, tools={"wait": asyncio.sleep})
    sessions = box.sessions(5)
    sessions.append(sessions[0].branch())
    sessions[0].run("wait(0)")
    pids = [one._handle.pid for one in sessions] + box.template_pids()

    box.close()

    for session in sessions:
        session.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert (left.descriptors(), left.threads()) == ([], [])
    assert list(tmp_path.iterdir()) == []


def test_an_async_sandbox_runs_many_sessions_on_one_loop():
    async def main() -> list[int]:
        async with await AsyncSandbox.start() as box:
            async with box.session(seed=3) as session:
                first = await session.run("x = 1\nx")
                copy = await session.branch()
                assert (await copy.run("x + 1")).return_value == 2
                await copy.close()
            sessions = await box.sessions(10)
            many = [one.run(f"{at} * 2") for at, one in enumerate(sessions)]
            return [first.return_value] + [one.return_value for one in await asyncio.gather(*many)]

    assert asyncio.run(main()) == [1, *range(0, 20, 2)]
