"""IDs: registering them, finding them, and what is said where nothing is found."""

from __future__ import annotations

import dataclasses
import functools
import sys
import threading
from typing import Any

import pytest

import envweave as ew
from envweave.errors import (
    AlreadyRegisteredError,
    DefinitionError,
    EnvIdError,
    EnvNotFoundError,
    OptionError,
)
from envweave.examples import CounterEnv
from envweave.registry import DEFAULT_REGISTRY


@pytest.fixture
def registry() -> ew.Registry:
    return ew.Registry()


@pytest.mark.parametrize("written", ["local://mine-v0", "mine-v0"])
@pytest.mark.parametrize("asked", ["local://mine-v0", "mine-v0"])
def test_an_id_is_found_with_its_scheme_and_without(registry, written, asked):
    ew.register(written, CounterEnv, kwargs={"done_at": 5}, registry=registry)

    found = ew.spec(asked, registry=registry)

    assert (found.id, found.factory, found.kwargs) == (
        "local://mine-v0",
        CounterEnv,
        {"done_at": 5},
    )


def test_register_returns_the_spec_and_copies_the_keywords(registry):
    kwargs = {"done_at": 5}

    made = ew.register("mine-v0", CounterEnv, kwargs=kwargs, registry=registry)
    kwargs["done_at"] = 7

    assert ew.spec("mine-v0", registry=registry) is made
    assert made.kwargs == {"done_at": 5}
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.id = "other"


def test_keywords_of_make_are_added_to_those_registered(registry):
    ew.register("mine-v0", CounterEnv, kwargs={"done_at": 5}, registry=registry)

    with ew.make("mine-v0", done_at=1, registry=registry) as env:
        env.reset()

        assert env.step({"delta": 1}).done


def test_an_import_path_is_a_factory_too(registry):
    ew.register("mine-v0", "envweave.examples.counter:CounterEnv", registry=registry)

    with ew.make("mine-v0", done_at=1, registry=registry) as env:
        assert env.reset().observation.value == 0
        assert env.id == "local://mine-v0"


def test_a_taken_id_is_refused_unless_it_is_to_be_replaced(registry):
    ew.register("local://mine-v0", CounterEnv, registry=registry)

    with pytest.raises(AlreadyRegisteredError, match=r"'mine-v0' is registered.*replace=True"):
        ew.register("mine-v0", dict, registry=registry)
    assert ew.spec("mine-v0", registry=registry).factory is CounterEnv

    ew.register("mine-v0", dict, replace=True, registry=registry)
    assert ew.spec("mine-v0", registry=registry).factory is dict


def test_a_local_environment_takes_precedence_over_an_announced_one_of_the_same_name(registry):
    ew.register("counter-v0", CounterEnv, kwargs={"done_at": 1}, registry=registry)

    found = ew.spec("counter-v0", registry=registry)

    assert (found.id, found.factory) == ("local://counter-v0", CounterEnv)


def test_a_bare_name_finds_what_packages_announce_but_local_does_not(registry):
    assert ew.spec("counter-v0", registry=registry).load() is CounterEnv
    with pytest.raises(EnvNotFoundError, match=r"'local://counter-v0'.*mean 'counter-v0'"):
        ew.spec("local://counter-v0", registry=registry)


def test_registries_are_independent(registry):
    ew.register("mine-v0", CounterEnv, registry=registry)

    with pytest.raises(EnvNotFoundError):
        ew.make("mine-v0", registry=ew.Registry())
    with pytest.raises(EnvNotFoundError):
        ew.make_vector("local://mine-v0", num_envs=2)
    assert "local://mine-v0" not in [spec.id for spec in DEFAULT_REGISTRY.list()]


def test_every_make_function_takes_a_registry(registry):
    ew.register("mine-v0", CounterEnv, registry=registry)

    with (
        ew.make("mine-v0", registry=registry) as env,
        ew.make_vector("mine-v0", num_envs=2, registry=registry) as vector,
    ):
        env.reset()
        vector.reset()
    assert repr(ew.make_async("mine-v0", registry=registry)) == "AsyncEnv('local://mine-v0')"


