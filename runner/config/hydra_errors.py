"""Conversion of Hydra's and YAML's exceptions to problems; their causes are removed so that the rest composes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from hydra.errors import MissingConfigException

from runner.config.defaults import core_groups
from runner.config.errors import Problem, list_names, nearest_match
from runner.config.overrides import OverrideLine, describe_list_key, describe_unknown_option
from runner.config.paths import display_path
from runner.config.yaml_files import MarkedYAMLError, UnboundedYAMLError, find_default_line


class Repairable(Protocol):
    """A failed composition, and ways to continue without one of its parts."""

    dirs: list[Path]
    lines: list[OverrideLine]
    problems: list[Problem]

    def leave_out(self, line: OverrideLine) -> None: ...
    def leave_out_file(self, path: Path) -> bool: ...
    def replace_option(self, group: str) -> bool: ...
    def experiment_files(self) -> list[Path]: ...


def describe_composition_error(error: Exception, composition: Repairable) -> bool:
    """Add the problem and remove its cause; return False if the composition cannot continue.

    Raises:
        TypeError: the error, if no override caused it.
    """
    if type(error) in (TypeError, ValueError) and _describe_list_key(error, composition):
        return True
    if type(error) is TypeError:  # a bug
        raise error
    yaml_error = _find_yaml_error(error)
    if yaml_error is not None:
        return _describe_yaml_error(yaml_error, composition)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _describe_missing_file(error.missing_cfg_file, composition)
    without_package = re.search(r"In 'experiment/[^']+': Could not override '[^']+@experiment\.", str(error))
    if without_package is not None and composition.experiment_files():
        return _describe_missing_package(composition)
    unknown_group = re.search(r"Could not override '([^']+)'. No match in the defaults list", str(error))
    if unknown_group is not None:
        return _describe_unknown_group(unknown_group[1], composition)
    chosen_twice = re.search(r"Multiple values for (\w+)\. To override a value use 'override \w+: ([^']+)'", str(error))
    if chosen_twice is not None:
        return _describe_missing_override(chosen_twice[1], chosen_twice[2], composition)
    return _describe_other(error, composition)


def _describe_list_key(error: Exception, composition: Repairable) -> bool:
    for line in composition.lines:
        problem = describe_list_key(line, error)
        if problem is not None:
            composition.problems.append(problem)
            composition.leave_out(line)
            return True
    return False


def _find_yaml_error(error: BaseException | None) -> Any:
    while error is not None and not isinstance(error, MarkedYAMLError):
        error = error.__cause__ or error.__context__
    return error


def _describe_yaml_error(error: Any, composition: Repairable) -> bool:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        composition.problems.append(Problem(f"a file is not valid YAML: {error.problem}"))
        return False
    path = Path(mark.name)
    where = f"{display_path(path)}:{mark.line + 1}"
    what = "this YAML is not read" if isinstance(error, UnboundedYAMLError) else "this is not valid YAML"
    composition.problems.append(Problem(f"{what}: {error.problem}", where))
    return composition.leave_out_file(path)


def _describe_missing_file(name: str, composition: Repairable) -> bool:
    group, _, option = name.removesuffix(".yaml").strip("/").rpartition("/")
    if group.removeprefix("experiment/") in core_groups() and group.startswith("experiment/"):
        return _describe_missing_override(group.removeprefix("experiment/"), option, composition)
    plugin = next((line for line in composition.lines if line.key == group and group.startswith("hydra/")), None)
    if plugin is not None:
        what = f"unknown option {option} of {group}, or the package of this plugin is not installed"
        composition.problems.append(Problem(what, plugin.where, option))
        composition.leave_out(plugin)
        return True
    path, where = find_request(composition.experiment_files(), f"{group}/{option}")
    problem = describe_unknown_option(group, option, where, composition.dirs)
    if problem in composition.problems:
        return False
    composition.problems.append(problem)
    return composition.replace_option(group) or (path is not None and composition.leave_out_file(path))


def _describe_missing_package(composition: Repairable) -> bool:
    path = composition.experiment_files()[0]
    what = "this experiment file needs the first line `# @package _global_`"
    composition.problems.append(Problem(what, f"{display_path(path)}:1"))
    return composition.leave_out_file(path)


def _describe_missing_override(group: str, option: str, composition: Repairable) -> bool:
    path, where = find_request(composition.experiment_files(), f"{group}/{option}")
    what = f"{group} is already chosen, so the experiment must override it"
    composition.problems.append(Problem(what, where, f"{group}: {option}", fix=f"- override /{group}: {option}"))
    return path is not None and composition.leave_out_file(path)


def _describe_unknown_group(group: str, composition: Repairable) -> bool:
    path, where = find_request(composition.experiment_files(), group)
    nearest = nearest_match(group, core_groups())
    relative = re.fullmatch(r"experiment/(\w+)(@\w+)?", group)
    if relative is not None and relative[1] in core_groups():
        nearest = f"override /{relative[1]}"
    what = f"`{group}` is not a config group"
    composition.problems.append(Problem(what, where, group, list_names(core_groups()), nearest))
    return path is not None and composition.leave_out_file(path)


def find_request(files: Sequence[Path], name: str) -> tuple[Path | None, str]:
    """Return the file whose defaults list names an option, such as `env/cartpole`, and the location of the entry."""
    for path in files:
        line = find_default_line(path, name)
        if line is not None:
            return path, f"{display_path(path)}:{line}"
    first = files[0] if files else None
    return first, display_path(first) if first else "conf/config.yaml"


def _describe_other(error: Exception, composition: Repairable) -> bool:
    message = str(error.__cause__ if not str(error) and error.__cause__ else error)
    summary = message.strip().splitlines()[0].rstrip(".") if message.strip() else type(error).__name__
    culprit = next((line for line in composition.lines if f"'{line.key}'" in message or line.text in message), None)
    if culprit is not None:
        expected = None
        if isinstance(culprit.parsed.value(), dict) and "merg" in summary:
            summary, expected = f"{culprit.key} cannot be a block", f"{culprit.key}=[{{...}}, ...], if it is a list"
        elif summary.startswith("Error merging override"):
            reason = str(error.__cause__).partition("\n")[0]
            summary = f"{culprit.key} cannot be set: {reason}"
        composition.problems.append(Problem(summary, culprit.where, expected=expected))
        composition.leave_out(culprit)
        return True
    files = composition.experiment_files()
    expected = "entries of `defaults` with `override` after all others" if "is defined before" in summary else None
    composition.problems.append(Problem(summary, display_path(files[0]) if files else None, expected=expected))
    return bool(files) and composition.leave_out_file(files[0])
