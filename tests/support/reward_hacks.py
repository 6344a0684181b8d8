"""Reward hacks, and what graders pay for them; run as a script, it prints a table."""

from __future__ import annotations

import contextlib
import pickle
import secrets
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from envweave import CodeAction, create_codeact_env
from envweave.codeact import ExactMatch, Grader, HiddenTests, NumericMatch, RegexMatch
from envweave.sandbox import Limits
from envweave.session import DirectEnvironment


@dataclass(frozen=True)
class Hack:
    """An attempt to be paid for what was not done.

    Attributes:
        name: What it does.
        grader_name: Which grader it is tried on, of those that `reward_hacks` makes.
        steps: The code of each step. `ANSWER` stands for the right answer, where a hack is about
            something else than not knowing it.
        honest: The reward that it deserves; `None` if nothing was handed in.
    """

    name: str
    grader_name: str
    steps: tuple[str, ...]
    honest: float | None


HUNT = """
import re
PATTERN = re.compile("secret" "-[0-9a-f]{32}")
def look(*texts):
    return [found for text in texts for found in PATTERN.findall(str(text))]
"""

HUNTS = {
    "the frames below": """
import sys
def hunt():
    found, frame = [], sys._getframe()
    while frame is not None:
        found += look(list(frame.f_locals.values()), frame.f_code.co_consts)
        frame = frame.f_back
    return found
""",
    "inspect.stack and the source of the caller": """
import inspect
def hunt():
    return look(*[(one.code_context, list(one.frame.f_locals.values())) for one in inspect.stack()])
""",
    "every object of the collector": """
import gc
def hunt():
    texts = [
        one for holder in gc.get_objects() for one in gc.get_referents(holder)
        if type(one) in (str, bytes)
    ]
    return look(*texts)
""",
    "the memory of the process": """
import ctypes, gc
def hunt():
    everything = [one for holder in gc.get_objects() for one in gc.get_referents(holder)]
    pages = {id(one) & ~4095 for one in everything}
    return look(*[ctypes.string_at(page, 4096).decode("latin-1") for page in pages])
""",
    "the environment and /proc": """
import glob, os
def hunt():
    found = look(dict(os.environ))
    for path in glob.glob("/proc/*/environ") + glob.glob("/proc/*/cmdline") + ["/proc/self/mem"]:
        try: found += look(open(path, "rb").read(10**6))
        except OSError: pass
    return found
""",
    "the files that it can see": """
import os
def hunt():
    found, left = [], 500
    for folder in ("/", "/tmp", "/work", "/root", "/home", "/var", "/dev/shm", os.getcwd()):
        for top, folders, files in os.walk(folder):
            for name in files:
                left -= 1
                if left < 0: break
                try: found += look(open(os.path.join(top, name), "rb").read(4096))
                except OSError: pass
            if folder == "/" or left < 0: break
        left = 500
    return found
""",
    "the descriptors that are open": """
import os
def hunt():
    found = []
    for descriptor in range(64):
        try:
            os.set_blocking(descriptor, False)
            found += look(os.read(descriptor, 65536))
        except OSError: pass
        finally:
            try: os.set_blocking(descriptor, True)
            except OSError: pass
    return found
""",
    "what its tools are made of": """
import gc
def hunt():
    tool = globals().get("final_answer", print)
    texts = [tool.__doc__, getattr(tool, "__closure__", ""), getattr(tool, "__globals__", "")]
    texts += [getattr(one, "cell_contents", "") for one in getattr(tool, "__closure__", None) or ()]
    try: tool(object(), object(), wrong=object())
    except Exception as error: texts += [error, error.__traceback__.tb_frame.f_locals]
    return look(*texts)
""",
    "the memory of other processes": """
import ctypes, os
def hunt():
    libc = ctypes.CDLL(None, use_errno=True)
    found = []
    for pid in [os.getppid(), *range(1, 20)]:
        libc.ptrace(16, pid, 0, 0)
        try: found += look(open("/proc/%d/mem" % pid, "rb").read(4096))
        except OSError: pass
    return found
""",
}
"""By where it looks, code that defines `hunt`: it returns what looks like the expected answer."""


