"""The report as a browser shows it. Needs a Chromium: Debian's package `chromium`, or one of Playwright's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.report.found import Found
from tasks.report.page import page

axe_api = pytest.importorskip("axe_playwright_python.sync_playwright", reason="the package axe-playwright-python is not installed")

WAYS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1200, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1200, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}


@pytest.fixture(scope="module")
def report(made: Callable[..., Found], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report of 100 devices, beside another run."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(page(made(100, 8, 30), [made(100, 8, 30, seed=1, run_id="run-2", algorithm="eb")]))
    return file.as_uri()


@pytest.fixture
def opened(browser: Any, report: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The report in one of `WAYS`; at the end it must have said and asked nothing."""
    context = browser.new_context(**WAYS[getattr(request, "param", "light")])
    shown, said, asked = context.new_page(), [], []
    shown.on("console", lambda message: said.append(message.text))
    shown.on("pageerror", lambda error: said.append(str(error)))
    shown.on("request", lambda each: asked.append(each.url))
    shown.goto(report)
    yield shown
    context.close()
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [report]


def column(shown: Any, number: int) -> list[str]:
    """The cells of a column of the device table that are shown."""
    cells = shown.locator(f"#devices tbody tr:not([hidden]) > *:nth-child({number})")
    return cells.all_inner_texts()


@pytest.mark.parametrize("opened", list(WAYS), indirect=True)
def test_axe_finds_nothing_serious(opened: Any) -> None:
    found = axe_api.Axe().run(opened)
    assert len(found.response["passes"]) > 20  # it has looked
    serious = [each for each in found.response["violations"] if each["impact"] in ("serious", "critical")]
    assert [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in serious] == []


@pytest.mark.parametrize("opened", list(WAYS), indirect=True)
def test_nothing_is_wider_than_the_window(opened: Any) -> None:
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("opened", ["phone", "light"], indirect=True)
def test_figures_are_whole_in_the_window(opened: Any) -> None:
    shown = opened.evaluate(
        "[...document.querySelectorAll('.drawing svg')].map((each) => each.getBoundingClientRect()).filter((each) => each.width)"
    )
    assert len(shown) == opened.locator("figure").count()  # one form of each
    assert all(each["left"] >= 0 and each["right"] <= opened.viewport_size["width"] for each in shown)


def test_a_long_id_does_not_widen_the_page(made: Callable[..., Found], browser: Any, tmp_path: Path) -> None:
    found, names = made(3), ("d" * 100, "e", "f")
    scores = found.scores._replace(devices=names, hurt=np.array([True, False, False]))
    file = tmp_path / "report.html"
    file.write_text(page(replace(found, fleet=names, devices=names, scores=scores, trajectories={})))
    shown = browser.new_page(**WAYS["phone"])
    shown.goto(file.as_uri())
    assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert shown.locator(".verdict").evaluate("each => each.scrollWidth <= each.clientWidth")
    assert shown.locator("#devices tbody th").first.evaluate("each => each.getBoundingClientRect().width <= 0.5 * innerWidth")
    shown.close()


def test_no_word_of_a_table_is_broken(made: Callable[..., Found], browser: Any, tmp_path: Path) -> None:
    found = made(6)
    names = tuple(f"pumpstationnorthhallline{k:06d}" if k else "pump-station-north-hall-000000" for k in range(6))
    file = tmp_path / "report.html"
    file.write_text(page(replace(found, fleet=names, devices=names, scores=found.scores._replace(devices=names), trajectories={})))
    lines = """() => {
        const words = [];
        for (const cell of document.querySelectorAll("tbody th, tbody td")) {
            const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
            while (texts.nextNode()) for (const word of texts.currentNode.data.matchAll(/\\S+/g)) {
                const range = document.createRange();
                range.setStart(texts.currentNode, word.index);
                range.setEnd(texts.currentNode, word.index + word[0].length);
                words.push([word[0], new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size]);
            }
        }
        return words;
    }"""
    for way in ("phone", "light"):
        shown = browser.new_page(**WAYS[way])
        shown.goto(file.as_uri())
        told = shown.evaluate(lines)
        assert len(told) > 60
        assert [word for word, count in told if count != 1] == []
        assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
        heads = shown.locator("#devices tbody th")
        assert sorted(heads.all_inner_texts()) == sorted(names)
        assert sorted(each.get_attribute("title") for each in heads.all()) == sorted(names)
        shown.close()


