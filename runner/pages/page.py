"""A page as plain data, and the HTML file that it becomes."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import altair as alt
import jinja2
import vl_convert
from markupsafe import Markup

from runner.pages.charts import THEMES, Chart

_FOLDER = Path(__file__).parent
PAGE_SCRIPT = _FOLDER / "page.js"
_VEGA_LITE = ".".join(alt.SCHEMA_VERSION.split(".")[:2])  # what altair writes: v6.4
_PICTURE_WIDTH = 860
_ON_PAPER = {**THEMES["light"], "background": "#ffffff", "padding": 14}


@dataclass(frozen=True)
class Fact:
    """A number that stands out at the top; `note` is small below it."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str
    kind = "text"


@dataclass(frozen=True)
class Code:
    """Lines to copy or to read; with a title they are folded away under it."""

    text: str
    title: str = ""
    kind = "code"


@dataclass(frozen=True)
class Cell:
    """A field of a table; `sort` is what it is ordered by: a number, a text, None to come last."""

    text: str
    sort: float | str | None = None

    @property
    def is_number(self) -> bool:
        return isinstance(self.sort, (int, float))


@dataclass(frozen=True)
class Table:
    """Rows of cells, as many as there are columns; a click on a column orders them."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    is_sortable: bool = True
    kind = "table"

    def is_number(self, column: int) -> bool:
        """Return whether the column is set to the right."""
        known = [row[column] for row in self.rows if row[column].sort is not None]
        return bool(known) and all(cell.is_number for cell in known)


@dataclass(frozen=True)
class Figure:
    """A chart with what it shows.

    Attributes:
        name: of its picture, without a suffix.
        chart: of `charts`; its data are named.
        points: these data.
        caption: what is seen.
        title: above it.
        height: in pixels.
        is_small: several stand side by side; no picture is made.
    """

    name: str
    chart: Chart
    points: Mapping[str, Sequence[Mapping[str, Any]]]
    caption: str = ""
    title: str = ""
    height: int = 340
    is_small: bool = False

    @property
    def kind(self) -> str:
        return "small" if self.is_small else "figure"

    def spec(self, width: int | str = "container") -> dict[str, Any]:
        """Return the chart as Vega-Lite, data included, without colours of a theme."""
        datasets = {name: list(rows) for name, rows in self.points.items()}
        return {**self.chart, "width": width, "height": self.height, "datasets": datasets}

    def to_png(self) -> bytes:
        """Return a picture on a white ground, twice as fine as on the page."""
        spec = self.spec(_PICTURE_WIDTH)
        return bytes(vl_convert.vegalite_to_png(spec, vl_version=_VEGA_LITE, scale=2.0, config=_ON_PAPER))

    def to_svg(self, width: int = _PICTURE_WIDTH) -> str:
        """Return a picture on a white ground."""
        svg: str = vl_convert.vegalite_to_svg(self.spec(width), vl_version=_VEGA_LITE, config=_ON_PAPER)
        return svg

    def address(self, width: int = _PICTURE_WIDTH) -> str:
        """Return the picture as an address that has all of it: names in it meet no others, and nothing in it runs."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.to_svg(width).encode()).decode()}"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        image = Markup('<img src="{}" alt="{}" style="max-width:100%;height:auto">')
        return str(image.format(self.address(), self.title or self.name))


@dataclass(frozen=True)
class Video:
    """A video.

    Attributes:
        url: of an MP4 file: a `data:` address, or one beside the page.
        caption: what is seen.
    """

    url: str
    caption: str
    kind = "video"


@dataclass(frozen=True)
class Drawing:
    """A picture that is in the page as it is, without a script.

    Attributes:
        html: SVG, or HTML around it, whose texts are escaped.
        caption: what is seen.
        title: above it.
    """

    html: Markup
    caption: str = ""
    title: str = ""
    kind = "drawing"


Block = Text | Code | Table | Figure | Video | Drawing


@dataclass(frozen=True)
class Section:
    """A heading with what is below it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """A report.

    Attributes:
        kind: of what: sweep or run.
        title: the name of the experiment.
        subtitle: where it is.
        status: how it stands, by status: how often.
        facts: at the top.
        sections: in their order.
        headline: lines for the terminal.
        is_going_on: whether a process is at work on it.
    """

    kind: str
    title: str
    subtitle: str
    status: Mapping[str, int]
    facts: Sequence[Fact]
    sections: Sequence[Section]
    headline: Sequence[str]
    is_going_on: bool = False

    @property
    def figures(self) -> list[Figure]:
        """All charts, in their order."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, Figure)]


@dataclass(frozen=True)
class Content:
    """What a page has in it.

    Attributes:
        html: header, facts and sections; each block has an `id` that it keeps while a page is followed.
        specs: Vega-Lite of the charts by `id` of their figure.
    """

    html: str
    specs: Mapping[str, Mapping[str, Any]]


def render(page: Page) -> str:
    """Return the page as one HTML text that needs nothing else.

    Text from configurations is escaped; besides, only the two scripts of the page may run, by their digests, and
    nothing may be loaded.
    """
    content = render_content(page)
    return render_document(f"{page.title} - {page.kind}", content, [PAGE_SCRIPT], "media-src data:", bool(page.figures))


def render_content(page: Page) -> Content:
    """Return what is between the scripts of a page."""
    keys = _keys(page)
    html = (
        templates()
        .get_template("content.html.j2")
        .render(
            page=page,
            groups={section.title: _side_by_side(section.blocks) for section in page.sections},
            key_of=lambda block: keys[id(block)],
        )
    )
    return Content(html, {keys[id(figure)]: figure.spec() for figure in page.figures})


def render_document(
    title: str, content: Content, scripts: Sequence[Path], sources: str, has_charts: bool = True
) -> str:
    """Return an HTML text.

    Args:
        title: of the window.
        content: of the page.
        scripts: files that run after the library of charts.
        sources: what may be loaded, in the words of a content security policy.
        has_charts: there are charts, or there may be some later: their library, of a megabyte, is in the text.
    """
    texts = [*([_library()] if has_charts else []), *(file.read_text(encoding="utf-8") for file in scripts)]
    return (
        templates()
        .get_template("page.html.j2")
        .render(
            title=title,
            content=Markup(content.html),
            charts={"themes": THEMES, "specs": content.specs},
            style=Markup((_FOLDER / "style.css").read_text(encoding="utf-8")),
            scripts=[Markup(text) for text in texts],
            digests=[_digest(text) for text in texts],
            sources=sources,
        )
    )


def _keys(page: Page) -> dict[int, str]:
    """Return a name for each block by `id(block)`, which stays the same when others come and go."""
    keys: dict[int, str] = {}
    for section in page.sections:
        counts = Counter[str]()
        for block in section.blocks:
            name = block.name if isinstance(block, Figure) else block.kind
            keys[id(block)] = f"{section.title}/{name}/{counts[name]}"
            counts[name] += 1
    return keys


def _side_by_side(blocks: Sequence[Block]) -> list[list[Block]]:
    """Return blocks one below the other; small figures that follow each other are together."""
    groups: list[list[Block]] = []
    for block in blocks:
        if block.kind == "small" and groups and groups[-1][-1].kind == "small":
            groups[-1].append(block)
        else:
            groups.append([block])
    return groups


@cache
def templates() -> jinja2.Environment:
    """Return the templates of this folder, which escape what they are given."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # `tojson` writes <, > and & as \u003c, ...: JSON in a page ends no script.
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


@cache
def _library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as a script in a page may hold it; bundling takes two seconds."""
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=_VEGA_LITE)
    return bundle.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _digest(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
