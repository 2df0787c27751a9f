"""Runs that a command line names by a URL, by `latest`, or by their experiment."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from fnmatch import fnmatch
from pathlib import Path

from runner.cli.arguments import Arguments
from runner.cli.verbs import RUN_WORDS, VERBS
from runner.config.errors import Problem, UserError
from runner.config.overrides import names_run_dir, override_value
from runner.config.paths import LATEST, is_url

_OUTPUTS = "outputs"
_DATE, _TIME = "[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]", "[0-9][0-9]-[0-9][0-9]-[0-9][0-9]*"
_FILES_OF_RUN = ("progress.jsonl", ".hydra", "checkpoints")


def with_local_runs(arguments: Arguments) -> Arguments:
    """Return the arguments with a local path instead of each URL or name of a run.

    Raises:
        UserError: the run does not exist in the store, `hydra.run.dir` is a URL, or there is no run yet.
    """
    named = [override_value(text) for text in arguments.overrides if names_run_dir(text)]
    if named and is_url(named[-1]):
        what, store = "the run dir of a stored run must be a local folder", named[-1].rstrip("/").rpartition("/")[0]
        fix = f"hydra.run.dir=FOLDER; with checkpoint.upload_to={store} `resume` uploads it"
        raise UserError(Problem(what, "override hydra.run.dir", named[-1], fix=fix))
    target, is_complete = Path(named[-1]).absolute() if named else None, arguments.verb == "resume"
    names = VERBS[arguments.verb].word_names
    words = tuple(
        _local(word, target, is_complete) if name in RUN_WORDS else word
        for name, word in zip(names, arguments.words, strict=False)
    )
    opponents = tuple(_local(text, None, False) for text in arguments.values("--against"))
    options = {**arguments.options, "--against": opponents} if opponents else arguments.options
    return replace(arguments, words=words, options=options)


def _local(word: str, target: Path | None, is_complete: bool) -> str:
    if is_url(word):
        from runner.storage.fetched_run import fetch_run  # imports fsspec

        return str(fetch_run(word, target, is_complete, lambda line: print(line, file=sys.stderr, flush=True)))
    _check_link(Path(word))
    found = None if os.path.exists(word) else find_newest_run(word)
    if found is not None:
        print(f"{word} is {found}", file=sys.stderr, flush=True)
        return str(found)
    if word == LATEST and not os.path.exists(word):
        fix = "run an experiment first, or pass a run dir"
        raise UserError(Problem(f"there is no run in {_OUTPUTS}", got=LATEST, fix=fix))
    return word


def _check_link(path: Path) -> None:
    """Raise `UserError` for a link `latest` that leads out of its folder: a folder from another source may have one."""
    if path.name == LATEST and os.path.islink(path) and not path.resolve().is_relative_to(path.parent.resolve()):
        fix = "pass the run dir itself"
        raise UserError(Problem(f"the link {LATEST} leads out of its folder", str(path), str(path.resolve()), fix=fix))


def find_newest_run(name: str) -> Path | None:
    """Return the run dir of an experiment's newest run below `outputs`, or of the newest of all for `latest`."""
    if name == LATEST:
        return max([*_runs_in(Path(_OUTPUTS)), *_named_runs_in(Path(_OUTPUTS))], key=_start_of, default=None)
    parts = Path(name).parts
    if not parts or Path(name).is_absolute() or ".." in parts or not os.path.isdir(Path(_OUTPUTS, name)):
        return None
    return max(_begun(Path(_OUTPUTS, name).glob(f"{_DATE}/{_TIME}")), key=_start_of, default=None)


def list_runs(limit: int = 100) -> list[str]:
    """Return experiments with runs in `outputs`, and the run dirs of the newest runs."""
    runs = sorted(_runs_in(Path(_OUTPUTS)), key=_start_of, reverse=True)
    experiments = dict.fromkeys("/".join(run.relative_to(_OUTPUTS).parts[:-2]) for run in runs)
    return [*experiments, *(run.as_posix() for run in runs[:limit])]


def _runs_in(outputs: Path) -> list[Path]:
    return _begun([*outputs.glob(f"*/{_DATE}/{_TIME}"), *outputs.glob(f"*/*/{_DATE}/{_TIME}")])


def _named_runs_in(outputs: Path) -> list[Path]:
    """Return run dirs that `hydra.run.dir=outputs/NAME` named."""
    return _begun(folder for folder in outputs.glob("*") if not folder.is_symlink())


def _begun(folders: Iterable[Path]) -> list[Path]:
    return [folder for folder in folders if any(os.path.exists(folder / file) for file in _FILES_OF_RUN)]


def _start_of(run_dir: Path) -> tuple[str, str, int]:
    """Return date, time and number of a folder such as `2026-11-27/08-36-18_2`; of others, the time of its files."""
    if not fnmatch(run_dir.parent.name, _DATE):
        begun = max((run_dir / file).stat().st_mtime for file in _FILES_OF_RUN if os.path.exists(run_dir / file))
        date, time_text = datetime.fromtimestamp(begun).strftime("%Y-%m-%d %H-%M-%S").split()
        return date, time_text, 1
    time_text, _, number = run_dir.name.partition("_")
    return run_dir.parent.name, time_text, int(number) if number.isdecimal() else 1
