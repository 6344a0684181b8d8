"""Sessions see exactly the packages they should, on both tiers."""

from __future__ import annotations

import asyncio
import importlib
import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest
from installations import install

import envweave
from envweave import CodeActEnvironment, CodeAction, create_codeact_env
from envweave.codeact.executors.sandbox import SandboxExecutor, SandboxOptions
from envweave.errors import IsolationError, OptionError, SandboxError
from envweave.sandbox import Sandbox
from envweave.sandbox.host.packages import resolve_packages

pytestmark = pytest.mark.slow  # starts many sandbox sessions

ENVIRONMENT = """
from envweave import CodeActEnvironment, create_codeact_env

class AcmeEnvironment(CodeActEnvironment):
    pass

def make(**options):
    return create_codeact_env(**options)

def sandbox(**options):
    from envweave.sandbox import Sandbox
    return Sandbox(**options)
"""

READ = """
import importlib.resources, os
def tries():
    for look in (
        lambda: open({folder!r} + '/answers.json').read(),
        lambda: os.listdir({folder!r}),
        lambda: importlib.resources.files({name!r}).joinpath('answers.json').read_text(),
    ):
        try:
            yield str(look())
        except Exception as error:
            yield type(error).__name__
[one for one in tries() if 'forty-two' in one or 'answers' in one]
"""


@pytest.fixture(params=["namespace", "landlock"])
def isolation(request):
    return request.param


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A site folder with the distribution of an environment and some others."""
    folder = tmp_path / "lib" / "site-packages"
    install(
        folder,
        "acme-env",
        {
            "acme_env/__init__.py": ENVIRONMENT,
            "acme_env/answers.json": "forty-two",
            "acme_answers.py": "ANSWER = 'forty-two'",
            "acme_space/secret/answers.json": "forty-two",
        },
        ["acme-tools"],
    )
    install(
        folder,
        "acme-tools",
        {
            "acme_tools/__init__.py": "import acme_base; ANSWER = acme_base.BASE",
            "acme_space/tools/__init__.py": "ANSWER = 1",
        },
        [
            "acme-base>=0.5",
            'acme-elsewhere; sys_platform == "win32"',
            'acme-extra; extra == "more"',
            "acme-not-installed",
        ],
    )
    install(folder, "acme-base", {"acme_base.py": "BASE = 7"}, ["acme-tools"])
    for other in ("acme-elsewhere", "acme-extra", "acme-other"):
        install(folder, other, {f"{other.replace('-', '_')}.py": "VALUE = 1"})
    (folder / "answers.json").write_text("forty-two")
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in [one for one in sys.modules if one.startswith("acme_")]:
        del sys.modules[name]


def run(sandbox: Sandbox, code: str):
    with sandbox.session() as session:
        return session.run(code)


def reads(name: str, folder: Path) -> str:
    return READ.format(name=name, folder=str(folder))


def imports(*names: str) -> str:
    return (
        "found = []\n"
        f"for name in {names!r}:\n"
        "    try:\n"
        "        __import__(name); found.append(name)\n"
        "    except ModuleNotFoundError: pass\n"
        "found"
    )


def test_by_default_a_session_sees_numpy_and_no_other_package(isolation, folder):
    installed = Path(pytest.__file__).parent
    with Sandbox(isolation=isolation) as box:
        numpy = run(
            box, "import numpy, importlib.metadata as m; (m.version('numpy'), numpy.ones(2))"
        )
        own = run(box, reads("acme_env", folder / "acme_env"))
        beside = run(box, reads("acme_env", folder))
        other = run(box, f"open({str(installed / '__init__.py')!r}).read()")
        listed = run(box, f"import os; os.listdir({str(installed)!r})")
        found = run(box, imports("acme_env", "acme_tools", "pytest", "envweave.envs", "answers"))

    assert numpy.return_value[0] == importlib.metadata.version("numpy")
    assert (own.return_value, beside.return_value, found.return_value) == ([], [], [])
    assert other.exception_type in ("FileNotFoundError", "PermissionError")
    assert listed.exception_type in ("FileNotFoundError", "PermissionError")


def test_a_named_package_comes_with_what_it_requires_and_nothing_else(isolation, folder):
    with Sandbox(isolation=isolation, packages=["acme_tools"]) as box:
        result = run(box, "import acme_tools, acme_space.tools; acme_tools.ANSWER")
        found = run(
            box, imports("acme_elsewhere", "acme_extra", "acme_other", "acme_env", "pytest")
        )
        version = run(box, "import importlib.metadata as m; m.version('acme-base')")
        hidden = run(box, reads("acme_space.secret", folder / "acme_space" / "secret"))

    assert (result.return_value, result.exception_message) == (7, None)
    assert (found.return_value, version.return_value) == ([], "1.0")
    assert hidden.return_value == []


def test_a_distribution_may_be_named_and_a_preloaded_module_is_visible_too(isolation, folder):
    with Sandbox(isolation=isolation, packages=["acme-other"], preload=["acme_base"]) as box:
        found = run(box, imports("acme_other", "acme_base", "acme_tools", "acme_extra"))

    assert found.return_value == ["acme_other", "acme_base", "acme_tools"]


@pytest.mark.slow  # starts several sandboxes
def test_all_packages_are_visible_except_the_one_that_makes_the_sandbox(isolation, folder):
    acme_env = importlib.import_module("acme_env")
    compiled = py_compile.compile(folder / "acme_answers.py")
    with acme_env.sandbox(isolation=isolation, packages="all") as box:
        found = run(box, imports("acme_tools", "acme_other", "pytest", "acme_env", "acme_space"))
        own = run(box, reads("acme_env", folder / "acme_env"))
        deeper = run(box, reads("acme_space.secret", folder / "acme_space" / "secret"))
        envs = run(box, reads("envweave.envs", Path(envweave.__file__).parent / "envs"))
        bytecode = run(box, f"b'forty-two' in open({compiled!r}, 'rb').read()")

    assert set(found.return_value) - {"acme_env"} == {
        "acme_tools",
        "acme_other",
        "pytest",
        "acme_space",
    }
    assert (own.return_value, deeper.return_value, envs.return_value) == ([], [], [])
    assert bytecode.return_value in (False, None)


TASKS = """
from functools import partial
from envweave import Task, Tasks

