"""`envweave view` in a real browser."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from browser import open_browser, open_page
from run_files import (
    HOSTILE,
    RunWriter,
    runs_app,
    write_array_run,
    write_code_run,
    write_hostile_run,
    write_metrics,
)
from servers import wait_for

import envweave as ew

pytestmark = pytest.mark.slow  # starts a browser


class Talks(ew.Environment):
    """Shows its conversation, in which it always says the same."""

    def reset(self) -> list[dict[str, str]]:
        self._said = [{"role": "user", "content": "Shall we?"}]
        return self._said

    def step(self, action: str) -> tuple[list[dict[str, str]], float, bool, bool, dict[str, Any]]:
        self._said.append({"role": "assistant", "content": action})
        self._said.append({"role": "user", "content": "<b>no</b>"})
        return self._said, 0.0, False, False, {}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as found:
        yield found


@contextmanager
def viewed(folder: Path) -> Iterator[str]:
    """Serve the viewer of a folder in a thread; yield its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(runs_app(folder), lifespan="off", log_config=None, ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        wait_for(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()


def rows(page: Any) -> list[str]:
    """The episodes in sight."""
    return [one.split("\n")[0] for one in page.locator(".virtual a.line").all_inner_texts()]


def test_runs_are_listed_and_compared_in_one_chart(browser: Any, tmp_path: Path) -> None:
    for seed in range(3):
        write_metrics(tmp_path / f"seed-{seed}", 50, seed=seed)
    with viewed(tmp_path) as url, open_page(browser) as page:
        page.goto(url)
        page.wait_for_selector(".legend >> text=seed-2")
        before = page.locator("canvas").first.get_attribute("aria-label")
        page.select_option("select[aria-label=curve]", "update/loss")
        page.uncheck("input[aria-label='Compare seed-1']")
        page.wait_for_selector(".legend:not(:has-text('seed-1'))")
        after = page.locator("canvas").first.get_attribute("aria-label")
        address = page.url
        page.goto("about:blank")
        page.goto(address)
        page.wait_for_selector(".legend >> text=seed-2")
        again = page.locator("canvas").first.get_attribute("aria-label")

    assert re.fullmatch(r"Comparison of runs: seed-0 [\d.]+, seed-1 [\d.]+, seed-2 [\d.]+", before)
    assert "seed-1" not in after
    assert again == after


def test_episodes_are_filtered_sorted_and_kept_in_the_address(browser: Any, tmp_path: Path) -> None:
    write_code_run(tmp_path / "one")
    with viewed(tmp_path) as url, open_page(browser) as page:
        page.goto(f"{url}/#/run?run=one")
        page.select_option("select[aria-label='failure of']", "infrastructure")
        page.wait_for_selector("text=1 of 40 episodes")
        lost = rows(page)
        address = page.url
        page.select_option("select[aria-label='failure of']", "")
        page.click(".heads >> text=return")
        page.click(".heads >> text=return")
        page.wait_for_selector(".heads >> text=return ↓")
        best = page.locator(".virtual a.line").first.inner_text()
        page.goto("about:blank")
        page.goto(address)
        page.wait_for_selector("text=1 of 40 episodes")
        again = rows(page)

    assert lost == again == ["009c2b-11"]
    assert "\n1\nterminated" in best


def test_a_trajectory_is_walked_with_the_keyboard(browser: Any, tmp_path: Path) -> None:
    write_code_run(tmp_path / "one")
    with viewed(tmp_path) as url, open_page(browser) as page:
        page.goto(f"{url}/#/run?run=one")
        page.wait_for_selector(".virtual a.line")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_selector("h2 >> text=Reset")
        reset = page.locator(".step").inner_text()
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.wait_for_selector("h2 >> text=Step 2")
        step = page.locator(".step").inner_text()
        words = page.locator(".step pre.code .t-word").all_inner_texts()
        page.keyboard.press("k")
        page.wait_for_selector("h2 >> text=Step 1")
        address = page.url
        with page.context.expect_page() as opened:
            page.click("text=raw line")
        raw = opened.value.inner_text("body")
        page.keyboard.press("u")
        page.wait_for_selector(".virtual a.line")

    assert "Sum the integers" in reset
    assert {"import", "def", "return"} <= set(words)
    assert "trying: -1" in step
    assert "read_task()" in step
    assert "graded 2 of" in step
    assert address.endswith("line=1")
    assert raw.startswith('{"event":"step"')


def test_several_agents_have_a_line_a_step_and_curves_of_their_own(
    browser: Any, tmp_path: Path
) -> None:
    with ew.make("tictactoe-v0", record=tmp_path / "one") as env:
        env.reset(seed=0)
        for cell, agent in zip((0, 1, 4, 2, 8), "xoxox", strict=True):
            env.step({agent: {"cell": cell}})
    with viewed(tmp_path) as url, open_page(browser) as page:
        page.goto(f"{url}/#/run?run=one")
        page.locator(".virtual a.line").click()
        page.wait_for_selector(".step")
        head = page.locator(".step-head").first.inner_text()
        lines = page.locator(".virtual div.line").all_inner_texts()
        fits = page.locator(".virtual div.line").last.evaluate(
            "line => [...line.children].every((one) => one.offsetHeight <= line.offsetHeight)"
        )
        legend = page.locator(".legend").inner_text()

    assert "return x 1, o −1" in head
    assert lines[-1].split("\n") == ["5", "x: 8", "x 1, o −1"]
    assert fits
    assert legend.split() == ["x", "o"]


def test_a_conversation_is_shown_as_messages(browser: Any, tmp_path: Path) -> None:
    with ew.make(Talks, record=tmp_path / "one") as env:
        env.reset()
        for word in ("one", "two", "three"):
            env.step(word)
    with viewed(tmp_path) as url, open_page(browser) as page:
        page.goto(f"{url}/#/run?run=one")
        page.locator(".virtual a.line").click()
        page.wait_for_selector(".step")
        page.keyboard.press("G")
        page.wait_for_selector("h2 >> text=Step 3")
        shown = page.locator(".step .messages").first.inner_text().split("\n")
        page.click("text=3 earlier messages")
        page.wait_for_selector(".messages .messages .message >> nth=2")

    assert [one for one in shown if one] == [
        "3 earlier messages", "assistant", "two", "user", "<b>no</b>",
        "assistant", "three", "user", "<b>no</b>",
    ]  # fmt: skip


def test_a_view_that_was_left_while_it_loaded_does_not_name_the_place(
    browser: Any, tmp_path: Path
) -> None:
    write_code_run(tmp_path / "one")
    write_array_run(tmp_path / "two")
    with viewed(tmp_path) as url, open_page(browser) as page:
        page.goto(url)
        page.wait_for_selector("table.runs")
        held: list[Any] = []
        page.route("**/api/run?run=one", lambda route: held.append(route))
        page.evaluate("location.hash = '#/run?run=one'")
        wait_for(lambda: page.wait_for_timeout(10) or held)
        page.evaluate("location.hash = '#/run?run=two'")
        page.wait_for_selector("#place >> text=two")
        with page.expect_response("**/api/run?run=one"):
            held[0].continue_()
        page.wait_for_load_state("networkidle")
        place, title = page.locator("#place").inner_text(), page.title()

    assert "two" in place
    assert "one" not in place
    assert title.startswith("two ")


def test_forks_are_a_tree_of_links(browser: Any, tmp_path: Path) -> None:
    write_code_run(tmp_path / "one")
    with viewed(tmp_path) as url, open_page(browser) as page:
        page.goto(f"{url}/#/run?run=one&tab=forks")
        page.wait_for_selector("a.fork")
        depth = page.locator(".forks .forks .forks a.fork code").all_inner_texts()
        page.click("a.fork >> text=009c29-9")
        page.wait_for_selector("text=fork of 009c25-5 at step 1")

    assert depth == ["009c29-9"]


def test_pictures_and_arrays_are_drawn(browser: Any, tmp_path: Path) -> None:
    write_array_run(tmp_path / "one")
    with viewed(tmp_path) as url, open_page(browser) as page:
        page.goto(f"{url}/#/episode?run=one&episode=arrays-0")
        page.wait_for_selector("canvas.picture")
        page.keyboard.press("j")
        page.wait_for_selector("table.grid")
        board = page.locator("table.grid").first.inner_text().split()
        shown = page.locator(".step").inner_text()
        page.keyboard.press("j")
        page.click("text=Show")
        page.wait_for_selector("canvas.picture")

    assert board == ["0", "1", "−1", "1", "−1", "0", "0", "0", "1"]
    assert "inf" in shown


def test_a_run_is_followed_while_it_is_written(browser: Any, tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "one")
    run.start()
    run.episode("a", [1.0])
    with viewed(tmp_path) as url, open_page(browser) as page:
        page.goto(f"{url}/#/run?run=one")
        page.wait_for_selector("text=live")
        run.episode("b", [2.0])
        page.wait_for_selector("text=2 episodes")
        page.wait_for_selector(".virtual a.line >> nth=1")
        page.click("nav >> text=Curves")
        page.wait_for_selector("canvas[aria-label='episode return: one 2']", state="attached")
        run.episode("c", [7.0])
        page.wait_for_selector("canvas[aria-label='episode return: one 7']", state="attached")


def test_hostile_recordings_stay_text(browser: Any, tmp_path: Path) -> None:
    write_hostile_run(tmp_path / "one")
    with viewed(tmp_path) as url, open_page(browser) as page:
        page.goto(url)
        page.wait_for_selector("table.runs")
        page.click("table.runs a")
        page.wait_for_selector(".virtual a.line >> nth=2")
        page.locator(".virtual a.line").nth(2).click()
        page.wait_for_selector("h2 >> text=Reset")
        first = page.locator(".step").inner_text()
        page.keyboard.press("j")
        page.wait_for_selector("h2 >> text=Step 1")
        cut = len(page.locator("pre.output").first.inner_text())
        page.click("text=Show all")
        whole = len(page.locator("pre.output").first.inner_text())
        page.goto(f"{url}/#/episode?run=one&episode=odd")
        page.wait_for_selector(".step")
        page.goto(f"{url}/#/episode?run=one&episode=bytes")
        page.wait_for_selector("text=���(")
        elements = page.locator("main script, main img, main iframe").count()
        title = page.title()

    assert HOSTILE in first
    assert "⟨202E⟩gnp.exe" in first
    assert (cut, whole, elements) == (4000, 1_000_000, 0)
    assert title == "bytes · envweave view"


def test_a_hundred_thousand_episodes_are_scrolled_to_the_end(browser: Any, tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "one")
    run.start()
    with run.path.open("ab") as file:
        for number in range(100_000):
            file.write(b'{"event":"reset","t":%d,"episode":"e%d"}\n' % (number, number))
    with viewed(tmp_path) as url, open_page(browser) as page:
        page.goto(f"{url}/#/run?run=one&tab=episodes")
        page.wait_for_selector("text=100,000 episodes")
        made = page.locator(".virtual .line").count()
        page.keyboard.press("G")
        page.wait_for_selector("text=e99999")
        page.keyboard.press("g")
        page.wait_for_selector("text=e0")

    assert made < 60


def test_the_numbers_of_a_hundred_thousand_steps_fit(browser: Any, tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "one")
    with run.path.open("ab") as file:
        file.write(b'{"event":"reset","t":1,"episode":"a"}\n')
        for step in range(1, 100_001):
            file.write(b'{"event":"step","t":1,"episode":"a","step":%d,"reward":1}\n' % step)
    with viewed(tmp_path) as url, open_page(browser) as page:
        page.goto(f"{url}/#/episode?run=one&episode=a")
        page.wait_for_selector("h2 >> text=Reset")
        page.keyboard.press("G")
        page.wait_for_selector("h2 >> text=Step 100000")
        last = page.locator(".virtual .line.current span").first
        is_cut = last.evaluate("one => one.scrollWidth > one.clientWidth")
        made = page.locator(".virtual .line").count()

    assert not is_cut
    assert made < 60


def test_runs_are_walked_with_the_keyboard_while_they_grow(browser: Any, tmp_path: Path) -> None:
    runs = [RunWriter(tmp_path / name) for name in ("a", "b", "c")]
    for run in runs:
        run.start()
        run.episode("e", [1.0])
    with viewed(tmp_path) as url, open_page(browser) as page:
        page.goto(url)
        page.wait_for_selector("table.runs >> text=c")
        page.keyboard.press("j")
        page.keyboard.press("j")
        curve = page.locator("select[aria-label=curve]").element_handle()
        runs[2].episode("another", [2.0, 2.0])
        page.wait_for_selector("table.runs >> text=2 terminated")
        focused = page.evaluate("document.activeElement.textContent")
        is_same = page.evaluate("one => one.isConnected", curve)
        page.keyboard.press("Enter")
        page.wait_for_selector(".virtual a.line")
        place = page.locator("#place").inner_text()

    assert focused == "b"
    assert is_same
    assert place.endswith("b")


def test_a_server_that_does_not_answer_is_asked_again(browser: Any, tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "one")
    run.start()
    run.episode("a", [1.0])
    with viewed(tmp_path) as url, open_page(browser) as page:
        page.goto(f"{url}/#/run?run=one")
        page.wait_for_selector("text=1 episode")
        page.context.set_offline(True)
        page.wait_for_selector("#offline:not([hidden])")
        rows_offline = rows(page)
        page.context.set_offline(False)
        run.episode("b", [2.0])
        page.wait_for_selector("text=2 episodes")
        is_hidden = page.locator("#offline").is_hidden()

    assert rows_offline == ["a"]
    assert is_hidden
