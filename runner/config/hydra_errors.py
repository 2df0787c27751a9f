"""Problems and causes of Hydra's and YAML's exceptions; the composition continues without the cause."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.errors import MissingConfigException

from runner.config.defaults import core_groups
from runner.config.errors import Problem, list_names, nearest_match
from runner.config.overrides import OverrideLine, describe_list_key, describe_unknown_option
from runner.config.paths import display_path, find_config
from runner.config.yaml_files import MarkedYAMLError, UnboundedYAMLError, find_default_line

# A cause that a composition can leave out: an override, a file, or the chosen option of a group.
Cause = OverrideLine | Path | str
_Found = tuple[Problem, Sequence[Cause]]


def describe_composition_error(
    error: Exception, lines: Sequence[OverrideLine], files: Sequence[Path], dirs: Sequence[Path]
) -> _Found:
    """Return the problem, and its possible causes, the most likely one first.

    Args:
        error: error of a composition.
        lines: its overrides.
        files: its experiment files.
        dirs: search path of configuration files.

    Raises:
        TypeError: the error, if no override caused it.
    """
    if type(error) in (TypeError, ValueError):
        for line in lines:
            problem = describe_list_key(line, error)
            if problem is not None:
                return problem, [line]
    if type(error) is TypeError:  # a bug
        raise error
    yaml_error = _find_yaml_error(error)
    if yaml_error is not None:
        return _describe_yaml_error(yaml_error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _describe_missing_file(error.missing_cfg_file, lines, files, dirs)
    if files and re.search(r"In 'experiment/[^']+': Could not override '[^']+@experiment\.", str(error)):
        what = "this experiment file needs the first line `# @package _global_`"
        return Problem(what, f"{display_path(files[0])}:1"), files[:1]
    unknown_group = re.search(r"Could not override '([^']+)'. No match in the defaults list", str(error))
    if unknown_group is not None:
        return _describe_unknown_group(unknown_group[1], files)
    chosen_twice = re.search(r"Multiple values for (\w+)\. To override a value use 'override \w+: ([^']+)'", str(error))
    if chosen_twice is not None:
        return _describe_missing_override(chosen_twice[1], chosen_twice[2], files)
    is_loop = isinstance(error, RecursionError)
    return _describe_loop(lines, files, dirs) if is_loop else _describe_other(error, lines, files)


def _describe_loop(lines: Sequence[OverrideLine], files: Sequence[Path], dirs: Sequence[Path]) -> _Found:
    """Describe a loop of `defaults`, which only files of the user's folder contain."""
    chosen = [
        find_config(dirs[1:], f"{line.key}/{option}") for line in lines if line.is_group for option in line.options
    ]
    suspects = [path for path in chosen if path is not None] or files[:1]
    what = "the list `defaults` of this file contains the file itself, or a file that leads back to it"
    return Problem(what, ", ".join(map(display_path, suspects)), fix="remove this entry of the list"), suspects


def _find_yaml_error(error: BaseException | None) -> Any:
    while error is not None and not isinstance(error, MarkedYAMLError):
        error = error.__cause__ or error.__context__
    return error


def _describe_yaml_error(error: Any) -> _Found:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return Problem(f"a file is not valid YAML: {error.problem}"), []
    path = Path(mark.name)
    what = "this YAML is not read" if isinstance(error, UnboundedYAMLError) else "this is not valid YAML"
    return Problem(f"{what}: {error.problem}", f"{display_path(path)}:{mark.line + 1}"), [path]


def _describe_missing_file(
    name: str, lines: Sequence[OverrideLine], files: Sequence[Path], dirs: Sequence[Path]
) -> _Found:
    group, _, option = name.removesuffix(".yaml").strip("/").rpartition("/")
    if group.removeprefix("experiment/") in core_groups() and group.startswith("experiment/"):
        return _describe_missing_override(group.removeprefix("experiment/"), option, files)
    plugin = next((line for line in lines if line.key == group and group.startswith("hydra/")), None)
    if plugin is not None:
        what = f"unknown option {option} of {group}, or the package of this plugin is not installed"
        return Problem(what, plugin.where, option), [plugin]
    where = find_request(files, f"{group}/{option}")
    return describe_unknown_option(group, option, where, dirs), [group, *files[:1]]


def _describe_missing_override(group: str, option: str, files: Sequence[Path]) -> _Found:
    what = f"{group} is already chosen, so the experiment must override it"
    where, fix = find_request(files, f"{group}/{option}"), f"- override /{group}: {option}"
    return Problem(what, where, f"{group}: {option}", fix=fix), files[:1]


def _describe_unknown_group(group: str, files: Sequence[Path]) -> _Found:
    nearest = nearest_match(group, core_groups())
    relative = re.fullmatch(r"experiment/(\w+)(@\w+)?", group)
    if relative is not None and relative[1] in core_groups():
        nearest = f"override /{relative[1]}"
    what, where = f"`{group}` is not a config group", find_request(files, group)
    return Problem(what, where, group, list_names(core_groups()), nearest), files[:1]


def find_request(files: Sequence[Path], name: str) -> str:
    """Return the location of the entry of a defaults list that names an option, such as `env/cartpole`."""
    for path in files:
        line = find_default_line(path, name)
        if line is not None:
            return f"{display_path(path)}:{line}"
    return display_path(files[0]) if files else "conf/config.yaml"


def _describe_other(error: Exception, lines: Sequence[OverrideLine], files: Sequence[Path]) -> _Found:
    message = str(error.__cause__ if not str(error) and error.__cause__ else error)
    summary = message.strip().splitlines()[0].rstrip(".") if message.strip() else type(error).__name__
    culprit = next((line for line in lines if f"'{line.key}'" in message or line.text in message), None)
    if culprit is None:
        expected = "entries of `defaults` with `override` after all others" if "is defined before" in summary else None
        return Problem(summary, display_path(files[0]) if files else None, expected=expected), files[:1]
    expected = None
    if isinstance(culprit.parsed.value(), dict) and "merg" in summary:
        summary, expected = f"{culprit.key} cannot be a block", f"{culprit.key}=[{{...}}, ...], if it is a list"
    elif summary.startswith("Error merging override"):
        reason = str(error.__cause__).partition("\n")[0]
        summary = f"{culprit.key} cannot be set: {reason}"
    return Problem(summary, culprit.where, expected=expected), [culprit]
