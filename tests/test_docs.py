"""README and all other pages are true: their code runs, their commands exist, their links and paths lead somewhere.

CONTRIBUTING.md, "Pages", says what is asked of which block of code. Nothing here names a page that may be wrong.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

import setup_env
from grader.classroom import notebook_file
from grader.inside import host
from grader.judging import hub_rank, hub_storage, judge, ranks
from grader.pages import sanitize
from grader.sandbox import resource_monitor
from grader.sandbox.bubblewrap import Limits
from tests import architecture, pictures
from tests.pages import ROOT, Block, blocks, commands, headings, lesson_cells, pages, prose, stored_messages, text_of

pytestmark = pytest.mark.long

PAGES = pages()
MADE_BY_MAKE = (
    "dist/",
    "notebooks/start.md",
    "submitted/",
    "judgements/",
    "autograded/",
    "feedback/",
    "gradebook.db",
    ".venv",
    "build/",
)
SHELL = ("sh", "bash", "shell", "console")
NO_PROMISE = ("text", "mermaid", "toml", "yaml", "json", "dockerfile", "ini", "diff")
BIN = Path(sys.executable).parent


def every(kind):
    """Parameters for a test of one block: all blocks of all pages for which `kind` is true."""
    found = [(page, block) for page in PAGES for block in blocks(page) if kind(block)]
    return [pytest.param(page, block, id=f"{page}:{block.line}") for page, block in found]


def test_no_page_is_forgotten():
    """A project with these pages has at least them, and none of an installed package's."""
    assert {"README.md", "CONTRIBUTING.md", "docs/grading.md", "grader/bundle/README.md"} <= set(PAGES)
    assert ".github/pull_request_template.md" in PAGES
    assert not [page for page in PAGES if "site-packages" in page]


# ---- links and paths -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_every_path_and_link_in_a_page_exists(page):
    """Links are relative to the page; paths in backquotes to the root, or to the page's own folder.

    Files that `make` writes need not exist.
    """
    text = prose(page)
    here = (ROOT / page).parent
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)\s]+)\)", text)
    links += re.findall(r'(?:src|srcset|href)="(?!https?:|#)([^"]+)"', text)
    missing = {link for link in links if not (here / link.partition("#")[0]).exists()}
    named = re.findall(r"`([\w./-]+/[\w./-]*|[\w-]+\.(?:py|md|toml|txt))`", text)
    named = [path for path in named if "NN" not in path and not path.startswith(MADE_BY_MAKE)]
    missing |= {path for path in named if not (ROOT / path).exists() and not (here / path).exists()}
    assert missing == set(), f"{page} names files that do not exist"


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_heading_leads_to_one(page):
    here = ROOT / page
    links = re.findall(r"\]\((?!https?:)([^)\s#]*)#([^)\s]+)\)", prose(page))
    targets = [(here.parent / path if path else here, anchor) for path, anchor in links]
    lost = [anchor for target, anchor in targets if target.suffix == ".md" and anchor not in headings(target)]
    assert lost == []


def test_what_code_says_about_pages_is_true():
    """An error that says `See docs/grading.md, "The sandbox".` sends its reader to a heading that exists."""
    sources = [path for part in ("grader", "utils", "solutions") for path in (ROOT / part).glob("**/*.[ps][yh]")]
    told = {
        (page, heading)
        for path in [*sources, ROOT / "Makefile", ROOT / "setup_env.py"]
        for page, heading in re.findall(r'See ([\w/]+\.md), \\?"([^"\\]+)\\?"', path.read_text(encoding="utf-8"))
    }
    assert ("docs/grading.md", "The sandbox") in told
    assert [one for one in told if f"# {one[1]}\n" not in (ROOT / one[0]).read_text(encoding="utf-8")] == []


def test_the_readme_gives_no_answer_away():
    """It leads to lessons, but to no solution, hidden test or wrong answer, which is a solution with one change."""
    links = re.findall(r"\]\(([^)\s]+)\)", prose("README.md"))
    assert any(link.startswith("notebooks/") for link in links)
    assert [link for link in links if link.startswith("solutions") and not link.endswith("messages.txt")] == []


# ---- python ----------------------------------------------------------------------------------------------------------


def is_output(block: Block) -> bool:
    return not block.words and block.output_of is not None


