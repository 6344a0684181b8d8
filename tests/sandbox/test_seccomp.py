"""Assembled seccomp programs match their policy on both machines."""

from __future__ import annotations

import errno
import itertools
import random

import pytest
from sandbox_walls import decide, names_of, run_filter

from envweave.sandbox.walls import policy as policies
from envweave.sandbox.walls.seccomp import (
    ALLOW,
    KILL_PROCESS,
    MACHINES,
    NOTIFY,
    X32_BIT,
    ArgumentCheck,
    Rule,
    RuleCase,
    SeccompPolicy,
    assemble,
    refuse,
)

EPERM, ENOSYS = refuse(errno.EPERM), refuse(errno.ENOSYS)
ALL_ONES = (1 << 64) - 1

POLICIES = {
    "python": policies.session_policy(shell=False, pid=None, signals_scoped=False, branching=False),
    "python that branches": policies.session_policy(
        shell=False, pid=None, signals_scoped=True, branching=True
    ),
    "python without namespaces": policies.session_policy(
        shell=False,
        pid=77,
        signals_scoped=False,
        branching=False,
        files_shared=True,
        lengths_kept=False,
    ),
    "shell": policies.session_policy(shell=True, pid=None, signals_scoped=True, branching=False),
    "shell without namespaces": policies.session_policy(
        shell=True, pid=77, signals_scoped=False, branching=False
    ),
    "gate": policies.gate_policy(),
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", POLICIES)
def test_a_program_agrees_with_its_policy_on_every_number(name, machine):
    policy = POLICIES[name]
    convention = MACHINES[machine].audit

    program = assemble(policy, machine)

    dice = random.Random(0)
    for number in range(601):
        for arguments in interesting_arguments(policy, machine, number, dice):
            expected = decide(policy, machine, number, arguments)
            assert run_filter(program, convention, number, arguments) == expected, (
                number,
                arguments,
            )


def interesting_arguments(policy, machine, number, dice):
    """Values in the rule of a call, adjacent values, and values with more bits."""
    rule = policy.rules.get(names_of(machine).get(number, ""), Rule(ALLOW))
    checks = [check for case in rule.cases for check in case.checks]
    choices = []
    for argument in range(6):
        of_this = [check for check in checks if check.argument == argument]
        values = {0, 1, ALL_ONES, 1 << 32, dice.getrandbits(64)} if of_this else {0}
        for check in of_this:
            for value in check.values:
                values |= {value, value ^ 1, value | 1 << 40, value | 1 << 63}
                values |= {value | 1 << bit for bit in range(0, 64, 5)}
                values.add(value | dice.getrandbits(64) & ~check.mask)
        choices.append(sorted(value & ALL_ONES for value in values))
    every = list(itertools.product(*choices))
    some = every if len(every) <= 400 else dice.sample(every, 400)
    return some + [arguments_for(case) for case in rule.cases]


def arguments_for(case):
    """Return arguments for which a case holds."""
    values = {}
    for check in case.checks:
        values[check.argument] = values.get(check.argument, 0) | check.values[0]
    return tuple(values.get(argument, 0) for argument in range(6))


@pytest.mark.parametrize("machine", MACHINES)
def test_a_call_by_another_convention_kills(machine):
    program = assemble(POLICIES["gate"], machine)
    others = [0x4000_0003, 0x4000_0028, 0, *(other.audit for other in MACHINES.values())]
    others.remove(MACHINES[machine].audit)

    actions = {
        run_filter(program, other, number) for other in others for number in (0, 59, 2**32 - 1)
    }

    assert actions == {KILL_PROCESS}


@pytest.mark.parametrize("number", [X32_BIT, X32_BIT | 57, X32_BIT | 520, 0x7FFF_FFFF, 2**32 - 1])
@pytest.mark.parametrize("name", ["gate", "python"])
def test_on_x86_64_a_number_of_x32_does_not_exist(name, number):
    program = assemble(POLICIES[name], "x86_64")

    assert run_filter(program, MACHINES["x86_64"].audit, number) == ENOSYS


@pytest.mark.parametrize("number", [470, 1000, 0x4000_0001, 2**32 - 1])
def test_a_number_newer_than_the_table_does_not_exist(number):
    program = assemble(POLICIES["python"], "aarch64")

    assert run_filter(program, MACHINES["aarch64"].audit, number) == ENOSYS


def test_jumps_longer_than_one_instruction_allows_work():
    """Rules with many values after the search tree: hundreds of instructions apart."""
    names = list(MACHINES["x86_64"].numbers)
    rules = {
        name: Rule(
            refuse(index), (RuleCase((ArgumentCheck(0, tuple(range(index, index + 60))),), ALLOW),)
        )
        for index, name in enumerate(names[::7])
    }
    policy = SeccompPolicy(rules, default=EPERM, unknown=ENOSYS)

    program = assemble(policy, "x86_64")

    assert len(program) // 8 > 3000
    for number in range(480):
        for argument in range(0, 120, 5):
            expected = decide(policy, "x86_64", number, (argument,))
            given = run_filter(program, MACHINES["x86_64"].audit, number, (argument,))
            assert given == expected, (number, argument)


def test_a_check_with_far_targets_reaches_both():
    many = tuple(range(1000, 1600))
    rule = Rule(
        EPERM,
        (RuleCase((ArgumentCheck(0, (5,)), ArgumentCheck(1, many)), ALLOW), RuleCase((), NOTIFY)),
    )
    policy = SeccompPolicy({"getpid": rule}, default=EPERM, unknown=ENOSYS)

    program = assemble(policy, "x86_64")

    def action(*arguments):
        number = MACHINES["x86_64"].numbers["getpid"]
        return run_filter(program, MACHINES["x86_64"].audit, number, arguments)

    assert [action(5, 1000), action(5, 1599), action(5, 1600), action(6, 1000)] == [
        ALLOW,
        ALLOW,
        NOTIFY,
        NOTIFY,
    ]


def test_a_program_that_is_too_long_is_not_assembled():
    rule = Rule(EPERM, (RuleCase((ArgumentCheck(0, tuple(range(5000))),), ALLOW),))

    with pytest.raises(ValueError, match="instructions, more than 4096"):
        assemble(SeccompPolicy({"getpid": rule}, default=EPERM, unknown=ENOSYS), "x86_64")


def test_a_check_whose_values_differ_in_their_upper_half_is_refused():
    with pytest.raises(ValueError, match="upper 32 bits"):
        ArgumentCheck(0, (1, 1 << 32))


def test_a_check_of_bits_outside_its_mask_is_refused():
    with pytest.raises(ValueError, match="outside the mask"):
        ArgumentCheck(0, (3,), 1)


def test_a_check_compares_all_64_bits():
    value = 5 << 32 | 7
    rule = Rule(EPERM, (RuleCase((ArgumentCheck(2, (value,), ALL_ONES & ~(1 << 40)),), ALLOW),))
    program = assemble(SeccompPolicy({"getpid": rule}, default=EPERM, unknown=ENOSYS), "aarch64")

    def action(argument):
        number = MACHINES["aarch64"].numbers["getpid"]
        return run_filter(program, MACHINES["aarch64"].audit, number, (0, 0, argument))

    assert action(value) == action(value | 1 << 40) == ALLOW
    assert action(7) == action(value | 1 << 41) == action(value | 8) == EPERM