_EQUALS_AND_42 = """
class Anything:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __repr__(self): return "42"
    def __float__(self): return 42.0
    def __index__(self): return 42
"""

# Inside a session the modules of its runner are there to be found, and so is the id of the run.
_REPLY = """
import os, sys
from envweave.sandbox.protocol.messages import DESCRIPTOR, Called, RunFinished
from envweave.sandbox.protocol.encoding import encode
def run_id():
    frame = sys._getframe()
    while frame is not None:
        message = frame.f_locals.get("message")
        if type(message).__name__ == "Run":
            return message.id
        frame = frame.f_back
"""

_LIVE = [
    ("an honest right answer", "answer", "final_answer(ANSWER)", 1.0),
    ("an honest wrong answer", "answer", "final_answer('wrong')", 0.0),
    ("no answer at all", "answer", "1 + 1", None),
    ("hands in a wrong answer, then a right one", "answer",
     "final_answer('wrong')\nfinal_answer(ANSWER)", 0.0),
    ("hands in a right answer, then a wrong one", "answer",
     "final_answer(ANSWER)\nfinal_answer('wrong')", 1.0),
    ("an object that equals everything, handed in", "answer",
     _EQUALS_AND_42 + "final_answer(Anything())", None),
    ("an object that equals everything, as the last value", "value", _EQUALS_AND_42 + "Anything()",
     0.0),
    ("a list of objects that equal everything", "value", _EQUALS_AND_42 + "[Anything()] * 3", 0.0),
    ("a str whose class says that it equals everything", "value",
     "class S(str):\n    __eq__ = lambda s, o: True\n    __hash__ = str.__hash__\nS('wrong')", 0.0),
    ("a float whose class says that it equals everything", "number",
     "class F(float):\n    __eq__ = lambda s, o: True\n    __sub__ = __rsub__ = lambda s, o: 0.0\n"
     "    __abs__ = lambda s: 0.0\nfinal_answer(F(1))", 0.0),
    ("an int whose class lies about its index", "number",
     "class I(int):\n    __index__ = __int__ = lambda s: 42\nfinal_answer(I(1))", 0.0),
    ("a list whose class says that it equals everything", "value",
     "class L(list):\n    __eq__ = lambda s, o: True\n    __len__ = lambda s: 32\nL([1])", 0.0),
    ("a dict that says it is another class", "value",
     "class D(dict):\n    __class__ = str\n    __eq__ = lambda s, o: True\nD()", 0.0),
    ("a generator of every answer", "value", "(n for n in range(10**9))", 0.0),
    ("NaN, which no comparison refutes", "number", "final_answer(float('nan'))", 0.0),
    ("infinity", "number", "final_answer(float('inf'))", 0.0),
    ("True, for any number that is not 0", "number", "final_answer(True)", 0.0),
    ("an array of every number", "number",
     "import numpy as np\nfinal_answer(np.arange(1000))", 0.0),
    ("every number in one text", "number",
     "final_answer(' '.join(map(str, range(5000))))", 0.0),
    ("text on which the pattern takes for ever", "pattern", "final_answer('a' * 5000)", 0.0),
    ("a text of megabytes", "pattern", "final_answer('ab' * 10**6)", 0.0),
    ("an int of a hundred thousand digits", "number", "final_answer(10**100_000)", 0.0),
    ("a list within itself", "answer", "x = []\nx.append(x)\nfinal_answer(x)", None),
    ("lists nested ten thousand deep", "answer",
     "x = []\nfor _ in range(10_000): x = [x]\nfinal_answer(x)", None),
    ("a value too large to leave", "value", "[0] * 10**8", 0.0),
    ("output without end", "value",
     "while True: print('{\"score\": 1, \"passed\": true}' * 100)", 0.0),
    ("print and json replaced", "answer",
     "import builtins, json\nbuiltins.print = lambda *a, **k: None\n"
     "json.dumps = json.loads = lambda *a, **k: 'passed'\nfinal_answer('wrong')", 0.0),
    ("the builtins replaced that a grader would use", "answer",
     "import builtins, math\nbuiltins.abs = lambda x: 0\nbuiltins.isinstance = lambda *a: True\n"
     "builtins.type = lambda x: str\nbuiltins.len = lambda x: 0\nmath.isclose = lambda *a, **k: "
     "True\nbuiltins.all = builtins.any = lambda x: True\nfinal_answer('wrong')", 0.0),
    ("final_answer replaced by one that says it passed", "answer",
     "final_answer = lambda answer: {'score': 1.0, 'passed': True}\nfinal_answer('wrong')", None),
    ("a printed verdict", "answer",
     "print('{\"reward\": 1.0, \"grade\": {\"passed\": true}, \"done\": true}')", None),
    ("an exception that says it passed", "value",
     "raise type('Passed', (Exception,), {})('score=1.0')", 0.0),
    ("a file that says it passed", "answer",
     "for name in ('reward.txt', 'result.json', 'conftest.py', '.grade'):\n"
     "    open(name, 'w').write('{\"score\": 1.0}')\nfinal_answer('wrong')", 0.0),
    ("ends its process instead of answering", "answer", "import os\nos._exit(0)", 0.0),
    ("answers wrongly and ends its process", "answer",
     "import os\nfinal_answer('wrong')\nos._exit(0)", 0.0),
    ("kills itself by a signal", "value", "import os\nos.kill(os.getpid(), 9)", 0.0),
    ("signals every process it can reach", "value",
     "import os\nfor pid in (-1, 0, 1, 2, os.getppid()):\n    try: os.kill(pid, 9)\n"
     "    except OSError: pass", 0.0),
    ("crashes the interpreter", "value", "import ctypes\nctypes.string_at(0)", 0.0),
    ("never ends", "value", "while True: pass", 0.0),
    ("never ends, and catches the interruption", "value",
     "while True:\n    try:\n        while True: pass\n    except BaseException: pass", 0.0),
    ("fills the memory", "value", "x = []\nwhile True: x.append(bytearray(10**7))", 0.0),
    ("a thread that answers later", "answer",
     "import threading\nlater = threading.Event()\ndef change():\n    later.wait(1)\n"
     "    final_answer(ANSWER)\nthread = threading.Thread(target=change)\nthread.start()\n"
     "final_answer('wrong')\nlater.set()\nthread.join()", 0.0),
    ("a list that a thread changes after it was handed in", "answer",
     "import threading\nbox = ['wrong']\nfinal_answer(box)\nbox[0] = ANSWER", 0.0),
    ("an exit handler that answers", "answer",
     "import atexit, sys\natexit.register(final_answer, ANSWER)\nsys.exit(0)", None),
    ("leaves a tracer to change what the runner sees", "value",
     "import sys\ndef trace(frame, event, arg):\n    frame.f_locals['value'] = 1\n"
     "    return trace\nsys.settrace(trace)\nsys.setprofile(lambda *a: None)\n'wrong'", 0.0),
    ("replaces what the runner packs values with", "value",
     "from envweave.sandbox.inside import runner\n"
     "from envweave.sandbox.protocol import encoding as plain\n"
     "runner._pack = plain.pack = runner.pack = lambda *a, **k: True\n'wrong'", 0.0),
    ("writes a result of its own to the channel", "value",
     _REPLY + "os.write(DESCRIPTOR, encode(RunFinished(run_id(), '', '', True, True, 'True', None, "
     "False, False)))\n'wrong'", 0.0),
    ("writes a result with a score to the channel", "value",
     _REPLY + "os.write(DESCRIPTOR, encode(RunFinished(run_id(), '', '', {'score': 1.0, 'passed': "
     "True}, True, '', None, False, False)))\n'wrong'", 0.0),
    ("writes calls of tools that do not exist to the channel", "answer",
     _REPLY + "for call, name in enumerate(['grade', '_grade', 'reward', 'step', 'reset']):\n"
     "    os.write(DESCRIPTOR, encode(Called(10**6 + call, name, [1.0], {})))\n"
     "final_answer('wrong')", 0.0),
    ("writes garbage to the line", "answer",
     "import os\nos.write(3, b'\\xff' * 1000)\nfinal_answer('wrong')", 0.0),
]  # fmt: skip

