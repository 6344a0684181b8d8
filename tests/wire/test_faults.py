"""The table of faults is closed, and every error comes back as itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from envweave import errors
from envweave.errors import EnvWeaveError, ServerError
from envweave.wire.encoding import JSON, MSGPACK, Encoding
from envweave.wire.faults import INTERNAL, KINDS, error_of, fault_of, kind_by_code, kind_of
from envweave.wire.messages import Reply, WireFault, read_replies


def below(cls: type[EnvWeaveError]) -> Iterator[type[EnvWeaveError]]:
    for one in cls.__subclasses__():
        if one.__module__ == errors.__name__:
            yield one
            yield from below(one)


ALL = sorted(set(below(EnvWeaveError)), key=lambda cls: cls.__name__)
ROWS = {kind.error for kind in KINDS}


def test_the_table_has_one_row_for_a_code_and_one_for_an_error():
    assert len({kind.code for kind in KINDS}) == len(ROWS) == len(KINDS)
    assert all(400 <= kind.status < 600 for kind in KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.code)
@pytest.mark.parametrize("encoding", [MSGPACK, JSON], ids=lambda one: one.name)
def test_an_error_in_the_table_comes_back_as_itself(encoding: Encoding, kind):
    raised = kind.error("what was asked, and what is wrong")

    frame = encoding.encode(Reply(id=1, fault=fault_of(raised)))
    (reply,) = read_replies(encoding.decode(frame))
    assert reply.fault is not None
    arrived = error_of(reply.fault)

    assert type(arrived) is type(raised)
    assert str(arrived) == str(raised)
    assert kind_by_code(reply.fault.code) is kind


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_every_envweave_error_comes_back_as_itself_or_its_nearest_parent(cls: type[EnvWeaveError]):
    arrived = error_of(fault_of(cls("in words")))

    nearest = next((one for one in cls.__mro__ if one in ROWS), ServerError)
    assert type(arrived) is nearest
    assert str(arrived) == "in words"


def test_a_subclass_of_an_authors_own_comes_back_as_what_it_derives_from():
    class TooHeavy(errors.ActionError):
        pass

    assert type(error_of(fault_of(TooHeavy("no")))) is errors.ActionError


@pytest.mark.parametrize("error", [ValueError("a secret"), KeyError("x"), KeyboardInterrupt()])
def test_the_message_of_an_unexpected_error_is_not_disclosed(error: BaseException):
    fault = fault_of(error)

    assert kind_of(error) is INTERNAL
    assert (fault.code, fault.message) == ("internal", "The server failed. See its log.")


def test_an_unknown_fault_code_is_a_server_error():
    arrived = error_of(WireFault(code="from the future", message="in words"))

    assert type(arrived) is ServerError
    assert kind_by_code("from the future") is INTERNAL
