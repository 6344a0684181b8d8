"""A session as a blocking caller sees it, around a real runner without walls."""

import asyncio
import os
import signal
import threading
import time

import pytest
from sandbox_sessions import ProcessBody, SandboxTools

from envweave.errors import (
    BusyError,
    CallOrderError,
    ClosedError,
    NameNotFoundError,
    OptionError,
    PlainDataError,
    SessionEndedError,
    SessionLostError,
    WorkFileError,
)
from envweave.sandbox import Limits, Session, ToolCall

LIMITS = Limits(timeout_s=20, grace_s=10)
STUBBORN = "import signal\nsignal.signal(signal.SIGRTMAX, signal.SIG_IGN)\nwhile True: pass"


def add(left: int, right: int = 1) -> int:
    """Add two numbers."""
    return left + right


def fail() -> None:
    raise ValueError("nothing there")


async def later(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def never() -> None:
    await asyncio.Event().wait()


@pytest.fixture(scope="module")
def tools():
    tools = SandboxTools({"add": add, "fail": fail, "later": later, "never": never})
    yield tools
    tools.close()


@pytest.fixture(scope="module")
def shared(tools):
    """A session whose tests leave it unchanged."""
    body = ProcessBody(LIMITS, tools)
    with Session(body, LIMITS, tools, work=body.folder.name) as session:
        yield session


def fresh(limits: Limits = LIMITS, tools: SandboxTools | None = None, **options) -> Session:
    tools = tools or SandboxTools()
    return Session(ProcessBody(limits, tools), limits, tools, **options)


def test_variables_persist_between_runs(shared):
    shared.run("x = 20\nprint('set')")

    result = shared.run("x + 1")

    assert (result.success, result.return_value, result.return_repr) == (True, 21, "21")
    assert (result.stdout, result.stderr, result.session_ended) == ("", "", False)


def test_an_exception_in_the_code_is_reported_in_the_result(shared):
    result = shared.run("print('before')\n1 / 0")

    assert (result.success, result.stdout) == (False, "before\n")
    assert (result.exception_type, result.exception_message) == (
        "ZeroDivisionError",
        "division by zero",
    )
    assert "1 / 0" in result.traceback


def test_plain_data_can_be_put_and_got(shared):
    value = {"a": [1, (2.5, None)], 3: {b"c", "é"}, "big": 1 << 100}

    shared.put("table", value)

    assert shared.get("table") == value
    assert shared.run("table['a'][1][0]").return_value == 2.5


def test_get_of_a_missing_or_non_plain_variable_raises(shared):
    with pytest.raises(NameNotFoundError, match=r"get\('nothing'\)"):
        shared.get("nothing")
    with pytest.raises(PlainDataError, match=r"get\('add'\)"):
        shared.get("add")
    with pytest.raises(PlainDataError, match="value"):
        shared.put("x", object())
    with pytest.raises(OptionError, match="identifier"):
        shared.put("not a name", 1)

    assert shared.run("1").success


def test_files_can_be_written_read_and_listed(shared):
    data = bytes(range(256)) * 8192

    shared.write_file("data/a.bin", data)

    assert shared.read_file("data/a.bin") == data
    assert shared.list_files() == ["data/a.bin"]
    assert shared.list_files("data") == ["data/a.bin"]
    assert shared.run("len(open('data/a.bin', 'rb').read())").return_value == len(data)
    with pytest.raises(WorkFileError, match="nothing"):
        shared.read_file("nothing")
    with pytest.raises(OptionError, match="work folder"):
        shared.read_file("../nothing")


def test_code_calls_host_tools(shared):
    result = shared.run("add(1) + later(add(left=2, right=3))")

    assert result.return_value == 7
    assert [(call.name, call.arguments, call.value) for call in result.tool_calls] == [
        ("add", ((1,), {}), 2),
        ("add", ((), {"left": 2, "right": 3}), 5),
        ("later", ((5,), {}), 5),
    ]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("add('a')", "TypeError: add() argument left: 'a' is not an int"),
        ("fail()", "ValueError: nothing there"),
    ],
)
def test_a_tool_error_is_raised_in_the_code(shared, code, message):
    result = shared.run(code)

    assert (result.exception_type, result.exception_message) == ("ToolError", message)
    assert [call.error for call in result.tool_calls] == [message]