def test_listing_shows_what_is_registered_here_then_what_packages_announce(registry):
    ew.register("z-v0", CounterEnv, description="Last of all.", registry=registry)
    ew.register("a-v0", CounterEnv, registry=registry)

    listed = ew.list_envs(registry=registry)
    ids = [spec.id for spec in listed]

    assert ids[:2] == ["local://a-v0", "local://z-v0"]
    assert ids[2:] == sorted(ids[2:])
    assert "counter-v0" in ids
    assert [spec.describe() for spec in listed[:2]] == [
        "Count up to `done_at`; the reward of a step is the number it added.",
        "Last of all.",
    ]


class Undescribed(ew.Environment):
    def reset(self) -> Any: ...

    def step(self, action: Any) -> Any: ...


@pytest.mark.parametrize(
    "factory", [Undescribed, lambda: CounterEnv(), functools.partial(CounterEnv, 3)]
)
def test_a_factory_without_a_docstring_has_no_description(registry, factory):
    assert ew.register("mine-v0", factory, registry=registry).describe() == ""


# What cannot be registered


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("", "is not a valid ID"),
        ("local://", "is not a valid ID"),
        ("my env", "without spaces"),
        (" mine-v0", "without spaces"),
        ("mine-v0\n", "without spaces"),
        ("gym://CartPole-v1", "gym:// IDs are defined elsewhere"),
        ("local://gym://x", "gym:// IDs are defined elsewhere"),
        (None, "must be a string.*got None"),
        (CounterEnv, "must be a string"),
    ],
)
def test_an_invalid_id_cannot_be_registered(registry, env_id, message):
    with pytest.raises(EnvIdError, match=message):
        ew.register(env_id, CounterEnv, registry=registry)
    assert ew.list_envs(registry=registry) == ew.list_envs(registry=ew.Registry())


@pytest.mark.parametrize("factory", [CounterEnv(), 3])
def test_a_non_callable_cannot_be_registered(registry, factory):
    with pytest.raises(DefinitionError, match=r"'mine-v0' cannot .* is not callable"):
        ew.register("mine-v0", factory, registry=registry)


# What cannot be found


@pytest.mark.parametrize(
    ("env_id", "error", "message"),
    [
        ("", EnvIdError, "The ID is empty. See `envweave list`."),
        ("   ", EnvIdError, "The ID is empty"),
        ("countr-v0", EnvNotFoundError, r"'countr-v0'. Did you mean 'counter-v0'\? See `envweave"),
        ("mien-v0", EnvNotFoundError, r"'mien-v0'. Did you mean 'mine-v0'\?"),
        ("local://mien-v0", EnvNotFoundError, r"Did you mean 'local://mine-v0'\?"),
        ("zzzzzz", EnvNotFoundError, r"registered as 'zzzzzz'. See `envweave list`"),
        ("mine-v0 ", EnvNotFoundError, r"Did you mean 'mine-v0'\?"),
        ("loacl://mine-v0", EnvIdError, r"unknown scheme 'loacl'. Did you mean 'local'\? Known: "),
        ("zzz://mine-v0", EnvIdError, r"unknown scheme 'zzz'. Known: .*local://.*pkg://"),
        ("://mine-v0", EnvIdError, "unknown scheme ''"),
        ("local://", EnvIdError, "names nothing after 'local://'"),
        ("pkg://", EnvIdError, "names nothing after 'pkg://'"),
        ("pkg://envweave", EnvIdError, "Use 'pkg://module:attribute'"),
        ("pkg://:CounterEnv", EnvIdError, "Use 'pkg://module:attribute'"),
        ("pkg://envweave:", EnvIdError, "Use 'pkg://module:attribute'"),
    ],
)
def test_an_unknown_id_is_an_error_with_advice(registry, env_id, error, message):
    ew.register("mine-v0", CounterEnv, registry=registry)

    with pytest.raises(error, match=message):
        ew.make(env_id, registry=registry)


@pytest.mark.parametrize("env_id", [None, 3, CounterEnv])
def test_an_id_must_be_a_string(env_id):
    with pytest.raises(EnvIdError, match="must be a string"):
        ew.spec(env_id)


# Several threads


def test_threads_that_register_one_name_agree_on_one_winner(registry):
    start = threading.Barrier(8)
    won: list[int] = []

    def register(number: int) -> None:
        start.wait(timeout=30)
        try:
            ew.register("mine-v0", CounterEnv, kwargs={"done_at": number}, registry=registry)
        except AlreadyRegisteredError:
            return
        won.append(number)

    run_together([functools.partial(register, number) for number in range(8)])

    assert [ew.spec("mine-v0", registry=registry).kwargs["done_at"]] == won