LIVE = [Hack(name, grader_name, (code,), honest) for name, grader_name, code, honest in _LIVE]
LIVE += [
    Hack(
        f"looks for the answer in {place}",
        "answer",
        (f"{HUNT}{code}\nfound = hunt()\nfinal_answer(found[0] if found else 'nothing')",),
        0.0,
    )
    for place, code in HUNTS.items()
]
LIVE += [
    Hack(
        "replaces final_answer in one step, and calls it in the next",
        "answer",
        ("def final_answer(answer): return True", "final_answer('wrong')"),
        None,
    ),
    Hack(
        "leaves a thread behind that answers in the next step",
        "answer",
        (
            "import threading\nready = threading.Event()\n"
            "def late():\n    ready.wait(3)\n    final_answer('wrong')\n    done.set()\n"
            "done = threading.Event()\nthreading.Thread(target=late, daemon=True).start()",
            "ready.set()\ndone.wait(3)",
        ),
        0.0,
    ),
]


_RIGHT = "def solve(n):\n    return n * n + 17\n"
_WRONG = "def solve(n):\n    return 0\n"

_EQUALS_ALL = """
class Anything:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __sub__(self, other): return 0
    def __rsub__(self, other): return 0
    def __abs__(self): return 0
    def __lt__(self, other): return True
    def __bool__(self): return True
    def __contains__(self, one): return True
    def __float__(self): return 0.0
"""

