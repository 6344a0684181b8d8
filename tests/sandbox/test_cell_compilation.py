"""A cell compiled in two pieces is the same as one compiled by its syntax tree."""

from __future__ import annotations
import __future__

import itertools
import re
import subprocess
import sys
import warnings
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envweave.sandbox.inside.cells import _compile_apart, _compile_whole

pytestmark = pytest.mark.slow  # compiles thousands of cells

PIECES = [
    "x = 1",
    "x",
    "x + 1  # comment",
    "# comment",
    "",
    "    # indented comment",
    "'''doc'''",
    "'''a\nb'''",
    "s = '''\nx\n'''",
    "s = '''\n# no comment\n    y\n'''",
    "f(1,\n2)",
    "f(\n    1,\n)",
    "y = [\n1,\n2,\n]",
    "if x:\n    y = 2",
    "if x:\n    y = 2\nelse:\n    y = 3",
    "try:\n    1\nexcept E:\n    2\nfinally:\n    3",
    "for i in range(3):\n    i",
    "while x:\n    break\nelse:\n    z",
    "@d\ndef g():\n    return 1",
    "def g(a: int) -> int:\n    '''doc'''\n\n    return a",
    "class C:\n    x: int = 1",
    "async def h():\n    await k()",
    "await h()",
    "x: int = 3",
    "a; b",
    "a = 1; b",
    "x = 1 + \\\n2",
    "'\\d'",
    "print('\\n')",
    "with x as y: pass",
    "lambda: 1",
    "(x := 2)",
    "*a, b = c",
    "del x",
    "import os",
    "from __future__ import annotations",
    "match x:\n    case 1:\n        y\n    case _:\n        z",
    "f'{x}' 'b'",
    "x is 1",
    "assert (x, 'y')",
    "return 1",
    "yield",
    "(yield)",
    "x = ",
    "if x",
    "else:",
    ")",
    "'''",
    "  x",
    "\tx",
    "x\r\ny",
    "\f",
    "x\f",
    "é = 'ü'",
    "\0",
    "nonlocal x",
    "global x",
    "break",
    "1if x else 2",
    "f(**a, *b)",
    "print(*a)",
    "...",
    'str("""',
    'x = 1 #""")',
    '"""',
    'x = 1 #"""',
    "lambda \\",
    "x: int",
]


def outcome(compile_parts: Any, code: str) -> Any:
    """Return everything that is known about the compiled parts, or about the error."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            parts = compile_parts(code, "<cell 1>", 0)
        except Exception as error:  # noqa: BLE001 - whatever the compiler raises
            return type(error), error.args, warned_of(warned)
    if parts is None:
        return None
    return [None if part is None else shape(part) for part in parts], warned_of(warned)


def warned_of(warned: list[Any]) -> list[Any]:
    # In which order the two pieces are read makes no difference otherwise.
    return sorted((str(one.message), one.category.__name__, one.lineno) for one in warned)


def shape(code: CodeType) -> Any:
    constants = [shape(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    return (
        code.co_code,
        constants,
        code.co_names,
        code.co_flags,
        list(code.co_positions()),
        code.co_firstlineno,
        code.co_name,
        code.co_filename,
    )


def assert_same(code: str) -> bool:
    apart = outcome(_compile_apart, code)
    if apart is None:
        return False
    whole = outcome(_compile_whole, code)
    if apart != whole and isinstance(apart[0], list) and isinstance(whole[0], list):
        # Comments alone make an empty body instead of none.
        empty = shape(compile("", "<cell 1>", "exec", dont_inherit=True))
        assert whole[0][0] is None, code
        assert apart[0][0][0] == empty[0], code
        apart[0][0] = None
    assert apart == whole, code
    return True


def test_every_pair_and_many_triples_of_statements_compile_the_same() -> None:
    tried = itertools.chain(
        itertools.product(PIECES, repeat=1),
        itertools.product(PIECES, repeat=2),
        itertools.product(PIECES[:24], repeat=3),
    )

    used = sum(assert_same("\n".join(pieces)) for pieces in tried)

    assert used > 2000


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=8), st.sampled_from(["", "\n", "\n\n# end\n"]))
def test_cells_of_any_statements_compile_the_same(pieces: list[str], end: str) -> None:
    assert_same("\n".join(pieces) + end)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab1 =+()[]{}'\"#:\\\n\t;,@.\f", max_size=40))
def test_any_text_compiles_the_same(code: str) -> None:
    assert_same(code)


def test_modules_of_the_standard_library_cut_anywhere_compile_the_same() -> None:
    folder = Path(__future__.__file__).parent
    used = 0
    for name in ("textwrap", "bisect", "heapq", "queue"):
        text = (folder / f"{name}.py").read_text()
        undocumented = re.sub(r'"""(?s:.*?)"""', "'doc'", text)
        for lines in (text.splitlines(keepends=True), undocumented.splitlines(keepends=True)):
            for end in range(1, len(lines), 7):
                used += assert_same("".join(lines[:end]))

    assert used > 20


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import math\nx = 3\nif x:\n    y = x * 2\n\ny + 1  # the end\n\n", 7),
        ("'''\nx\n'''\ny = 1", None),
        ("def f():\n    raise ValueError('a')\n\nf()\n", "line 4, in <module>"),
        ("x = 1\ny = (\n", "'(' was never closed"),
        ('len("""\nx = 1 #""")', 8),
    ],
)
def test_a_cell_gives_the_value_or_the_traceback_of_its_lines(code: str, expected: Any) -> None:
    from envweave.sandbox import Sandbox

    with Sandbox() as box, box.session() as session:
        result = session.run(code)

    if isinstance(expected, str):
        assert expected in result.traceback
    else:
        assert result.return_value == expected


def test_a_warning_of_a_cell_is_shown_once() -> None:
    code = (
        "from envweave.sandbox.inside.cells import Cells\n"
        "Cells().run('x = 1\\ny = x is 1\\nz = 3\\nz')"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stderr.count("SyntaxWarning") == 1
