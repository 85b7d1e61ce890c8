"""Sphinx extension: `{api}` shows a function or class of `utils` by its signature and docstring, without importing it.

```{api} utils.spawn            a function, or a class that students don't make themselves
```
```{api} utils.cluster.Link
:constructor:                   a class, with the arguments that make one
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import ClassVar

import griffe
from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

TERM = re.compile(r"\S+ {2,}\S")  # "timeout   seconds after which ranks are ended"


class Api(SphinxDirective):
    """Writes Markdown for Sphinx's own Python domain, which makes anchors, and entries for the search."""

    required_arguments = 1
    option_spec: ClassVar = {"constructor": directives.flag}

    def run(self) -> list[nodes.Node]:
        lines = [*shown(find(self.config.course, self.arguments[0]), "constructor" in self.options)]
        place = nodes.container()
        self.state.nested_parse(StringList(lines, source=self.get_source_info()[0]), self.content_offset, place)
        return place.children


@cache
def package(course: str) -> griffe.Object | griffe.Alias:
    """`utils`, as read from its files."""
    return griffe.load("utils", search_paths=[course], allow_inspection=False)


def find(course: str, path: str) -> griffe.Object:
    """The function or class at `path`, such as utils.spawn. Raises KeyError if there is none."""
    found = package(course)[path.removeprefix("utils.")]
    if found.is_alias:
        found = found.final_target
    if found.is_module:  # it has the name of the function that it defines
        found = found[found.name]
    return found


def shown(thing: griffe.Object, constructor: bool) -> Iterator[str]:
    """The lines of Markdown that describe it; of a class, also its public methods and properties."""
    fence = "`" * (6 if thing.is_class else 5)  # methods are inside their class
    name = thing.name
    if isinstance(thing, griffe.Function) or (isinstance(thing, griffe.Class) and constructor):
        name = thing.signature()
    yield f"{fence}{{py:{kind_of(thing)}}} {name}"
    yield from markdown(thing.docstring.value if thing.docstring else "")
    for member in thing.members.values() if thing.is_class else ():
        documented = member.is_public and member.has_docstring and (member.is_function or "property" in member.labels)
        if isinstance(member, griffe.Object) and documented:
            yield from shown(member, constructor)
    yield from (fence, "")


def kind_of(thing: griffe.Object) -> str:
    """What Sphinx's Python domain calls it."""
    if isinstance(thing, griffe.Class):
        return "exception" if any(str(base).endswith("Error") for base in thing.bases) else "class"
    if "property" in thing.labels:
        return "property"
    return "method" if isinstance(thing.parent, griffe.Class) else "function"


def markdown(docstring: str) -> Iterator[str]:
    """A docstring of ours as Markdown: a table of names becomes a list of definitions, all else stays."""
    for block in docstring.split("\n\n"):
        lines = block.split("\n")
        if TERM.match(lines[0]):
            for line in lines:
                term, _, text = line.partition(" ")
                yield from ("", f"`{term}`", f": {text.strip()}") if term else (f"  {line.strip()}",)
        else:
            yield from lines
        yield ""


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_directive("api", Api)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
