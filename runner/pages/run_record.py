"""What is known of a run: its metrics, how it ended, what it was made with; in a notebook, its curves as HTML.

In a notebook, charts are pictures and styles are on the elements: a notebook that nobody trusts yet shows neither
scripts nor style sheets.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.config.documents import parse_json, read_regular
from runner.config.yaml_files import MAX_YAML_BYTES, YAMLError, read_yaml
from runner.locks import owner_of
from runner.pages.page import Code, Figure, Section, Text, templates
from runner.pages.run_data import RunData
from runner.pages.run_page import run_page
from runner.tracking.series import Column, choose_axis, read_columns

if TYPE_CHECKING:
    from runner.pages.page import Figure


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


_RESULT_FILE, _ENVIRONMENT_FILE, _HYDRA = "result.json", "environment.json", ".hydra"


class RunRecord(RunData):
    """The data of a run, with the drawings that a notebook shows. For attributes see `RunData`."""

    def curves(self, *metrics: str) -> Figure:
        """Return the curves of metrics, which a notebook shows.

        Raises:
            UserError: the run has no such metric.
        """
        from runner.pages.run_page import curves_of  # imports altair

        return curves_of(self, metrics)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: how the run stands, and its curves."""

        return run_card(self)


def read_run(run_dir: str | Path, columns: Mapping[str, Column] | None = None) -> RunRecord:
    """Return everything that a page of it shows; what is not there is left out.

    Args:
        run_dir: of the run.
        columns: `read_columns` of it, where they are known already.

    Raises:
        OSError: progress.jsonl cannot be read.
    """
    run_dir = Path(run_dir)
    columns = read_columns(run_dir) if columns is None else columns
    is_running = _is_running(run_dir)
    result = {} if is_running else _read_json(run_dir / _RESULT_FILE)  # of an earlier end
    overrides = _read_overrides(run_dir / _HYDRA / "overrides.yaml")
    return RunRecord(
        path=run_dir,
        experiment=_experiment(overrides) or run_dir.absolute().name,
        status="running" if is_running else str(result.get("status") or "unfinished"),
        stop_reason=str(result.get("stop_reason") or ""),
        columns=columns,
        axis=choose_axis(columns),
        environment=_read_json(run_dir / _ENVIRONMENT_FILE),
        config=_read_text(run_dir / _HYDRA / "config.yaml"),
        overrides=overrides,
        checkpoint=str(result.get("checkpoint") or ""),
        best_checkpoint=str(result.get("best_checkpoint") or ""),
        videos=find_videos(run_dir / "videos"),
    )


def _is_running(run_dir: Path) -> bool:
    """Return whether a process trains: it has the folder, and has not yet said how the run ended."""
    owner = owner_of(run_dir)
    try:
        return owner is not None and (run_dir / _RESULT_FILE).stat().st_mtime < owner.since
    except OSError:
        return True


def find_videos(folder: Path) -> list[Path]:
    """Return the files of a folder, and no links, which lead out of the run of somebody else."""
    if folder.is_symlink():
        return []
    return sorted(path for path in folder.glob("iteration_*.mp4") if not path.is_symlink())


def _experiment(overrides: list[str]) -> str:
    named = [text.partition("=")[2] for text in overrides if text.lstrip("+").startswith("experiment=")]
    return named[-1] if named else ""


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = parse_json(_read_text(file))
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _read_text(file: Path) -> str:
    try:
        return read_regular(file, MAX_YAML_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _read_overrides(file: Path) -> list[str]:
    try:
        content = read_yaml(file)
    except (OSError, UnicodeDecodeError, YAMLError):
        return []
    return [str(text) for text in content] if isinstance(content, list) else []