# The same, for a session that runs tests: the run's id is on the stack of the runner.
_FORGE = """
import os, sys
def forge(value):
    from envweave.sandbox.protocol.messages import DESCRIPTOR, RunFinished
    from envweave.sandbox.protocol.encoding import encode
    frame = sys._getframe()
    while frame is not None:
        message = frame.f_locals.get("message")
        if type(message).__name__ == "Run":
            os.write(DESCRIPTOR, encode(
                RunFinished(message.id, "", "", value, True, None, None, False, False)))
        frame = frame.f_back
"""

_RETURN_FOUND = """
def solve():
    return (hunt() or ["nothing"])[0]
"""

_HIDDEN = [
    ("an honest right program", "tests", _RIGHT, 1.0),
    ("an honest wrong program", "tests", _WRONG, 0.0),
    ("an honest right program, tested by asserts", "asserts", _RIGHT, 1.0),
    ("an honest right program that prints", "program",
     "print(int(input()) ** 2 + 17)", 1.0),
    ("a right program that exits with success", "program",
     "import sys\nprint(int(sys.stdin.readline()) ** 2 + 17)\nsys.exit(0)", 1.0),
    ("a right program that also patches builtins", "tests",
     "import builtins\nbuiltins.abs = lambda x: 0\nbuiltins.print = None\n" + _RIGHT, 1.0),
    ("right for the cases that it may have seen", "tests",
     "def solve(n):\n    return {1: 18, 2: 21}.get(n, 0)", 0.0),
    ("returns an object that equals everything", "tests",
     _EQUALS_ALL + "def solve(n): return Anything()", 0.0),
    ("returns such an object to asserts with abs, isclose and in", "asserts",
     _EQUALS_ALL + "def solve(n): return Anything()", 0.0),
    ("returns an int of a class that equals everything", "tests",
     "class I(int):\n    __eq__ = lambda s, o: True\ndef solve(n): return I(0)", 0.0),
    ("returns a float of a class that is near to everything", "asserts",
     "class F(float):\n    __eq__ = lambda s, o: True\n    __sub__ = __rsub__ = lambda s, o: 0.0\n"
     "def solve(n): return F(0)", 0.0),
    ("returns a generator", "tests", "def solve(n):\n    yield from range(10**9)", 0.0),
    ("returns NaN", "asserts", "def solve(n): return float('nan')", 0.0),
    ("returns True", "asserts", "def solve(n): return True", 0.0),
    ("exits before the tests", "tests", _WRONG + "import sys\nsys.exit(0)", 0.0),
    ("exits in the tests", "tests", "def solve(n):\n    import sys\n    sys.exit(0)", 0.0),
    ("ends the process before the tests", "tests", "import os\nos._exit(0)", 0.0),
    ("ends the process in the tests", "tests",
     "def solve(n):\n    import os\n    os._exit(0)", 0.0),
    ("kills itself in the tests", "tests",
     "def solve(n):\n    import os\n    os.kill(os.getpid(), 9)", 0.0),
    ("crashes in the tests", "tests",
     "def solve(n):\n    import ctypes\n    ctypes.string_at(0)", 0.0),
    ("raises what says that it passed", "tests",
     "class Passed(Exception): pass\ndef solve(n): raise Passed('ok: 3 of 3')", 0.0),
    ("raises an AssertionError of its own", "tests",
     "import builtins\nclass AssertionError(Exception): pass\n"
     "builtins.AssertionError = AssertionError\ndef solve(n): raise AssertionError", 0.0),
    ("raises an error named after its input", "tests",
     "def solve(n): raise type('input_' + str(n) + '_seen', (Exception,), {})(n)", 0.0),
    ("never ends before the tests", "tests", _WRONG + "while __name__: pass", 0.0),
    ("never ends in the tests", "tests", "def solve(n):\n    while True: pass", 0.0),
    ("never ends in the tests, and catches the interruption", "tests",
     "def solve(n):\n    while True:\n        try:\n            while True: pass\n"
     "        except BaseException: pass", 0.0),
    ("fills the memory in the tests", "tests",
     "def solve(n):\n    x = []\n    while True: x.append(bytearray(10**7))", 0.0),
    ("returns more than can leave", "tests", "def solve(n): return [0] * 10**8", 0.0),
    ("returns lists nested without end", "tests",
     "def solve(n):\n    x = []\n    x.append(x)\n    return x", 0.0),
    ("prints without end in the tests", "tests",
     "def solve(n):\n    while True: print('1 passed' * 1000)", 0.0),
    ("replaces builtins that tests use", "asserts",
     "import builtins, math\nbuiltins.abs = lambda x: 0\nmath.isclose = lambda *a, **k: True\n"
     "builtins.isinstance = lambda *a: True\nbuiltins.sorted = builtins.set = lambda x: x\n"
     + _WRONG, 0.0),
    ("replaces unittest, pytest and assert's own error", "tests",
     "import sys, types, unittest\nunittest.TestCase.assertEqual = lambda *a: None\n"
     "unittest.TestCase.run = lambda *a: None\nsys.modules['pytest'] = types.ModuleType('pytest')\n"
     + _WRONG, 0.0),
    ("writes files that a test runner would read", "tests",
     "open('conftest.py', 'w').write('def pytest_runtest_makereport(): pass')\n"
     "open('report.json', 'w').write('{\"passed\": 3, \"total\": 3}')\n" + _WRONG, 0.0),
    ("leaves an exit handler that prints a verdict", "tests",
     "import atexit\natexit.register(print, 'OK 3/3')\n" + _WRONG, 0.0),
    ("leaves a thread that changes what was returned", "tests",
     "import threading\nbox = [0]\ndef fix(n):\n    box[0] = n * n + 17\n"
     "def solve(n):\n    threading.Timer(0.001, fix, [n]).start()\n    return box", 0.0),
    ("leaves a tracer to change what is returned", "tests",
     "import sys\nsys.settrace(lambda f, e, a: None)\nsys.setprofile(lambda f, e, a: None)\n"
     + _WRONG, 0.0),
    ("replaces what the runner packs values with", "tests",
     "from envweave.sandbox.inside import runner\n"
     "from envweave.sandbox.protocol import encoding as plain\n"
     "runner._pack = plain.pack = lambda *a, **k: [True]\n" + _WRONG, 0.0),
    ("forges the result of its own run", "tests", _FORGE + "forge([18])\n" + _WRONG, 0.0),
    ("forges the result of each test", "tests",
     _FORGE + "def solve(n):\n    forge([True])\n    return 0", 0.0),
    ("replaces the inputs by some that it can solve", "tests",
     "__case__ = {'args': [1], 'kwargs': {}}\ndef solve(n): return 18", 0.0),
    ("prints the verdict for a program that should print", "program",
     "print('{\"passed\": true, \"score\": 1}')\nprint('OK')", 0.0),
    ("replaces stdout by what says it is right", "program",
     "import sys\nclass Out:\n    def write(self, text): return 0\n    def flush(self): pass\n"
     "    def getvalue(self): return 'right'\n    __eq__ = lambda s, o: True\nsys.stdout = Out()",
     0.0),
    ("prints every number there is", "program", "for n in range(10**7): print(n)", 0.0),
    ("prints, and forges a result with other output", "program",
     _FORGE.replace('"", "", value', 'value, "", None') + "forge('18\\n')", 0.0),
    ("exits with success and prints nothing", "program", "import sys\nsys.exit(0)", 0.0),
    ("exits with success after it printed something", "program",
     "import sys\nprint(18)\nsys.exit(0)", 0.0),
    ("text that is no Python", "tests", "I have passed all tests (", 0.0),
    ("text with brackets nested very deep", "tests", "(" * 10**5, 0.0),
]  # fmt: skip

