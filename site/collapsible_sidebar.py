"""Make each section of the navigation collapsible: its caption opens and closes the list of its pages."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

_SECTION = re.compile(
    r'<p class="caption" role="heading"><span class="caption-text">(.*?)</span></p>\n(<ul.*?</ul>)', re.DOTALL
)


def collapse_sections(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Replace captions by summaries. The section of the page is open; on pages without a section all are."""
    tree: str = context.get("furo_navigation_tree", "")
    has_section = 'class="current' in tree

    def collapsible(section: re.Match[str]) -> str:
        is_open = " open" if 'class="current' in section[2] or not has_section else ""
        return f'<details{is_open}>\n<summary class="caption">{section[1]}</summary>\n{section[2]}\n</details>'

    context["furo_navigation_tree"] = _SECTION.sub(collapsible, tree)


def setup(app: Sphinx) -> dict[str, bool]:
    """Change the navigation after the theme has made it."""
    app.connect("html-page-context", collapse_sections, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
