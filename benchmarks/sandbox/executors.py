"""The ways to run Python code that the sandbox benchmark compares, behind one interface.

Each `open_…` function is called in a worker process. Libraries are imported in these functions,
because not all of them are installed in the same virtual environment.
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.measurement.processes import ROOT, NotAvailableError
from benchmarks.sandbox.pipe_repl import execute

PIPE_REPL = Path(__file__).with_name("pipe_repl.py")
DOCKER_IMAGE = "envweave-python:3.11"
JUPYTER_TIMEOUT_S = 60
MONTY_PROCESSES = 4096
"""The most worker processes of pydantic-monty: one per live session."""


class Session(Protocol):
    """Runs code and keeps its variables."""

    def run(self, code: str) -> Any:
        """Run code and return the value of its last expression; raise if it fails."""

    def close(self) -> None:
        """End it and everything it started."""


def _cannot_branch(session: Any) -> Session:
    raise NotAvailableError("cannot copy a live session")


@dataclass(frozen=True)
class Executor:
    """Opens sessions.

    Attributes:
        session: Opens a session, in which code can call the tool `add`.
        many: Opens many sessions at once, if that is faster than one by one.
        branch: Copies a live session.
        processes: Returns the processes of its sessions that are not children of this one.
        close: Ends what its sessions share.
        settings: How it is used, if that is not obvious.
    """

    session: Callable[[], Session]
    many: Callable[[int], list[Session]] | None = None
    branch: Callable[[Any], Session] = _cannot_branch
    processes: Callable[[], list[int]] = list
    close: Callable[[], None] = lambda: None
    settings: Mapping[str, Any] = field(default_factory=dict)


def add(a: int, b: int) -> int:
    """Return the sum of two numbers."""
    return a + b


class EnvweaveSession:
    """A session of envweave's sandbox."""

    def __init__(self, session: Any) -> None:
        self.session, self.close = session, session.close

    def run(self, code: str) -> Any:
        result = self.session.run(code)
        if not result.success:
            raise RuntimeError(f"{result.exception_type}: {result.exception_message}")
        return result.return_value


def _open_envweave(*, cores: int = 1, **options: Any) -> Executor:
    from envweave.errors import EnvWeaveError
    from envweave.sandbox import Sandbox

    # One core, as in a server's worker: switching to another takes longer than the work itself.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    has_extension = importlib.util.find_spec("envweave.sandbox._spawn") is not None
    try:
        sandbox = Sandbox(tools={"add": add}, **options)
    except EnvWeaveError as error:
        raise NotAvailableError(str(error)) from None
    return Executor(
        lambda: EnvweaveSession(sandbox.session()),
        many=lambda count: [EnvweaveSession(one) for one in sandbox.sessions(count)],
        branch=lambda session: EnvweaveSession(session.session.branch()),
        close=sandbox.close,
        settings={"cores": cores, "extension": has_extension and options.get("native", True)},
    )


def open_namespace() -> Executor:
    return _open_envweave(isolation="namespace")


def open_any_core() -> Executor:
    return _open_envweave(cores=len(os.sched_getaffinity(0)), isolation="namespace")


def open_without_extension() -> Executor:
    return _open_envweave(isolation="namespace", native=False)


def open_warm() -> Executor:
    return _open_envweave(isolation="namespace", warm=16)


def open_landlock() -> Executor:
    return _open_envweave(isolation="landlock")


class ExecSession:
    """`exec` in this process, without isolation."""

    def __init__(self, variables: dict[str, Any]) -> None:
        self.variables = variables

    def run(self, code: str) -> Any:
        return execute(code, self.variables)

    def close(self) -> None:
        self.variables.clear()

    def branch(self) -> ExecSession:
        """Copy the variables: enough here, but not for files, modules and generators."""
        own = {name: one for name, one in self.variables.items() if name != "__builtins__"}
        return ExecSession(copy.deepcopy(own))


def open_exec() -> Executor:
    return Executor(
        lambda: ExecSession({"__name__": "__main__", "add": add}), branch=ExecSession.branch
    )


