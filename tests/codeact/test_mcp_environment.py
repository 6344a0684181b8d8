"""`create_mcp_environment`: code behind walls that uses files, and the tools of MCP servers."""

from pathlib import Path

import pytest
from mcp_servers import configured, hostile, need_real_servers, newest_revision

import envweave as ew
from envweave import CodeAction, create_mcp_environment
from envweave.errors import OptionError, ResetFailedError
from envweave.tools import ToolRegistry
from envweave.tools.mcp import McpServers

pytestmark = pytest.mark.slow  # starts MCP servers

FILE_TOOLS = ["file_read", "file_write", "file_append", "file_list", "file_exists", "file_delete"]
CAUGHT = "try:\n    {}\nexcept ToolError as error:\n    message = str(error)\nmessage"


def run(env, code):
    return env.step(CodeAction(code=code)).execution_result


def test_without_servers_code_has_the_file_tools():
    with create_mcp_environment() as env:
        first = env.reset()
        wrote = run(env, "file_write('/tmp/hello.txt', 'Hello!')")
        read = run(env, "file_read('/tmp/hello.txt')")

    assert first.available_tools == FILE_TOOLS
    assert (wrote.success, read.return_value) == (True, "Hello!")
    assert [call.name for call in (*wrote.tool_calls, *read.tool_calls)] == [
        "file_write",
        "file_read",
    ]
    assert not Path("/tmp/hello.txt").exists()


def test_two_environments_do_not_see_each_others_files():
    with create_mcp_environment() as one, create_mcp_environment() as other:
        one.reset()
        other.reset()
        run(one, "file_write('/tmp/hello.txt', 'mine')")

        assert run(other, "file_exists('/tmp/hello.txt')").return_value is False


def test_the_tools_of_a_server_are_functions_with_docstrings():
    with create_mcp_environment(configured(it=hostile("echo"))) as env:
        first = env.reset()
        helped = run(env, "help(echo)")
        result = run(env, "echo('hi', times=2)")

    assert first.available_tools == ["echo"]
    assert "echo(text: str, times: int = 1)" in helped.stdout
    assert "The tool echo." in helped.stdout
    assert "text: What to say." in helped.stdout
    assert result.return_value == "hihi"
    (call,) = result.tool_calls
    assert (call.name, call.arguments, call.value) == ("echo", (("hi",), {"times": 2}), "hihi")


def test_a_tool_that_fails_raises_what_code_can_catch():
    with create_mcp_environment(configured(it=hostile("fail", "echo"))) as env:
        env.reset()
        caught = run(env, CAUGHT.format("fail()"))
        refused = run(env, "echo()")

    assert caught.return_value == "McpError: the disk is full"
    assert caught.tool_calls[0].error == "McpError: the disk is full"
    assert refused.exception_type == "ToolError"
    assert "'text'" in refused.exception_message


def test_a_server_that_dies_during_a_call_is_an_error_in_the_code_and_restarts_at_reset():
    gone = (
        "McpError: The MCP server 'it' is gone: it exited with code 3. "
        "The next episode starts it again."
    )
    with create_mcp_environment(configured(it=hostile("die", "echo"))) as env:
        env.reset()
        caught = run(env, CAUGHT.format("die(3)"))
        after = run(env, "echo('hi')")
        env.reset()
        again = run(env, "echo('hi')")

    assert caught.success
    assert caught.return_value == gone
    assert [call.error for call in caught.tool_calls] == [gone]
    assert (after.exception_type, after.exception_message) == ("ToolError", gone)
    assert again.return_value == "hi"


@pytest.mark.slow  # starts MCP servers
def test_a_hanging_tool_ends_at_the_deadline_of_the_step():
    servers = configured(it=hostile("hang", "echo"))
    with create_mcp_environment(servers, limits={"timeout_s": 1.0}) as env:
        env.reset()
        late = run(env, "hang()")
        after = run(env, "echo('hi')")

    assert late.limits_hit == ("time",)
    assert not late.session_ended
    assert after.return_value == "hi"


def test_a_result_that_cannot_be_encoded_is_an_error_in_the_code():
    with create_mcp_environment(configured(it=hostile("huge"))) as env:
        env.reset()
        small = run(env, "len(huge(1 << 20))")
        large = run(env, "len(huge(20 << 20))")

    assert small.return_value == 1 << 20
    assert large.exception_type == "ToolError"
    assert "more than one message holds" in large.exception_message


