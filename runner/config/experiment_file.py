"""Experiment files that a program writes: another experiment with overrides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from runner.config.composition_rules import edits_in
from runner.config.errors import ConfigError, Problem
from runner.config.list_patches import discards_earlier, edit_list_of
from runner.config.overrides import OverrideLine, parse_overrides
from runner.config.paths import search_dirs
from runner.config.renamed_edits import rename_in_edits
from runner.config.stored import set_values
from runner.config.yaml_files import dump_yaml

# Keys about running and recording, which are not part of an experiment.
_NOT_THE_EXPERIMENT = ("experiment", "hydra", "sweep", "tracking", "debug")
_OVERRIDE = "override "


def experiment_text(overrides: Sequence[str], about: str, config_dir: Path | None) -> str:
    """Return the YAML text of an experiment file.

    Args:
        overrides: overrides of the command line including `experiment=NAME`; keys about running and recording are
            omitted.
        about: description for the first comment of the file.
        config_dir: folder with custom experiments and options.

    Raises:
        ConfigError: an override cannot be read.
    """
    lines, problems = parse_overrides(overrides, search_dirs(config_dir))
    if problems:
        raise ConfigError(problems)
    bases = [name for line in lines if line.key == "experiment" for name in line.options]
    kept = [line for line in lines if line.key.partition(".")[0].partition("/")[0] not in _NOT_THE_EXPERIMENT]
    defaults: list[Any] = [*bases, *sorted((_choice(line) for line in kept if line.is_group), key=_overrides)]
    body = {"defaults": defaults, **_values([line for line in kept if not line.is_group])}
    return f"# @package _global_\n# {about}\n{dump_yaml(body)}"


def _choice(line: OverrideLine) -> dict[str, str | list[str] | None]:
    """Return the entry of `defaults` for an override of a group; null removes the group."""
    group = "/" + line.parsed.get_key_element().lstrip("+~")
    key = group if line.hydra_text.startswith("+") else _OVERRIDE + group
    options = line.options
    return {key: None if line.parsed.is_delete() else options[0] if len(options) == 1 else options}


def _overrides(entry: dict[str, str | list[str] | None]) -> bool:
    """Return whether an entry of `defaults` overrides an earlier one; such entries come last."""
    return next(iter(entry)).startswith(_OVERRIDE)


def override_values(overrides: Sequence[str], config_dir: Path | None) -> dict[str, Any]:
    """Return overrides of single keys as nested values; raises `ConfigError` for unreadable ones."""
    lines, problems = parse_overrides(overrides, search_dirs(config_dir))
    if problems:
        raise ConfigError(problems)
    return _values([line for line in lines if not line.is_group])


def _values(lines: Sequence[OverrideLine]) -> dict[str, Any]:
    config = OmegaConf.create({})
    what = "an experiment file cannot remove a key"
    removed = [line for line in lines if line.parsed.is_delete() and not line.key.startswith("stop.")]  # null in `stop`
    problems = [Problem(what, line.where) for line in removed]
    edits = [line for line in lines if edit_list_of(line.key) == line.key]
    what = "an experiment file cannot change single edits of an inherited list"
    others = [line for line in lines if line not in edits]
    problems += [Problem(what, line.where) for line in others if edit_list_of(line.key) is not None]
    problems += set_values(config, others)
    if problems:
        raise ConfigError(problems)
    for line in edits:
        earlier, later = edits_in(config).get(line.key, []), line.parsed.value()
        later = rename_in_edits(later, tuple(line.key.split(".")))
        if isinstance(later, list) and not discards_earlier(later):
            later = [*earlier, *later]
        OmegaConf.update(config, line.key, later, merge=False, force_add=True)
    return cast(dict[str, Any], OmegaConf.to_container(config))
