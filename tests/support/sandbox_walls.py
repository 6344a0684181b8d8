"""The sandbox's walls: code run behind those that need no namespaces, seccomp programs interpreted.

`run_behind_walls` starts this file, which puts the walls up around itself and runs the code.
`run_filter` runs a program of the kernel's packet filter language as the kernel would.
"""

from __future__ import annotations

import functools
import json
import os
import struct
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from envweave.sandbox.walls.seccomp import MACHINES, ArgumentCheck, SeccompPolicy

TIMEOUT_S = 60.0


def run_behind_walls(code: str, work: Path, **options: Any) -> Any:
    """Run code in `work` and return what it passed to `report`.

    Options are those of `put_up_walls`. Code finds `refusal`, `report` and `call` defined.
    """
    done = subprocess.run(
        [sys.executable, "-B", __file__, json.dumps(options)],
        input=textwrap.dedent(code),
        cwd=work,
        env={
            "PATH": os.defpath,
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "LANG": "C.UTF-8",
            "OPENBLAS_NUM_THREADS": "2",
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def put_up_walls(
    *,
    shell: bool = False,
    pid: bool = False,
    signals_scoped: bool = True,
    branching: bool = False,
    files_shared: bool = False,
    lengths_kept: bool = True,
    preload: tuple[str, ...] = (),
    limits: dict[str, Any] | None = None,
    landlock: bool = True,
    seccomp: bool = True,
) -> None:
    """Put up walls around this process, in the order that a session does."""
    from envweave.sandbox import Limits
    from envweave.sandbox.walls import capabilities, policy, rlimits
    from envweave.sandbox.walls import landlock as files
    from envweave.sandbox.walls import seccomp as calls
    from envweave.sandbox.walls.syscall_numbers import MACHINE

    for name in preload:
        __import__(name)
    capabilities.no_new_privileges()
    capabilities.drop_all()
    capabilities.die_with_parent()
    rlimits.apply(rlimits.for_session(Limits(**limits or {}), counted_with=100_000))
    if landlock and files.abi() > 0:
        readable = {"/usr", "/lib", "/lib64", "/bin", "/etc", sys.prefix, sys.base_prefix}
        with (
            files.opened([*readable, *filter(os.path.isdir, sys.path)]) as read,
            files.opened(["."]) as write,
            files.opened(["/dev/null", "/dev/urandom"]) as devices,
        ):
            rules = files.ruleset(read=read, write=write, devices=devices, shell=shell)
        files.restrict_self(rules)
        os.close(rules)
    if seccomp:
        rules_of_calls = policy.session_policy(
            shell=shell,
            pid=os.getpid() if pid else None,
            signals_scoped=signals_scoped,
            branching=branching,
            files_shared=files_shared,
            lengths_kept=lengths_kept,
        )
        calls.install(calls.assemble(rules_of_calls, MACHINE))


def _main() -> None:
    import errno

    from envweave.sandbox.walls import kernel

    def refusal(act: Any, *arguments: Any, **options: Any) -> str | None:
        """Return the name of the errno that an act fails with; `None` if it does not."""
        try:
            act(*arguments, **options)
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, str(error))
        return None

    def report(value: Any) -> None:
        print(json.dumps(value), flush=True)

    code = sys.stdin.read()
    put_up_walls(**json.loads(sys.argv[1]))
    names = {"__name__": "__main__", "refusal": refusal, "report": report, "call": kernel.call}
    exec(compile(code, "<behind walls>", "exec"), names)


_LOAD, _AND, _RETURN, _GO, _IF_EQUAL, _IF_AT_LEAST = 0x20, 0x54, 0x06, 0x05, 0x15, 0x35
_DESCRIPTION = struct.Struct("<iIQ6Q")


def run_filter(
    program: bytes, convention: int, number: int, arguments: tuple[int, ...] = ()
) -> int:
    """Return the action of a program for a call. Fails where the kernel would not take it."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    described = _DESCRIPTION.pack(_signed(number), convention, 0, *padded)
    instructions = _decoded(program)
    at = loaded = 0
    while True:
        code, then, otherwise, value = instructions[at]
        at += 1
        if code == _RETURN:
            return value
        if code == _LOAD:
            assert value % 4 == 0
            (loaded,) = struct.unpack_from("<I", described, value)
        elif code == _AND:
            loaded &= value
        elif code == _GO:
            at += value
        else:
            assert code in {_IF_EQUAL, _IF_AT_LEAST}
            holds = loaded == value if code == _IF_EQUAL else loaded >= value
            at += then if holds else otherwise


def decide(
    policy: SeccompPolicy, machine: str, number: int, arguments: tuple[int, ...] = ()
) -> int:
    """Return what a policy says of a call, read off its rules."""
    name = names_of(machine).get(number)
    if name is None:
        return policy.unknown
    rule = policy.rules.get(name)
    if rule is None:
        return policy.default
    for case in rule.cases:
        if all(_holds(check, arguments) for check in case.checks):
            return case.action
    return rule.otherwise


def _holds(check: ArgumentCheck, arguments: tuple[int, ...]) -> bool:
    given = (*arguments, 0, 0, 0, 0, 0, 0)[check.argument]
    return given & check.mask in check.values


@functools.cache
def _decoded(program: bytes) -> list[tuple[int, int, int, int]]:
    instructions = list(struct.iter_unpack("<HBBI", program))
    assert 0 < len(instructions) <= 4096
    return instructions


@functools.cache
def names_of(machine: str) -> dict[int, str]:
    """Return the table of a machine by number."""
    return {number: name for name, number in MACHINES[machine].numbers.items()}


def _signed(number: int) -> int:
    return number - (1 << 32) if number >= 1 << 31 else number


if __name__ == "__main__":
    _main()