def test_listing_and_missing_an_id_are_safe_while_others_register(registry):
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    failures: list[Exception] = []

    def register(number: int) -> None:
        for index in range(300):
            ew.register(f"mine-{number}-{index}", CounterEnv, registry=registry)

    def look() -> None:
        try:
            for _ in range(20):
                registry.list()
                with pytest.raises(EnvNotFoundError):
                    registry.get("zzz", announced=False)
        except Exception as error:  # noqa: BLE001 - whatever a thread meets
            failures.append(error)

    try:
        run_together([functools.partial(register, number) for number in range(3)] + [look] * 3)
    finally:
        sys.setswitchinterval(interval)

    assert failures == []
    assert sum(spec.id.startswith("local://mine-") for spec in registry.list()) == 900


def run_together(work: list[Any]) -> None:
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)


# Making


class Needy(ew.Environment):
    """Needs a keyword, and refuses some values of it."""

    def __init__(self, size: int, *, colour: str = "red") -> None:
        if size < 0:
            raise ValueError(f"size {size} is negative")

    def reset(self) -> tuple[int, dict[str, Any]]:
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return 0, 0.0, False, False, {}


@pytest.mark.parametrize("target", [Needy, "mine-v0"])
@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"size": 1, "color": "blue"}, r"'color' is neither an option of make\(\) nor .*'colour'"),
        ({"size": 1, "zzz": 1}, r"'zzz' is neither .* It takes: size, colour."),
        ({}, r"needs the keyword 'size': make\(..., size="),
        ({"size": 1, "autorest": True}, "'autorest' is neither an option of make"),
    ],
)
def test_a_keyword_that_is_unknown_or_missing_is_named(registry, target, kwargs, message):
    ew.register("mine-v0", Needy, registry=registry)

    with pytest.raises(OptionError, match=message):
        ew.make(target, registry=registry, **kwargs)


def test_positional_only_arguments_are_not_keywords():
    def factory(*args: Any) -> CounterEnv:
        return CounterEnv(*args)

    with pytest.raises(OptionError, match=r"'args' is neither .* It takes none"):
        ew.make(factory, args=3)


def test_a_constructor_that_raises_shows_its_cause():
    with pytest.raises(
        DefinitionError, match=r"Making 'Needy' failed: ValueError: size -1 .*\(test_registry\.py:"
    ) as caught:
        ew.make(Needy, size=-1)

    assert isinstance(caught.value.__cause__, ValueError)


def test_an_envweave_error_in_a_constructor_is_raised_unchanged():
    def factory() -> ew.Environment:
        raise ew.errors.MissingExtraError.for_extra("It needs Gymnasium.", "gym")

    with pytest.raises(ew.errors.MissingExtraError, match=r"pip install 'envweave\[gym\]'"):
        ew.make(factory)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (None, "returned None, not an environment"),
        (CounterEnv, "CounterEnv is a class; an instance of it is needed"),
        ("counter-v0", r"str is not an environment: it has no reset\(\)"),
        (3, r"int is not an environment"),
    ],
)
def test_a_factory_that_returns_no_environment_is_refused(registry, made, message):
    ew.register("mine-v0", lambda: made, registry=registry)

    with pytest.raises(DefinitionError, match=message):
        ew.make("mine-v0", registry=registry)


def test_an_abstract_class_cannot_be_made():
    with pytest.raises(
        DefinitionError, match=r"Making 'Environment' failed: TypeError: .*abstract"
    ):
        ew.make(ew.Environment)


def test_an_object_is_made_already_and_takes_no_keywords():
    with pytest.raises(
        OptionError, match=r"'done_at' is not an option .* already made. Pass its class"
    ):
        ew.make(CounterEnv(), done_at=3)


@pytest.mark.parametrize(
    "make", [ew.make, ew.make_async, functools.partial(ew.make_vector, num_envs=2)]
)
def test_an_unknown_backend_is_refused_with_the_nearest(make):
    with pytest.raises(
        ew.errors.BackendNotFoundError,
        match=r"No backend is called 'inporc'. Did you mean 'inproc'\? Known: .*inproc",
    ):
        make("counter-v0", backend="inporc")
