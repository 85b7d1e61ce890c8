"""Build the book into build/book: plain files that need neither a server nor a network. `make book` calls this.

    build_site(options, root, out) -> Path   raises BuildError if Sphinx warns, or if an answer is on a page
    leaks_in_site(site, lessons) -> [Problem]   the bundle's proof (grader/authoring/leaks.py), on the pages as built
    command(options, root)                   the same for the command line: prints, returns the exit code

Nothing is executed: lessons come from the notebooks on disk, and what is said about functions from their docstrings.
"""

from __future__ import annotations

import html
import io
import os
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import nbformat
from nbformat.notebooknode import NotebookNode
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

from grader.authoring.build import bytes_of, read_lessons, release_path, solution_path
from grader.authoring.facts import about_lesson, plural
from grader.authoring.leaks import leaks, telling_lines
from grader.authoring.lesson import ROOT, BuildError, Lesson, Problem
from grader.book.lesson_page import lesson_page

# The pages of docs/ that readers need first. All others follow, by name.
FIRST = ("environments", "debugging", "clusters", "gpu", "simulator", "instructors", "grading", "architecture")
FIGURE = re.compile(r'src="(data:image/(?:png|svg\+xml);base64,[^"]+)"')  # an image in an output's HTML
COLOUR = re.compile(r"\x1b\[[\d;]*m")
TAG = re.compile(r"<[^>]*>")
TEXT = (".html", ".ipynb", ".js", ".json", ".txt")  # files that the proof reads


@dataclass(frozen=True)
class Options:
    """Addresses, without a slash at the end. Empty: there is none, and no page links to it.

    repository   where the course's files are on the web: for links from docs/
    hub          a JupyterHub with nbgitpuller, where a lesson can be opened
    students     the repository that the hub copies for each student: what `make release` packs, unpacked
    branch       of both repositories
    """

    repository: str = ""
    hub: str = ""
    students: str = ""
    branch: str = "main"

    def __post_init__(self) -> None:
        if bool(self.hub) != bool(self.students):
            raise BuildError(["--hub and --students go together: the hub copies that repository for each student"])
        if self.students and self.students == self.repository:
            raise BuildError([f"--students: {self.students} holds the answers, and the hub would copy it for students"])


# ---- sources ---------------------------------------------------------------------------------------------------------


def write_sources(folder: Path, lessons: list[Lesson], options: Options, root: Path) -> None:
    """Write what Sphinx reads: a page for each lesson and each file in docs/, and the first page."""
    shutil.copytree(root / "docs" / "book", folder)
    shutil.copytree(root / "docs", folder / "docs", ignore=shutil.ignore_patterns("book"))
    (folder / "lessons").mkdir()
    cards = []
    for lesson in lessons:
        page = lesson_page(lesson, read(release_path(lesson)), read(solution_path(lesson)), links(lesson, options))
        (folder / "lessons" / f"{lesson.name}.ipynb").write_bytes(bytes_of(page))
        cards.append(card(lesson, first_figure(page)))
    docs = sorted((folder / "docs").glob("*.md"), key=lambda path: (place(path.stem), path.stem))
    index = folder / "index.md"
    text = index.read_text(encoding="utf-8")
    text = text.replace("<!-- lessons -->", "\n".join(cards))
    text += toctree("Lessons", [f"lessons/{lesson.name}" for lesson in lessons])
    text += toctree("More to read", ["api", *(f"docs/{path.stem}" for path in docs)])
    index.write_text(text, encoding="utf-8")


def read(path: Path) -> NotebookNode:
    if not path.exists():
        raise BuildError([f"{path.parent.parent.name}/{path.name} is missing: run `make build`"])
    return nbformat.read(path, as_version=4)


def links(lesson: Lesson, options: Options) -> str:
    """The line under a lesson's title, as HTML."""
    found = [f'<a href="{lesson.name}.ipynb" download>Download this notebook</a>']
    if options.hub:
        path = release_path(lesson).relative_to(lesson.root).as_posix()
        folder = options.students.removesuffix(".git").rpartition("/")[2]
        query = {"repo": options.students, "branch": options.branch, "urlpath": f"lab/tree/{folder}/{path}"}
        address = html.escape(f"{options.hub}/hub/user-redirect/git-pull?{urlencode(query)}")
        found.append(f'<a href="{address}">Open it on the JupyterHub</a>')
    return f'<p class="links">{" ".join(found)}</p>'