def test_code_over_its_time_limit_is_interrupted_and_keeps_its_variables(shared):
    shared.run("kept = 1")

    result = shared.run("while True: pass", timeout_s=0.05)

    assert (result.exception_type, result.limits_hit) == ("TimeLimit", ("time",))
    assert (result.success, result.session_ended) == (False, False)
    assert shared.get("kept") == 1


def test_an_async_tool_is_cancelled_at_the_time_limit(shared):
    result = shared.run("never()", timeout_s=0.05)

    assert (result.exception_type, result.limits_hit) == ("TimeLimit", ("time",))
    assert shared.run("1").return_value == 1


def test_a_tool_that_returns_after_the_time_limit_fails_the_run():
    def dawdle() -> int:
        time.sleep(0.05)
        return 1

    with fresh(tools=SandboxTools({"dawdle": dawdle})) as session:
        result = session.run("done = dawdle()", timeout_s=0.01)

        assert (result.exception_type, result.limits_hit) == ("TimeLimit", ("time",))
        with pytest.raises(NameNotFoundError):
            session.get("done")


@pytest.mark.slow  # starts several sandboxes
def test_code_that_ignores_the_interrupt_ends_its_session():
    limits = Limits(timeout_s=20, grace_s=0.05)
    with fresh(limits) as session:
        result = session.run(STUBBORN, timeout_s=1)

        assert (result.exception_type, result.limits_hit) == ("TimeLimit", ("time",))
        assert (result.success, result.session_ended) == (False, True)
        assert not session.alive
        with pytest.raises(SessionEndedError, match="Open a new session"):
            session.run("1")
        with pytest.raises(SessionEndedError, match=r"get\('x'\)"):
            session.get("x")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os; os._exit(3)", "exited with status 3"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
        ("import os; os.kill(os.getpid(), 11)", "SIGSEGV: compiled code"),
    ],
)
def test_the_result_contains_how_code_ended_its_session(code, message):
    with fresh() as session:
        result = session.run(code)

        assert (result.exception_type, result.session_ended) == ("SessionEnded", True)
        assert message in result.exception_message
        assert repr(session) == "<Session: gone, SessionEnded>"


def test_a_session_that_ended_between_two_runs_is_not_alive():
    with fresh() as session:
        session._handle.process.kill()
        session._handle.process.wait()

        assert not session.alive
        assert "SIGKILL" in session.run("1").exception_message


def test_exceeding_a_limit_that_the_host_checks_ends_the_session():
    with fresh() as session:
        session._handle.beyond = "disk"

        result = session.run("while True: pass")

        assert (result.exception_type, result.limits_hit) == ("DiskLimit", ("disk",))
        assert result.session_ended


def test_another_thread_may_interrupt_the_code():
    started = threading.Event()

    def notify() -> None:
        started.set()

    with fresh(tools=SandboxTools({"notify": notify})) as session:
        thread = threading.Thread(target=lambda: (started.wait(20), session.interrupt()))
        thread.start()

        result = session.run("kept = 1\nnotify()\nwhile True: pass")

        thread.join()
        assert (result.exception_type, result.limits_hit) == ("Interrupted", ())
        assert session.get("kept") == 1
        session.interrupt()
        assert session.run("1").return_value == 1


def test_a_second_call_while_one_is_under_way_is_refused():
    def call_back() -> str:
        with pytest.raises(BusyError) as caught:
            session.run("1")
        return str(caught.value)

    session = fresh(tools=SandboxTools({"call_back": call_back}))
    with session:
        result = session.run("call_back()")

        assert "another call on the same session" in result.return_value