@pytest.mark.slow  # starts MCP servers
def test_files_and_functions_can_be_added_to_servers():
    def double(number: int) -> int:
        """Return twice as much."""
        return 2 * number

    servers = configured(it=hostile("echo"))
    with create_mcp_environment(servers, files=True, tools=[double]) as env:
        first = env.reset()
        done = run(env, "file_write('a', echo('hi') * double(2))\nfile_read('a')")

    assert set(first.available_tools) == {"echo", "double", *FILE_TOOLS}
    assert done.return_value == "hihihihi"


def test_only_allowed_tools_are_available_within_their_call_limits():
    servers = configured(it=hostile("echo", "pid", "die"))
    with create_mcp_environment(servers, allow=["echo", "pid"], max_calls=2) as env:
        first = env.reset()
        forbidden = run(env, "die(3)")
        allowed = run(env, "echo('a'); echo('b')")
        beyond = run(env, "echo('c')")
        env.reset()
        anew = run(env, "echo('d')")

    assert first.available_tools == ["echo", "pid"]
    assert forbidden.exception_type == "NameError"
    assert allowed.success
    assert beyond.exception_type == "ToolError"
    assert "2 times" in beyond.exception_message
    assert anew.return_value == "d"


def test_a_server_is_kept_over_episodes_and_each_environment_has_its_own():
    servers = configured(it=hostile("pid"))
    with create_mcp_environment(servers) as one, create_mcp_environment(servers) as other:
        pids = []
        for env in (one, other, one, other):
            env.reset()
            pids.append(run(env, "pid()").return_value)

    assert pids[:2] == pids[2:]
    assert pids[0] != pids[1]


def test_a_servers_object_with_its_own_options_is_used_unchanged():
    servers = McpServers(configured(it=hostile("echo")), prefix="always")
    with create_mcp_environment(servers) as env:
        assert env.reset().available_tools == ["it_echo"]


def test_a_server_that_does_not_start_fails_the_reset_by_name():
    with (
        create_mcp_environment(configured(bad=hostile("--exit", "4"))) as env,
        pytest.raises(ResetFailedError, match=r"'bad'.*code 4"),
    ):
        env.reset()


def test_make_accepts_it_like_any_environment():
    ew_env = ew.make(create_mcp_environment(configured(it=hostile("echo"))))
    with ew_env:
        ew_env.reset()
        result = ew_env.step({"code": "echo('hi')"})

    assert result.observation.execution_result.return_value == "hi"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"servers": {"mcpServers": {"it": {}}}}, "neither 'command' nor 'url'"),
        ({"allow": ["file_read"]}, "there are none"),
        ({"max_calls": 3}, "there are none"),
        ({"servers": configured(it=hostile("echo")), "allow": ["file_read"]}, "added together"),
        ({"servers": configured(it=hostile("echo")), "allow": "echo"}, "list of names"),
        ({"tools": ToolRegistry()}, "add_source"),
    ],
)
def test_invalid_options_are_refused(options, words):
    with pytest.raises(OptionError, match=words):
        create_mcp_environment(**options)


@pytest.mark.slow  # starts MCP servers
def test_real_servers_from_npm_and_from_pypi_are_used_from_code_behind_walls(monkeypatch):
    folder = need_real_servers()
    monkeypatch.setenv("WANDB_API_KEY", "s3cret")
    servers = McpServers(
        configured(
            everything={"command": str(folder / "node_modules/.bin/mcp-server-everything")},
            time={
                "command": str(folder / "sdk2/bin/mcp-server-time"),
                "args": ["--local-timezone=UTC"],
            },
        ),
        timeout_s=60,
    )
    with create_mcp_environment(servers, limits={"timeout_s": 30}) as env:
        env.reset()
        protocols = servers.protocols
        total = run(env, "get_sum(2, 40)")
        weather = run(env, "sorted(get_structured_content('Chicago'))")
        picture = run(env, "[one['mimeType'] for one in get_tiny_image() if type(one) is dict]")
        secret = run(env, "'s3cret' in str(get_env())")
        tokyo = run(
            env,
            "convert_time(source_timezone='UTC', time='12:00', target_timezone='Asia/Tokyo')"
            "['target']['datetime'][11:16]",
        )
        wrong = run(env, CAUGHT.format("get_current_time('Nowhere')"))

    assert protocols == {"everything": "2025-11-25", "time": newest_revision()}
    assert total.return_value == "The sum of 2 and 40 is 42."
    assert weather.return_value == ["conditions", "humidity", "temperature"]
    assert picture.return_value == ["image/png"]
    assert secret.return_value is False
    assert tokyo.return_value == "21:00"
    assert "Nowhere" in wrong.return_value
    assert [call.name for call in wrong.tool_calls] == ["get_current_time"]