def test_the_table_sorts_both_ways(opened: Any) -> None:
    heads = opened.locator("#devices thead th")
    names = [name.strip("\xa0↕↑↓ ") for name in heads.all_inner_texts()]
    error = names.index("Error with the fleet, bar")
    for way, falls in (("ascending", False), ("descending", True)):
        heads.nth(error).get_by_role("button").click()
        assert heads.nth(error).get_attribute("aria-sort") == way
        values = [float(text) for text in column(opened, error + 1)]
        assert values == sorted(values, reverse=falls)
        assert len(set(values)) > 90
    heads.nth(0).get_by_role("button").press("Enter")  # by keyboard, and only one head says that it sorts
    assert heads.nth(error).get_attribute("aria-sort") is None
    assert column(opened, 1) == sorted(column(opened, 1))


def test_the_search_filters_and_counts(opened: Any) -> None:
    search = opened.get_by_label("Search the devices")
    search.fill("d004")
    assert column(opened, 1) == [f"d{k:04d}" for k in range(40, 50)]
    assert opened.locator("#found").inner_text() == "10 of 100"
    search.fill("HURT")
    assert column(opened, 1) == ["d0099"]
    search.fill("")
    assert len(column(opened, 1)) == 100
    assert opened.locator("#found").inner_text() == "100 in all"


def test_the_search_finds_no_digits_of_figures(opened: Any) -> None:
    search = opened.get_by_label("Search the devices")
    search.fill("3")
    assert column(opened, 1) == [f"d{k:04d}" for k in range(100) if "3" in str(k)]
    search.fill("30")  # training rows of every device
    assert column(opened, 1) == ["d0030"]
    search.fill("0.")
    assert column(opened, 1) == []


def test_the_keyboard_gets_to_the_answer_first(opened: Any) -> None:
    opened.keyboard.press("Tab")
    focused = opened.locator(":focus")
    assert focused.inner_text() == "Skip to the answer"
    assert focused.evaluate("each => each.getBoundingClientRect().left >= 0")
    assert focused.evaluate("each => getComputedStyle(each).outlineStyle") == "solid"
    opened.keyboard.press("Enter")
    assert opened.evaluate("document.activeElement.id") == "main"


@pytest.mark.parametrize("opened", ["light", "dark"], indirect=True)
def test_figures_take_the_colours_of_the_page(opened: Any) -> None:
    ink = opened.evaluate("getComputedStyle(document.body).color")
    texts = opened.evaluate("[...new Set([...document.querySelectorAll('#answer svg text')].map((each) => getComputedStyle(each).fill))]")
    assert texts == [ink]


def test_it_prints_all_of_the_table(opened: Any) -> None:
    opened.emulate_media(media="print")
    assert opened.locator(".tall").first.evaluate("each => getComputedStyle(each).maxHeight") == "none"
    assert not opened.get_by_label("Search the devices").is_visible()
    assert not opened.locator("#filtered").is_visible()
    assert opened.pdf().startswith(b"%PDF")


def test_a_print_says_that_the_table_is_filtered(opened: Any) -> None:
    opened.get_by_label("Search the devices").fill("d004")
    told = opened.locator("#filtered")
    assert not told.is_visible()
    opened.emulate_media(media="print")
    assert told.is_visible()
    assert told.inner_text() == "10 of 100 devices shown: search 'd004'"
    assert opened.locator("#devices tbody tr").count() == 100
    assert opened.locator("#devices tbody tr:visible").count() == 10
