"""Which packages of an image code in a container sees."""

from __future__ import annotations

import pytest
from codeact_environments import open_client
from containers import need_images

pytestmark = [pytest.mark.slow, pytest.mark.docker, pytest.mark.timeout(300)]


def test_code_sees_the_packages_of_the_image_that_are_named() -> None:
    need_images()
    names = ["numpy", "cloudpickle", "uvicorn"]
    code = f"import importlib.util as u; [u.find_spec(name) is not None for name in {names}]"
    with open_client("direct", executor="docker", packages=["cloudpickle"]) as way:
        way.reset()
        named = way.step(code)
        own = way.step("import envweave.envs")

    assert named.value == [True, True, False]
    assert own.execution.exception_type == "ModuleNotFoundError"
