"""No verb: check the configuration, then let Hydra make the folder of the run (or runs) and train in it."""

from __future__ import annotations

from collections.abc import Sequence

from runner.cli.arguments import Arguments, UsageError, parse_arguments
from runner.cli.ci import Verdict, judged
from runner.cli.hydra_runs import run_with_hydra
from runner.cli.validate import check_experiments, check_memory


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
    return run_with_hydra(arguments, None if arguments.is_multirun else checked[0], verdict)


def _names_other_sweeper(overrides: Sequence[str]) -> bool:
    """Return whether Hydra is to sweep with another plugin than ours."""
    return any(text.lstrip("+").startswith(("hydra/sweeper=", "hydra/launcher=")) for text in overrides)