def make(split, index):
    return Task(f"{split}-{index}", split)

def fetch(split):
    return {split: [Task("a", split)]}

TASKS = {
    "endless": Tasks.endless(make),
    "fetched": Tasks.fetched({"train": 1}, partial(fetch, "train")),
}
"""


@pytest.mark.parametrize("kind", ["endless", "fetched"])
@pytest.mark.parametrize("made_by", ["function", "class"])
def test_an_environment_never_shows_the_distribution_that_makes_its_tasks(folder, made_by, kind):
    files = {"acme_tasks/__init__.py": TASKS, "acme_tasks/answers.json": "forty-two"}
    install(folder, "acme-tasks", files)
    tasks = importlib.import_module("acme_tasks").TASKS[kind]
    tasks.get("train-0" if kind == "endless" else "a")  # as another environment may have done
    if made_by == "function":
        environment = create_codeact_env(packages="all", tasks=tasks).unwrap()
    else:
        executor = SandboxExecutor(SandboxOptions(packages="all"))
        environment = CodeActEnvironment(executor, tasks=tasks)

    async def play():
        try:
            await environment.reset()
            code = reads("acme_tasks", folder / "acme_tasks")
            return await environment.step(CodeAction(code=code))
        finally:
            await environment.close()

    assert asyncio.run(play()).execution_result.return_value == []


@pytest.mark.parametrize("made_by", ["function", "class"])
def test_an_environment_never_shows_the_distribution_that_defines_it(isolation, folder, made_by):
    acme_env = importlib.import_module("acme_env")
    if made_by == "function":
        environment = acme_env.make(packages="all", isolation=isolation).unwrap()
    else:
        options = SandboxOptions(packages="all", isolation=isolation)
        environment = acme_env.AcmeEnvironment(SandboxExecutor(options))

    async def play():
        try:
            await environment.reset()
            seen = await environment.step(CodeAction(code=reads("acme_env", folder / "acme_env")))
            other = await environment.step(CodeAction(code="import acme_other; acme_other.VALUE"))
        finally:
            await environment.close()
        return seen.execution_result.return_value, other.execution_result.return_value

    seen, other = asyncio.run(play())

    assert (seen, other) == ([], 1)


def test_an_import_of_a_hidden_package_is_explained_to_the_author_once(isolation, folder, caplog):
    name = f"acme_told_{isolation}"
    install(folder, name, {f"{name}.py": ""})
    with Sandbox(isolation=isolation) as box:
        results = [run(box, f"import {name}") for _ in range(2)]
        run(box, "import never_heard_of")

    assert [one.exception_message for one in results] == [f"No module named '{name}'"] * 2
    assert [one.getMessage() for one in caplog.records] == [
        f"import of '{name}' failed in a session because only the standard library and numpy are "
        f"visible; pass packages=['{name}']."
    ]


def test_a_module_that_is_preloaded_cannot_import_what_is_hidden(isolation, folder):
    install(folder, "acme-greedy", {"acme_greedy.py": "import acme_other"})

    with pytest.raises(SandboxError, match=r"pass packages=\['acme_other'\]"):
        Sandbox(isolation=isolation, preload=["acme_greedy"])


def test_a_module_in_a_plain_folder_is_visible_without_its_siblings(
    isolation, tmp_path, monkeypatch
):
    (tmp_path / "plain_helper.py").write_text("VALUE = 3")
    (tmp_path / "answers.json").write_text("forty-two")
    monkeypatch.syspath_prepend(tmp_path)
    with Sandbox(isolation=isolation, packages=["plain_helper"]) as box:
        result = run(box, "import plain_helper; plain_helper.VALUE")
        beside = run(box, f"open({str(tmp_path / 'answers.json')!r}).read()")

    assert result.return_value == 3
    assert beside.exception_type in ("FileNotFoundError", "PermissionError")


def test_a_package_in_editable_mode_is_found_where_it_is(isolation, folder, tmp_path):
    project = tmp_path / "project"
    install(folder, "acme-edited", {"acme_edited.pth": f"{project}/src\n"}, ["acme-other"])
    about = folder / "acme_edited-1.0.dist-info"
    about.joinpath("direct_url.json").write_text(
        f'{{"url": "file://{project}", "dir_info": {{"editable": true}}}}'
    )
    package = project / "src" / "acme_edited"
    package.mkdir(parents=True)
    package.joinpath("__init__.py").write_text("VALUE = 5")
    project.joinpath("answers.json").write_text("forty-two")
    sys.path.append(f"{project}/src")
    with Sandbox(isolation=isolation, packages=["acme_edited"]) as box:
        result = run(box, "import acme_edited, acme_other; acme_edited.VALUE")
        beside = run(box, f"open({str(project / 'answers.json')!r}).read()")

    assert (result.return_value, result.exception_message) == (5, None)
    assert beside.exception_type in ("FileNotFoundError", "PermissionError")


def test_a_shell_reads_no_package_that_python_does_not(isolation, folder):
    installed = Path(pytest.__file__)
    read = ["cat", str(installed), f"{folder}/acme_env/answers.json"]
    python = [sys.executable, "-c", "import numpy, json; print(1)"]
    try:
        box = Sandbox(isolation=isolation, profile="shell")
    except IsolationError as error:
        pytest.skip(str(error))
    with box:
        result = run(
            box,
            "import subprocess\n"
            f"read = subprocess.run({read!r}, capture_output=True)\n"
            f"python = subprocess.run({python!r}, capture_output=True, text=True)\n"
            "(read.stdout, python.stdout + python.stderr)",
        )

    assert result.return_value == (b"", "1\n")


def test_visible_paths_are_visible_even_in_site_packages(isolation, folder):
    shown = folder / "acme_env"
    with Sandbox(isolation=isolation, visible=[shown]) as box:
        result = run(box, f"open({str(shown / 'answers.json')!r}).read()")

    assert result.return_value == "forty-two"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"packages": ["nmupy"]}, "no package 'nmupy' is installed here. Did you mean 'numpy'?"),
        ({"packages": ["nothing-like-it"]}, "pip install nothing-like-it"),
        ({"packages": "numpy"}, "packages='numpy'"),
        ({"packages": [3]}, r"packages=\[3\]"),
        ({"packages": ["envweave"]}, "defines the environment, which sessions never see"),
        (
            {"packages": ["acme_env"], "private": ["acme_env"]},
            "pass visible=",
        ),
        ({"preload": ["acme_env"], "private": ["acme-env"]}, "which sessions never see"),
    ],
)
def test_packages_that_are_missing_or_private_are_refused(folder, options, message):
    with pytest.raises(OptionError, match=message):
        Sandbox(**options)


@pytest.fixture(params=["regular package", "namespace package"])
def project(request, tmp_path, monkeypatch):
    """The module of an environment in a project on PYTHONPATH, which pip did not install."""
    root = tmp_path / "project"
    package = root / "acme_project"
    install(
        root,
        "acme-project",
        {
            "acme_project/envs/acme_game.py": ENVIRONMENT,
            "acme_project/envs/data/answers.json": "forty-two",
            "acme_project/tools/helper.py": "",
        },
    )
    if request.param == "regular package":
        for one in ("envs/data", "envs", "tools", "."):
            package.joinpath(one, "__init__.py").touch()
    monkeypatch.syspath_prepend(root)
    yield importlib.import_module("acme_project.envs.acme_game")
    for name in [one for one in sys.modules if one.startswith("acme_")]:
        del sys.modules[name]


@pytest.mark.parametrize("option", ["packages", "preload"])
@pytest.mark.parametrize("part", ["", ".envs", ".envs.data", ".tools"])
def test_no_part_of_the_package_that_defines_the_environment_can_be_named(project, option, part):
    with pytest.raises(OptionError, match="which sessions never see"):
        project.sandbox(**{option: [f"acme_project{part}"]})


def test_the_package_of_the_environment_stays_hidden_as_a_requirement(
    project, tmp_path, monkeypatch
):
    site = tmp_path / "site-packages"
    install(site, "acme-other", {"acme_other.py": ""}, ["acme-project"])
    monkeypatch.syspath_prepend(site)

    view = resolve_packages((), ("acme-other",), (project.__name__,))

    assert view.names == ("acme-other", "numpy")
    with pytest.raises(OptionError, match="which sessions never see"):
        resolve_packages((), ("acme-project",), (project.__name__,))


@pytest.mark.parametrize("executor", ["inproc"])
def test_packages_need_an_executor_with_walls(executor):
    with pytest.raises(OptionError, match="packages="):
        create_codeact_env(executor=executor, packages="all")


def test_requirements_of_extras_and_circular_ones_are_followed(folder):
    install(folder, "acme-more", {"acme_more.py": ""}, ["acme-tools[more]"])

    view = resolve_packages((), ("acme-more",))

    assert view.names == ("acme-base", "acme-extra", "acme-more", "acme-tools", "numpy")


@pytest.mark.slow  # two virtual environments are made
@pytest.mark.parametrize("system", [False, True])
def test_virtual_environments_hide_their_packages(tmp_path, isolation, system):
    """Including the packages of the interpreter that the virtual environment is based on."""
    import venv

    venv.create(tmp_path / "venv", system_site_packages=system, symlinks=True)
    folder = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    install(folder, "acme-env", {"acme_env/__init__.py": "", "acme_env/answers.json": "forty-two"})
    here = Path(pytest.__file__).parents[1]
    (folder / "here.pth").write_text(f"{here}\n{Path(envweave.__file__).parents[1]}\n")
    program = (
        "import sys; from envweave.sandbox import Sandbox\n"
        f"with Sandbox(isolation={isolation!r}) as box, box.session() as session:\n"
        f"    read = session.run({reads('acme_env', folder / 'acme_env')!r})\n"
        "    numpy = session.run('import numpy, sqlite3; numpy.arange(3)')\n"
        "print(read.return_value, numpy.success, numpy.exception_message)"
    )
    environment = {"PATH": os.environ["PATH"], "TMPDIR": os.environ.get("TMPDIR", "/tmp")}

    message = subprocess.run(
        [tmp_path / "venv" / "bin" / "python", "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )

    assert message.stdout == "[] True None\n", message.stderr
