"""`report DIR`: one HTML page of a sweep or of a run; with `--watch` it is served and follows what goes on."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.cli.arguments import UsageError, take_options
from runner.cli.main import EXIT_INTERRUPTED
from runner.config.errors import Problem, UserError

if TYPE_CHECKING:
    from runner.pages.page import Page
    from runner.report.followed_folder import FollowedFolder
    from runner.report.watch_server import WatchServer

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
        raise UsageError(f"{what}\n   allowed  {_USAGE}")
    folder = Path(words[0])
    if _WATCH in options:
        return _watch(folder, options)
    if _PORT in options:
        raise UsageError(f"{_PORT} is for {_WATCH}\n   allowed  {_USAGE}")
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
            raise UsageError(f"{name} is not for {_WATCH}, which writes and logs nothing\n   allowed  {_USAGE}")
    port, is_sweep = _port(options.get(_PORT, "0")), _is_sweep(folder)
    from runner.report.followed_folder import FollowedFolder, FollowedRun, FollowedSweep

    followed = FollowedSweep(folder) if is_sweep else FollowedRun(folder)
    with _open_server(FollowedFolder(folder, followed), port) as server:
        print(f"page     {server.url}", f"follows  {folder}, until Ctrl-C", sep="\n", flush=True)
        server.serve_until_interrupted()
    return EXIT_INTERRUPTED


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) < 2**16):
        allowed = "0 to 65535; 0, or no --port: a free one"
        raise UsageError(f"this is no port\n   where    {_PORT}\n   got      {text}\n   allowed  {allowed}")
    return int(text)


def _open_server(followed: FollowedFolder, port: int) -> WatchServer:
    from runner.report.watch_server import WatchServer

    try:
        return WatchServer(followed, port)
    except OSError as error:
        allowed = f"another {_PORT}, or none: a free one is taken"
        problem = Problem("the page cannot be served", f"{_PORT} {port}", error.strerror or str(error), allowed)
        raise UserError(problem.render_alone()) from error


# -- a page that is written -------------------------------------------------------------------------------------------


def _write(file: Path, page: Page) -> None:
    from runner.pages.page import render
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
