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
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.typing import ExtensionMetadata

from grader.authoring.lesson import ROOT

NOTEBOOK = re.compile(r"notebooks/(\w+)/\1\.ipynb")
ANSWERS = re.compile(r"solutions\b(?!/\w+/messages\.txt)")


class LinksToFiles(SphinxPostTransform):
    """Resolves the links that lead to no page. Of those to no file either, Sphinx will say that they are broken."""

    default_priority = 8  # just before myst-parser looks

    def run(self, **options: object) -> None:
        for node in list(self.document.findall(pending_xref)):
            if node["reftype"] == "myst" and not node["refdomain"]:
                target, _, anchor = node["reftarget"].partition("#")
                path = posixpath.normpath(posixpath.join(posixpath.dirname(node["refdoc"]), target))
                if target and Path(self.config.course, path).exists():
                    node.replace_self(self.shown(path, anchor, node))

    def shown(self, path: str, anchor: str, node: pending_xref) -> nodes.Node:
        """What to show for a link to the file or folder at `path`."""
        page = page_of(path)
        if page in self.env.found_docs:
            address = posixpath.relpath(page, posixpath.dirname(node["refdoc"]))
            return nodes.reference("", "", *node.children, internal=True, refuri=f"{address}.html")
        if not self.config.repository or ANSWERS.match(path):
            text = node.astext()
            return nodes.inline("", text) if " " in text else nodes.literal("", text)
        kind = "tree" if Path(self.config.course, path).is_dir() else "blob"
        address = f"{self.config.repository}/{kind}/{self.config.branch}/{path}" + (anchor and f"#{anchor}")
        return nodes.reference("", "", *node.children, internal=False, refuri=address)


def page_of(path: str) -> str:
    """The page that shows a file of the repository, if there is one."""
    if found := NOTEBOOK.fullmatch(path):
        return f"lessons/{found[1]}"
    return "index" if path in ("README.md", "notebooks") else ""


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_config_value("course", str(ROOT), "env")  # the folder of the course
    app.add_config_value("repository", "", "env")  # such as https://github.com/you/course
    app.add_config_value("branch", "main", "env")
    app.add_post_transform(LinksToFiles)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
