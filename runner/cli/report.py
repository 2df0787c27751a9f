"""`report DIR`: one HTML page of a sweep or of a run; with `--watch` it is served and updated while they continue."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.cli.arguments import UsageError, take_options
from runner.cli.main import EXIT_INTERRUPTED
from runner.config.errors import Problem, UserError
from runner.pages.page import Page
from runner.tracking.known_run import add_artifacts

if TYPE_CHECKING:
    from runner.pages.page import Page
    from runner.report.watch_server import FollowedFolder, WatchServer


_ARTIFACT_FOLDER = "report"


def log_to_mlflow(folder: Path, file: Path, page: Page, is_trusted: bool = False) -> str:
    """Put the page and a PNG of each of its large charts into the artifacts of a sweep's or a run's MLflow run.

    Args:
        folder: of the sweep or the run, with `mlflow_run.json`.
        file: the page.
        page: what it was made of.
        is_trusted: whoever wrote `mlflow_run.json`.

    Returns:
        Where it was put, for a person.

    Raises:
        NotLoggedError: the store cannot be reached or does not take it.
    """
    with tempfile.TemporaryDirectory() as scratch:
        return add_artifacts(folder, _files(file, page, Path(scratch)), _ARTIFACT_FOLDER, is_trusted)


def _files(file: Path, page: Page, scratch: Path) -> Iterator[Path]:
    """Yield the page, then the pictures as they are drawn into `scratch`."""
    yield file
    for figure in page.figures:
        if not figure.is_small:
            picture = scratch / f"{figure.name}.png"
            picture.write_bytes(figure.to_png())
            yield picture


_OUTPUT, _TRUST, _WATCH, _PORT = "--output", "--trust", "--watch", "--port"
_USAGE = f"python -m runner report DIR [{_OUTPUT} FILE], or python -m runner report DIR {_WATCH} [{_PORT} N]"
_DEFAULT_NAME = "report.html"
_SWEEP_FILE, _RUN_FILES = "sweep.json", ("progress.jsonl", ".hydra/config.yaml")
_ALLOWED = f"the folder of a sweep (with {_SWEEP_FILE}) or of a run (with {' or '.join(_RUN_FILES)})"


def main(argv: Sequence[str]) -> int:
    """Write the page, say where it is, and log it to MLflow where MLflow has the run; or serve it until Ctrl-C."""
    options, words = take_options(argv, (_OUTPUT, _PORT), (_TRUST, _WATCH))
    words = [text for text in words if text != "debug=true"]
    if len(words) != 1:
        what = f"{words[1]} is one word too many" if words else "DIR is missing"
        raise UsageError(f"{what}\n   expected      {_USAGE}")
    folder = Path(words[0])
    if _WATCH in options:
        return _watch(folder, options)
    if _PORT in options:
        raise UsageError(f"{_PORT} is for {_WATCH}\n   expected      {_USAGE}")
    page = _read_page(folder)
    file = Path(options.get(_OUTPUT) or folder / _DEFAULT_NAME)
    _write(file, page)
    print(f"report   {file}", *page.headline, sep="\n", flush=True)
    _log(folder, file, page, _TRUST in options)
    return 0


def _is_sweep(folder: Path) -> bool:
    """Return whether it is a sweep's folder or a run's; raise `UserError` for any other."""
    try:
        if (folder / _SWEEP_FILE).is_file():
            return True
        if any((folder / name).is_file() for name in _RUN_FILES):
            return False
    except OSError as error:  # no permission, for example
        what, got = "the folder cannot be read", error.strerror or str(error)
        raise UserError(Problem(what, str(folder), got, _ALLOWED).render_alone()) from error
    got = "no such folder" if not folder.is_dir() else "none of these files is there"
    raise UserError(Problem("there is nothing to report", str(folder), got, _ALLOWED).render_alone())


def _read_page(folder: Path) -> Page:
    if _is_sweep(folder):
        from runner.report.sweep_page import sweep_page
        from runner.report.sweep_record import read_sweep
        from runner.sweep.trials import SweepFolder

        return sweep_page(read_sweep(SweepFolder.open(folder)))
    from runner.pages.run_page import run_page
    from runner.pages.run_record import read_run

    return run_page(read_run(folder))


# -- a page that follows ----------------------------------------------------------------------------------------------


def _watch(folder: Path, options: Mapping[str, str]) -> int:
    for name in (_OUTPUT, _TRUST):
        if name in options:
            raise UsageError(f"{name} is not for {_WATCH}, which writes and logs nothing\n   expected      {_USAGE}")
    port, is_sweep = _port(options.get(_PORT, "0")), _is_sweep(folder)
    from runner.report.watch_server import FollowedFolder, FollowedRun, FollowedSweep

    followed = FollowedSweep(folder) if is_sweep else FollowedRun(folder)
    with _open_server(FollowedFolder(folder, followed), port) as server:
        print(f"page     {server.url}", f"follows  {folder}, until Ctrl-C", sep="\n", flush=True)
        server.serve_until_interrupted()
    return EXIT_INTERRUPTED


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) < 2**16):
        expected = "0 to 65535; 0, or no --port: a free one"
        raise UsageError(
            f"this is no port\n   where         {_PORT}\n   got           {text}\n   expected      {expected}"
        )
    return int(text)


def _open_server(followed: FollowedFolder, port: int) -> WatchServer:
    from runner.report.watch_server import WatchServer

    try:
        return WatchServer(followed, port)
    except OSError as error:
        expected = f"another {_PORT}, or none: a free one is taken"
        problem = Problem("the page cannot be served", f"{_PORT} {port}", error.strerror or str(error), expected)
        raise UserError(problem.render_alone()) from error


# -- a page that is written -------------------------------------------------------------------------------------------


def _write(file: Path, page: Page) -> None:
    from runner.pages.page import render
    from runner.tracking.progress_log import write_atomically

    try:
        write_atomically(file, render(page).encode())
    except OSError as error:
        expected = f"{_OUTPUT} FILE, a file in a folder that can be written"
        problem = Problem("the report cannot be written", str(file), str(error), expected)
        raise UserError(problem.render_alone()) from error


def _log(folder: Path, file: Path, page: Page, is_trusted: bool) -> None:
    from runner.tracking.known_run import NotLoggedError, has_mlflow_run

    if not has_mlflow_run(folder):
        return
    try:
        print(f"MLflow   {log_to_mlflow(folder, file, page, is_trusted)}")
    except NotLoggedError as error:
        print(f"warning: MLflow does not take the report: {error}", file=sys.stderr, flush=True)
