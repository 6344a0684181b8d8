"""The time limit interrupts event loops, test runners and the like at any moment."""

from __future__ import annotations

import pytest

from envweave.sandbox import Limits, Sandbox

LOOPS = {
    "awaiting": "import asyncio\nwhile True:\n    await asyncio.sleep(0)",
    "asyncio.run": (
        "import asyncio\nasync def main():\n    while True:\n        await asyncio.sleep(0)\n"
        "asyncio.run(main())"
    ),
    "many tasks": (
        "import asyncio\nasync def one():\n    while True:\n        await asyncio.sleep(0)\n"
        "async def main():\n    await asyncio.gather(*(one() for _ in range(5)))\n"
        "asyncio.run(main())"
    ),
    "an idle loop": "import asyncio\nasyncio.run(asyncio.sleep(60))",
    "tests": (
        "import io, unittest\nclass Test(unittest.TestCase):\n    def test(self):\n"
        "        while True: pass\n"
        "while True:\n    unittest.TextTestRunner(io.StringIO()).run(Test('test'))"
    ),
}


@pytest.fixture(scope="module")
def box():
    with Sandbox(limits=Limits(grace_s=20)) as box:
        yield box


@pytest.mark.slow  # starts several sandboxes
@pytest.mark.parametrize("what", LOOPS)
def test_the_time_limit_ends_a_loop_but_not_its_session(box, what):
    with box.session() as session:
        session.run("import asyncio, unittest")
        for at in range(30):
            result = session.run(LOOPS[what], timeout_s=0.005 + at * 0.0002)

            assert (result.exception_type, result.session_ended) == ("TimeLimit", False)
        assert session.run("await asyncio.sleep(0, 'fine')").return_value == "fine"
