"""The kernel runs an assembled program like the interpreter in the tests."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from envweave.sandbox.walls.syscall_numbers import NUMBERS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's")

FILTERED = """
import ctypes, json, sys
from envweave.sandbox.walls import capabilities, policy, seccomp
from envweave.sandbox.walls.syscall_numbers import MACHINE, NUMBERS

libc = ctypes.PyDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def errno_of(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    return ctypes.get_errno() if result == -1 else 0

"""


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", FILTERED + code], capture_output=True, text=True, check=False
    )


def test_every_number_gets_its_own_answer():
    """Each call that Python can do without is refused with an errno derived from its number."""
    done = run(
        """
session = policy.session_policy(shell=False, pid=None, signals_scoped=True, branching=False)
kept = {
    name for name, rule in session.rules.items() if rule.cases or rule.otherwise == seccomp.ALLOW
}
others = {name: number for name, number in NUMBERS.items() if name not in kept}
rules = {name: seccomp.Rule(seccomp.refuse(1000 + number)) for name, number in others.items()}
filtered = seccomp.SeccompPolicy(rules, default=seccomp.ALLOW, unknown=seccomp.refuse(4000))
capabilities.no_new_privileges()
seccomp.install(seccomp.assemble(filtered, MACHINE))
# The last two on x86_64 are calls of the kernel's own probes, which no filter sees, and which end
# every other process.
known = {*NUMBERS.values(), 335, 336}
expected = {number: 1000 + number for number in others.values()}
expected |= {number: 4000 for number in range(600) if number not in known}
got = {number: errno_of(number, 1, 2, 3, 4, 5, 6) for number in expected}
wrong = {number: (errno, got[number]) for number, errno in expected.items() if got[number] != errno}
print(json.dumps([len(expected), wrong]))
"""
    )

    assert done.returncode == 0, done.stderr
    tested, wrong = json.loads(done.stdout)
    assert tested > 300
    assert wrong == {}


def test_arguments_are_compared_in_full():
    done = run(
        """
values = (3, 70, 0x8000_0000)
wide = 5 << 32 | 9
rules = {
    "getpriority": seccomp.Rule(seccomp.refuse(1001), (
        seccomp.RuleCase(
            (seccomp.ArgumentCheck(0, values), seccomp.ArgumentCheck(1, (8,), 12)),
            seccomp.refuse(1002),
        ),
        seccomp.RuleCase((seccomp.ArgumentCheck(5, (wide,)),), seccomp.refuse(1003)),
    )),
}
capabilities.no_new_privileges()
filtered = seccomp.SeccompPolicy(rules, default=seccomp.ALLOW, unknown=seccomp.ALLOW)
seccomp.install(seccomp.assemble(filtered, MACHINE))
number = NUMBERS["getpriority"]
print([
    errno_of(number, *arguments)
    for arguments in (
        (3, 8), (70, 11), (0x8000_0000, 1 << 40 | 8), (70, 12), (1 << 32 | 70, 8), (4, 8),
        (0, 0, 0, 0, 0, wide), (0, 0, 0, 0, 0, 9), (0, 0, 0, 0, 0, wide | 1 << 62),
    )
])
"""
    )

    assert done.stdout == str([1002, 1002, 1002, 1001, 1001, 1001, 1003, 1001, 1001]) + "\n"


def test_an_invalid_program_is_refused():
    done = run(
        """
capabilities.no_new_privileges()
try:
    seccomp.install(bytes(8))
except OSError as error:
    print(error)
"""
    )

    assert "seccomp: Invalid argument" in done.stdout


@pytest.mark.skipif("open" not in NUMBERS, reason="only x86_64 has a second convention here")
def test_a_call_by_the_32_bit_convention_kills_the_process():
    """The corpus of attacks tries it too; this shows the answer."""
    done = run(
        """
import mmap
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("b814000000cd80c3"))  # getpid by int 0x80
call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
capabilities.no_new_privileges()
seccomp.install(seccomp.assemble(policy.gate_policy(), MACHINE))
call()
"""
    )

    assert done.returncode == -31  # SIGSYS
