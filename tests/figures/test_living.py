"""A timeline in a browser: still without scripts, alive with them. And what is in its bytes."""

import itertools
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from tests.browser import open_browser, visit
from tests.figures.test_figures import call, run_of, world_of
from utils.events.event import Region

HOSTILE = "</text><script>window.hacked = 1</script>' onload='hacked()' \x00\ud800 & <b>"
TEXTS = """() => [...document.querySelectorAll("svg text")].filter(one => one.textContent).map(one => {
    const {left, right, top, bottom} = one.getBoundingClientRect();
    return [one.textContent, left, right, top, bottom, parseFloat(getComputedStyle(one).fontSize)];
})"""


def two_ranks(name="forward 3"):
    """Rank 0 computes and then waits for rank 1's message, which computes longer."""
    message = {"members": (0, 1), "where": "train.py:7", "bytes": 8}
    calls = [
        replace(call(0, 0, "recv", 1e-3, 4e-3, peer=1), **message),
        replace(call(1, 0, "send", 3e-3, 4e-3, peer=0), **{**message, "where": "train.py:9"}),
    ]
    regions = [Region(0, name, 0, 1e-3), Region(1, "forward 4", 0, 3e-3), Region(0, "B10", 1e-3, 4e-3)]
    return run_of(calls, regions)


@pytest.fixture(scope="module")
def browser():
    with open_browser() as one:
        yield one


@pytest.fixture
def seen(browser):
    with visit(browser, "about:blank", viewport={"width": 1000, "height": 700}) as one:
        yield one


def middle(page, selector, number=0):
    """Where on the page a shape is."""
    box = page.locator(selector).nth(number).bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def show(seen, *pictures):
    seen.page.set_content("<body>" + "".join(picture._repr_html_() for picture in pictures))
    seen.page.wait_for_function("document.querySelector('svg .axis') && !document.querySelector('img')")


def tip(page):
    return page.locator("div.manyranks > div").first.inner_text().replace("\u00a0", " ")


def test_the_same_run_gives_the_same_bytes_and_nothing_from_elsewhere():
    html = two_ranks().timeline()._repr_html_()
    assert html == two_ranks().timeline()._repr_html_()
    svg = two_ranks().timeline().svg()
    for text in (html, svg):
        assert set(re.findall(r"\w+://[^\"'\s]+", text)) <= {"http://www.w3.org/2000/svg"}
        assert not re.search(r"@import|href|<link|fetch\(|import\(", text)
    assert len(html) < 16_000 and "<script" not in svg


def test_a_bar_says_what_it_is_and_its_partner_lights_up(seen):
    show(seen, two_ranks().timeline())
    page = seen.page
    page.mouse.move(*middle(page, "text >> text=forward 4"))
    assert tip(page) == "forward 4 · rank 1 · 3 ms"
    assert page.locator(".lit").count() == 1
    page.mouse.move(*middle(page, ".labels text >> text=recv"))
    whom = "waits for rank 1's send, train.py, line 9"
    assert tip(page) == f"recv from 1 · rank 0 · 3 ms · {whom} · called at train.py, line 7"
    assert page.locator(".lit").count() == 4  # both calls, and where their ranks wait
    page.mouse.move(*middle(page, ".labels text >> text=B10"))
    assert tip(page).startswith(f"B10 · rank 0 · 3 ms · {whom}")
    page.mouse.move(5, 600)
    assert page.locator(".lit").count() == 0 and tip(page) == ""
    assert seen.console == []


def test_in_a_collective_all_wait_for_the_last_to_call_it():
    late = [replace(call(rank, 0, "all_reduce", rank, 5), where=f"a.py:{rank}") for rank in range(2)]
    first, last = sorted(run_of(late).timeline().bars, key=lambda bar: bar.lane)
    assert first.tells[1] == "waits for rank 1's all_reduce, a.py, line 1 · called at a.py, line 0"
    assert last.tells[1] == "no rank calls it later · called at a.py, line 1" and last.link == first.link != 0


def test_the_wheel_zooms_and_a_double_click_shows_all_again(seen):
    def ticks():
        return [text for text in page.locator(".axis text").all_text_contents() if "since" not in text]

    def widest():
        return page.eval_on_selector_all(".bars rect", "all => Math.max(...all.map(one => one.getBBox().width))")

    show(seen, two_ranks().timeline())
    page = seen.page
    before, wide = ticks(), widest()
    x, y = middle(page, "text >> text=forward 4")
    page.mouse.move(x, y)
    page.mouse.move(x + 2, y)
    for _ in range(3):
        page.mouse.wheel(0, -100)
    page.wait_for_function("last => document.querySelector('.axis').lastChild.textContent !== last", arg=before[-1])
    assert widest() >= wide and ticks() != before
    page.mouse.dblclick(x, y)
    assert ticks() == before and widest() == wide