def test_every_block_says_what_it_is():
    found = [(page, block) for page in PAGES for block in blocks(page)]
    unknown = [f"{page}:{block.line}: {block.words}" for page, block in found if not is_known(block)]
    assert unknown == [], 'CONTRIBUTING.md, "Pages", lists the kinds'


def is_known(block: Block) -> bool:
    if block.words.startswith("python "):
        return f"```{block.words}" in all_tests()  # a test looks for blocks that begin like this one
    return block.words in {"", "python", "sh elsewhere", *SHELL, *NO_PROMISE} or block.words.startswith("{")


@cache
def all_tests() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("**/test_*.py"))


@pytest.mark.parametrize("page", [page for page in PAGES if any(block.words == "python" for block in blocks(page))])
def test_the_python_of_a_page_runs_and_shows_what_it_says(page, tmp_path):
    """Its blocks are run in order, as one notebook, except those that are a lesson's cell: the lesson has been run."""
    promised = {block.output_of: block.text for block in blocks(page) if is_output(block)}
    code = [block for block in blocks(page) if block.words == "python"]
    to_run = [block for block in code if block.text.strip() not in lesson_cells()]
    cells = dict(zip(to_run, run_as_a_notebook([block.text for block in to_run], tmp_path).cells, strict=True))
    for block in code:
        cell = cells.get(block)
        shown = text_of(cell) if cell else lesson_cells()[block.text.strip()]
        failed = cell and any(output.output_type == "error" for output in cell.outputs)
        assert block in promised or not failed, f"{page}:{block.line} raises: {shown}"
        assert shown.strip() == promised.get(block, shown).strip(), f"{page}:{block.line}"


def run_as_a_notebook(cells: list[str], folder: Path) -> nbformat.NotebookNode:
    """What the cells show. They run in `folder`, where they may write, and import this project.

    There, `utils` also has the name that `pip install .` gives it.
    """
    (folder / "manyranks").symlink_to(ROOT / "utils")
    notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells])
    if cells:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        client = NotebookClient(notebook, timeout=120, allow_errors=True, resources={"metadata": {"path": str(folder)}})
        client.execute(env=environment)
    return notebook


@pytest.mark.parametrize(("page", "block"), every(lambda block: not block.words and not is_output(block)))
def test_other_output_is_what_students_read(page, block):
    assert block.text in stored_messages(), "no lesson shows this, and no stored message says it"


def test_the_readmes_number_of_wrong_answers_is_true():
    [said] = re.findall(r"More than ([\d,]+) wrong answers", (ROOT / "README.md").read_text())
    assert stored_messages().count("\n---- ") > int(said.replace(",", ""))


@pytest.mark.parametrize("page", ["README.md", "grader/bundle/README.md", "docs/instructors.md"])
def test_pages_name_the_pythons_and_systems_that_set_up_takes(page):
    text = " ".join((ROOT / page).read_text().split())
    (_, oldest), (_, too_new) = setup_env.PYTHON
    assert f"Linux or WSL, Python 3.{oldest} to 3.{too_new - 1}, and `make`." in text.replace("`make`;", "`make`.")


