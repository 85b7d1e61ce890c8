"""grader/book/site.py: the site as built, in files and in a browser. The whole course is built once, for all tests."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlparse

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

import utils
from grader.authoring.build import bytes_of, notebook_of, read_lessons
from grader.authoring.lesson import BuildError
from grader.authoring.markers import clear_solution
from grader.book.site import Options, build_site, command, first_figure, leaks_in_site
from tests.browser import open_browser, visit
from tests.grader.book.test_lesson_page import LESSON

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
LESSONS = sorted(path.parent.name for path in ROOT.glob("solutions/*/lesson_*.py"))
HUB, STUDENTS, REPOSITORY = (
    "https://hub.example",
    "https://example.org/you/for-students.git",
    "https://example.org/me/c",
)
WIDTHS = {"laptop": (1366, 768), "telephone": (390, 844)}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return build_site(Options(REPOSITORY, HUB, STUDENTS), ROOT, tmp_path_factory.mktemp("site") / "book")


@pytest.fixture(scope="module")
def browser():
    with open_browser() as chromium:
        yield chromium


@pytest.fixture
def course(tmp_path):
    """A course of one lesson."""
    files = {
        "solutions/01_doubling/lesson_01.py": LESSON,
        "solutions/01_doubling/checks_01.py": "",
        "docs/notes.md": "# Notes\n[the lesson](../solutions/01_doubling/lesson_01.py)\n",
    }
    shutil.copytree(ROOT / "docs" / "book", tmp_path / "docs" / "book")
    for name, text in {**files, "docs/book/api.md": "# Functions\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    [lesson] = read_lessons(root=tmp_path)
    for folder, change in (("solutions", str), ("notebooks", clear_solution)):
        notebook = notebook_of(lesson)
        for cell in notebook.cells:
            cell.source = change(cell.source)
        path = tmp_path / folder / lesson.name / f"{lesson.name}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes_of(notebook))
    return tmp_path


class Page(HTMLParser):
    """The ids of a page, and the addresses that it links to or loads."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.loaded = set(), [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids.add(found.get("id"))
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        self.loaded += [found[name] for name in ("src", "srcset", "data") if found.get(name)]
        if tag == "link" and found.get("rel") not in ("next", "prev", "index", "search"):
            self.loaded.append(found["href"])


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


# ---- files -----------------------------------------------------------------------------------------------------------


def test_there_is_a_page_for_each_lesson_and_each_document(site):
    docs = sorted(path.stem for path in (ROOT / "docs").glob("*.md"))
    assert sorted(path.stem for path in site.glob("lessons/*.html")) == LESSONS
    assert sorted(path.stem for path in site.glob("docs/*.html")) == docs
    first = (site / "index.html").read_text()
    assert all(f'href="lessons/{lesson}.html"' in first for lesson in LESSONS)
    assert all(f'href="docs/{name}.html"' in first for name in docs)


def test_a_card_shows_an_open_figure_if_there_is_one():
    def cell(kind, *tags):
        output = new_output("display_data", data={"text/html": f'<img src="data:image/{kind};base64,AA==">'})
        return new_code_cell(outputs=[output], metadata={"tags": tags})

    closed, opened = cell("png", "hide-output"), cell("svg+xml")
    assert first_figure(new_notebook(cells=[closed, opened])) == "data:image/svg+xml;base64,AA=="
    assert first_figure(new_notebook(cells=[closed])) == "data:image/png;base64,AA=="
    assert first_figure(new_notebook()) == ""


def test_every_link_within_the_site_leads_somewhere(pages):
    broken = []
    for path, page in pages.items():
        for address in page.links + page.loaded:
            target = urlparse(address)
            if target.scheme:
                continue
            file = (path.parent / unquote(target.path)).resolve() if target.path else path
            if not file.is_file() or (target.fragment and file in pages and target.fragment not in pages[file].ids):
                broken.append(f"{path.name}: {address}")
    assert broken == []


