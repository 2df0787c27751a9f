"""What a notebook shows of a run: its headline and its curves, as HTML that stands by itself.

Charts are pictures and styles are on the elements: a notebook that nobody trusts yet shows neither scripts nor style
sheets.
"""

from __future__ import annotations

from runner.pages.page import Code, Figure, Section, Text, templates
from runner.pages.run_data import RunData
from runner.pages.run_page import run_page

_OPEN, _FOLDED = ("Failure", "Learning curves"), ("Evaluation", "Learner")


def run_card(record: RunData) -> str:
    """Return a run as a piece of HTML: how it stands, what it reached, its curves, those of the learner folded away."""
    page = run_page(record, url_of=str)  # videos are not shown
    sections = [
        Section(section.title, [block for block in section.blocks if isinstance(block, (Figure, Text, Code))])
        for section in page.sections
        if section.title in (*_OPEN, *_FOLDED)
    ]
    card = templates().get_template("card.html.j2")
    return card.render(page=page, sections=sections, folded=_FOLDED, address_of=lambda one, width: one.address(width))