def card(lesson: Lesson, figure: str) -> str:
    """A lesson on the first page, as HTML: a figure from it, its title, question and time."""
    image = f'<img alt="" src="{figure}">' if figure else ""
    title = html.escape(lesson.cells[0].source.splitlines()[0].removeprefix("# "))
    return (
        f'<a class="lesson" href="lessons/{lesson.name}.html">'
        f'<span class="figure">{image}</span>'
        f"<span><strong>{lesson.name[:2]} · {title}</strong> {html.escape(lesson.cells[0].marker.question)} "
        f"<small>{about_lesson(lesson)}</small></span></a>"
    )


def first_figure(page: NotebookNode) -> str:
    """A page's first figure, if possible from an open output, as an address; "" if there is none."""
    for cell in sorted(page.cells, key=lambda cell: "hide-output" in cell.metadata.get("tags", [])):
        for output in cell.get("outputs", []):
            if found := FIGURE.search(output.get("data", {}).get("text/html", "")):
                return found[1]
    return ""


def place(name: str) -> int:
    return FIRST.index(name) if name in FIRST else len(FIRST)


def toctree(caption: str, pages: list[str]) -> str:
    return "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", ""])


# ---- the site --------------------------------------------------------------------------------------------------------


def build_site(options: Options, root: Path = ROOT, out: Path | None = None) -> Path:
    """Build the site and return its folder, `out` or build/book. Whatever was in that folder is replaced.

    Raises BuildError, and leaves the folder as it was, if Sphinx has something to warn of or if a page holds an answer.
    """
    out = out or root / "build" / "book"
    lessons = read_lessons(root=root)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".book-") as temporary:
        sources, site = Path(temporary, "sources"), Path(temporary, "site")
        write_sources(sources, lessons, options, root)
        run_sphinx(sources, site, options, root)
        for lesson in lessons:
            shutil.copy(release_path(lesson), site / "lessons")
        found = leaks_in_site(site, lessons)
        if found:
            raise BuildError([f"the book was not built: {leak}" for leak in found])
        shutil.rmtree(out, ignore_errors=True)
        os.replace(site, out)
    return out


def run_sphinx(sources: Path, site: Path, options: Options, root: Path) -> None:
    """Build the pages. A warning is an error: it stands for a broken link, or for something that readers would miss."""
    warnings = io.StringIO()
    settings = {"course": str(root), "repository": options.repository, "branch": options.branch}
    with patch_docutils(), docutils_namespace():
        app = Sphinx(sources, sources, site, sources.parent / "doctrees", "html", settings, None, warnings)
        app.build()
    if text := COLOUR.sub("", warnings.getvalue()):
        raise BuildError(text.replace(f"{sources}{os.sep}", "").splitlines())
    (site / ".buildinfo").unlink()  # serves only a next build into the same folder, and there is none


# ---- the proof -------------------------------------------------------------------------------------------------------


def leaks_in_site(site: Path, lessons: list[Lesson]) -> list[Problem]:
    """Everything in the site that gives away an answer of `lessons`, or belongs to the grader."""
    files = [path for path in sorted(site.rglob("*")) if path.suffix in TEXT]
    texts = {path.relative_to(site).as_posix(): text_of(path) for path in files}
    return leaks(texts, telling_lines(lesson.path for lesson in lessons))


def text_of(path: Path) -> bytes:
    """A file as the proof reads it: a page without its tags, which stand between the words of highlighted code."""
    if path.suffix != ".html":
        return path.read_bytes()
    return html.unescape(TAG.sub("", path.read_text(encoding="utf-8"))).encode()


# ---- the command line ------------------------------------------------------------------------------------------------


def command(options: Options, root: Path = ROOT) -> int:
    """`python -m grader book`: build it, print where it is, return the exit code."""
    try:
        site = build_site(options, root)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    files = [path for path in site.rglob("*") if path.is_file()]
    pages = plural(sum(path.suffix == ".html" for path in files), "page")
    size = sum(path.stat().st_size for path in files) / 1e6
    print(f"{site.relative_to(root)}/index.html: {pages}, {size:.1f} MB, no answer in it")
    return 0
