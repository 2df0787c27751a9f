"""Read a run from its run dir: metrics, status, environment; in a notebook, it is shown as HTML.

In a notebook, charts are images and styles are inline, because untrusted notebooks show neither scripts nor style
sheets.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.config.documents import parse_json, read_regular
from runner.config.yaml_files import MAX_YAML_BYTES, YAMLError, read_yaml
from runner.locks import owner_of
from runner.pages.page import Code, Figure, Section, Text, templates
from runner.pages.run_data import RunData
from runner.pages.run_page import curves_of, run_page
from runner.tracking.headline import ITERATION, RETURN, count_text, number_text
from runner.tracking.series import Column, choose_axis, read_columns

_OPEN, _FOLDED = ("Failure", "Learning curves"), ("Evaluation", "Learner")


def run_card(record: RunData) -> str:
    """Return a run as an HTML fragment: status, results and curves, with the learner's curves collapsed."""
    page = run_page(record, url_of=str)  # the card does not show videos
    sections = [
        Section(section.title, [block for block in section.blocks if isinstance(block, (Figure, Text, Code))])
        for section in page.sections
        if section.title in (*_OPEN, *_FOLDED)
    ]
    card = templates().get_template("card.html.j2")
    return card.render(page=page, sections=sections, folded=_FOLDED, address_of=lambda one, width: one.address(width))


_RESULT_FILE, _ENVIRONMENT_FILE, _HYDRA = "result.json", "environment.json", ".hydra"


class RunRecord(RunData):
    """Data of a run with displays for notebooks. For attributes, see `RunData`."""

    def curves(self, *metrics: str) -> Figure:
        """Return the curves of metrics as a figure that notebooks display.

        Raises:
            UserError: the run does not have one of the metrics.
        """
        return curves_of(self, metrics)

    def __repr__(self) -> str:
        """Return one line: path, status, progress and return."""
        metrics = self.metrics
        texts = [self.status, f"iteration {count_text(metrics.get(ITERATION, 0))}"]
        texts += [f"return {number_text(metrics[RETURN])}"] if RETURN in metrics else []
        return f"RunRecord({str(self.path)!r}: {', '.join(texts)})"

    def _repr_html_(self) -> str:
        """Return the HTML for notebooks: status and curves of the run."""
        return run_card(self)


def read_run(run_dir: str | Path, columns: Mapping[str, Column] | None = None) -> RunRecord:
    """Read the data of a run. Missing files are skipped.

    Args:
        run_dir: run dir.
        columns: result of `read_columns`, if it is known.

    Raises:
        OSError: progress.jsonl cannot be read.
    """
    run_dir = Path(run_dir)
    columns = read_columns(run_dir) if columns is None else columns
    is_running = _is_running(run_dir)
    result = {} if is_running else _read_json(run_dir / _RESULT_FILE)  # it describes an earlier end
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
    """Return whether a process trains: it has locked the folder and not yet recorded its result."""
    owner = owner_of(run_dir)
    try:
        return owner is not None and (run_dir / _RESULT_FILE).stat().st_mtime < owner.since
    except OSError:
        return True


def find_videos(folder: Path) -> list[Path]:
    """Return the videos in a folder, except for links, which may lead out of an untrusted run."""
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
    except (OSError, YAMLError):
        return []
    return [str(text) for text in content] if isinstance(content, list) else []
