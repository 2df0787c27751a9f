"""`new experiment NAME`: an experiment file to start from."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from runner.cli.arguments import Arguments, UsageError
from runner.cli.experiment_files import command_for, write_experiment
from runner.cli.output_files import check_new_file
from runner.config.algorithms import algorithm_name
from runner.config.compose import compose_experiment
from runner.config.defaults import core_groups
from runner.config.env import env_override
from runner.config.errors import ConfigError, Problem
from runner.config.operators import ENV_RUNNERS
from runner.config.paths import conf_dir, list_options, search_dirs
from runner.config.plans.needs import needs_of
from runner.config.rules import ENV_RULES
from runner.config.schemas import ExperimentConfig
from runner.config.validation import build_experiment_config
from runner.config.yaml_files import dump_yaml

_FOLDER = "conf"
_NAME = re.compile(r"\w[\w-]*(/\w[\w-]*)*", re.ASCII)
_TEXT = """\
# @package _global_
# {title}
defaults:
  - override /algorithm: {algorithm}
{env}  - override /evaluation: periodic
{block}{rest}"""
_ONLINE = """\
# A run ends when one of these metrics reaches its value. Add env_runners/episode_return_mean for a target return.
stop: {num_env_steps_sampled_lifetime: 500000}
"""
_OFFLINE = """\
# Recorded data: set it here, or with offline.input_=PATH on the command line.
offline: {input_: null}
checkpoint: {metric: evaluation/env_runners/episode_return_mean}
# A run ends when one of these metrics reaches its value.
stop: {training_iteration: 200}
"""


def main(arguments: Arguments) -> int:
    """Write the file, and print the commands that come next."""
    [name] = arguments.words
    folder = arguments.config_dir or Path(_FOLDER)
    file, may_overwrite = folder / "experiment" / f"{name}.yaml", arguments.has("--force")
    _check_name(name, may_overwrite)
    check_new_file(file, may_overwrite)
    text = _text(arguments, folder if os.path.isdir(folder) else None)
    schema = write_experiment(file, text)
    print(f"wrote {file}\n  schema    {schema}, for completion and checks in editors")
    for verb in ("validate", "train"):
        print(f"  {verb:<9} {command_for(verb, file)}")
    return 0


def _check_name(name: str, may_overwrite: bool) -> None:
    if not _NAME.fullmatch(name):
        expected = "letters, digits, _ and -, such as my_maze"
        raise UsageError(Problem("NAME is not a valid name of an experiment", None, name, expected))
    if name in list_options([conf_dir()], "experiment") and not may_overwrite:
        raise UsageError(Problem("an experiment of runner has this name", None, name, fix=f"use my_{name}"))


def _text(arguments: Arguments, config_dir: Path | None) -> str:
    """Return the text of the file; raises `ConfigError` if the algorithm or the environment is not valid."""
    algorithm, named = arguments.value("--algorithm") or core_groups()["algorithm"], arguments.value("--env")
    if named is None:
        raise UsageError(Problem("--env is missing", fix="--env CartPole-v1, or any other environment"))
    chosen = env_override(named, search_dirs(config_dir))
    try:
        config = _checked([f"algorithm={algorithm}", chosen], config_dir)
    except ConfigError as error:  # a wrong algorithm hides the problems of the environment
        raise ConfigError(list(dict.fromkeys([*error.problems, *_problems_of([chosen], config_dir)]))) from error
    is_option = chosen.startswith("env=")
    key, _, value = chosen.removeprefix("env.").partition("=")
    return _TEXT.format(
        title=f"{algorithm_name(config.algorithm)} on {named}.",
        algorithm=algorithm,
        env=f"  - override /env: {value}\n" if is_option else "",
        block="" if is_option else dump_yaml({"env": {key: value}}),
        rest=_ONLINE if ENV_RUNNERS in needs_of(config) else _OFFLINE,
    )


def _checked(overrides: Sequence[str], config_dir: Path | None) -> ExperimentConfig:
    """Compose an experiment and check its environment; raises `ConfigError`."""
    return build_experiment_config(compose_experiment(overrides, config_dir), ENV_RULES)


def _problems_of(overrides: Sequence[str], config_dir: Path | None) -> Sequence[Problem]:
    try:
        _checked(overrides, config_dir)
    except ConfigError as error:
        return error.problems
    return ()
