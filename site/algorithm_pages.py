"""The directives `plan`, `fields` and `results` of algorithm pages: from configurations, results and pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import yaml
from configuration_reference import class_at, options_of, table_of_options
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from runner.config.algorithms import AlgorithmConfig
from runner.config.compose import compose_experiment
from runner.config.paths import conf_dir, list_options
from runner.config.plans.drawing import draw_plan
from runner.config.plans.steps import read_plan

_ROOT = Path(__file__).parents[1]
_RESULTS, _PICTURES = _ROOT / "docs/results.md", _ROOT / "docs/pictures/learning"
# Columns of the tables in docs/results.md that a page of an algorithm shows.
_COLUMNS = (
    ("experiment", "target", "reached by", "env steps", "return"),
    ("experiment", "data", "target", "reached by", "updates", "return"),
)
_SOURCE = "[Results](../results.md) describes the protocol. Intervals are 95 % intervals of the mean over seeds."
_YAML = "../../conf/experiment"  # from docs/reference
# Fields of every algorithm that are shown as a plan, or that only algorithms themselves set.
_STRUCTURE = {"schema", "loss", "plan", "replay_buffers", "module_to_env_pipeline", "learner_pipeline"}
Row = Mapping[str, str]  # column -> cell


class PlanOfAlgorithm(SphinxDirective):
    """The plan of an algorithm as a tree, as `runner show --plan` draws it. The argument is its name."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()
        try:
            tree = plan_of(self.arguments[0])
        except ValueError as error:
            raise self.error(str(error)) from error
        return [nodes.literal_block(tree, tree, language="text")]


class FieldsOfAlgorithm(SphinxDirective):
    """A table of an algorithm's fields with the defaults of its YAML. The argument is its name.

    Fields that every algorithm has with the same default are left out. `beyond` names another algorithm instead, whose
    fields and defaults are left out.
    """

    required_arguments = 1
    option_spec: ClassVar[dict[str, Callable[[str], Any]]] = {"beyond": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()
        try:
            table = fields_of(self.arguments[0], self.options.get("beyond"))
        except ValueError as error:
            raise self.error(str(error)) from error
        parsed = self.parse_text_to_nodes(table)
        for node in parsed:
            if isinstance(node, nodes.table):
                node["classes"].append("fields")
        return parsed


class ResultsOfAlgorithms(SphinxDirective):
    """The results and learning curves of all experiments of some algorithms; the arguments are their names.

    Experiments without results are named below the table, with a link to their files.
    """

    required_arguments, optional_arguments = 1, 100

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()
        try:
            return self.parse_text_to_nodes(results_of(self.arguments))
        except ValueError as error:
            raise self.error(str(error)) from error


def plan_of(algorithm: str) -> str:
    """Return the plan of an algorithm as a tree."""
    return draw_plan(read_plan(_block_of(algorithm)["plan"]))


def fields_of(algorithm: str, beyond: str | None = None) -> str:
    """Return a Markdown table of the fields that an algorithm adds to those of another, or to those of every one."""
    block = _block_of(algorithm)
    schema = class_at(block["schema"])
    left_out = {name: default for name, (default, _) in options_of(AlgorithmConfig).items()}
    if beyond is not None:
        left_out = _block_of(beyond)
    shown = {
        name: (block.get(name, default), option)
        for name, (default, option) in options_of(schema).items()
        if name not in _STRUCTURE and (name not in left_out or _plain(left_out[name]) != _plain(block[name]))
    }
    return table_of_options(schema, shown)


def results_of(algorithms: Sequence[str]) -> str:
    """Return the results and learning curves of all experiments of some algorithms as Markdown."""
    files = list_options([conf_dir()], "experiment")
    experiments = [name for name, file in files.items() if _algorithm_of(file) in algorithms]
    if not experiments:
        raise ValueError(f"no experiment trains with {' or '.join(algorithms)}")
    parts = []
    measured = {row.get("experiment") for row in _rows_of(_RESULTS.read_text(encoding="utf-8"))}
    without_results = [name for name in experiments if name not in measured]
    for columns in _COLUMNS:
        rows = [row for row in _rows_with(columns) if row["experiment"] in experiments]
        if rows:
            parts.append(_table(columns, rows))
    if parts:
        parts.append(_SOURCE)
    pictures = [name for name in experiments if (_PICTURES / f"{name}.svg").is_file()]
    if pictures:
        parts.append(
            "\n".join(f"![{name}: return over training](../pictures/learning/{name}.svg)" for name in pictures)
        )
    if without_results:
        parts.append(f"Not measured: {', '.join(map(_link, without_results))}.")
    return "\n\n".join(parts)


def _block_of(algorithm: str) -> dict[str, Any]:
    """Return the block `algorithm` of the configuration with this algorithm."""
    composed = compose_experiment([f"algorithm={algorithm}"])
    if composed.problems:
        raise ValueError(f"{composed.problems[0].what}; expected: {composed.problems[0].expected}")
    block: dict[str, Any] = composed.values["algorithm"]
    return block


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


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
    """Return the rows of the tables of results that have these columns, by experiment."""
    rows = [row for row in _rows_of(_RESULTS.read_text(encoding="utf-8")) if tuple(row) == columns]
    return sorted(rows, key=lambda row: row["experiment"])


def _rows_of(page: str) -> Iterator[Row]:
    """Yield the rows of all tables of a Markdown page."""
    head: list[str] = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and not head:
            head = cells
        elif cells and set(line) - set("|- :"):
            row = dict(zip(head, cells, strict=True))
            yield row | {"experiment": row["experiment"].strip("`")} if "experiment" in row else row
        elif not cells:
            head = []


def _table(columns: tuple[str, ...], rows: list[Row]) -> str:
    lines = [[_link(row["experiment"]), *(row[column] for column in columns[1:])] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *lines))


def _link(experiment: str) -> str:
    return f"[{experiment}]({_YAML}/{experiment}.yaml)"


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("plan", PlanOfAlgorithm)
    app.add_directive("fields", FieldsOfAlgorithm)
    app.add_directive("results", ResultsOfAlgorithms)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
