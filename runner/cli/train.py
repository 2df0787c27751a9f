"""No verb: check the configuration, then let Hydra make the folder of the run (or runs) and train in it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from runner.cli.arguments import Arguments, UsageError, parse_arguments
from runner.cli.ci import Verdict, judged
from runner.cli.hydra_runs import run_with_hydra, sweep_with_hydra
from runner.cli.validate import check_experiments, check_memory
from runner.config.errors import Problem


def main(argv: Sequence[str]) -> int:
    """Train; returns the exit code of `run_experiment`, in a sweep the highest one, as `judged` changes it."""
    arguments = parse_arguments(argv)
    return judged(arguments, lambda verdict: _train(arguments, verdict))


def _train(arguments: Arguments, verdict: Verdict) -> int:
    if arguments.is_trusting and not arguments.is_multirun:
        raise UsageError("--trust is for a sweep that goes on (-m); a new run reads no files of somebody else")
    if arguments.is_multirun and not _names_other_sweeper(arguments.overrides):
        from runner.cli.sweep import run_sweep_command

        return run_sweep_command(arguments, verdict)
    if arguments.is_multirun and arguments.is_judged:
        raise UsageError("--assert, --budget and --junit go with runner's own sweeper, not with hydra/sweeper=...")
    checked = check_experiments(arguments)
    check_memory(config for _, config in checked)
    if not arguments.is_multirun:
        return run_with_hydra(arguments, checked[0], verdict)
    if checked[0][1].sweep.name is None:  # such a sweep cannot be continued: each start has its own folder
        name = f"{datetime.now():%Y-%m-%d_%H-%M-%S}-{os.getpid()}"
        arguments = replace(arguments, overrides=(*arguments.overrides, f"sweep.name={name}"))
    return sweep_with_hydra(arguments)


def _names_other_sweeper(overrides: Sequence[str]) -> bool:
    """Return whether Hydra should sweep with a plugin that is not ours.

    Raises:
        UsageError: a launcher without a sweeper that uses it.
    """
    named = {text.lstrip("+").partition("=")[0] for text in overrides}
    if "hydra/launcher" in named and "hydra/sweeper" not in named:
        what = "hydra/launcher needs one of Hydra's sweepers: runner's own sweeper starts its trials through Ray"
        fix = "hydra/sweeper=basic as well, or sweep.max_concurrent_trials=N without hydra/launcher"
        raise UsageError(Problem(what, "override hydra/launcher", expected=fix).render_alone())
    return "hydra/sweeper" in named
