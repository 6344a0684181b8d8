"""The syscall tables match the kernel headers."""

from __future__ import annotations

import errno
import os
import re
import sys
from pathlib import Path

import pytest

from envweave.sandbox.walls import kernel, syscall_numbers

X86_64_HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
GENERIC_HEADER = Path("/usr/include/asm-generic/unistd.h")

NEWER = {
    "cachestat": 451,
    "fchmodat2": 452,
    "map_shadow_stack": 453,
    "futex_wake": 454,
    "futex_wait": 455,
    "futex_requeue": 456,
    "statmount": 457,
    "listmount": 458,
    "lsm_get_self_attr": 459,
    "lsm_set_self_attr": 460,
    "lsm_list_modules": 461,
    "mseal": 462,
    "setxattrat": 463,
    "getxattrat": 464,
    "listxattrat": 465,
    "removexattrat": 466,
    "open_tree_attr": 467,
    "file_getattr": 468,
    "file_setattr": 469,
}
"""What headers of 2023 do not have yet; the numbers are the same on all machines."""


def defined_in(header: Path) -> dict[str, int]:
    if not header.exists():
        pytest.skip(f"{header} is not installed")
    lines = re.finditer(r"^#define\s+__NR(?:3264)?_(\w+)\s+(\d+)$", header.read_text(), re.M)
    return {line[1]: int(line[2]) for line in lines}


def test_the_table_of_x86_64_is_that_of_the_kernels_header():
    defined = defined_in(X86_64_HEADER)

    table = dict(syscall_numbers.X86_64)

    older = {name: number for name, number in table.items() if name not in NEWER}
    assert {**defined, "memfd_secret": 447} == older
    assert table.items() >= NEWER.items()


def test_the_table_of_aarch64_is_that_of_the_kernels_generic_header():
    defined = defined_in(GENERIC_HEADER)
    defined["newfstatat"] = defined.pop("fstatat")
    for other in ("syscalls", "arch_specific_syscall", "sync_file_range2"):
        del defined[other]
    # 64-bit times for 32-bit machines.
    defined = {name: number for name, number in defined.items() if not 403 <= number <= 423}

    table = dict(syscall_numbers.AARCH64)

    older = {name: number for name, number in table.items() if name not in NEWER}
    assert defined == older
    assert table.items() >= NEWER.items()


@pytest.mark.parametrize(
    "table", [syscall_numbers.X86_64, syscall_numbers.AARCH64], ids=["x86_64", "aarch64"]
)
def test_no_two_names_share_a_number(table):
    assert len(set(table.values())) == len(table)


@pytest.mark.skipif(sys.platform != "linux", reason="system calls of Linux")
def test_the_current_machine_agrees_with_its_table():
    asked = {name: kernel.call(name) for name in ("getpid", "getppid", "getuid", "gettid")}

    assert asked["getpid"] == os.getpid()
    assert asked["getppid"] == os.getppid()
    assert asked["getuid"] == os.getuid()


def test_a_call_that_the_machine_lacks_is_refused_by_name():
    with pytest.raises(OSError, match=r"no_such_call: .* has no such system call") as refusal:
        syscall_numbers.number("no_such_call")

    assert refusal.value.errno == errno.ENOSYS
