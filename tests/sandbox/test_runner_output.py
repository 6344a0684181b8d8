"""Output of code is returned in order and up to the limit, however it was written."""

from __future__ import annotations

import pytest
from sandbox_sessions import Child, running

LIMIT = 10_000


@pytest.fixture(scope="module")
def child(tmp_path_factory):
    with running(tmp_path_factory.mktemp("work"), output_bytes=LIMIT) as one:
        yield one


def test_both_streams_come_back_with_the_cell_that_wrote_them(child: Child):
    finished = child.run("import sys\nprint('out', 1)\nprint('err', file=sys.stderr)")

    assert (finished.stdout, finished.stderr, finished.cut) == ("out 1\n", "err\n", False)
    assert child.run("1").stdout == ""


def test_output_before_an_exception_is_kept(child: Child):
    finished = child.run("print('before')\n1 / 0")

    assert finished.stdout == "before\n"


def test_descriptors_children_and_streams_keep_their_order(child: Child):
    finished = child.run(
        "import os, subprocess, sys\n"
        "print('a')\nos.write(1, b'b\\n')\nprint('c')\n"
        "subprocess.run(['echo', 'd'])\nsys.stdout.buffer.write(b'e\\n')\nprint('f')\n"
        "os.system('echo g >&2')\nprint('h', file=sys.stderr)"
    )

    assert (finished.stdout, finished.stderr) == ("a\nb\nc\nd\ne\nf\n", "g\nh\n")


def test_non_utf8_bytes_are_escaped(child: Child):
    finished = child.run(
        "import os, sys\nos.write(1, b'\\xff\\x00\\xfe')\nsys.stdout.buffer.write(b'|\\xe2\\x82')\n"
        "sys.stdout.buffer.write(b'\\xac|\\xe2')\nprint('!')"
    )

    assert finished.stdout == "\\xff\x00\\xfe|€|\\xe2!\n"


def test_lone_surrogates_are_escaped(child: Child):
    finished = child.run("print('\\ud800')\nraise ValueError('\\udfff')")

    assert finished.stdout == "\\ud800\n"
    assert finished.failure.message == "\\udfff"
    assert child.run("'\\ud800'").shown == "'\\ud800'"


@pytest.mark.parametrize(
    "write",
    [
        "print('x' * 25_000)",
        "for _ in range(2500): print('x' * 9)",
        "for _ in range(2500): sys.stdout.buffer.write(b'x' * 10)",
        "os.write(1, b'x' * 25_000)",
        "for _ in range(2500): os.write(1, b'x' * 10)",
    ],
    ids=["print", "prints", "buffer", "write", "writes"],
)
def test_output_over_the_limit_is_truncated_with_a_note(child: Child, write):
    finished = child.run(f"import os, sys\n{write}")

    kept, note = finished.stdout.rsplit("\n", 1)
    assert len(kept) == LIMIT
    assert note in ("... [15000 bytes cut]", "... [15001 bytes cut]")
    assert finished.cut
    assert child.run("print('next')").stdout == "next\n"


def test_the_limit_counts_bytes_and_splits_no_character(child: Child):
    finished = child.run("print('€' * 10_000, end='')")

    kept, _ = finished.stdout.rsplit("\n", 1)
    assert kept == "€" * (LIMIT // 3)


def test_endless_output_takes_no_memory(child: Child):
    before = child.value("import resource\nresource.getrusage(resource.RUSAGE_SELF).ru_maxrss")
    finished = child.run("import sys\nfor _ in range(300): sys.stderr.write('x' * 1_000_000)")
    after = child.value("resource.getrusage(resource.RUSAGE_SELF).ru_maxrss")

    assert finished.cut
    assert after - before < 20_000  # kilobytes


def test_output_of_threads_between_cells_appears_in_the_next(child: Child):
    child.run(
        "import threading\nmay, did = threading.Event(), threading.Event()\n"
        "def late():\n    may.wait(30)\n    print('late')\n    did.set()\n"
        "threading.Thread(target=late).start()"
    )

    child.run("threading.Timer(0.01, may.set).start()")
    finished = child.run("did.wait(30)\nprint('now')")

    assert finished.stdout == "late\nnow\n"


def test_the_streams_have_the_usual_attributes(child: Child):
    code = (
        "import io, sys\nsys.stdout.reconfigure(line_buffering=True)\nsys.stdout.flush()\n"
        "sys.stdout.buffer.flush()\nsys.stdout.close()\nsys.stdout.writelines(['a', 'b'])\n"
        "[sys.stdout.encoding, sys.stdout.isatty(), sys.stdout.fileno(), sys.stderr.fileno(),"
        " sys.stdout.writable(), sys.stdout.readable(), isinstance(sys.stdout, io.TextIOBase),"
        " sys.stdout is sys.__stdout__, sys.stdout.closed, isinstance(sys.stdout.errors, str)]"
    )

    finished = child.run(code)

    assert finished.value == ["utf-8", False, 1, 2, True, False, True, True, False, True]
    assert finished.stdout == "ab"


def test_writing_non_text_raises_as_for_any_stream(child: Child):
    finished = child.run("import sys\nsys.stdout.write(b'x')")

    assert finished.failure.message == "write() argument must be str, not bytes"


def test_redirection_and_warnings_and_logging_work(child: Child):
    finished = child.run(
        "import contextlib, io, logging, warnings\nkept = io.StringIO()\n"
        "with contextlib.redirect_stdout(kept): print('inside')\n"
        "warnings.warn('careful')\nlogging.warning('logged')\nkept.getvalue()"
    )

    assert finished.value == "inside\n"
    assert "UserWarning: careful" in finished.stderr
    assert "WARNING:root:logged" in finished.stderr


def test_a_file_that_code_redirects_its_output_to_is_left_alone(child: Child):
    code = (
        "import os\nsaved = os.dup(1)\nfile = open('redirected', 'wb+', buffering=0)\n"
        "os.dup2(file.fileno(), 1)\nos.write(1, b'kept')\nprint('printed')\n"
    )

    finished = child.run(code)
    after = child.run(
        "os.dup2(saved, 1)\nos.close(saved)\nos.write(1, b'back')\nopen('redirected').read()"
    )

    assert finished.stdout == "printed\n"
    assert (after.value, after.stdout) == ("kept", "back")


def test_forked_children_print_too_and_never_message_the_host(child: Child):
    finished = child.run(
        "import os\nprint('parent')\npid = os.fork()\nif pid == 0:\n    print('child')\n"
        "else:\n    status = os.waitpid(pid, 0)[1]\n    print(status)"
    )

    assert finished.stdout == "parent\nchild\n0\n"
    assert child.value("'one session'") == "one session"
