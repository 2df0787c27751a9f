"""The directives `plan` and `results` of the pages of algorithms: from the configurations and the tables of results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from runner.config import compose_experiment
from runner.config.paths import conf_dir, list_options
from runner.config.plans import draw_plan, read_plan

_ROOT = Path(__file__).parents[1]
# Pages with tables of results, of which the first one that has a row of an experiment counts.
_RESULTS = ("docs/results.md", "benchmarks/results/learning.md")
# Columns of these tables that a page of an algorithm shows: of experiments that sample, and that learn from records.
_SAMPLED = ("experiment", "target", "reached by", "env steps, IQM", "return, IQM")
_RECORDED = ("experiment", "data", "target", "of ten reach it", "median updates", "median return")
# Columns -> what is said below their table.
_SOURCES = {
    _SAMPLED: "[Results](../results.md) describes the protocol. IQM is the inter-quartile mean over seeds, with its "
    "95 % interval in brackets.",
    _RECORDED: "[Results](../results.md) describes the protocol and the data.",
}
_YAML = "../../conf/experiment"  # from docs/reference
Row = Mapping[str, str]  # column -> cell


class PlanOfAlgorithm(SphinxDirective):
    """The plan of an algorithm as a tree, as `python -m runner show --plan` draws it. The argument is its name."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()
        try:
            tree = plan_of(self.arguments[0])
        except ValueError as error:
            raise self.error(str(error)) from error
        return [nodes.literal_block(tree, tree, language="text")]


class ResultsOfAlgorithms(SphinxDirective):
    """The rows of all experiments that train with an algorithm; the arguments are names of algorithms.

    Experiments without a row are named below the table, with a link to their files.
    """

    required_arguments, optional_arguments = 1, 100

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()
        files = list_options([conf_dir()], "experiment")
        experiments = [f"`{name}`" for name, file in files.items() if _algorithm_of(file) in self.arguments]
        if not experiments:
            raise self.error(f"no experiment trains with {' or '.join(self.arguments)}")
        parts, without_row = [], experiments
        for columns, sources in _SOURCES.items():
            rows = [row for row in _rows_with(columns) if row["experiment"] in experiments]
            without_row = [name for name in without_row if name not in {row["experiment"] for row in rows}]
            if rows:
                parts += [_table(columns, rows), sources]
        if without_row:
            parts.append(f"Without a row there: {', '.join(map(_link, without_row))}.")
        return self.parse_text_to_nodes("\n\n".join(parts))


def plan_of(algorithm: str) -> str:
    """Return the plan of an algorithm as a tree."""
    composed = compose_experiment([f"algorithm={algorithm}"])
    if composed.problems:
        raise ValueError(f"{composed.problems[0].what}; expected: {composed.problems[0].expected}")
    return draw_plan(read_plan(composed.values["algorithm"]["plan"]))


def _algorithm_of(file: Path) -> str:
    """Return the algorithm that an experiment's file chooses, or the file that it begins with, or the default."""
    defaults = yaml.safe_load(file.read_text(encoding="utf-8")).get("defaults", [])
    for item in defaults:
        for key in ("override /algorithm", "algorithm"):
            if isinstance(item, dict) and key in item:
                return str(item[key])
    parents = (file.with_name(f"{item}.yaml") for item in defaults if isinstance(item, str))
    return _algorithm_of(next((parent for parent in parents if parent.is_file()), conf_dir() / "config.yaml"))


def _rows_with(columns: tuple[str, ...]) -> list[Row]:
    """Return the rows of all tables of results that have these columns, by experiment."""
    found: dict[str, list[Row]] = {}
    for page in _RESULTS:
        on_page: dict[str, list[Row]] = {}
        for row in _rows_of((_ROOT / page).read_text(encoding="utf-8")):
            if all(column in row for column in columns):
                on_page.setdefault(row["experiment"], []).append(row)
        found = on_page | found
    return [row for name in sorted(found) for row in found[name]]


def _rows_of(page: str) -> Iterator[Row]:
    """Yield the rows of all tables of a Markdown page."""
    head: list[str] = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and not head:
            head = cells
        elif cells and set(line) - set("|- :"):
            yield dict(zip(head, cells, strict=True))
        elif not cells:
            head = []


def _table(columns: tuple[str, ...], rows: list[Row]) -> str:
    lines = [[_link(row["experiment"]), *(row[column] for column in columns[1:])] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *lines))


def _link(experiment: str) -> str:
    return f"[{experiment}]({_YAML}/{experiment.strip('`')}.yaml)"


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("plan", PlanOfAlgorithm)
    app.add_directive("results", ResultsOfAlgorithms)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
