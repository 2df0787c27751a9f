"""Sweeps with sweepers and launchers of Hydra, instead of runner's own sweeper."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runner.cli.arguments import Arguments
from runner.cli.ci import Verdict
from runner.cli.main import report_error
from runner.cli.new_runs import train_in
from runner.compat.hydra_loader import LAUNCHER_LOGGER, hydra_main_with
from runner.config.compose import compose_experiment, prepare_hydra
from runner.config.composition_rules import COMPOSITION_RULES
from runner.config.errors import RunnerError, UserError
from runner.config.exit_codes import ExitCode
from runner.config.overrides import parse_overrides
from runner.config.paths import conf_dir, search_dirs
from runner.config.schemas import ExperimentConfig
from runner.config.validation import build_experiment_config
from runner.tracking.progress_log import read_result


def sweep_with_hydra(arguments: Arguments) -> int:
    """Sweep with a sweeper and a launcher of Hydra or of one of its plugins; returns the exit code.

    Launchers such as joblib's and submitit's pickle the job and call it in other processes.
    """
    import hydra

    prepare_hydra(arguments.config_dir)
    run = hydra.main(config_path=str(conf_dir()), config_name="config", version_base="1.3")(_SweptRun(arguments))
    with _hydra_command_line(arguments), _overrides_as_typed(), hydra_main_with(COMPOSITION_RULES):
        try:
            run()
        except _RunFailedError as failed:
            return failed.exit_code
        except OSError as error:  # the job reports its own errors: this one comes from Hydra, which creates the folder
            raise UserError(f"the run dir cannot be created: {error}") from error
    return 0


class _RunFailedError(Exception):
    """A run of a sweep did not finish; the reason has been printed."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


@dataclass(frozen=True)
class _SweptRun:
    """The job of a sweep: one run, whose return value is the objective."""

    arguments: Arguments

    def __call__(self, _: object) -> float | list[float | None] | None:
        from hydra.core.hydra_config import HydraConfig

        config_dir, hydra_config = self.arguments.config_dir, HydraConfig.get()
        run_dir = Path(hydra_config.runtime.output_dir)
        prepare_hydra(config_dir)
        try:
            composed = compose_experiment(list(hydra_config.overrides.task), config_dir)
            config = build_experiment_config(composed)
            code = train_in(run_dir, (composed, config), Verdict(self.arguments))
        except RunnerError as error:
            report_error(error, self.arguments.is_debugging)
            raise _RunFailedError(error.exit_code) from None
        if code == ExitCode.INTERRUPTED:
            raise SystemExit(ExitCode.INTERRUPTED)  # no further runs of the sweep
        if code:
            raise _RunFailedError(code)
        return _objective(config, run_dir)


def _objective(config: ExperimentConfig, run_dir: Path) -> float | list[float | None] | None:
    """Return the value of `sweep.metric`, or a list of values for a list of metrics."""
    result = read_result(run_dir / "result.json")  # empty if it failed before it began
    values = [result.get(name) for name in config.objectives]
    return values[0] if len(values) == 1 else values


@contextmanager
def _overrides_as_typed() -> Iterator[None]:
    """Remove the `++` of `_hydra_command_line` from the overrides that Hydra logs for each run of a sweep."""

    def take_away(record: logging.LogRecord) -> bool:
        record.msg, record.args = re.sub(r"(?<=\s)\+\+", "", record.getMessage()), ()
        return True

    launcher = logging.getLogger(LAUNCHER_LOGGER)
    launcher.addFilter(take_away)
    try:
        yield
    finally:
        launcher.removeFilter(take_away)


@contextmanager
def _hydra_command_line(arguments: Arguments) -> Iterator[None]:
    """Put the overrides into `sys.argv` in Hydra's spelling."""
    lines, _ = parse_overrides(arguments.overrides, search_dirs(arguments.config_dir))
    texts = [*(line.hydra_text for line in lines), "--multirun"]
    if arguments.config_dir is not None:
        texts.append(f"--config-dir={arguments.config_dir.resolve()}")
    before, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [before[0], *texts]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us instead of being printed
    try:
        yield
    finally:
        sys.argv = before
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]