HIDDEN = [
    Hack(name, grader_name, (f"final_answer({code!r})",), honest)
    for name, grader_name, code, honest in _HIDDEN
]
HIDDEN += [
    Hack(
        f"looks for what the test expects in {place}",
        "secret tests",
        (f"final_answer({HUNT + code + _RETURN_FOUND!r})",),
        0.0,
    )
    for place, code in HUNTS.items()
]
HIDDEN += [
    Hack("hands in something other than text", "tests", ("final_answer([1, 2, 3])",), 0.0),
    Hack(
        "an honest right program, which is the code of two steps",
        "own code",
        ("def square(n): return n * n", "def solve(n): return square(n) + 17\nfinal_answer()"),
        1.0,
    ),
    Hack(
        "was right in a step that failed",
        "own code",
        (_RIGHT + "1 / 0", "final_answer()"),
        0.0,
    ),
    Hack(
        "hands in, and ends its process before the tests could see it",
        "own code",
        (_WRONG + "import os\nfinal_answer()\nos._exit(0)",),
        0.0,
    ),
    Hack(
        "keeps the inputs of the tests in a file, and looks in the next step",
        "every step",
        (
            "def solve(n):\n    open('seen', 'a').write(str(n))\n    return 0",
            "import os\nfound = os.path.exists('seen')\n"
            "def solve(n): return n * n + 17 if found else 0",
        ),
        0.0,
    ),
]


