"""Sphinx extension: formulas become MathML when the site is built, so that a page needs no script to show them.

Few telephones have a font for formulas, so the site brings one: the part of STIX Two Math that formulas need.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from docutils import nodes
from fontTools import subset
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata
from sphinx.writers.html5 import HTML5Translator

# Letters, upright and italic, Greek, accents, punctuation, arrows, operators and brackets
CHARACTERS = [
    *(range(0x20, 0x7F), range(0xA0, 0x100), range(0x300, 0x339), range(0x370, 0x400), range(0x2000, 0x2070)),
    *(range(0x2100, 0x2150), range(0x2190, 0x2200), range(0x2200, 0x2300), range(0x2308, 0x230C)),
    *(range(0x27E8, 0x27EA), range(0x1D434, 0x1D468), range(0x1D6E2, 0x1D71C)),
]
SHORT_BAR, LONG_BAR = '<mo accent="true">&#x02015;', '<mo accent="true" stretchy="true">&#x0203E;'  # \overline's


def inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def block(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="math">{mathml(node.astext(), "block")}</div>')
    raise nodes.SkipNode


def mathml(latex: str, display: str) -> str:
    return convert(latex, display=display).replace(SHORT_BAR, LONG_BAR)


def write_font(app: Sphinx, error: Exception | None) -> None:
    """Write _static/math.woff; book.css uses it. Its licence, the SIL Open Font License, is named in the file."""
    if error is None:
        options = subset.Options(flavor="woff", layout_features=["ssty"], name_IDs=["*"])
        font = subset.load_font(str(files("ziamath") / "fonts" / "STIXTwoMath-Regular.ttf"), options)
        part = subset.Subsetter(options)
        part.populate(unicodes=[character for some in CHARACTERS for character in some])
        part.subset(font)
        subset.save_font(font, str(Path(app.outdir, "_static", "math.woff")), options)


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.connect("build-finished", write_font)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