def test_nothing_is_loaded_from_elsewhere(site, pages):
    assert [one for page in pages.values() for one in page.loaded if urlparse(one).scheme not in ("", "data")] == []
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(\s*['\"]?(https?:)?//|@import", sheet.read_text()), sheet


def test_it_is_small(site):
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < 30e6
    assert max(path.stat().st_size for path in site.rglob("*.html")) < 1e6


def test_a_lesson_can_be_downloaded_and_opened_on_the_hub(site, pages):
    name = LESSONS[0]
    page = pages[site / "lessons" / f"{name}.html"]
    notebook = f"notebooks/{name}/{name}.ipynb"
    assert f"{name}.ipynb" in page.links
    assert (site / "lessons" / f"{name}.ipynb").read_bytes() == (ROOT / notebook).read_bytes()
    [launch] = [urlparse(link) for link in page.links if link.startswith(HUB)]
    assert launch.path == "/hub/user-redirect/git-pull"
    urlpath = f"lab/tree/for-students/{notebook}"
    assert parse_qs(launch.query) == {"repo": [STUDENTS], "branch": ["main"], "urlpath": [urlpath]}


def test_documents_link_to_the_repository_but_not_to_answers(pages, site):
    links = pages[site / "docs" / "architecture.html"].links
    assert f"{REPOSITORY}/blob/main/utils/worlds/real/launch.py" in links
    assert f"{REPOSITORY}/tree/main/utils/events" in links
    assert not [link for link in links if re.search(r"/solutions\b(?!/\w+/messages\.txt)", link)]


def test_every_public_name_is_described(pages, site):
    described = pages[site / "api.html"].ids
    assert set(utils.__all__) <= described
    assert {"Cluster", "Gpu", "Link", "find_cluster", "Run.timeline"} <= described


def test_formulas_and_diagrams_are_part_of_the_page(site):
    assert "<math" in (site / "lessons" / "02_all_reduce.html").read_text()
    assert "\\overline" not in (page := (site / "lessons" / "05_data_parallelism.html").read_text())
    assert 'stretchy="true">&#x0203E;' in page
    assert (site / "_static" / "math.woff").stat().st_size < 300_000
    assert '<div class="diagram"><svg' in (site / "docs" / "architecture.html").read_text()


# ---- answers ---------------------------------------------------------------------------------------------------------


def test_exercises_are_empty_and_checks_have_no_output(site):
    """Seen in the pages as built: the code in each exercise is that of the students' notebook."""
    for name in LESSONS:
        page = (site / "lessons" / f"{name}.html").read_text()
        released = nbformat.read(ROOT / "notebooks" / name / f"{name}.ipynb", as_version=4)
        code = [cell for cell in released.cells if cell.cell_type == "code"]
        exercises = [cell.source for cell in code if cell.metadata.get("nbgrader", {}).get("solution")]
        cells = re.split('(?=<div class="cell )', page)
        shown = [cell for cell in cells if cell.startswith('<div class="cell tag_exercise ')]
        assert [text_of(re.search("<pre>(.*?)</pre>", cell, re.DOTALL)[1]).strip() for cell in shown] == exercises
        tagged = [cell for cell in cells if re.match('<div class="cell tag_(exercise|check) ', cell)]
        assert [cell for cell in tagged if "cell_output" in cell] == []
        assert "hidden test" not in text_of(page) and "All of it is done." not in text_of(page)


def text_of(html):
    """Without its marks: a parser would take seconds for all lessons."""
    return unescape(re.sub("<[^>]*>", "", html))


def test_an_answer_anywhere_in_the_site_is_found(course, tmp_path):
    lessons = read_lessons(root=course)
    site = tmp_path / "site"
    site.mkdir()
    secret = "total = left + right - 1"
    parts = "".join(f"<span>{word}</span> " for word in secret.split())
    planted = {
        "prose.html": f"<p>It is {secret}, of course.</p>",
        "code.html": f"<pre>x = 1\n{parts}\n</pre>",
        "attribute.js": f'Search.setIndex({{"text": "{secret}"}})',
        "notebook.ipynb": nbformat.writes(notebook_of(lessons[0])),
        "hidden.html": "<p>from grader.hidden import x</p>",
        "clean.html": "<p>total</p>",
    }
    for name, text in planted.items():
        (site / name).write_text(text)
    assert {leak.file for leak in leaks_in_site(site, lessons)} == planted.keys() - {"clean.html"}


def test_an_answer_or_a_broken_link_stops_the_book(course, capsys):
    assert command(Options(), course) == 0
    assert "build/book/index.html: 5 pages" in capsys.readouterr().out
    before = (course / "build/book/index.html").read_bytes()
    notes = course / "docs" / "notes.md"
    notes.write_text("# Notes\n```python\ntotal = left + right - 1\n```\n")
    assert command(Options(), course) == 1
    told = capsys.readouterr().err
    assert (
        "the book was not built: docs/notes.html:" in told and "this holds a line of the answer at solutions/" in told
    )
    notes.write_text("# Notes\n[gone](../utils/gone.py)\n")
    assert command(Options(), course) == 1
    assert (told := capsys.readouterr().err).startswith("docs/notes.md:2: WARNING: ") and "../utils/gone.py" in told
    assert (course / "build/book/index.html").read_bytes() == before
    assert [path.name for path in (course / "build").iterdir()] == ["book"]


@pytest.mark.thorough
def test_the_same_course_gives_the_same_bytes(course):
    program = (
        "import sys; from pathlib import Path; from grader.book.site import *; build_site(Options(), Path(sys.argv[1]))"
    )
    made = []
    for seed in "12":
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", program, course], check=True, cwd=ROOT, env=environment, timeout=120)
        site = course / "build" / "book"
        made.append({path.relative_to(site): path.read_bytes() for path in site.rglob("*") if path.is_file()})
    assert made[0].keys() == made[1].keys()
    assert [name for name in made[0] if made[0][name] != made[1][name]] == []


def test_a_hub_never_copies_the_repository_with_the_answers():
    with pytest.raises(BuildError, match="--hub and --students go together"):
        Options(hub=HUB)
    with pytest.raises(BuildError, match="holds the answers"):
        Options(REPOSITORY, HUB, REPOSITORY)


def test_the_workflow_gives_options_that_there_are():
    workflow = (ROOT / ".github/workflows/book.yml").read_text()
    named = set(re.findall(r"--(\w+)", workflow))
    assert {"repository", "hub", "students"} == named <= {field.name for field in fields(Options)}
    assert "run: make book" in workflow and "path: build/book" in workflow


# ---- in a browser ----------------------------------------------------------------------------------------------------


def look(browser, site, page, width, height, scheme="light"):
    """Open a page from disk, and everything on it. Nothing may go wrong or leave the machine, nor be too wide."""
    options = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
    with visit(browser, site.as_uri(), **options) as seen:
        seen.page.goto(f"{site.as_uri()}/{page}")
        seen.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert (seen.console, seen.left_the_machine) == ([], [])
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        pictures = seen.page.evaluate("[...document.images].filter(one => !one.naturalWidth).map(one => one.src)")
        assert pictures == []


@pytest.mark.parametrize(
    "page, width",
    [
        ("index", "telephone"),
        ("api", "laptop"),
        ("docs/architecture", "telephone"),
        ("lessons/01_collectives", "laptop"),
        ("lessons/09_pipeline_parallelism", "telephone"),
    ],
)
def test_a_page_in_a_browser(browser, site, page, width):
    look(browser, site, f"{page}.html", *WIDTHS[width])


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_all_pages_in_a_browser(browser, site, pages, width, scheme):
    for path in pages:
        look(browser, site, path.relative_to(site), *WIDTHS[width], scheme)


def test_the_search_works_from_disk(browser, site):
    with visit(browser, site.as_uri()) as seen:
        seen.page.goto(f"{site.as_uri()}/index.html")
        seen.page.fill("input[name=q]", "deadlock")
        seen.page.press("input[name=q]", "Enter")
        seen.page.wait_for_selector(".search li a[href*='lessons/01_collectives']")
        assert (seen.console, seen.left_the_machine) == ([], [])


def test_figures_follow_the_readers_choice_of_dark(browser, site):
    """Whatever the system prefers, the button decides; a figure on white paper would blind at night."""
    look_of = "getComputedStyle(document.querySelector('.cell_output img')).filter"
    with visit(browser, site.as_uri(), color_scheme="dark") as seen:
        seen.page.goto(f"{site.as_uri()}/lessons/01_collectives.html")
        assert "invert" in seen.page.evaluate(look_of)
        seen.page.evaluate("document.body.dataset.theme = 'light'")
        assert seen.page.evaluate(look_of) == "none"


def test_an_output_to_predict_opens_with_a_click(browser, site):
    with visit(browser, site.as_uri()) as seen:
        seen.page.goto(f"{site.as_uri()}/lessons/01_collectives.html")
        report = seen.page.locator(".cell_output", has_text="each waits for another").first
        assert not report.is_visible()
        for fold in seen.page.get_by_text("Predict first").all():
            fold.click()
        assert report.is_visible()
