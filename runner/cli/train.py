"""`train` and `sweep`: check the configuration, then train one run or all runs of a sweep."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime

from runner.cli.arguments import Arguments, UsageError
from runner.cli.checked_experiments import check_experiments, check_memory
from runner.cli.ci import Verdict, judged
from runner.cli.hydra_runs import sweep_with_hydra
from runner.cli.new_runs import train_in
from runner.cli.sweep import names_other_sweeper, run_sweep_command
from runner.config.errors import Problem
from runner.experiment.run_folder import claim_run_dir


def main(arguments: Arguments) -> int:
    """Train; return the exit code of `run_experiment` (in a sweep, the highest), adjusted by `judged`."""
    return judged(arguments, lambda verdict: _train(arguments, verdict))


def _train(arguments: Arguments, verdict: Verdict) -> int:
    if arguments.is_trusting and not arguments.is_multirun:
        what = "--trust applies to a sweep that continues; a new run reads no files from another source"
        raise UsageError(Problem(what, fix="remove --trust, or add -m"))
    if arguments.is_multirun and not names_other_sweeper(arguments.overrides):
        return run_sweep_command(arguments, verdict)
    if arguments.is_multirun and arguments.is_judged:
        what = "--assert, --budget and --junit need runner's own sweeper"
        raise UsageError(Problem(what, "override hydra/sweeper", fix="remove hydra/sweeper=..."))
    checked = check_experiments(arguments)
    check_memory(config for _, config in checked)
    if not arguments.is_multirun:
        return train_in(claim_run_dir(checked[0][0]), checked[0], verdict)
    if checked[0][1].sweep.name is None:  # such a sweep cannot be continued: each start has its own folder
        name = f"{datetime.now():%Y-%m-%d_%H-%M-%S}-{os.getpid()}"
        arguments = replace(arguments, overrides=(*arguments.overrides, f"sweep.name={name}"))
    return sweep_with_hydra(arguments)