def test_the_limits_in_grading_md_are_those_of_the_code():
    """All numbers in the rows of a file, in order."""
    limits = {
        "judging/ranks": [ranks.RUN_SECONDS, ranks.HASTY_SECONDS, ranks.CPU_SECONDS, ranks.CPU_SECONDS_EACH],
        "judging/judge": [judge.JUDGE_SECONDS, judge.HASTY_JUDGE_SECONDS, judge.HASTY_TOTAL, judge.MEMORY >> 30],
        "judging/hub_rank": [hub_rank.MAX_BYTES >> 20, hub_rank.MAX_CALLS, hub_rank.MAX_CLAIMS],
        "judging/hub_storage": [hub_storage.MEETING, hub_storage.MEETING_BYTES],
        "sandbox/bubblewrap": [Limits.memory // 10**9, Limits.files, Limits.disk // 10**6],
        "sandbox/resource_monitor": [resource_monitor.FEW_OPEN, resource_monitor.SOCKET_BUFFER >> 10],
        "inside/host": [host.EXTRA_PROCESSES],
        "classroom/notebook_file": [
            *(notebook_file.MAX_CELLS, notebook_file.MAX_CELL, notebook_file.MAX_TEXT),
            *(notebook_file.MAX_FILE >> 20, notebook_file.MAX_METADATA, notebook_file.READ_SECONDS),
            *(notebook_file.MAX_LISTED, notebook_file.MAX_STAMP),
        ],
        "pages/sanitize": [sanitize.PAGE_SECONDS],
    }
    said = {file: [] for file in limits}
    text = (ROOT / "docs" / "grading.md").read_text()
    for words, file in re.findall(r"^\| (.*) \| `grader/(.*)\.py` \|$", text, re.MULTILINE):
        said[file] += [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", words.replace(", ", " "))]
    assert said == limits


# ---- commands --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("page", "block"), every(lambda block: block.words in SHELL))
def test_every_command_of_a_page_exists_and_knows_its_options(page, block):
    problems = [problem for command in commands(block.text) for problem in problems_of(command, page)]
    assert problems == []


@pytest.mark.parametrize(("page", "block"), every(lambda block: block.words == "sh elsewhere"))
def test_a_command_for_another_system_can_be_parsed_and_names_what_we_have(page, block):
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ours = [word for command in commands(block.text) for word in command if word.startswith(".venv/bin/")]
    assert [word for word in ours if not (BIN / Path(word).name).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_make_verb_in_a_sentence_exists(page):
    named = re.findall(r"`(make [^`]+)`", prose(page))
    assert [problem for line in named for command in commands(line) for problem in problems_of(command, page)] == []


def problems_of(command: list[str], page: str) -> list[str]:
    """What is wrong with a command, in words; nothing, if it could be typed as it stands."""
    program, *rest = command
    if program == "make":
        return problems_of_make(rest, page)
    ours = BIN / Path(program).name
    if not ours.is_file() and (program.startswith(".venv/") or not bash_knows(program)):
        return [f"there is no program {program}. Is it on another system? Then the block is `sh elsewhere`"]
    paths = [word for word in rest if "/" in word and re.fullmatch(r"[\w./-]+\.(py|ipynb|md|txt)", word)]
    missing = [path for path in paths if not path.startswith(MADE_BY_MAKE) and not (ROOT / path).exists()]
    problems = [f"there is no file {path}" for path in missing]
    if ours.is_file():
        text = help_of(ours.name, *words_before_options(rest))
        options = [re.split(r"[=\d]", word)[0] for word in before_a_script(rest) if re.match(r"--?[a-zA-Z]", word)]
        problems += [f"{shlex.join(command)}: --help has no {option}" for option in options if not has(text, option)]
    return problems


def problems_of_make(words: list[str], page: str) -> list[str]:
    folder = (ROOT / page).parent
    makefile = (folder if (folder / "Makefile").exists() else ROOT) / "Makefile"
    text = makefile.read_text(encoding="utf-8")
    verbs, variables = set(re.findall(r"^([a-z]+):", text, re.MULTILINE)), set(re.findall(r"\b[A-Z_]{2,}\b", text))
    unknown = [word for word in words if "=" not in word and word not in verbs and word != "..."]
    unknown += [word for word in words if "=" in word and word.split("=")[0] not in variables]
    return [f"{makefile.relative_to(ROOT)} has no {word}" for word in unknown]


def bash_knows(program: str) -> bool:
    """Whether it's a program on this machine, or part of the shell."""
    return subprocess.run(["bash", "-c", 'type -- "$1"', "sh", program], capture_output=True).returncode == 0


def before_a_script(words: list[str]) -> list[str]:
    """What comes after a script is its own."""
    scripts = [number for number, word in enumerate(words) if word.endswith(".py")]
    return words[: scripts[0]] if scripts else words


def words_before_options(words: list[str]) -> tuple[str, ...]:
    """What must stand before --help: `-m grader grade` of `-m grader grade 01_collectives --new`."""
    module = ("-m", words[words.index("-m") + 1]) if "-m" in words else ()
    after = words[words.index("-m") + 2 :] if module else words
    return (*module, *itertools.takewhile(lambda word: re.fullmatch(r"[a-z][a-z_-]*", word), after))


@cache
def help_of(program: str, *words: str) -> str:
    """What a program of this environment says about itself and, if it runs a module, what that says."""
    run = [[program], ["python", *words]] if "-m" in words else [[program, *words]]
    environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    said = ""
    for name, *arguments in run:
        command = [str(BIN / name), *arguments, "--help"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
        assert done.returncode == 0, f"{shlex.join(command)}: {done.stderr}"
        said += done.stdout
    return said


def has(text: str, option: str) -> bool:
    """Whether a text of help has the option. torchrun takes --nproc-per-node with either kind of dash."""
    return re.search(rf"(?<![\w-]){re.escape(dashes(option))}(?![\w-])", dashes(text)) is not None


def dashes(text: str) -> str:
    return text.replace("_", "-")


def test_a_command_that_could_not_be_typed_is_found():
    """The test of the tests above: one wrong thing in each command."""
    for line in [
        "mkae lab",
        "make lob",
        "make LESON=01 script",
        ".venv/bin/pyhton -m grader",
        ".venv/bin/python -m grader grade --studnet ada",
        ".venv/bin/python -m pytest tests/test_nothing.py",
        ".venv/bin/torchrun --nodes-n 2 build/scripts/01_collectives.py",
    ]:
        [command] = commands(line)
        assert len(problems_of(command, "README.md")) == 1, line


# ---- architecture ----------------------------------------------------------------------------------------------------


def test_the_architecture_page_names_every_package():
    text = architecture.PAGE.read_text()
    inits = [*ROOT.glob("utils/*/**/__init__.py"), *ROOT.glob("grader/*/**/__init__.py")]
    folders = {file.parent.relative_to(ROOT).as_posix() for file in inits}
    missing = {folder for folder in folders if f"(../{folder}/)" not in text}
    assert folders
    assert missing == set(), "give each of these a line, with a link, in docs/architecture.md"


def test_the_diagrams_of_the_packages_are_current():
    drawn = architecture.MERMAID.findall(architecture.PAGE.read_text())
    assert drawn == architecture.pictures(), "docs/architecture.md: run `python -m tests.architecture --write`"


def test_every_name_in_the_architecture_page_is_in_the_code():
    """Every name on the page (`spawn`, `Network.commit`, `start_zygote()`) is still defined somewhere."""
    text = architecture.MERMAID.sub("", architecture.PAGE.read_text())
    named = set(re.findall(r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`", text))
    files = [*ROOT.glob("utils/**/*.py"), *ROOT.glob("grader/**/*.py"), ROOT / "setup.py"]
    words = set(re.findall(r"\w+", " ".join(file.read_text() for file in files)))
    gone = {name for name in named if set(name.strip(".").split(".")) - words}
    assert gone == set(), "docs/architecture.md calls these by names that are no longer in utils or grader"


def test_the_walks_name_functions_in_the_files_they_link():
    """A link in parentheses right after a name, `spawn` ([launch.py](...)), leads to the file that defines the name."""
    text = architecture.PAGE.read_text()
    pairs = re.findall(r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`\s+\(\[[^\]]+\]\(\.\./([^)]+\.py)\)", text)
    assert len(pairs) > 20
    wrong = [(name, file) for name, file in pairs if not is_defined_in(name, ROOT / file)]
    assert wrong == [], "docs/architecture.md looks for these names in the wrong file"


def is_defined_in(name, file):
    """Whether each part of a name such as `Network.commit` is a function, a class or a table of that file."""
    defined = re.findall(r"^ *(?:def|class) (\w+)|^([A-Z_]+)\b.* = ", file.read_text(), re.MULTILINE)
    return set(name.split(".")) <= {word for pair in defined for word in pair}


# ---- the rest of the front door --------------------------------------------------------------------------------------


def test_the_pictures_are_what_their_program_draws():
    assert pictures.out_of_date(pictures.drawn()) == [], "run `.venv/bin/python -m tests.pictures --write`"


def test_one_version_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.findall(r"^version: (\S+)", (ROOT / "CITATION.cff").read_text(), re.MULTILINE) == [version]
    assert re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0] == version


def test_code_and_text_have_licences_of_their_own():
    code, text = (ROOT / "LICENSE").read_text(), (ROOT / "LICENSE-TEXT").read_text()
    assert code.startswith("MIT License") and "Permission is hereby granted" in code
    assert re.findall(r"^Section (\d) ", text, re.MULTILINE) == list("12345678")
    assert "notebooks/" in text.partition("----")[0]
    assert "license: [MIT, CC-BY-4.0]" in (ROOT / "CITATION.cff").read_text()


def test_torch_is_bumped_by_hand():
    _, *updates = (ROOT / ".github" / "dependabot.yml").read_text().split("- package-ecosystem: ")
    python = [update for update in updates if not update.startswith("github-actions")]
    assert python and all("- dependency-name: torch\n" in update for update in python)
