"""Compose and check the configurations of a command line. Imports neither torch nor ray."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace

from runner.checkpoints.folder import check_intact, module_sources
from runner.cli.arguments import Arguments
from runner.cli.conditions import check_assertions
from runner.config.compose import compose_experiment
from runner.config.composed import Composed
from runner.config.errors import ConfigError, Problem
from runner.config.overrides import expand_sweep, find_empty_sweeps, parse_overrides, renaming_notes
from runner.config.paths import search_dirs
from runner.config.schemas import ExperimentConfig
from runner.config.stored import compose_variant
from runner.config.validation import build_experiment_config

_SOON = 60  # configurations that are checked in a few seconds

Checked = tuple[Composed, ExperimentConfig]


def check_experiments(arguments: Arguments) -> list[Checked]:
    """Check the configuration, or all combinations of a sweep, and the metrics of `--assert`."""
    checked: list[Checked] = []
    problems: dict[Problem, None] = {}
    for composed in _compose_all(arguments):
        try:
            config = build_experiment_config(composed)
            for source in module_sources(config, composed.where).values():
                check_intact(source.checkpoint)
            check_assertions(arguments.assertions, config)
            if arguments.is_multirun and composed.run_url is not None:
                raise ConfigError([_describe_run_url_of_sweep(composed.run_url)])
            checked.append((composed, config))
        except ConfigError as error:
            problems |= dict.fromkeys(error.problems)
    if problems:
        raise ConfigError(list(problems))
    print_notes([composed for composed, _ in checked])
    return checked


def print_notes(composed: Iterable[Composed]) -> None:
    """Print the notes of configurations, each of them once."""
    for note in dict.fromkeys(note for one in composed for note in one.notes):
        print(note, file=sys.stderr, flush=True)


def _describe_run_url_of_sweep(url: str) -> Problem:
    what = "hydra.run.dir is the URL of one run, and a sweep (-m) has many"
    expected = f"checkpoint.upload_to={url} instead: each trial uploads its run dir"
    return Problem(what, "hydra.run.dir", url, expected)


def check_memory(configs: Iterable[ExperimentConfig]) -> None:
    """Check that replay buffers fit into memory. With replay buffers, torch is imported to measure their rows."""
    for config in configs:
        if config.algorithm.replay_buffers:
            from runner.experiment.replay_memory import check_replay_memory

            check_replay_memory(config)


def _compose_all(arguments: Arguments) -> Iterator[Composed]:
    texts, config_dir = list(arguments.overrides), arguments.config_dir
    if not arguments.is_multirun:
        yield compose_experiment(texts, config_dir)
        return
    dirs = search_dirs(config_dir)
    lines, problems = parse_overrides(texts, dirs)
    swept = [line for line in lines if line.parsed.is_sweep_override()]
    problems += find_empty_sweeps(swept, dirs)
    shared = [line.text for line in lines if line not in swept]
    combinations = list(expand_sweep(swept, dirs)) or [()]
    if len(combinations) > _SOON:
        print(f"checking {len(combinations)} configurations ...", file=sys.stderr, flush=True)
    for combination in combinations:
        composed = compose_variant(shared, combination, config_dir)
        notes = (*renaming_notes(lines), *composed.notes)
        yield replace(composed, problems=(*problems, *composed.problems), notes=notes)
