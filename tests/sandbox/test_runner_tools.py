"""Tools look like functions, and the time limit interrupts code wherever it is."""

from __future__ import annotations

import signal

import pytest
from sandbox_sessions import Child, answer, running

from envweave.sandbox.protocol.messages import Called, Get, RunFinished, ToolAnswer, ToolSignature

TOOLS = [
    ToolSignature(
        "lookup", "(query: str, limit: int = 10, *, deep=False) -> list[str]", "Find it."
    ),
    ToolSignature("odd", "not a signature", ""),
    ToolSignature("twice", "(a, a)", ""),
    ToolSignature("now", "()", "Tell the test that the code is here."),
]


@pytest.fixture(scope="module")
def child(tmp_path_factory):
    with running(tmp_path_factory.mktemp("work"), tools=TOOLS) as one:
        yield one


def test_a_tool_returns_what_the_host_returns(child: Child):
    finished = child.run(
        "lookup('x', limit=2), lookup((1, {2}))", lookup=lambda *args, **named: [args, named]
    )

    assert finished.value == ([("x",), {"limit": 2}], [((1, {2}),), {}])


def test_a_tool_that_fails_raises_tool_error(child: Child):
    code = "try:\n    lookup('x')\nexcept ToolError as error:\n    message = str(error)\nmessage"

    finished = child.run(code, lookup=lambda query: 1 / 0)

    assert finished.value == "division by zero"


def test_tool_error_can_be_imported_and_its_traceback_ends_in_the_cell(child: Child):
    finished = child.run("lookup('x')", lookup=lambda query: 1 / 0)

    assert finished.failure.type == "ToolError"
    assert "lookup('x')\nToolError: division by zero\n" in finished.failure.traceback
    code = "from envweave.sandbox.inside.tool_stubs import ToolError as found\nfound is ToolError"
    assert child.value(code) is True


def test_help_shows_a_tool_as_the_host_wrote_it(child: Child):
    finished = child.run("help(lookup)")

    assert "lookup(query: str, limit: int = 10, *, deep=False) -> list[str]" in finished.stdout
    assert "Find it." in finished.stdout


def test_a_signature_that_cannot_be_parsed_accepts_anything(child: Child):
    child.run("import inspect")

    for name in ("odd", "twice"):
        assert child.value(f"str(inspect.signature({name}))") == "(*args, **kwargs)"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("lookup([1, object()])", "lookup() argument 1[1]: an object is not plain data"),
        ("lookup(1, limit=len)", "lookup() argument 'limit': a builtin_function_or_method"),
        ("lookup(**{'\\ud800': 1})", "value: text with a lone surrogate"),
    ],
)
def test_arguments_that_are_not_plain_are_refused_before_anything_is_sent(child, call, message):
    finished = child.run(call)  # a call that got through would find no tool

    assert finished.failure.type == "TypeError"
    assert finished.failure.message.startswith(message)


def test_arguments_too_large_to_send_are_refused(child: Child):
    finished = child.run("lookup('x' * (5 << 20))")

    assert finished.failure.type == "ValueError"
    assert "too large" in finished.failure.message


def test_threads_call_tools_at_once_and_each_gets_its_own_answer(child: Child):
    child.begin(
        "import concurrent.futures\n"
        "with concurrent.futures.ThreadPoolExecutor(8) as pool:\n"
        "    found = list(pool.map(lookup, range(8)))\nfound"
    )
    calls = [child.receive() for _ in range(8)]

    for call in reversed(calls):  # all wait, and the last to call is answered first
        child.send(ToolAnswer(call.call, ok=True, value=call.args[0] * 10))
    finished = child.receive()

    assert finished.value == [0, 10, 20, 30, 40, 50, 60, 70]


def test_many_calls_from_threads_and_from_the_cell_itself(child: Child):
    finished = child.run(
        "import threading\nfound = []\n"
        "def many():\n    for n in range(100): found.append(lookup(n) == n + 1)\n"
        "threads = [threading.Thread(target=many) for _ in range(4)]\n"
        "for one in threads: one.start()\n"
        "many()\n"
        "for one in threads: one.join()\n"
        "len(found), all(found)",
        lookup=lambda query: query + 1,
    )

    assert finished.value == (500, True)


def test_a_thread_that_waits_for_a_tool_after_its_cell_gets_its_answer_in_the_next(child: Child):
    child.begin(
        "import threading\nfound = []\n"
        "thread = threading.Thread(target=lambda: found.append(lookup(1)))\nthread.start()\nnow()"
    )
    called = {call.name: call.call for call in (child.receive(), child.receive())}
    child.send(ToolAnswer(called["now"], ok=True, value=None))
    assert isinstance(child.receive(), RunFinished)

    assert child.value("'in between'") == "in between"
    assert child.get("found") == []
    child.send(ToolAnswer(called["lookup"], ok=True, value="late"))

    assert child.value("thread.join(30)\nfound") == ["late"]


