"""Names of the tools of MCP servers in code."""

import keyword

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envweave.errors import OptionError
from envweave.tools.mcp.servers import assign_names, identifier


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("read-file", "read_file"),
        ("readFile", "readFile"),
        ("files/read.now", "files_read_now"),
        ("2do", "_2do"),
        ("import", "import_"),
        ("__init__", "init"),
        ("!?", "tool"),
        ("größe²", "größe2"),
    ],
)
def test_a_name_is_made_an_identifier(name, code):
    assert identifier(name) == code


@given(st.text())
def test_any_name_becomes_a_valid_identifier(name):
    made = identifier(name)

    assert made.isidentifier()
    assert not keyword.iskeyword(made)
    assert not made.startswith("__")
    assert identifier(made) == made


def test_only_clashing_names_get_the_prefix_of_their_server():
    pairs = [("fs", "read"), ("fs", "write"), ("my-db", "read")]

    assert assign_names(pairs, "auto") == {
        ("fs", "read"): "fs_read",
        ("fs", "write"): "write",
        ("my-db", "read"): "my_db_read",
    }


def test_all_names_can_have_the_prefix_of_their_server():
    pairs = [("fs", "read"), ("fs", "write")]

    assert list(assign_names(pairs, "always").values()) == ["fs_read", "fs_write"]


def test_a_clash_is_refused_if_names_must_not_change():
    with pytest.raises(OptionError, match="'a' and 'b' both have a tool 'read'"):
        assign_names([("a", "read"), ("b", "read")], "never")


def test_equal_names_of_one_server_are_numbered():
    pairs = [("fs", "read-file"), ("fs", "read_file"), ("fs", "read.file"), ("fs", "read_file_2")]

    assert list(assign_names(pairs, "auto").values()) == [
        "read_file",
        "read_file_3",
        "read_file_4",
        "read_file_2",
    ]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.text("ab-._", max_size=4)), max_size=12),
    st.sampled_from(["auto", "always"]),
)
def test_tool_names_are_unique(pairs, prefix):
    names = assign_names(pairs, prefix)

    assert set(names) == set(pairs)
    assert len(set(names.values())) == len(names)
