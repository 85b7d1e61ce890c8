"""Sphinx extension: where links in docs/ lead on the site.

On GitHub they lead to files of the repository. On the site a link to a notebook leads to the lesson's page, one to
README.md to the first page, and one to another file to the repository on the web, if its address is configured. A file
that holds answers, and every file if no address is, is named and not linked.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.typing import ExtensionMetadata

from grader.authoring.lesson import ROOT

NOTEBOOK = re.compile(r"notebooks/(\w+)/\1\.ipynb")
ANSWERS = re.compile(r"(solutions|grader/hidden|tests/mutants)\b")


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_config_value("course", str(ROOT), "env")  # the folder of the course
    app.add_config_value("repository", "", "env")  # such as https://github.com/you/course
    app.add_config_value("branch", "main", "env")
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def resolve(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element) -> nodes.Node | None:
    """What to show for a link that leads to no page; None if there is no such file either."""
    if node["reftype"] != "myst":
        return None
    target, _, anchor = node["reftarget"].partition("#")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(node["refdoc"]), target))
    page = page_of(path)
    if page in env.found_docs:
        return linked(app.builder.get_relative_uri(node["refdoc"], page), content)
    file = Path(env.config.course, path)
    if not file.exists():
        return None
    if not env.config.repository or ANSWERS.match(path):
        text = content.astext()
        return nodes.inline("", text) if " " in text else nodes.literal("", text)
    kind = "tree" if file.is_dir() else "blob"
    fragment = f"#{anchor}" if anchor else ""
    return linked(f"{env.config.repository}/{kind}/{env.config.branch}/{path}{fragment}", content)


def page_of(path: str) -> str:
    """The page that shows a file of the repository, if there is one."""
    if found := NOTEBOOK.fullmatch(path):
        return f"lessons/{found[1]}"
    return "index" if path == "README.md" else ""


def linked(address: str, content: nodes.Element) -> nodes.Node:
    return nodes.reference("", "", content, internal="://" not in address, refuri=address)