def test_a_tool_called_when_no_cell_runs_is_refused(child: Child):
    child.run(
        "import threading\nmessages = []\n"
        "def later():\n    try: lookup(1)\n"
        "    except ToolError as error: messages.append(str(error))\n"
        "threading.Timer(0.05, later).start()"
    )
    while not child.get("messages"):
        pass

    assert child.get("messages") == ["lookup() can be called only while the session runs code."]


SLOW = {
    "sleep": "import time\nnow()\ntime.sleep(60)",
    "loop": "now()\nwhile True: pass",
    "repr": "class Slow:\n    def __repr__(self):\n        now()\n        while True: pass\nSlow()",
    "str": (
        "class Slow(Exception):\n    def __str__(self):\n        now()\n        while True: pass\n"
        "raise Slow"
    ),
    "await": "import asyncio\nnow()\nawait asyncio.sleep(60)",
    "loop of awaits": "import asyncio\nnow()\nwhile True: await asyncio.sleep(0)",
    "event": "import threading\nnow()\nthreading.Event().wait(60)",
    "del": (
        "class Held:\n    def __del__(self):\n        now()\n        while True: pass\n"
        "held = Held()\ndel held"
    ),
    "del of the value": (
        "class Held:\n    def __del__(self):\n        now()\n        while True: pass\nHeld()"
    ),
    "busy": "now()\nfor _ in iter(int, 1): list(map(str, range(100)))",
}


@pytest.mark.parametrize("what", SLOW)
def test_the_time_limit_interrupts_and_variables_survive(child: Child, what):
    child.run("survivor = 7")

    finished = child.interrupt(SLOW[what])

    assert finished.interrupted
    assert finished.failure is not None
    assert child.value("survivor") == 7
    assert child.value("import asyncio\nawait asyncio.sleep(0)\n1") == 1


def test_cells_that_await_can_be_interrupted_repeatedly(tmp_path):
    with running(tmp_path, tools=TOOLS) as one:
        one.run("import resource, asyncio\nresource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))")

        interrupted_flags = [one.interrupt(SLOW["await"]).interrupted for _ in range(20)]

        assert interrupted_flags == [True] * 20
        assert one.value("await asyncio.sleep(0, 'awake')") == "awake"


def test_an_interrupted_cell_is_reported_as_a_time_limit_with_its_line(child: Child):
    finished = child.interrupt("now()\nwhile True:\n    pass")

    assert (finished.failure.type, finished.failure.message) == (
        "TimeLimit",
        "The code exceeded its time limit.",
    )
    assert "<cell " in finished.failure.traceback


def test_code_that_swallows_the_time_limit_is_reported_to_have_exceeded_it(child: Child):
    finished = child.interrupt(
        "try:\n    now()\n    while True: pass\nexcept BaseException: pass\n5"
    )

    assert finished.interrupted
    assert finished.failure.type == "TimeLimit"


def test_later_calls_work_after_an_interrupted_tool_call(child: Child):
    child.begin("lookup('slow')")
    slow = child.receive()
    child.process.send_signal(signal.SIGRTMAX)
    finished = child.receive()
    assert isinstance(slow, Called)
    assert isinstance(finished, RunFinished)
    child.send(ToolAnswer(slow.call, ok=True, value="stale"))

    later = child.run("lookup('quick')", lookup=lambda query: query)

    assert (finished.interrupted, finished.failure.type) == (True, "TimeLimit")
    assert later.value == "quick"


def test_a_stale_answer_in_the_middle_of_a_call_is_dropped(child: Child):
    child.begin("lookup('slow')")
    slow = child.receive()
    child.process.send_signal(signal.SIGRTMAX)
    assert isinstance(child.receive(), RunFinished)
    child.begin("lookup('quick')")
    quick = child.receive()

    child.send(ToolAnswer(slow.call, ok=True, value="stale"))
    child.send(answer(quick, {"lookup": lambda query: query}))

    assert child.receive().value == "quick"


def test_the_signal_between_cells_does_nothing(child: Child):
    child.run("kept = 3")

    for _ in range(20):
        child.process.send_signal(signal.SIGRTMAX)
        assert child.ask(Get, "kept").value == 3

    assert child.value("kept") == 3


def test_a_signal_handler_of_the_code_is_replaced_in_the_next_cell(child: Child):
    child.run("import signal\nsignal.signal(signal.SIGRTMAX, signal.SIG_IGN)")

    finished = child.interrupt("now()\nwhile True: pass")

    assert finished.interrupted


def test_signals_at_any_moment_never_desynchronize_the_session(child: Child):
    for number in range(300):
        child.begin(f"[lookup({number}), sum(range(2000)), 'x' * 20000][0]")
        if number % 3 == 0:
            child.process.send_signal(signal.SIGRTMAX)
        while isinstance(message := child.receive(), Called):
            if number % 3 == 1:
                child.process.send_signal(signal.SIGRTMAX)
            child.send(ToolAnswer(message.call, ok=True, value=message.args[0]))
            if number % 3 == 2:
                child.process.send_signal(signal.SIGRTMAX)

        assert isinstance(message, RunFinished)
        assert message.interrupted or message.value == number

    assert child.value("'still here'") == "still here"