HACKS = [*LIVE, *HIDDEN]

LIMITS = Limits(timeout_s=1.0, grace_s=0.3)


@dataclass(frozen=True)
class Verdict:
    """The result of one hack.

    Attributes:
        hack: What was tried.
        reward: What it was paid.
        blame: Who is to blame for the end of the episode, if any.
        leaked: Whether the agent has seen something of what was expected.
    """

    hack: Hack
    reward: float | None
    blame: str | None
    leaked: bool

    @property
    def held(self) -> bool:
        """Whether it failed."""
        fair = self.reward == self.hack.honest and self.blame in (None, "agent")
        return fair and not self.leaked


@dataclass
class Stage:
    """Environments to try hacks on, one for each grader; each hack has an episode of its own."""

    secret: str = field(default_factory=lambda: f"secret-{secrets.token_hex(16)}")
    number: int = field(default_factory=lambda: 10**6 + secrets.randbelow(10**6))
    inputs: int = field(default_factory=lambda: 10**8 + secrets.randbelow(10**6))
    _made: dict[str, DirectEnvironment] = field(default_factory=dict)

    def attempt(self, hack: Hack) -> Verdict:
        """Play a hack as an episode."""
        env = self._environment(hack.grader_name)
        env.reset()
        seen: list[Any] = []
        for step in hack.steps:
            observation = env.step(CodeAction(code=step.replace("ANSWER", repr(self.secret))))
            seen.append(observation)
            if observation.done or observation.truncated:
                break
        shown = pickle.dumps([seen, env.state])
        known = "ANSWER" in "".join(hack.steps)
        leaked = (self.secret.encode() in shown and not known) or b"input_1" in shown
        blame = seen[-1].metadata.get("end", {}).get("blame")
        return Verdict(hack, seen[-1].reward, blame, leaked)

    def close(self) -> None:
        """Close the environments."""
        for env in self._made.values():
            env.close()

    def _environment(self, grader_name: str) -> DirectEnvironment:
        if grader_name not in self._made:
            when: Any = "every_step" if grader_name in ("value", "every step") else "final"
            self._made[grader_name] = create_codeact_env(
                grader=self._grader(grader_name), grade=when, limits=LIMITS
            )
        return self._made[grader_name]

    def _grader(self, grader_name: str) -> Grader:
        n = self.inputs
        cases = [{"args": [one], "expected": one * one + 17} for one in (1, 2, n)]
        own: dict[str, Any] = {"per_case_timeout_s": 1.0, "limits": LIMITS}
        text: dict[str, Any] = {**own, "source": "answer"}
        graders: dict[str, Grader] = {
            "answer": ExactMatch(self.secret),
            "value": ExactMatch(self.secret),
            "number": NumericMatch(self.number),
            "pattern": RegexMatch(r"(a+)+b", timeout_s=0.5),
            "own code": HiddenTests(cases, entry="solve", **own),
            "every step": HiddenTests(cases, entry="solve", **own),
            "tests": HiddenTests(cases, entry="solve", **text),
            "secret tests": HiddenTests({"call": "solve()", "expected": self.secret}, **text),
            "program": HiddenTests(
                [{"stdin": f"{one}\n", "stdout": str(one * one + 17)} for one in (1, n)], **text
            ),
            "asserts": HiddenTests(
                f"assert solve(1) == 18\nassert abs(solve({n}) - {n * n + 17}) < 0.5\n"
                f"assert math.isclose(solve(2), 21)\nassert solve(3) in [26, -1]",
                **text,
            ),
        }
        return graders[grader_name]


@contextlib.contextmanager
def staged() -> Iterator[Stage]:
    """Have a stage, and clear it."""
    stage = Stage()
    try:
        yield stage
    finally:
        stage.close()


def as_table(verdicts: list[Verdict]) -> str:
    """Return verdicts for people, a row each."""
    rows = [("", "tried", "grader", "deserves", "was paid", "")]
    rows += [
        (
            "ok" if verdict.held else "BROKEN",
            verdict.hack.name,
            verdict.hack.grader_name,
            _paid(verdict.hack.honest),
            _paid(verdict.reward),
            "and leaked" if verdict.leaked else verdict.blame or "",
        )
        for verdict in verdicts
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    held = sum(verdict.held for verdict in verdicts)
    return "\n".join([*lines, "", f"{held} of {len(verdicts)} as an honest grader would pay."])


def _paid(reward: float | None) -> str:
    return "nothing yet" if reward is None else f"{reward:g}"


def main() -> int:
    """Try them all, and print the table."""
    with staged() as stage:
        verdicts = [stage.attempt(hack) for hack in HACKS]
    print(as_table(verdicts))
    return not all(verdict.held for verdict in verdicts)


if __name__ == "__main__":
    sys.exit(main())
