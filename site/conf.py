"""Sphinx's settings of the documentation site, which `make docs` builds from `docs/`."""

import sys
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "runner"
_package = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
version = release = _package["version"]
extensions = [
    "algorithm_pages",
    "collapsible_sidebar",
    "configuration_reference",
    "markdown_copies",
    "myst_parser",
    "offline_mathjax",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
suppress_warnings = ["toc.not_included"]  # decision records: linked, and not in the navigation
highlight_language = "text"
mathjax_path = "mathjax/tex-chtml.js"  # in _static
copybutton_prompt_text = "$ "
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath", "html_image"]
myst_heading_anchors = 4
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
html_theme = "furo"
html_title = f"runner {version}"
html_logo = html_favicon = "static/logo.svg"
html_static_path, html_css_files = ["static"], ["layout.css", "tables.css"]
smartquotes_action = "qe"  # quotes and ellipses; `--` stays
html_use_index = False
html_show_copyright = html_show_sphinx = html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b7285", "color-brand-content": "#0b7285"},
    "dark_css_variables": {"color-brand-primary": "#66d9e8", "color-brand-content": "#66d9e8"},
}
