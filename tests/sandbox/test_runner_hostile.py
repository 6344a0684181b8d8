"""Nothing that code does to its interpreter breaks the runner."""

from __future__ import annotations

import pytest
from sandbox_sessions import Child, running

from envweave.sandbox.protocol.messages import (
    ListFiles,
    ReadFile,
    RunFinished,
    ToolSignature,
    WriteFile,
)

TOOLS = [ToolSignature("lookup", "(query)", "")]


@pytest.fixture(scope="module")
def child(tmp_path_factory):
    with running(tmp_path_factory.mktemp("work"), tools=TOOLS) as one:
        yield one


VANDALISM = {
    "builtins replaced": (
        "import builtins\nfor name in ('len', 'isinstance', 'all', 'type', 'repr', 'str', 'min',"
        " 'print', 'compile', 'exec', 'eval', 'memoryview', 'list', 'dict', 'bytes', 'sorted'):\n"
        "    setattr(builtins, name, lambda *_, **__: 1 / 0)"
    ),
    "builtins deleted": (
        "import builtins\nfor name in list(vars(builtins)):\n"
        "    if name not in ('__build_class__', '__import__', 'setattr'): delattr(builtins, name)"
    ),
    "no builtins": "del __builtins__",
    "modules replaced": (
        "import sys\nfor name in ('os', 'msgspec', 'traceback', 'linecache', 'ast', 'json'):\n"
        "    sys.modules[name] = None"
    ),
    "functions replaced": (
        "import os, msgspec, traceback, linecache, signal, select, time\n"
        "def no(*_, **__): raise SystemExit\n"
        "os.write = os.read = os.lseek = os.fstat = os.pread = os._exit = no\n"
        "msgspec.msgpack.encode = msgspec.msgpack.decode = msgspec.msgpack.Encoder = no\n"
        "traceback.TracebackException = traceback.format_exception = linecache.getline = no\n"
        "linecache.cache = None\nsignal.signal = signal.getsignal = select.poll = no\n"
        "time.thread_time = no"
    ),
    "no streams": "import sys\nsys.stdout = sys.stderr = sys.__stdout__ = None",
    "odd streams": "import sys\nsys.stdout = sys.stderr = 7",
    "a tracer that raises": "import sys\nsys.settrace(lambda *_: 1 / 0)",
    "a profiler that raises": "import sys\nsys.setprofile(lambda *_: 1 / 0)",
    "hardly any recursion": "import sys\nsys.setrecursionlimit(50)",
    "hooks that raise": (
        "import sys, gc\ndef no(*_, **__): raise SystemExit\n"
        "sys.excepthook = sys.displayhook = sys.unraisablehook = no\n"
        "gc.callbacks.append(no)\ngc.set_threshold(1)"
    ),
    "no main module": "import sys\ndel sys.modules['__main__']",
    "names cleared": "globals().clear()",
    "a dead import system": (
        "import sys\nsys.meta_path.clear()\nsys.path_hooks.clear()\nsys.modules.clear()"
    ),
}


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize("what", VANDALISM)
def test_the_runner_survives_hostile_code(tmp_path, what):
    with running(tmp_path, tools=TOOLS) as one:
        one.run(VANDALISM[what])

        assert one.run("21 + 1").value == 22
        assert one.run("{'a': [(1, 2**80)]}").value == {"a": [(1, 2**80)]}
        assert one.run("1 / 0").failure.type == "ZeroDivisionError"
        assert one.run("x = (").failure.type == "SyntaxError"
        one.put("given", {"deep": [1]})
        assert one.get("given") == {"deep": [1]}
        assert one.ask(WriteFile, "a/b", b"x").failure is None
        assert one.ask(ReadFile, "a/b").value == b"x"


WEIRD_VALUES = {
    "repr raises": "class A:\n    def __repr__(self): 1 / 0\nA()",
    "repr raises itself": "class E(BaseException):\n    def __repr__(self): raise self\nE()",
    "repr recurses": "class A:\n    def __repr__(self): return repr(self)\nA()",
    "repr is not text": "class A:\n    def __repr__(self): return 3\nA()",
    "repr exits": "class A:\n    def __repr__(self): raise SystemExit\nA()",
    "repr prints": "class A:\n    def __repr__(self): print('aside'); return 'A'\nA()",
    "repr is long": "class A:\n    def __repr__(self): return 'x' * 100_000_000\nA()",
    "repr is a lying text": (
        "class T(str):\n    def __getitem__(self, i): 1 / 0\n    def __len__(self): 1 / 0\n"
        "    def isascii(self): 1 / 0\n    def encode(self, *_): 1 / 0\n"
        "class A:\n    def __repr__(self): return T('x')\nA()"
    ),
    "the class lies": "class A:\n    __class__ = property(lambda self: 1 / 0)\nA()",
    "an attribute trap": "class A:\n    def __getattribute__(self, name): 1 / 0\nA()",
    "a great number": "10 ** 10000",
    "three million items": "[0] * 3_000_000",
    "a list within itself": "a = []\na.append(a)\na",
}


@pytest.mark.parametrize("what", WEIRD_VALUES)
def test_a_value_whose_repr_misbehaves_does_no_harm(child: Child, what):
    finished = child.run(WEIRD_VALUES[what])

    assert finished.failure is None
    assert isinstance(finished.shown, str)
    assert 0 < len(finished.shown) <= 16 << 10
    assert child.value("1 + 1") == 2


