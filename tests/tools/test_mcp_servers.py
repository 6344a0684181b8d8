"""The tools of MCP servers: what they are, what they return, and how they fail."""

import asyncio
import inspect
import sys
import threading

import pytest
import uvloop
from mcp_servers import configured, hostile, made_with_sdk, nothing_is_left, opened  # noqa: F401

from envweave.errors import EnvWeaveError, MissingExtraError, OptionError, StartupError
from envweave.tools import Tool, ToolRegistry
from envweave.tools.mcp import McpServers


@pytest.fixture(scope="module", autouse=True)
def _uvloop_has_what_it_never_closes():
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.sleep(0))


def call(server, tool, **arguments):
    """Start a server, call one tool of it, and return what that returns."""

    async def run():
        async with opened(McpServers(configured(it=server))) as tools:
            return await tools[tool].function(**arguments)

    return asyncio.run(run())


def listed(config, **options):
    async def run():
        async with opened(McpServers(config, **options)) as tools:
            return tools

    return asyncio.run(run())


def test_a_tool_has_the_name_description_and_schema_of_its_server():
    tools = listed(configured(it=hostile("echo")))

    (tool,) = tools.values()
    assert isinstance(tool, Tool)
    assert tool.description == "The tool echo."
    assert tool.parameters["properties"]["text"] == {
        "type": "string",
        "description": "What to say.",
    }
    assert tool.signature == "(text: str, times: int = 1)"
    assert "What to say." in tool.docstring
    assert inspect.iscoroutinefunction(tool.function)


def test_only_given_arguments_are_sent():
    server = hostile("echo")

    assert call(server, "echo", text="hi", times=2) == "hihi"
    assert call(server, "echo", text="hi", more=None) == "hi more=None"


@pytest.mark.slow  # starts MCP servers
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"raw", "bytes"),
        ({"deep": [1, float("nan")]}, "nan"),
        ({1: 2}, "key 1"),
        ({"a"}, "set"),
    ],
)
def test_values_without_a_json_form_are_refused_by_argument(value, words):
    with pytest.raises(TypeError, match=rf"echo\(\) argument 'more': .* represent {words}"):
        call(hostile("echo"), "echo", text="hi", more=value)


@pytest.mark.slow  # starts MCP servers
@pytest.mark.parametrize(
    ("tool", "value"),
    [
        ("texts", "one\ntwo"),
        ("nothing", None),
        ("wrapped", 5),
        ("data", {"deep": {"list": [1, None, {"a": 1.5}], "none": None}}),
        ("picture", {"type": "image", "mimeType": "image/png", "data": "aGk="}),
        (
            "mixed",
            [
                "look:",
                {
                    "type": "resource",
                    "uri": "file:///a.txt",
                    "mimeType": "text/plain",
                    "text": "held",
                },
                {
                    "type": "resource",
                    "uri": "file:///b.bin",
                    "mimeType": "application/x",
                    "data": "aGk=",
                },
                {"type": "resource_link", "uri": "file:///c", "name": "c"},
            ],
        ),
    ],
)
def test_a_tool_returns_plain_data(tool, value):
    assert call(hostile(tool), tool) == value


@pytest.mark.slow  # starts MCP servers
@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("fail", "the disk is full"),
        ("refuse", "not today"),
        ("lying", "no number"),
        ("nonsense", "content"),
    ],
)
def test_an_error_reported_by_a_server_is_raised(tool, words):
    with pytest.raises(EnvWeaveError, match=words):
        call(hostile(tool), tool)


@pytest.mark.slow  # starts MCP servers
def test_refused_arguments_raise_the_servers_message():
    with pytest.raises(EnvWeaveError, match=r"a\n.*valid integer"):
        call(made_with_sdk(), "add", a="one")


@pytest.mark.slow  # starts MCP servers
def test_an_exception_in_a_servers_tool_raises_its_message():
    with pytest.raises(EnvWeaveError, match="Error executing tool shout"):
        call(made_with_sdk(), "shout", text="")


@pytest.mark.slow  # starts MCP servers
@pytest.mark.parametrize("method", ["sampling/createMessage", "elicitation/create", "roots/list"])
def test_requests_of_servers_are_refused(method):
    assert call(hostile("ask"), "ask", method=method) == "refused"


def test_notifications_of_a_server_are_ignored():
    assert call(hostile("chatter"), "chatter") == "quiet again"


def test_lines_that_are_not_messages_are_ignored():
    assert call(hostile("flood"), "flood", lines=20_000) == "still here"


def test_tools_are_listed_over_all_pages():
    names = [f"tool-{number}" for number in range(7)]

    assert list(listed(configured(it=hostile(*names, "--page", "2")))) == [
        f"tool_{number}" for number in range(7)
    ]


@pytest.mark.slow  # starts MCP servers
def test_tools_of_two_servers_with_the_same_name_get_a_prefix():
    config = configured(one=hostile("echo", "pid"), two=hostile("echo"))

    assert list(listed(config)) == ["one_echo", "pid", "two_echo"]
    assert list(listed(config, prefix="always")) == ["one_echo", "one_pid", "two_echo"]
    with pytest.raises(OptionError, match="'one' and 'two' both have a tool 'echo'"):
        listed(config, prefix="never")


