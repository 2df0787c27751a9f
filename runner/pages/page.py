"""A page as plain data, and its rendering to an HTML file."""

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
_VEGA_LITE = ".".join(alt.SCHEMA_VERSION.split(".")[:2])  # the version that altair writes: v6.4
_PICTURE_WIDTH = 860
_ON_PAPER = {**THEMES["light"], "background": "#ffffff", "padding": 14}


@dataclass(frozen=True)
class Fact:
    """A highlighted number at the top; `note` is shown in small print below it."""

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
    """Lines of code or text; with a title, they are collapsed below it."""

    text: str
    title: str = ""
    kind = "code"


@dataclass(frozen=True)
class Cell:
    """A cell of a table; `sort` is its sort key: a number, a string, or None to sort last."""

    text: str
    sort: float | str | None = None

    @property
    def is_number(self) -> bool:
        return isinstance(self.sort, (int, float))


@dataclass(frozen=True)
class Table:
    """Rows with one cell per column; clicking on a column sorts them."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    is_sortable: bool = True
    kind = "table"

    def is_number(self, column: int) -> bool:
        """Return whether the column is right-aligned."""
        known = [row[column] for row in self.rows if row[column].sort is not None]
        return bool(known) and all(cell.is_number for cell in known)


@dataclass(frozen=True)
class Figure:
    """A chart with its data.

    Attributes:
        name: name of its image file, without suffix.
        chart: definition from `charts`, which refers to the data by name.
        points: name -> rows of data.
        caption: text below it.
        title: text above it.
        metric: keys of its metrics, shown below the title in small print so that they can be found and copied.
        height: height in pixels.
        is_small: whether several are shown in a row. No images are made of small figures.
    """

    name: str
    chart: Chart
    points: Mapping[str, Sequence[Mapping[str, Any]]]
    caption: str = ""
    title: str = ""
    metric: str = ""
    height: int = 340
    is_small: bool = False

    @property
    def kind(self) -> str:
        return "small" if self.is_small else "figure"

    def spec(self, width: int | str = "container") -> dict[str, Any]:
        """Return the chart as Vega-Lite including data, without theme colours."""
        datasets = {name: list(rows) for name, rows in self.points.items()}
        return {**self.chart, "width": width, "height": self.height, "datasets": datasets}

    def to_png(self) -> bytes:
        """Return an image with a white background, at twice the resolution of the page."""
        spec = self.spec(_PICTURE_WIDTH)
        return bytes(vl_convert.vegalite_to_png(spec, vl_version=_VEGA_LITE, scale=2.0, config=_ON_PAPER))

    def to_svg(self, width: int = _PICTURE_WIDTH) -> str:
        """Return an image with a white background."""
        svg: str = vl_convert.vegalite_to_svg(self.spec(width), vl_version=_VEGA_LITE, config=_ON_PAPER)
        return svg

    def address(self, width: int = _PICTURE_WIDTH) -> str:
        """Return the image as a `data:` URL. Its names are isolated from the page, and scripts in it cannot run."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.to_svg(width).encode()).decode()}"

    def _repr_html_(self) -> str:
        """Return the HTML for notebooks."""
        image = Markup('<img src="{}" alt="{}" style="max-width:100%;height:auto">')
        return str(image.format(self.address(), self.title or self.name))


@dataclass(frozen=True)
class Video:
    """A video.

    Attributes:
        url: URL of an MP4 file: a `data:` URL, or a file next to the page.
        caption: text below it.
    """

    url: str
    caption: str
    kind = "video"


@dataclass(frozen=True)
class Drawing:
    """A static image, included in the page without a script.

    Attributes:
        html: SVG, or HTML around it, with escaped text.
        caption: text below it.
        title: text above it.
    """

    html: Markup
    caption: str = ""
    title: str = ""
    kind = "drawing"


Block = Text | Code | Table | Figure | Video | Drawing


@dataclass(frozen=True)
class Section:
    """A heading with the blocks below it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """A report.

    Attributes:
        kind: sweep, run or profile.
        title: name of the experiment.
        subtitle: location of the run or sweep.
        status: status -> number of runs or trials with it.
        facts: highlighted numbers at the top.
        sections: sections in order.
        headline: lines for the terminal.
        is_running: whether a process is still running.
    """

    kind: str
    title: str
    subtitle: str
    status: Mapping[str, int]
    facts: Sequence[Fact]
    sections: Sequence[Section]
    headline: Sequence[str]
    is_running: bool = False

    @property
    def figures(self) -> list[Figure]:
        """All charts in order."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, Figure)]


@dataclass(frozen=True)
class Content:
    """Rendered content of a page.

    Attributes:
        html: header, facts and sections. Each block has an `id` that is stable while a page is live.
        specs: `id` of a figure -> Vega-Lite of its chart.
    """

    html: str
    specs: Mapping[str, Mapping[str, Any]]


def render(page: Page) -> str:
    """Render the page as a single self-contained HTML document.

    Text from configurations is escaped. In addition, only the page's two scripts may run, identified by their digests,
    and nothing may be loaded.
    """
    content = render_content(page)
    return render_document(f"{page.title} - {page.kind}", content, [PAGE_SCRIPT], "media-src data:", bool(page.figures))


def render_content(page: Page) -> Content:
    """Render the content of a page, without scripts."""
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
    """Render an HTML document.

    Args:
        title: title of the window.
        content: content of the page.
        scripts: files that run after the chart library.
        sources: sources that may be loaded, as in a content security policy.
        has_charts: whether the page has charts or may get some later. The chart library of a megabyte is then included.
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
    """Return `id(block)` -> name of the block, which is stable when other blocks are added or removed."""
    keys: dict[int, str] = {}
    for section in page.sections:
        counts = Counter[str]()
        for block in section.blocks:
            name = block.name if isinstance(block, Figure) else block.kind
            keys[id(block)] = f"{section.title}/{name}/{counts[name]}"
            counts[name] += 1
    return keys


def _side_by_side(blocks: Sequence[Block]) -> list[list[Block]]:
    """Return the blocks in order, with consecutive small figures grouped."""
    groups: list[list[Block]] = []
    for block in blocks:
        if block.kind == "small" and groups and groups[-1][-1].kind == "small":
            groups[-1].append(block)
        else:
            groups.append([block])
    return groups


@cache
def templates() -> jinja2.Environment:
    """Return the templates of this folder, which escape their values."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # `tojson` writes <, > and & as \u003c, ..., so JSON in a page cannot end a script.
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


@cache
def _library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed, escaped for a script element. Bundling takes two seconds."""
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=_VEGA_LITE)
    return bundle.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _digest(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
