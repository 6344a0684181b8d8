"""The page `/web` of a server, without a browser: its files, headers, sign-in and figures."""

from __future__ import annotations

import re
from typing import Any

import pytest
from servers import client_of, error_in
from starlette.testclient import TestClient

from envweave import create_fastapi_app

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8", "Sec-Fetch-Site": "none"}


def policy_of(response: Any) -> dict[str, str]:
    """The directives of a page's content security policy."""
    parts = response.headers["content-security-policy"].split("; ")
    return {name: value for name, _, value in (one.partition(" ") for one in parts)}


def test_the_page_loads_files_from_its_own_server_only() -> None:
    with client_of("counter-v0") as client:
        moved = client.get("/web", follow_redirects=False)
        page = client.get("/web/")
        names = re.findall(r'(?:src|href)="([\w.-]+)"', page.text)
        files = {name: client.get(f"/web/{name}") for name in names}

    assert moved.headers["location"] == "/web/"
    assert {"server.js", "theme.js", "style.css", "favicon.svg"} <= files.keys()
    assert {one.status_code for one in files.values()} == {200}
    assert policy_of(page)["default-src"] == policy_of(page)["frame-ancestors"] == "'none'"
    assert policy_of(page)["script-src"] == policy_of(page)["connect-src"] == "'self'"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"<script>|<style|\son\w+=|https?://", page.text)


@pytest.mark.parametrize("name", ["../assets.py", "..%2fassets.py", "%2e%2e/access.py", "nothing"])
def test_nothing_but_the_files_of_the_page_is_served(name: str) -> None:
    with client_of("counter-v0") as client:
        assert error_in(client.get(f"/web/{name}")) == "404 not_found"


def test_the_page_works_where_the_application_is_mounted() -> None:
    from fastapi import FastAPI

    outer = FastAPI()
    outer.mount("/envs/counter", create_fastapi_app("counter-v0"))
    with TestClient(outer) as client:
        moved = client.get("/envs/counter/web", follow_redirects=False)
        page = client.get("/envs/counter/web/")

    assert moved.headers["location"] == "/envs/counter/web/"
    assert page.status_code == 200


def test_a_browser_without_the_token_gets_a_page_that_asks_for_it() -> None:
    with client_of("counter-v0", token="secret") as client:
        asked = client.get("/web/", headers=BROWSER)
        wrong = client.get("/web/?token=guess", headers=BROWSER)
        program = client.get("/web/")

    assert (asked.status_code, wrong.status_code) == (401, 401)
    assert "<form" in asked.text
    assert "script-src" not in policy_of(asked)
    assert not wrong.cookies
    assert error_in(program) == "401 access_refused"


def test_the_token_is_exchanged_for_a_cookie_and_leaves_the_address() -> None:
    with client_of("counter-v0", token="sec ret&") as client:
        url = "/web/?page=2&token=sec%20ret%26"
        signed_in = client.get(url, headers=BROWSER, follow_redirects=False)
        page = client.get("/web/", headers=BROWSER)
        call = client.post("/reset", json={"seed": 1}, headers={"Sec-Fetch-Site": "same-origin"})

    assert (signed_in.status_code, signed_in.headers["location"]) == (303, "/web/?page=2")
    cookie = signed_in.headers["set-cookie"]
    assert "sec ret" not in cookie
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert (page.status_code, call.status_code) == (200, 200)


def test_the_sign_in_leads_to_no_other_host() -> None:
    with client_of("counter-v0", token="secret") as client:
        moved = client.get(
            "http://testserver//evil.example/x?token=secret",
            headers=BROWSER,
            follow_redirects=False,
        )

    assert moved.headers["location"] == "/evil.example/x"


def test_a_link_on_another_site_signs_in_without_a_redirect() -> None:
    with client_of("counter-v0", token="secret") as client:
        headers = {**BROWSER, "Sec-Fetch-Site": "cross-site"}
        found = client.get("/web/?token=secret", headers=headers, follow_redirects=False)

    assert (found.status_code, found.headers["refresh"]) == (200, "0; url=/web/")


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_origin_cannot_use_the_cookie(site: str) -> None:
    with client_of("counter-v0", token="secret") as client:
        client.get("/web/?token=secret", headers=BROWSER)
        call = client.post("/reset", headers={"Sec-Fetch-Site": site})
        origin = client.post("/reset", headers={"Origin": "http://testserver:9"})

    assert error_in(call) == "401 access_refused"
    assert error_in(origin) == "403 access_refused"


def test_a_cookie_of_another_token_is_refused() -> None:
    with client_of("counter-v0", token="first") as first:
        first.get("/web/?token=first", headers=BROWSER)
        cookies = dict(first.cookies)
    with client_of("counter-v0", token="second") as second:
        second.cookies.update(cookies)
        found = second.get("/web/live")

    assert cookies
    assert error_in(found) == "401 access_refused"


def test_live_figures_name_no_session() -> None:
    with client_of("counter-v0") as client:
        session = client.post("/sessions").json()["session_id"]
        mine = {"X-Session-Id": session}
        client.post("/reset", headers=mine)
        client.post("/step", json={"action": {"delta": "x"}}, headers=mine)
        found = client.get("/web/live")
        live = found.json()

    assert (live["total"], live["limit"], live["unready_reason"]) == (1, 1024, None)
    assert live["sessions"][0] == {
        "calls": 3,
        "idle_s": live["sessions"][0]["idle_s"],
        "is_busy": False,
        "is_live": True,
        "is_disconnected": False,
    }
    assert {"method": "step", "outcome": "action_refused", "count": 1} in live["calls"]
    assert session not in found.text


def test_the_page_describes_the_environment() -> None:
    with client_of("tictactoe-v0") as client:
        about = client.get("/web/about").json()

    assert (about["env_id"], about["possible_agents"]) == ("tictactoe-v0", ["x", "o"])
    assert about["action"]["properties"]["x"]["properties"]["cell"]["maximum"] == 8
