"""`report DIR`: one HTML page of a sweep or of a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.cli.arguments import UsageError, take_options
from runner.config.errors import Problem, UserError

if TYPE_CHECKING:
    from runner.report.page import Page

_OUTPUT, _TRUST = "--output", "--trust"
_DEFAULT_NAME = "report.html"
_ALLOWED = "the folder of a sweep (with sweep.json) or of a run (with progress.jsonl)"


def main(argv: Sequence[str]) -> int:
    """Write the page, say where it is, and log it to MLflow where MLflow has the run."""
    options, words = take_options(argv, (_OUTPUT,), (_TRUST,))
    words = [text for text in words if text != "debug=true"]
    if len(words) != 1:
        what = f"{words[1]} is one word too many" if words else "DIR is missing"
        raise UsageError(f"{what}\n   allowed  python -m runner report DIR [{_OUTPUT} FILE]")
    folder = Path(words[0])
    page = _read_page(folder)
    file = Path(options.get(_OUTPUT) or folder / _DEFAULT_NAME)
    _write(file, page)
    print(f"report   {file}", *page.headline, sep="\n", flush=True)
    _log(folder, file, page, _TRUST in options)
    return 0


def _read_page(folder: Path) -> Page:
    if (folder / "sweep.json").is_file():
        from runner.report.sweep_page import sweep_page
        from runner.report.sweep_record import read_sweep
        from runner.sweep.trials import SweepFolder

        return sweep_page(read_sweep(SweepFolder.open(folder)))
    if (folder / "progress.jsonl").is_file():
        from runner.report.run_page import run_page
        from runner.report.run_record import read_run

        return run_page(read_run(folder))
    got = "no such folder" if not folder.is_dir() else "neither file is there"
    raise UserError(Problem("there is nothing to report", str(folder), got, _ALLOWED).render_alone())


def _write(file: Path, page: Page) -> None:
    from runner.report.page import render
    from runner.tracking.result_file import write_atomically

    try:
        write_atomically(file, render(page).encode())
    except OSError as error:
        allowed = f"{_OUTPUT} FILE, a file in a folder that can be written"
        problem = Problem("the report cannot be written", str(file), str(error), allowed)
        raise UserError(problem.render_alone()) from error


def _log(folder: Path, file: Path, page: Page, is_trusted: bool) -> None:
    from runner.report.pictures import log_to_mlflow
    from runner.tracking.added_artifacts import NotLoggedError, has_mlflow_run

    if not has_mlflow_run(folder):
        return
    try:
        print(f"MLflow   {log_to_mlflow(folder, file, page, is_trusted)}")
    except NotLoggedError as error:
        print(f"warning: MLflow does not take the report: {error}", file=sys.stderr, flush=True)
