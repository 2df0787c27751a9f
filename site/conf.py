"""Sphinx's settings of the documentation site, which `make docs` builds from `docs/`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = html_title = "runner"
extensions = [
    "algorithm_pages",
    "configuration_reference",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
suppress_warnings = ["toc.not_included"]  # decision records: linked, and not in the navigation
highlight_language = "text"
copybutton_prompt_text = "$ "
myst_heading_anchors = 4
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
html_theme = "furo"
html_static_path, html_css_files = ["static"], ["tables.css"]
html_show_copyright = html_show_sphinx = html_copy_source = False