def test_allowed_tools_are_named_as_their_server_names_them():
    server = hostile("read-file", "echo", "pid", allow=["read-file", "pid"])

    assert list(listed(configured(it=server))) == ["read_file", "pid"]


def test_a_missing_allowed_tool_is_named():
    with pytest.raises(OptionError, match=r"'it'.*'ecko'.*Did you mean 'echo'\?"):
        listed(configured(it=hostile("echo", allow=["ecko"])))


def test_a_tool_with_an_invalid_schema_is_usable():
    async def run():
        async with opened(McpServers(configured(it=hostile("odd-schema")))) as tools:
            return await tools["odd_schema"].function(**{"file-path": "a", "class": 3})

    assert asyncio.run(run()) == " file-path='a' class=3"


@pytest.mark.slow  # starts MCP servers
def test_a_listing_that_breaks_the_protocol_is_refused_by_field():
    with pytest.raises(StartupError, match=r"'it'.*tools\.0\.inputSchema.*dictionary"):
        listed(configured(it=hostile("no-schema")))


def test_a_server_is_kept_for_the_next_episode(tmp_path):
    note = tmp_path / "starts"

    async def run():
        servers = McpServers(configured(it=hostile("pid", "--note", str(note))))
        async with opened(servers) as tools:
            before = await tools["pid"].function()
            (again,) = await servers.start()
            return before, await again.function()

    before, after = asyncio.run(run())

    assert before == after
    assert note.read_text().count("\n") == 1


def test_new_tools_of_a_server_are_available_in_the_next_episode():
    async def run():
        servers = McpServers(configured(it=hostile("learn")))
        async with opened(servers) as tools:
            await tools["learn"].function()
            return [tool.name for tool in await servers.start()]

    assert asyncio.run(run()) == ["learn", "learnt"]


def test_closed_servers_can_be_started_again():
    async def run():
        servers = McpServers(configured(it=hostile("echo")))
        async with opened(servers) as tools:
            old = tools["echo"]
        await servers.close()
        async with opened(servers) as tools:
            new = await tools["echo"].function(text="new")
        with pytest.raises(EnvWeaveError, match="'it' is closed"):
            await old.function(text="old")
        return new

    assert asyncio.run(run()) == "new"


def test_servers_that_were_never_started_can_be_closed():
    asyncio.run(McpServers(configured(it=hostile("echo"))).close())


def test_a_server_sees_its_own_variables_and_no_secret_of_the_trainer(monkeypatch, tmp_path):
    monkeypatch.setenv("ENVWEAVE_TOKEN", "s3cret")
    monkeypatch.setenv("WANDB_API_KEY", "s3cret")

    seen = call(hostile("env", env={"MINE": "yes"}, cwd=str(tmp_path)), "env")

    assert seen["env"]["MINE"] == "yes"
    assert seen["env"]["PATH"]
    assert "s3cret" not in str(seen)
    assert seen["cwd"] == str(tmp_path)


def test_one_set_of_servers_serves_several_loops_and_threads_at_once():
    servers = McpServers(configured(it=hostile("echo")))
    echoed = []

    async def use(number):
        for _ in range(3):
            tools = {tool.name: tool for tool in await servers.start()}
            echoed.append(await tools["echo"].function(text=f"{number} "))

    def thread(number):
        factory = uvloop.new_event_loop if number % 2 else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(use(number))

    threads = [threading.Thread(target=thread, args=(number,)) for number in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    asyncio.run(servers.close())

    assert sorted(echoed) == sorted(f"{number} " for number in range(4) for _ in range(3))


def test_servers_work_under_an_event_loop_policy_that_cannot_start_processes(monkeypatch):
    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    try:
        assert call(hostile("echo"), "echo", text="hi") == "hi"
    finally:
        asyncio.set_event_loop_policy(before)


@pytest.mark.slow  # starts MCP servers
def test_calls_run_concurrently():
    async def run():
        async with opened(McpServers(configured(it=made_with_sdk()))) as tools:
            asked = [tools["add"].function(a=number, b=1) for number in range(20)]
            return await asyncio.gather(*asked)

    assert asyncio.run(run()) == list(range(1, 21))


def test_a_registry_brings_the_tools_of_its_servers():
    async def run():
        registry = ToolRegistry()
        registry.add_source(McpServers(configured(it=hostile("echo", "fail"))))
        try:
            good = await registry.call("echo", {"text": "hi"})
            return good.value, await registry.call("fail", {})
        finally:
            await registry.close()

    good, bad = asyncio.run(run())

    assert good == "hi"
    assert bad.is_error
    assert "the disk is full" in bad.value


def test_without_the_sdk_the_error_gives_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'envweave\[mcp\]'"):
        McpServers(configured(it=hostile("echo")))
