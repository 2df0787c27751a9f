"""An experiment file that a program writes: another experiment, and overrides on top of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf

from runner.config.errors import ConfigError, Problem
from runner.config.overrides import OverrideLine, parse_overrides
from runner.config.paths import search_dirs
from runner.config.stored import set_values

# How a run is made and recorded, which is not the experiment.
_NOT_THE_EXPERIMENT = ("experiment", "hydra", "sweep", "tracking", "debug")


def experiment_text(overrides: Sequence[str], about: str, config_dir: Path | None) -> str:
    """The file, in YAML, of an experiment that is another one with overrides.

    Args:
        overrides: as on the command line, `experiment=NAME` among them; those that only say how a run is made and
            recorded are left out.
        about: its first line says what it is.
        config_dir: folder with experiments and options of one's own.

    Raises:
        ConfigError: overrides that cannot be read.
    """
    lines, problems = parse_overrides(overrides, search_dirs(config_dir))
    if problems:
        raise ConfigError(problems)
    bases = [line.options[0] for line in lines if line.key == "experiment"]
    kept = [line for line in lines if line.key.partition(".")[0].partition("/")[0] not in _NOT_THE_EXPERIMENT]
    defaults: list[Any] = [*bases, *({f"override /{line.key}": line.options[0]} for line in kept if line.is_group)]
    body = {"defaults": defaults, **_values([line for line in kept if not line.is_group])}
    content = yaml.safe_dump(body, sort_keys=False, default_flow_style=None, width=120)
    return f"# @package _global_\n# {about}\n{content}"


def override_values(overrides: Sequence[str], config_dir: Path | None) -> dict[str, Any]:
    """Overrides of single keys as nested values; raises `ConfigError` for those that cannot be read."""
    lines, problems = parse_overrides(overrides, search_dirs(config_dir))
    if problems:
        raise ConfigError(problems)
    return _values([line for line in lines if not line.is_group])


def _values(lines: Sequence[OverrideLine]) -> dict[str, Any]:
    """Overrides of single keys as nested values."""
    config = OmegaConf.create({})
    what = "an experiment file cannot take a key away"
    problems = [Problem(what, line.where) for line in lines if line.parsed.is_delete()]
    problems += set_values(config, lines)
    if problems:
        raise ConfigError(problems)
    return cast(dict[str, Any], OmegaConf.to_container(config))
