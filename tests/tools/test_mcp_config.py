"""A configuration of MCP servers is read, or refused by server and key."""

import json
import sys

import pytest

from envweave.errors import OptionError
from envweave.tools.mcp import McpServers
from envweave.tools.mcp.config import CommandServer, UrlServer, read_config


def one(**keys):
    return {"mcpServers": {"it": keys}}


def test_a_command_is_parsed_with_all_its_options():
    config = one(
        command="node",
        args=["a.js", "--loud"],
        env={"KEY": "7"},
        cwd="/tmp",
        type="stdio",
        allow=["read"],
        timeout_s=3,
    )

    assert read_config(config) == [
        CommandServer(
            name="it",
            command="node",
            args=("a.js", "--loud"),
            env={"KEY": "7"},
            cwd="/tmp",
            allow=("read",),
            timeout_s=3.0,
        )
    ]


@pytest.mark.parametrize(
    ("keys", "transport"),
    [
        ({}, "http"),
        ({"type": "http"}, "http"),
        ({"type": "streamable-http"}, "http"),
        ({"transport": "sse"}, "sse"),
        ({"type": "sse", "transport": "sse"}, "sse"),
    ],
)
def test_a_url_is_parsed_with_its_transport(keys, transport):
    config = one(url="https://host/mcp", headers={"X-Key": "7"}, **keys)

    assert read_config(config) == [
        UrlServer(name="it", url="https://host/mcp", headers={"X-Key": "7"}, transport=transport)
    ]


def test_a_configuration_file_is_read(tmp_path):
    path = tmp_path / "servers.json"
    path.write_text(json.dumps(one(command="node")))

    assert read_config(path) == read_config(str(path)) == read_config(one(command="node"))


def test_variables_of_the_environment_are_filled_in(monkeypatch):
    monkeypatch.setenv("TOKEN", "s3cret")

    (command,) = read_config(one(command="x", env={"A": "is ${TOKEN}, $TOKEN"}))
    (address,) = read_config(one(url="http://h", headers={"Authorization": "Bearer ${TOKEN}"}))

    assert command.env == {"A": "is s3cret, $TOKEN"}
    assert address.headers == {"Authorization": "Bearer s3cret"}


def test_secrets_are_not_shown():
    (command,) = read_config(one(command="x", env={"A": "s3cret"}))
    (address,) = read_config(one(url="http://me:s3cret@h/mcp?key=s3cret", headers={"A": "s3cret"}))

    assert "s3cret" not in f"{command.where} {address.where} {command!r}"
    assert address.where == "http://h/mcp"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ([], ["dict", "JSON file"]),
        ({}, ["mcpServers"]),
        ({"mcpServers": {}}, ["expected a dict of servers"]),
        ({"mcpServers": [1]}, ["expected a dict of servers"]),
        ({"mcpservers": {}}, ["'mcpservers'", "Did you mean 'mcpServers'?"]),
        ({"mcpServers": {"": {}}}, ["name of a server"]),
        ({"mcpServers": {"it": "node"}}, ["'it'", "expected a dict"]),
        (one(), ["'it'", "neither 'command' nor 'url'"]),
        (one(command="x", url="http://h"), ["'it'", "both 'command' and 'url'"]),
        (one(command="x", arg=[]), ["'it'", "'arg'", "Did you mean 'args'?"]),
        (one(command="x", headers={}), ["'it'", "'headers'", "unknown key"]),
        (one(url="http://h", env={}), ["'it'", "'env'", "unknown key"]),
        (one(command=""), ["'it'", "command=''"]),
        (one(command=["x"]), ["'it'", "command=['x']", "string"]),
        (one(command="x", args="y"), ["'it'", "args='y'", "list of strings"]),
        (one(command="x", args=[1]), ["'it'", "args=[1]"]),
        (one(command="x", env={"A": 1}), ["'it'", "env", "a dict of strings"]),
        (one(command="x", env=["A"]), ["'it'", "env", "a dict of strings"]),
        (one(command="x", env={"A=B": "1"}), ["'it'", "env", "a dict of strings"]),
        (one(command="x", cwd=3), ["'it'", "cwd=3", "a path"]),
        (one(command="x", type="sse"), ["'it'", "type='sse'", "'stdio'"]),
        (one(url="ftp://h"), ["'it'", "url='ftp://h'", "http://"]),
        (one(url="http://"), ["'it'", "url='http://'"]),
        (one(url="http://h", type="ws"), ["'it'", "type='ws'", "'streamable-http'"]),
        (one(url="http://h", type=3), ["'it'", "type=3"]),
        (one(url="http://h", type="sse", transport="http"), ["'it'", "differ"]),
        (one(url="http://h", headers={"A": "b\r\nC: d"}), ["'it'", "headers['A']", "line break"]),
        (one(command="x", allow="read"), ["'it'", "allow='read'", "list of strings"]),
        (one(command="x", timeout_s=0), ["'it'", "timeout_s=0", "above 0"]),
        (one(command="x", timeout_s=True), ["'it'", "timeout_s=True"]),
        (one(command="x", timeout_s=float("nan")), ["'it'", "timeout_s=nan"]),
        (one(command="x", env={"A": "${NO_SUCH_ONE}"}), ["'it'", "env['A']", "'NO_SUCH_ONE'"]),
    ],
)
def test_an_invalid_configuration_names_the_server_and_the_key(config, words):
    with pytest.raises(OptionError) as refused:
        McpServers(config)

    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_a_file_that_cannot_be_used_is_named(tmp_path):
    broken, odd = tmp_path / "broken.json", tmp_path / "odd.json"
    broken.write_text("{")
    odd.write_text("[]")

    for path, words in [
        (tmp_path / "none.json", "read"),
        (broken, "not valid JSON"),
        (odd, "object"),
    ]:
        with pytest.raises(OptionError, match=words) as refused:
            McpServers(path)
        assert path.name in str(refused.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"timeout_s": -1}, "timeout_s=-1"), ({"prefix": "sometimes"}, "'always'")],
)
def test_unknown_options_are_refused(options, words):
    with pytest.raises(OptionError, match=words):
        McpServers(one(command=sys.executable), **options)
