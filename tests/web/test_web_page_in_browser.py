"""The page `/web` of a server in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from browser import open_browser, open_page
from run_files import HOSTILE, SPOOFED
from servers import served_by_us

import envweave as ew
from envweave.examples import TicTacToeEnv

pytestmark = pytest.mark.slow  # starts a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as found:
        yield found


@dataclass
class Point:
    x: float
    y: float = 0.0


@dataclass
class Order(ew.Action):
    kind: Literal["left", "right", "wait"]
    speed: int
    target: Point
    path: list[int]
    note: str | None = None
    is_fast: bool = False


@dataclass
class Told(ew.Observation):
    text: str = ""
    board: list[list[int]] | None = None


class Orders(ew.Environment):
    """Repeats what it was ordered to do."""

    def reset(self, *, seed: int | None = None) -> Told:
        return Told(text=f"seed {seed}", board=[[0, 1], [2, 3]])

    def step(self, action: Order) -> Told:
        self.emit(ew.LogEvent(f"heard {action.kind}", "warning"))
        note = action.note or "no note"
        said = f"{action.kind} {action.speed} {action.target.x:g} {action.path} {note}"
        over = action.kind == "wait"
        return Told(text=said, reward=1.5, done=over, metadata={"reward_parts": {"style": 1.5}})


class Hostile(ew.Environment):
    """Its observations attack the browser that shows them."""

    def reset(self, *, seed: int | None = None) -> dict[str, Any]:
        return {HOSTILE: HOSTILE, "stdout": SPOOFED, "long": "x" * 1_000_000, "$float": [1]}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.emit(ew.LogEvent(HOSTILE))
        return {"code": HOSTILE, "stderr": "\x1b[31m" + HOSTILE}, 0.0, False, False, {HOSTILE: 1}


class Failing(ew.Environment):
    """Its code has an error."""

    def reset(self, *, seed: int | None = None) -> int:
        return 0

    def step(self, action: int) -> int:
        raise ZeroDivisionError("the third wheel")


def play(page: Any, url: str) -> None:
    page.goto(f"{url}/web")
    page.click("form.reset button")
    page.wait_for_selector("h3 >> text=reset")


def take_step(page: Any) -> None:
    count = page.locator(".turn").count()
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(f".turn >> nth={count}")
    page.wait_for_selector(".play:not(.busy)")


def test_an_action_of_every_kind_is_made_with_the_form(browser: Any) -> None:
    with served_by_us(Orders) as (url, _), open_page(browser) as page:
        page.goto(f"{url}/web")
        page.fill("input[aria-label=seed]", "7")
        page.click("form.reset button")
        page.wait_for_selector("text=seed 7")
        page.check("input[aria-label='kind right']", force=True)
        page.fill("input[aria-label=speed]", "12")
        page.fill("input[aria-label=x]", "2.5")
        page.click("text=Add")
        page.fill("input[aria-label='path[0]']", "9")
        page.fill("textarea[aria-label=note]", "hurry")
        take_step(page)
        turn = page.locator(".turn").last.inner_text()

    assert "right 12 2.5 [9] hurry" in turn
    assert "reward 1.5" in turn
    assert "style" in turn
    assert "heard right" in turn


def test_the_end_of_an_episode_is_shown_and_another_can_begin(browser: Any) -> None:
    with served_by_us(Orders) as (url, _), open_page(browser) as page:
        play(page, url)
        page.check("input[aria-label='kind wait']", force=True)
        take_step(page)
        ended = page.locator(".composer").inner_text(), page.locator(".badge.done").count()
        page.keyboard.press("r")
        page.wait_for_selector(".composer form")

    assert ended == ("The episode is over. Reset to begin another.", 2)


def test_agents_act_in_turn_and_what_is_not_legal_cannot_be_chosen(browser: Any) -> None:
    with served_by_us(TicTacToeEnv) as (url, _), open_page(browser) as page:
        play(page, url)
        first = page.locator("fieldset legend").all_inner_texts()
        page.check("input[aria-label='cell 4']", force=True)
        take_step(page)
        second = page.locator("fieldset legend").all_inner_texts()
        is_taken = page.locator("input[aria-label='cell 4']").is_disabled()
        board = page.locator(".turn").last.locator("table.grid").first.inner_text()

    assert (first, second, is_taken) == (["x"], ["o"], True)
    assert board.split() == ["0", "0", "0", "0", "1", "0", "0", "0", "0"]


def test_code_is_run_in_a_console_with_history_and_colors(browser: Any) -> None:
    from envweave.envs.coding_env import CodingEnvironment

    def run(code: str) -> Any:
        count = page.locator(".cell").count()
        page.fill("textarea.source", code)
        page.keyboard.press("Control+Enter")
        page.wait_for_selector(f".cell >> nth={count}")
        page.wait_for_selector(".play:not(.busy)")
        return page.locator(".cell").last

    with served_by_us(CodingEnvironment) as (url, _), open_page(browser) as page:
        page.goto(f"{url}/web")
        page.click("form.reset button")
        page.wait_for_selector("textarea.source")
        colored = run("total = 6 * 7\nprint('\\x1b[32mgreen\\x1b[0m')\ntotal")
        output, green = colored.inner_text(), colored.locator(".a-fg2").inner_text()
        words = run("import math; 1 / 0").locator("pre.code .t-word").all_inner_texts()
        failure = page.locator(".cell").last.locator("pre.stderr").inner_text()
        variables = page.locator("table.variables").inner_text()
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowUp")
        recalled = page.input_value("textarea.source")

    assert "Out [1]" in output
    assert "42" in output
    assert (green, words) == ("green", ["import"])
    assert "ZeroDivisionError: division by zero" in failure
    assert "total" in variables
    assert recalled.startswith("total = 6 * 7")


def test_hostile_text_stays_text(browser: Any) -> None:
    with served_by_us(Hostile) as (url, _), open_page(browser) as page:
        play(page, url)
        shown = page.locator(".turn").first.inner_text()
        cut = len(page.locator(".long pre").first.inner_text())
        page.click("text=Show all")
        whole = len(page.locator(".long pre").first.inner_text())
        page.locator(".composer input[type=number]").first.fill("1")
        take_step(page)
        elements = page.locator("main script, main img, main iframe").count()
        title = page.title()

    assert HOSTILE in shown
    assert "⟨202E⟩gnp.exe⟨202C⟩ red" in shown
    assert not re.search("[\u202e\u200b\x1b]", shown)
    assert (cut, whole, elements) == (4000, 1_000_000, 0)
    assert title == "served · envweave"


def test_a_failure_of_the_environment_is_shown_with_its_cause(browser: Any) -> None:
    with served_by_us(Failing) as (url, _), open_page(browser) as page:
        play(page, url)
        page.on("console", lambda _: None)
        page.locator(".composer input").first.fill("1")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector(".end, .bad:not(:empty)")
        said = page.locator(".play").inner_text()

    assert "environment" in said
    assert "ZeroDivisionError" in said


def test_sessions_and_calls_are_shown_live(browser: Any) -> None:
    with served_by_us(Orders) as (url, _), open_page(browser) as page:
        play(page, url)
        page.keyboard.press("Escape")
        page.click("nav >> text=Live")
        page.wait_for_selector("text=in an episode")
        figures = page.locator(".figures").inner_text()
        page.wait_for_selector("td >> text=reset")

    assert "1 of 1,024" in figures
    assert "ready" in figures


def test_the_session_is_closed_when_the_page_is(browser: Any) -> None:
    with served_by_us(Orders) as (url, _), open_page(browser) as page:
        play(page, url)
        page.goto("about:blank")
        page.goto(f"{url}/web#/live")
        page.wait_for_selector("td >> text=closed")


def test_a_token_is_asked_for_and_then_not_needed_again(browser: Any) -> None:
    with served_by_us(Orders, token="secret") as (url, _), browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{url}/web/")
        page.fill("input[name=token]", "secret")
        page.click("button")
        page.wait_for_selector("form.reset")
        signed_in = page.url
        page.click("form.reset button")
        page.wait_for_selector(".composer form")
        cookies = page.evaluate("() => document.cookie")

    assert signed_in == f"{url}/web/"
    assert cookies == ""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_is_that_of_the_system_until_it_is_chosen(browser: Any, scheme: str) -> None:
    def background() -> int:
        color = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        return sum(int(one) for one in re.findall(r"\d+", color)[:3])

    with served_by_us(Orders) as (url, _), open_page(browser, color_scheme=scheme) as page:
        page.goto(f"{url}/web")
        page.wait_for_selector("form.reset")
        before = background()
        page.keyboard.press("t")
        after = background()
        page.reload()
        page.wait_for_selector("form.reset")
        later = background()

    assert (before > 384, after > 384) == (scheme == "light", scheme == "dark")
    assert later == after


def test_everything_is_reached_with_the_keyboard(browser: Any) -> None:
    with served_by_us(Orders) as (url, _), open_page(browser) as page:
        page.goto(f"{url}/web")
        page.wait_for_selector("form.reset")
        page.keyboard.press("?")
        keys = page.locator("dialog[open] dl").inner_text()
        page.keyboard.press("Escape")
        reached = []
        for _ in range(9):
            page.keyboard.press("Tab")
            reached.append(
                page.evaluate(
                    "() => [document.activeElement.textContent.trim(), "
                    "getComputedStyle(document.activeElement).outlineStyle]"
                )
            )

    assert {"Reset", "This list", "Light or dark"} <= set(keys.split("\n"))
    assert [one for one, _ in reached][1:7] == ["Play", "Live", "Schema", "API", "◐", "?"]
    assert "none" not in [outline for _, outline in reached[:7]]


def test_the_page_fits_a_telephone(browser: Any) -> None:
    with served_by_us(Orders) as (url, _), open_page(browser) as page:
        page.set_viewport_size({"width": 375, "height": 700})
        play(page, url)
        width = page.evaluate("() => document.documentElement.scrollWidth")

    assert width <= 375


def test_the_documentation_of_the_calls_works_offline(browser: Any) -> None:
    with served_by_us(Orders) as (url, _), open_page(browser) as page:
        page.goto(f"{url}/docs")
        page.wait_for_selector("text=POST")
        page.click("text=Web page")
        page.wait_for_selector("form.reset")