WEIRD_ERRORS = {
    "str raises itself": "class E(BaseException):\n    def __str__(self): raise self\nraise E",
    "str is not text": "class E(Exception):\n    def __str__(self): return 3\nraise E",
    "str is long": "class E(Exception):\n    def __str__(self): return 'x' * 100_000_000\nraise E",
    "the class has no name": (
        "class M(type):\n    __name__ = property(lambda self: 1 / 0)\n"
        "    __qualname__ = __module__ = property(lambda self: 1 / 0)\n"
        "class E(Exception, metaclass=M): pass\nraise E('x')"
    ),
    "the traceback lies": (
        "class E(Exception):\n    __traceback__ = property(lambda self: 1 / 0)\n"
        "    __cause__ = __notes__ = property(lambda self: 1 / 0)\n"
        "raise E('x')"
    ),
    "notes are not text": "e = ValueError('x')\ne.__notes__ = [3, object()]\nraise e",
    "causes in a ring": (
        "a, b = ValueError('a'), ValueError('b')\na.__cause__ = b\nb.__cause__ = a\nraise a"
    ),
    "a thousand causes": (
        "e = None\nfor n in range(1000):\n    f = ValueError(n)\n    f.__cause__ = e\n    e = f\n"
        "raise e"
    ),
    "groups in groups": (
        "e = ValueError('x')\nfor n in range(500): e = ExceptionGroup('g', [e])\nraise e"
    ),
    "a great group": "raise ExceptionGroup('g', [ValueError('y' * 1000) for _ in range(1000)])",
    "a long message": "raise ValueError('x' * 10_000_000)",
    "a false syntax error": "raise SyntaxError('x', ('file', 'line', object(), 3.5))",
    "an error that asks for suggestions": (
        "class A:\n    def __dir__(self): raise SystemExit\nA().missing"
    ),
}


@pytest.mark.parametrize("what", WEIRD_ERRORS)
def test_an_exception_whose_str_misbehaves_does_no_harm(child: Child, what):
    failure = child.run(WEIRD_ERRORS[what]).failure

    assert failure.type
    assert failure.type in failure.traceback
    assert len(failure.message.encode()) <= 16 << 10
    assert len(failure.traceback.encode()) <= 16 << 10
    assert child.value("1 + 1") == 2


def test_exhausted_memory_is_an_exception_and_can_be_freed(tmp_path):
    with running(tmp_path) as one:
        one.run("import resource\nresource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))")
        finished = one.run(
            "kept = []\ntry:\n    while True: kept.append(bytearray(1 << 16))\n"
            "finally:\n    while True: kept.append(object())"
        )
        small = one.run("kept.extend([object() for _ in range(10)])")
        one.run("del kept")

        assert finished.failure.type == "MemoryError"
        assert isinstance(small, RunFinished)
        assert one.value("sum(range(1_000_000))") == 499999500000


def test_a_closed_socket_ends_the_session(tmp_path):
    with running(tmp_path) as one:
        one.begin("import os\nos.closerange(0, 1000)")

        with pytest.raises(EOFError, match="status 70"):
            one.receive()


def test_files_are_written_read_and_listed(child: Child):
    for path, content in [("folder/deep/b.bin", b"\0\xff"), ("folder/a.txt", b"text")]:
        assert child.ask(WriteFile, path, content).failure is None

    assert child.ask(ReadFile, "folder/deep/b.bin").value == b"\0\xff"
    assert child.ask(ListFiles, "folder").value == ["folder/a.txt", "folder/deep/b.bin"]
    assert "folder/a.txt" in child.ask(ListFiles, "").value
    assert child.value("open('folder/a.txt').read()") == "text"


@pytest.mark.parametrize(
    ("make", "args", "kind", "message"),
    [
        (ReadFile, ("nowhere",), "FileNotFoundError", "No such file"),
        (ReadFile, ("../up",), "ValueError", "is not in the work folder"),
        (ReadFile, ("/etc/passwd",), "ValueError", "is not in the work folder"),
        (ReadFile, ("a\0b",), "ValueError", "is not in the work folder"),
        (ReadFile, ("made",), "IsADirectoryError", "is a folder"),
        (ReadFile, ("made/pipe",), "ValueError", "neither a file nor a folder"),
        (ReadFile, ("made/large",), "ValueError", "has 6291456 bytes"),
        (WriteFile, ("made", b""), "IsADirectoryError", "made"),
        (WriteFile, ("made/large/below", b""), "NotADirectoryError", "made"),
        (ListFiles, ("nowhere",), "FileNotFoundError", "No such file or directory"),
        (ListFiles, ("made/large",), "NotADirectoryError", "Not a directory"),
    ],
)
def test_a_failed_file_request_is_reported(child: Child, make, args, kind, message):
    child.run(
        "import os\nos.makedirs('made', exist_ok=True)\n"
        "if not os.path.exists('made/pipe'): os.mkfifo('made/pipe')\n"
        "with open('made/large', 'wb') as file: file.truncate(6 << 20)"
    )

    failure = child.ask(make, *args).failure

    assert failure.type == kind
    assert message in failure.message
