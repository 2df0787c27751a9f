"""`validate`: every mistake of a configuration in one report, also as workflow commands of GitHub Actions.

Imports neither torch nor ray. With `--build` it builds the parts of a run, and imports both.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from runner.cli.arguments import Arguments
from runner.cli.checked_experiments import Checked, check_experiments
from runner.cli.sweep import check_sweep, names_other_sweeper
from runner.config.errors import ConfigError, Problem, RunnerError
from runner.config.paths import conf_dir
from runner.config.plans.training_ratio import find_few_updates
from runner.config.references import hiding_values

_PLACE = re.compile(r"(?P<file>.+?)(?::(?P<line>\d+))?")
_NOT_CHECKED = "  not checked  environments, pipelines, modules (use --build to build them and take one step)"


def main(arguments: Arguments) -> int:
    """Print a summary; raise `ConfigError`, or print the problems in the format of `--format` or `--json`."""
    try:
        checked = _check(arguments)
        lines = _rehearse(checked) if arguments.has("--build") else [_NOT_CHECKED]
    except RunnerError as error:
        if arguments.has("--json"):
            print(json.dumps({"problems": [problem_fields(one) for one in problems_of(error)]}, indent=2))
        elif arguments.value("--format") == "github":
            print(*error_commands(error), sep="\n")
        else:
            raise
        return error.exit_code
    _, config = checked[0]
    count = "" if len(checked) == 1 else f" in {len(checked)} configurations that cover the sweep"
    warnings = dict.fromkeys(filter(None, (find_few_updates(one) for _, one in checked)))
    if arguments.has("--json"):
        print(json.dumps({"experiment": config.experiment_name, "problems": [], "warnings": [*warnings]}, indent=2))
        return 0
    lines += [f"  warning      {text}" for text in warnings]
    print(f"{config.experiment_name}: no problems{count}", *lines, sep="\n")
    return 0


def _check(arguments: Arguments) -> list[Checked]:
    if not arguments.is_multirun:
        return check_experiments(arguments)
    is_hydras = names_other_sweeper(arguments.overrides)
    return check_experiments(arguments) if is_hydras else check_sweep(arguments)[1]


def _rehearse(checked: Sequence[Checked]) -> list[str]:
    """Build all configurations, and describe the parts of the first one."""
    from runner.experiment.rehearsal import rehearse  # imports torch

    problems: dict[Problem, None] = {}
    done = []
    for composed, config in checked:
        try:
            with hiding_values(composed.values, composed.references):
                done.append(rehearse(config))
        except ConfigError as error:
            problems |= dict.fromkeys(error.problems)
            cause = error
    if problems:
        raise ConfigError(list(problems)) from cause
    lines = [f"  checked      {text}" for text in done[0].made]
    lines += [f"  not checked  {text}" for text in done[0].not_made]
    return [*lines, *(f"  warning      {text}" for text in done[0].warnings)]


# -- formats of problems -----------------------------------------------------------------------------------------------


def error_commands(error: RunnerError) -> Iterator[str]:
    """Yield a line `::error file=...,line=...,title=...::message` for each problem; the file may be missing."""
    if not isinstance(error, ConfigError):
        yield f"::error title={_property('runner')}::{_data(str(error))}"
        return
    count = len(error.problems)
    for number, problem in enumerate(error.problems, start=1):
        title = "problem in the configuration" if count == 1 else f"problem {number} of {count} in the configuration"
        place = _place(problem.where)
        listed = ",".join(f"{name}={_property(value)}" for name, value in {**place, "title": title}.items())
        yield f"::error {listed}::{_data(_message(problem, is_placed=bool(place)))}"


def problems_of(error: RunnerError) -> Sequence[Problem]:
    """Return the problems of an error; another error is one problem."""
    return error.problems if isinstance(error, ConfigError) else [Problem(str(error))]


def problem_fields(problem: Problem) -> dict[str, str]:
    """Return a problem for `--json`."""
    return {"what": problem.what, **problem.details()}


def _message(problem: Problem, is_placed: bool) -> str:
    where = None if is_placed else problem.where
    details = problem.details() | {"where": where}
    return "\n".join([problem.what, *(f"{name}: {text}" for name, text in details.items() if text is not None)])


def _place(where: str | None) -> dict[str, str]:
    """Return file and line in the format of GitHub, or nothing for an override."""
    match = _PLACE.fullmatch((where or "").partition("\n")[0])
    path = _find(match["file"]) if match else None
    if match is None or path is None:
        return {}
    return {"file": path, **({"line": match["line"]} if match["line"] else {})}


def _find(shown: str) -> str | None:
    """Return a file's path from the root of the checked-out repository; or None if `shown` is not a file."""
    places = (Path.cwd() / shown, conf_dir().parent / shown)
    path = next((path for path in places if os.path.isfile(path)), None)
    root = os.environ.get("GITHUB_WORKSPACE")
    if path is None or root is None:
        return None if path is None else shown
    try:
        return path.resolve().relative_to(Path(root).resolve()).as_posix()
    except ValueError:
        return shown


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