class PipeSession:
    """A process that runs `pipe_repl.py`.

    Attributes:
        on_close: Called by `close`, which then waits for the process instead of killing it.
    """

    def __init__(self, command: list[str], on_close: Callable[[], object] | None = None) -> None:
        self.on_close = on_close
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, code: str) -> Any:
        self._send(code)
        while True:
            kind, value = self._receive()
            if kind == "value":
                return value
            if kind == "error":
                raise RuntimeError(value)
            self._send(add(*value))

    def _send(self, value: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{value!r}\n")
        self._process.stdin.flush()

    def _receive(self) -> tuple[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise NotAvailableError(
                f"{self._process.args[0]} exited with code {self._process.wait()}"
            )
        kind, value = ast.literal_eval(line)
        return kind, value

    def close(self) -> None:
        if self.on_close is None:
            self._process.kill()
        else:
            self.on_close()
        # This closes the pipes, at which the program ends, and waits for it.
        with self._process:
            pass


def _python() -> str:
    """Return the interpreter outside of the virtual environment, which starts faster."""
    return str(getattr(sys, "_base_executable", sys.executable))


def open_subprocess() -> Executor:
    command = [_python(), "-I", "-B", str(PIPE_REPL)]
    return Executor(lambda: PipeSession(command))


def open_bubblewrap() -> Executor:
    program = shutil.which("bwrap")
    if program is None:
        raise NotAvailableError("bwrap is not installed; on Debian: apt install bubblewrap")
    visible = ["/usr", "/bin", "/lib", "/lib64", str(Path(_python()).resolve().parents[1])]
    options = [
        *("--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"),
        *(word for path in visible for word in ("--ro-bind-try", path, path)),
        *("--ro-bind", str(PIPE_REPL), "/pipe_repl.py", "--dev", "/dev", "--proc", "/proc"),
        *("--tmpfs", "/tmp"),
    ]
    command = [program, *options, _python(), "-I", "-B", "/pipe_repl.py"]
    return Executor(lambda: PipeSession(command))


def open_docker() -> Executor:
    _build_image()
    names = (f"envweave-bench-{os.getpid()}-{number}" for number in itertools.count())
    live: dict[str, PipeSession] = {}

    def session() -> PipeSession:
        name = next(names)
        # It starts faster without a network, which the others do not have either.
        options = ["--rm", "--interactive", "--network", "none", "--name", name]
        program = ["python3", "-I", "-B", "-c", PIPE_REPL.read_text()]
        live[name] = PipeSession(
            ["docker", "run", *options, DOCKER_IMAGE, *program],
            on_close=lambda: live.pop(name, None),
        )
        return live[name]

    def processes() -> list[int]:
        """Return the parent of each container, which is a child of the engine."""
        inspect = ["docker", "inspect", "--format", "{{.State.Pid}}", *live]
        pids = subprocess.check_output(inspect).split() if live else []
        return [_parent(int(pid)) for pid in pids]

    return Executor(session, processes=processes)


def _build_image() -> None:
    try:
        done = subprocess.run(["docker", "info"], capture_output=True, check=False)
    except FileNotFoundError:
        raise NotAvailableError("docker is not installed") from None
    if done.returncode:
        raise NotAvailableError("no Docker engine is running; try scripts/docker-engine start")
    build = [sys.executable, ROOT / "scripts/docker-base-image"]
    built = subprocess.run(build, capture_output=True, text=True, check=False)
    if built.returncode:
        raise NotAvailableError(f"there is no {DOCKER_IMAGE}: {built.stderr.strip()}")


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class SmolagentsSession:
    """A Python interpreter of smolagents."""

    def __init__(self, **settings: Any) -> None:
        from smolagents.local_python_executor import LocalPythonExecutor

        self._executor = LocalPythonExecutor([], **settings)
        self._executor.send_tools({"add": add})

    def run(self, code: str) -> Any:
        return self._executor(code).output

    def close(self) -> None:
        self._executor.state.clear()


def open_smolagents() -> Executor:
    return Executor(SmolagentsSession)


def open_smolagents_without_timeout() -> Executor:
    return Executor(lambda: SmolagentsSession(timeout_seconds=None))


class MontySession:
    """A session of pydantic-monty: a subset of Python, interpreted in Rust, in a worker process."""

    def __init__(self, pool: Any, state: bytes | None = None) -> None:
        self._session = pool.checkout(limits={"max_suspensions": 2**31 - 1})
        self._session.__enter__()
        if state is not None:
            self._session.load_session(state)

    def run(self, code: str) -> Any:
        return self._session.feed_run(code, external_lookup={"add": add})

    def dump(self) -> bytes:
        """Return the state of the session."""
        state: bytes = self._session.dump()
        return state

    def close(self) -> None:
        self._session.__exit__(None, None, None)


def open_monty() -> Executor:
    from pydantic_monty import Monty

    pool = Monty(max_processes=MONTY_PROCESSES)
    pool.__enter__()
    return Executor(
        lambda: MontySession(pool),
        branch=lambda session: MontySession(pool, session.dump()),
        close=lambda: pool.__exit__(None, None, None),
    )


class JupyterSession:
    """A Jupyter kernel and its client."""

    def __init__(self) -> None:
        from jupyter_client.manager import KernelManager

        self._manager = KernelManager(kernel_name="python3")
        self._manager.start_kernel()
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=JUPYTER_TIMEOUT_S)

    def run(self, code: str) -> Any:
        message_id = self._client.execute(code)
        value = None
        while True:
            kind, content = self._next_reply(message_id)
            if kind == "execute_result":
                value = ast.literal_eval(content["data"]["text/plain"])
            elif kind == "error":
                raise NotAvailableError(f"not supported: {content['evalue']}")
            elif kind == "status" and content["execution_state"] == "idle":
                return value

    def _next_reply(self, message_id: str) -> tuple[str, dict[str, Any]]:
        while True:
            message = self._client.get_iopub_msg(timeout=JUPYTER_TIMEOUT_S)
            if message["parent_header"].get("msg_id") == message_id:
                return message["msg_type"], message["content"]

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


def open_jupyter() -> Executor:
    return Executor(JupyterSession)
