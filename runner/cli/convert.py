"""`convert IN OUT`: recorded data in another format, streamed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from runner.cli.arguments import Arguments, UsageError, print_note, usage_of
from runner.config.compose import compose_experiment
from runner.config.composed import Composed
from runner.config.errors import Problem
from runner.config.path_fields import absolute_paths
from runner.config.references import hiding_values
from runner.config.schemas import ExperimentConfig
from runner.config.validation import build_experiment_config

if TYPE_CHECKING:
    from runner.offline.codecs.layout import Spaces
    from runner.offline.writing.conversion import ConversionReport

_PROGRESS_INTERVAL_S = 2.0


def main(arguments: Arguments) -> int:
    """Convert, and print a summary."""
    composed = compose_experiment(arguments.overrides, arguments.config_dir)
    config = _with_ends(arguments.words, composed)
    from runner.offline.writing.conversion import convert

    with hiding_values(composed.values, composed.references):
        report = convert(config.offline, _spaces_of(config), config.env.env, _progress_printer())
    for line in report_lines(report, config):
        print(line)
    return 0


def _with_ends(words: Sequence[str], composed: Composed) -> ExperimentConfig:
    """Return the configuration that reads from IN and writes to OUT."""
    config = build_experiment_config(composed, ())
    keys = [name for name in ("input_", "output") if getattr(config.offline, name)]
    if not words and len(keys) == 2:
        print_note("offline.input_=IN offline.output=OUT is now `runner convert IN OUT`")
        return config
    if len(words) < 2:
        raise UsageError(Problem(f"{('IN', 'OUT')[len(words)]} is missing", fix=usage_of("convert")))
    if keys:
        what = f"IN and OUT are arguments of convert, so offline.{keys[0]} must not be set"
        raise UsageError(Problem(what, fix=usage_of("convert")))
    named = absolute_paths({"offline": {**composed.values["offline"], "input_": words[0], "output": words[1]}})
    ends = {name: named["offline"][name] for name in ("input_", "output")}
    return replace(config, offline=replace(config.offline, **ends))


def report_lines(report: ConversionReport, config: ExperimentConfig) -> list[str]:
    """Return the summary."""
    from runner.offline.formats.recorded_format import Row

    written, counts = report.written, report.counts
    rows = f", {report.num_rows:,} {'batches' if report.row is Row.BATCH else 'rows'}" if report.num_rows else ""
    files = f", {_count(report.num_files, 'file')}" if report.num_files else ""
    of_rllib = config.offline.output_episode_format == "rllib"
    kind = "rllib_episodes" if of_rllib else "episodes" if config.offline.output_write_episodes else "table"
    lines = [
        f"read   {_count(written.episodes, 'episode')}, {_count(written.steps, 'step')} ({report.format}{files}{rows})",
        f"wrote  {_count(written.episodes, 'episode')}, {_count(written.steps, 'step')} "
        f"({', '.join(filter(None, (kind, written.size_text)))})",
        f"  in {config.offline.output}",
        f"  {report.seconds:.1f} s, {written.steps / max(report.seconds, 1e-9):,.0f} steps per second",
    ]
    notes = {
        "terminated without a final observation; the previous one is repeated": counts.final_obs_repeated,
        "ended without a final observation; truncated one step earlier": counts.final_steps_dropped,
        "left out for lack of a complete step": counts.trajectories_dropped,
        "split where the next row is not the next observation": counts.breaks,
        "split where a time step is missing": counts.gaps,
    }
    lines += [f"  {_count(count, 'trajectory', 'trajectories')} {text}" for text, count in notes.items() if count]
    return lines + [f"  column {name} is left out: {reason}" for name, reason in counts.columns_left_out.items()]


def _count(number: int, word: str, words: str | None = None) -> str:
    return f"{number:,} {word if number == 1 else words or f'{word}s'}"


def _spaces_of(config: ExperimentConfig) -> Spaces | None:
    """The spaces of the environment, if one is named."""
    if config.env.env is None and config.env._target_ is None:
        return None
    from runner.env_runners.env_makers import make_vector_env
    from runner.offline.codecs.layout import Spaces

    env = make_vector_env(config.env, 1, config.env_runners.gym_env_vectorize_mode, config.seed)
    try:
        return Spaces(env.single_observation_space, env.single_action_space)
    finally:
        env.close()


def _progress_printer() -> Callable[[int, int], None] | None:
    """Return a function that prints progress to a terminal; None elsewhere."""
    if not sys.stderr.isatty():
        return None
    printed_at = time.monotonic()

    def show(episodes: int, steps: int) -> None:
        nonlocal printed_at
        now = time.monotonic()
        if now - printed_at >= _PROGRESS_INTERVAL_S:
            printed_at = now
            print(f"  {episodes:,} episodes, {steps:,} steps", file=sys.stderr, flush=True)

    return show