def test_an_interrupted_caller_loses_the_session():
    def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)

    with fresh(tools=SandboxTools({"interrupt": interrupt})) as session:
        with pytest.raises(KeyboardInterrupt):
            session.run("interrupt()")

        assert not session.alive
        with pytest.raises(SessionLostError, match="interrupted on the host's side"):
            session.run("1")


def test_a_keyboard_interrupt_during_a_run_reaches_the_caller():
    def interrupt_soon() -> None:
        threading.Timer(0.01, os.kill, [os.getpid(), signal.SIGINT]).start()

    with fresh(tools=SandboxTools({"interrupt_soon": interrupt_soon})) as session:
        with pytest.raises(KeyboardInterrupt):
            session.run("interrupt_soon()\nwhile True: pass")

        with pytest.raises(SessionLostError):
            session.get("x")


def test_closing_twice_releases_the_process_once():
    closed = []
    session = fresh(on_close=lambda: closed.append(True))
    process = session._handle.process

    session.close()
    session.close()

    assert process.returncode is not None
    assert closed == [True]
    assert not session.alive
    with pytest.raises(ClosedError, match=r"run\(\)"):
        session.run("1")


@pytest.mark.parametrize("by_a_tool", [True, False])
def test_closing_while_code_runs_ends_the_run(by_a_tool):
    closed = []

    def close() -> None:
        if by_a_tool:
            session.close()
        else:
            threading.Thread(target=session.close).start()

    session = fresh(tools=SandboxTools({"close": close}), on_close=lambda: closed.append(True))

    with pytest.raises(SessionLostError, match="closed while a call"):
        session.run("close()\nwhile True: pass")
    session.close()

    assert closed == [True]


def test_a_dropped_session_is_released_with_a_warning():
    closed = []
    dropped = [fresh(on_close=lambda: closed.append(True))]
    process = dropped[0]._handle.process

    with pytest.warns(ResourceWarning, match=r"without close\(\)"):
        dropped.clear()

    assert process.returncode is not None
    assert closed == [True]


def test_a_forked_child_of_the_host_cannot_use_the_session(shared):
    reading, writing = os.pipe()

    child = os.fork()
    if child == 0:
        try:
            shared.run("1")
        except CallOrderError as error:
            os.write(writing, str(error).encode())
        finally:
            shared.interrupt()
            shared.close()
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    message = os.read(reading, 1000).decode()
    os.close(reading)

    assert "before this process was forked" in message
    assert shared.run("1").return_value == 1


def test_large_values_pass_in_both_directions(shared):
    value = os.urandom(12 << 20)

    shared.put("large", value)

    assert shared.get("large") == value
    assert shared.run("large").return_value == value
    assert shared.run("del large").success


def test_an_oversized_message_is_refused_and_the_session_survives(shared):
    with pytest.raises(OptionError, match="in pieces"):
        shared.put("large", b"0" * LIMITS.message_bytes)
    result = shared.run("0" * LIMITS.message_bytes)
    inside = shared.run("'0' * (20 << 20)")

    assert result.limits_hit == ("message",)
    assert (inside.success, inside.return_value) == (True, None)
    shared.run("huge = '0' * (20 << 20)")
    with pytest.raises(PlainDataError, match="too large"):
        shared.get("huge")


def test_output_over_its_limit_is_truncated(shared):
    result = shared.run("print('0' * 1_000_000)")

    assert len(result.stdout) < LIMITS.output_bytes + 512
    assert "cut" in result.stdout[-100:]
    assert result.limits_hit == ("output",)


def test_tool_calls_over_the_limit_are_refused():
    limits = Limits(timeout_s=20, tool_calls=2)
    with fresh(limits, SandboxTools({"add": add})) as session:
        result = session.run("add(1); add(2)\nadd(3)")
        again = session.run("add(4)")

        assert (result.exception_type, result.limits_hit) == ("ToolError", ("tool_calls",))
        assert len(result.tool_calls) == 2
        assert again.tool_calls == (
            ToolCall("add", ((4,), {}), 5, None, again.tool_calls[0].duration_s),
        )
