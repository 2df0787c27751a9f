"""Runs in folders that Hydra makes: one, or several of a sweep."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.cli.arguments import Arguments
from runner.cli.ci import Verdict
from runner.cli.main import EXIT_INTERRUPTED, report_error
from runner.cli.validate import Checked
from runner.compat.hydra_loader import LAUNCHER_LOGGER, hydra_main_with
from runner.config.compose import compose_experiment, prepare_hydra
from runner.config.composition_rules import RULES
from runner.config.errors import RunnerError, UserError
from runner.config.overrides import parse_overrides, quoted
from runner.config.paths import conf_dir, search_dirs
from runner.config.validation import build_experiment_config
from runner.experiment.run_folder import claim_run_dir, opened_run_folder


def run_with_hydra(arguments: Arguments, checked: Checked | None, verdict: Verdict) -> int:
    """Run Hydra with a valid command line. `checked` is a single run's configuration, which is not composed again."""
    codes: list[int] = []

    def job(_: object) -> None:
        codes.append(_run_job(arguments, checked, verdict))

    _call_hydra(job, arguments, None if checked is None else claim_run_dir(checked[0]))
    return max(codes, default=0)


def sweep_with_hydra(arguments: Arguments) -> int:
    """Sweep with a sweeper and a launcher of Hydra or of one of its plugins; returns the exit code.

    Launchers such as joblib's and submitit's pickle the job and call it in other processes.
    """
    try:
        _call_hydra(_SweptRun(arguments), arguments, None)
    except _RunFailedError as failed:
        return failed.exit_code
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
        prepare_hydra(self.arguments.config_dir)
        code = _run_job(self.arguments, None, Verdict(self.arguments))
        if code == EXIT_INTERRUPTED:
            raise SystemExit(EXIT_INTERRUPTED)  # no further runs of the sweep
        if code:
            raise _RunFailedError(code)
        return _objective(self.arguments)


def _call_hydra(job: Callable[[Any], Any], arguments: Arguments, run_dir: Path | None) -> None:
    import hydra

    prepare_hydra(arguments.config_dir)
    run: Callable[[], None] = hydra.main(config_path=str(conf_dir()), config_name="config", version_base="1.3")(job)
    with _hydra_command_line(arguments, run_dir), _overrides_as_typed(), hydra_main_with(RULES):
        try:
            run()
        except OSError as error:  # the job reports its own errors: this one is Hydra's, making the folder
            raise UserError(f"the run dir cannot be created: {error}") from error


def _objective(arguments: Arguments) -> float | list[float | None] | None:
    """Return the value of `sweep.metric` for other sweepers of Hydra, or a list of values for a list of metrics."""
    from hydra.core.hydra_config import HydraConfig

    hydra_config = HydraConfig.get()
    config = build_experiment_config(compose_experiment(list(hydra_config.overrides.task), arguments.config_dir))
    file = Path(hydra_config.runtime.output_dir) / "result.json"
    result = json.loads(file.read_text()) if file.exists() else {}  # it failed before it began
    values = [result.get(name) for name in config.objectives]
    return values[0] if len(values) == 1 else values


def _run_job(arguments: Arguments, checked: Checked | None, verdict: Verdict) -> int:
    from hydra.core.hydra_config import HydraConfig

    start_time_s = time.time()  # before torch is imported
    hydra_config = HydraConfig.get()
    try:
        if checked is None:
            composed = compose_experiment(list(hydra_config.overrides.task), arguments.config_dir)
            checked = composed, build_experiment_config(composed)
        composed, config = checked
        with opened_run_folder(Path(hydra_config.runtime.output_dir)) as folder:
            from runner.experiment.run_experiment import run_experiment

            verdict.judge_run(config.experiment_name, folder.path)
            return run_experiment(config, composed, folder, start_time_s=start_time_s)
    except RunnerError as error:
        verdict.note_error(error)
        report_error(error, arguments.is_debugging)
        return error.exit_code


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
def _hydra_command_line(arguments: Arguments, run_dir: Path | None) -> Iterator[None]:
    """Put the overrides into `sys.argv` in Hydra's spelling; a local `run_dir` replaces `hydra.run.dir`."""
    lines, _ = parse_overrides(arguments.overrides, search_dirs(arguments.config_dir))
    texts = [line.hydra_text for line in lines]
    if run_dir is not None:
        texts.append(f"hydra.run.dir={quoted(str(run_dir))}")
    if arguments.is_multirun:
        texts.append("--multirun")
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
