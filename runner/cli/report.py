"""`report DIR`: one HTML page of a sweep, a run or all runs of a folder; `--watch` serves a page that follows a run."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from runner.cli.arguments import Arguments, UsageError
from runner.cli.output_files import check_new_file, write_file
from runner.config.errors import Problem, UserError
from runner.config.exit_codes import ExitCode
from runner.config.paths import check_folder
from runner.tracking.known_run import NotLoggedError, add_artifacts, has_mlflow_run

if TYPE_CHECKING:
    from runner.pages.page import Page
    from runner.report.watch_server import FollowedFolder, WatchServer

_DEFAULT_NAME, _ARTIFACT_FOLDER = "report.html", "report"
_SWEEP_FILE, _RUN_FILES = "sweep.json", ("progress.jsonl", ".hydra/config.yaml")
_EXPECTED = f"a folder of a sweep (with {_SWEEP_FILE}), of a run (with {' or '.join(_RUN_FILES)}) or of several runs"
_Kind = Literal["sweep", "run", "runs"]


def main(arguments: Arguments) -> int:
    """Write the page, print its path, and log it to MLflow if the run is there; or serve it until Ctrl-C."""
    folder = Path(arguments.words[0])
    if arguments.has("--watch"):
        return _watch(folder, arguments)
    if arguments.has("--port"):
        raise UsageError(Problem("--port needs --watch"))
    output = arguments.path("--output")
    if output is not None:
        check_new_file(output, arguments.has("--force"))
    kind, file = _kind_of(folder), output or folder / _DEFAULT_NAME
    if kind == "runs":
        from runner.report.runs_page import runs_page
        from runner.report.runs_record import read_runs

        runs = runs_page(read_runs(folder))
        _write(file, runs.html, runs.headline)
        return 0
    from runner.pages.page import render

    page = _read_page(folder, kind)
    _write(file, render(page), page.headline)
    _log(folder, file, page, arguments.is_trusting)
    return 0


def _kind_of(folder: Path) -> _Kind:
    """Return the kind of the folder; raise `UserError` if it contains neither a sweep nor a run."""
    try:
        check_folder(folder, _EXPECTED)
        if (folder / _SWEEP_FILE).is_file():
            return "sweep"
        if any((folder / name).is_file() for name in _RUN_FILES):
            return "run"
        from runner.report.runs_record import find_runs

        if find_runs(folder):
            return "runs"
    except OSError as error:  # no permission, for example
        what, got = "the folder cannot be read", error.strerror or str(error)
        raise UserError(Problem(what, str(folder), got, _EXPECTED)) from error
    raise UserError(Problem("the folder contains neither a run nor a sweep", str(folder), expected=_EXPECTED))


def _write(file: Path, html: str, headline: Sequence[str]) -> None:
    write_file(file, html.encode(), "report")
    print(f"report   {file}", *headline, sep="\n", flush=True)


def _read_page(folder: Path, kind: _Kind) -> Page:
    if kind == "sweep":
        from runner.report.sweep_page import sweep_page
        from runner.report.sweep_record import read_sweep
        from runner.sweep.trials import SweepFolder

        return sweep_page(read_sweep(SweepFolder.open(folder)))
    from runner.pages.run_page import run_page
    from runner.pages.run_record import read_run

    return run_page(read_run(folder))


def _log(folder: Path, file: Path, page: Page, is_trusted: bool) -> None:
    """Put the page and a PNG of each of its large charts into the artifacts of the run in MLflow, if there is one."""
    if not has_mlflow_run(folder):
        return
    try:
        with tempfile.TemporaryDirectory() as scratch:
            place = add_artifacts(folder, _files(file, page, Path(scratch)), _ARTIFACT_FOLDER, is_trusted)
        print(f"MLflow   {place}")
    except NotLoggedError as error:
        print(f"warning: the report was not logged to MLflow: {error}", file=sys.stderr, flush=True)


def _files(file: Path, page: Page, scratch: Path) -> Iterator[Path]:
    """Yield the page, then the images as they are drawn into `scratch`."""
    yield file
    counts = Counter[str]()
    for figure in page.figures:
        if not figure.is_small:
            number = f"_{counts[figure.name] + 1}" if counts[figure.name] else ""
            counts[figure.name] += 1
            picture = scratch / f"{figure.name}{number}.png"
            picture.write_bytes(figure.to_png())
            yield picture


# -- a page that follows ----------------------------------------------------------------------------------------------


def _watch(folder: Path, arguments: Arguments) -> int:
    for name in ("--output", "--trust"):
        if arguments.has(name):
            raise UsageError(Problem(f"{name} has no effect with --watch, which writes no file"))
    port = arguments.integer("--port", 0, least=0)
    if port >= 2**16:
        raise UsageError(Problem("--port is not valid", got=str(port), expected="0 to 65535; 0 selects a free port"))
    kind = _kind_of(folder)
    if kind == "runs":
        fix = "pass the folder of a run or a sweep, or leave out --watch"
        raise UserError(Problem("--watch follows a run or a sweep", str(folder), "a folder of several runs", fix=fix))
    from runner.report.watch_server import FollowedFolder, FollowedRun, FollowedSweep

    followed = FollowedSweep(folder) if kind == "sweep" else FollowedRun(folder)
    with _open_server(FollowedFolder(folder, followed.page), port) as server:
        print(f"page     {server.url}", f"follows  {folder}, until Ctrl-C", sep="\n", flush=True)
        server.serve_until_interrupted()
    return ExitCode.INTERRUPTED


def _open_server(followed: FollowedFolder, port: int) -> WatchServer:
    from runner.report.watch_server import WatchServer

    try:
        return WatchServer(followed, port)
    except OSError as error:
        got, fix = error.strerror or str(error), "another --port, or leave it out to use a free one"
        raise UserError(Problem("the page cannot be served", f"--port {port}", got, fix=fix)) from error