def test_a_drag_measures(seen):
    show(seen, two_ranks().timeline())
    page = seen.page
    rect = page.locator(".bars rect").nth(0).bounding_box()
    start, end = rect["x"], rect["x"] + rect["width"]
    page.mouse.move(start, rect["y"] + 5)
    page.mouse.down()
    page.mouse.move(end, rect["y"] + 5)
    page.mouse.up()
    times = [float(text.split()[0]) for text in page.locator("svg > g:last-child text").all_text_contents()]
    spans = {round((bar.end - bar.start) * 1e3, 1) for bar in two_ranks().timeline().bars}
    assert round(times[0], 1) in spans


def test_a_click_on_a_rank_folds_its_lane(seen):
    show(seen, two_ranks().timeline())
    page = seen.page
    tall = page.locator("svg").bounding_box()["height"]
    page.mouse.click(*middle(page, "text >> text=rank 0"))
    assert page.locator("svg").bounding_box()["height"] == tall - 72 + 14
    page.mouse.click(*middle(page, "text >> text=rank 0"))
    assert page.locator("svg").bounding_box()["height"] == tall


def test_two_runs_have_one_axis_and_copies_on_a_page_leave_each_other_alone(seen):
    both = two_ranks().timeline(beside=two_ranks(), title=("before", "after"))
    show(seen, both, both, two_ranks().timeline())
    page = seen.page
    assert page.locator("svg").count() == 3 and page.locator("svg").first.locator(".axis").count() == 1
    ids = page.eval_on_selector_all("pattern", "all => all.map(one => one.id)")
    assert len(ids) == len(set(ids))
    page.mouse.move(*middle(page, ".labels text >> text=recv"))
    assert page.locator("svg").first.locator(".lit").count() == 4, "of its own run"
    assert page.locator(".lit").count() == 4


def test_without_scripts_it_is_a_sharp_image(browser):
    with visit(browser, "about:blank", java_script_enabled=False, viewport={"width": 390, "height": 700}) as seen:
        seen.page.set_content(two_ranks().timeline()._repr_html_())
        image = seen.page.locator("img")
        assert image.get_attribute("alt") == "What 2 ranks did"
        assert image.bounding_box()["width"] <= 390 and image.bounding_box()["height"] > 50


def test_names_from_a_students_code_are_text_and_nothing_else(seen):
    picture = two_ranks(HOSTILE).timeline(title=HOSTILE)
    ElementTree.fromstring(picture.svg())
    show(seen, picture)
    page = seen.page
    rect = page.locator(".bars rect").nth(0).bounding_box()
    for bar in page.locator(".bars rect").all():
        rect = bar.bounding_box()
        page.mouse.move(rect["x"] + rect["width"] / 2, rect["y"] + rect["height"] / 2)
        if tip(page).startswith("</text><script>"):
            break
    assert tip(page).startswith("</text><script>window.hacked = 1</script>'")
    assert seen.what_ran() == [] and seen.console == []


@pytest.mark.parametrize("width", [390, 1366])
@pytest.mark.parametrize("kind", ["two ranks", "sixteen ranks", "64 of 70 ranks", "beside"])
def test_text_is_legible_and_nothing_overlaps(browser, width, kind):
    regions = [Region(rank, f"forward {i}", i, i + 0.9) for rank in range(16) for i in range(8)]
    picture = {
        "two ranks": lambda: two_ranks().timeline(),
        "sixteen ranks": lambda: run_of(
            [call(rank, 0, "all_reduce", 1, 9) for rank in range(16)], regions, 16
        ).timeline(),
        "64 of 70 ranks": lambda: world_of(70, 70).timeline(),
        "beside": lambda: world_of(20, 2).timeline(beside=world_of(4, 4), title=("before", "after")),
    }[kind]()
    with visit(browser, "about:blank", viewport={"width": width, "height": 700}) as seen:
        show(seen, picture)
        texts = seen.page.evaluate(TEXTS)
        right = seen.page.locator("svg").bounding_box()
    assert min(size for *_, size in texts) >= 12
    assert max(edge for _, _, edge, *_ in texts) <= right["x"] + right["width"] + 1
    for (one, *a, _), (two, *b, _) in itertools.combinations(texts, 2):
        over = min(min(a[1], b[1]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[2], b[2]))
        assert over < 3, f"{one!r} and {two!r} overlap by {over:.0f} pixels"
