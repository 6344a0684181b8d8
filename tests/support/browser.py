"""A real browser for the tests of the web pages: the system's Chromium, driven by playwright."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from installations import venv_python

NO_NETWORK = ("net::ERR_INTERNET_DISCONNECTED", "net::ERR_NETWORK_CHANGED")
"""How calls end that the browser dropped: offline, or as a container's network came or went."""

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def find_chromium() -> str:
    """Return the path of Chromium; skip the test where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    message = "The tests of the web pages need Chromium. Run: apt-get install chromium"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


@contextmanager
def open_browser() -> Iterator[Any]:
    """Run Chromium while the block runs. playwright comes from `tests/venvs/web.txt`."""
    chromium = find_chromium()
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.check_output([venv_python("web"), "-c", ask], text=True).strip()
    if packages not in sys.path:
        sys.path.append(packages)  # last: what is installed here comes first
    from playwright.sync_api import sync_playwright  # type: ignore[import-not-found]

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_page(browser: Any, **options: Any) -> Iterator[Any]:
    """Open a page; what it logs as an error, and every request to another host, is a failure."""
    context = browser.new_context(viewport={"width": 1280, "height": 860}, **options)
    page = context.new_page()
    page.set_default_timeout(20_000)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(f"error: {error}"))
    page.on(
        "console",
        lambda one: (
            one.type == "error" and not one.text.endswith(NO_NETWORK) and problems.append(one.text)
        ),
    )
    page.on("dialog", lambda one: problems.append(f"dialog: {one.message}"))
    page.on(
        "request",
        lambda one: "://127.0.0.1:" in one.url or problems.append(f"request: {one.url}"),
    )
    try:
        yield page
        assert not problems
    finally:
        context.close()
