"""`validate`: every mistake of a configuration in one report; imports neither torch nor ray."""

from __future__ import annotations

from collections.abc import Sequence

from runner.checkpoints.folder import check_intact
from runner.checkpoints.module_source import module_sources
from runner.cli.arguments import Arguments, parse_arguments
from runner.config.compose import Composed, compose_experiment
from runner.config.errors import ConfigError, Problem
from runner.config.overrides import expand_sweep, parse_overrides
from runner.config.paths import search_dirs
from runner.config.schemas import ExperimentConfig
from runner.config.validation import build_experiment_config

Checked = tuple[Composed, ExperimentConfig]


def main(argv: Sequence[str]) -> int:
    """Print one line when all is well; raise `ConfigError` otherwise."""
    checked = check_experiments(parse_arguments(argv))
    _, config = checked[0]
    count = "" if len(checked) == 1 else f" in {len(checked)} configurations that cover the sweep"
    print(f"{config.experiment_name}: no problems{count}")
    return 0


def check_experiments(arguments: Arguments) -> list[Checked]:
    """The checked configuration; of a sweep as many as it takes to see each value once."""
    checked: list[Checked] = []
    problems: dict[Problem, None] = {}
    for overrides in _override_sets(arguments):
        composed = compose_experiment(overrides, arguments.config_dir)
        try:
            config = build_experiment_config(composed)
            for source in module_sources(config, composed.where).values():
                check_intact(source.checkpoint)
            checked.append((composed, config))
        except ConfigError as error:
            problems |= dict.fromkeys(error.problems)
    if problems:
        raise ConfigError(list(problems))
    return checked


def _override_sets(arguments: Arguments) -> list[list[str]]:
    texts = list(arguments.overrides)
    if not arguments.is_multirun:
        return [texts]
    dirs = search_dirs(arguments.config_dir)
    lines, problems = parse_overrides(texts, dirs)
    if problems:  # compose all that can be read, and what cannot, for one report
        readable = {line.text.lstrip("+") for line in lines}
        unreadable = [text for text in texts if text.lstrip("+") not in readable]
        return [unreadable + overrides for overrides in expand_sweep(lines, dirs)] or [unreadable]
    return list(expand_sweep(lines, dirs)) or [[]]
