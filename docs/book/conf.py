"""Sphinx's configuration for the book. `make book` (grader/book/site.py) adds what depends on the site's address."""

project = "Distributed training"
language = "en"
smartquotes = False  # quotes stand around code, too
extensions = [
    "myst_nb",
    "grader.book.diagrams",
    "grader.book.docstrings",
    "grader.book.links",
    "grader.book.mathml",
]

# Notebooks and Markdown
nb_execution_mode = "off"  # what stands in the notebooks is shown, and nothing runs
nb_merge_streams = True
nb_render_error_lexer = "myst-ansi"  # an error is a report in words, not a traceback of Python's
myst_enable_extensions = ["deflist", "dollarmath", "html_image"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 4  # as on GitHub, so that links to headings work in both places
suppress_warnings = ["myst.header"]  # a page may begin with a heading of any level
add_module_names = False
maximum_signature_line_length = 70

# The pages
html_theme = "furo"
html_title = project
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_math_renderer = "mathml"
html_use_index = False
html_copy_source = False  # the sources hold the notebooks as prepared for the book, not as handed out
html_show_sphinx = False
html_show_copyright = False
html_show_search_summary = False  # it would fetch pages, which a browser refuses for files on disk
html_theme_options = {"top_of_page_buttons": []}
pygments_style = "friendly"
pygments_dark_style = "monokai"
