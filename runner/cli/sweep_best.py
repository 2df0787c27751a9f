"""`sweep best SWEEP`: the best trial of a sweep, and an experiment file with its values."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.checkpoints.trust import UntrustedError
from runner.cli.arguments import Arguments
from runner.cli.experiment_files import check_experiment_file, command_for, write_experiment
from runner.config.errors import Problem, UserError
from runner.config.experiment_file import experiment_text, override_values
from runner.config.required_trust import TrustRequirement, find_trust_requirements, mask_resolvers
from runner.sweep.space import SEED
from runner.sweep.statistics import FEWEST_VALUES, Ranking, rank_folder
from runner.sweep.trials import SweepFolder, Trial


def main(arguments: Arguments) -> int:
    """Print the best trial, or write an experiment file with its values."""
    folder = SweepFolder.open(Path(arguments.words[0]), arguments.is_trusting)
    metric, mode = next(iter(folder.objectives.items()))
    ranking = rank_folder(folder)
    best = ranking.best
    if best is None:
        raise UserError(Problem(f"no trial has reported {metric} yet", str(folder.path)))
    if arguments.has("--json"):
        print(json.dumps(_described(folder, ranking, best), indent=2))
    else:
        _print_best(folder, ranking, best, mode)
    file = arguments.path("--output")
    if file is not None:
        _write(folder, ranking, best, file, arguments)
    return 0


def _described(folder: SweepFolder, ranking: Ranking, best: Trial) -> dict[str, Any]:
    return {
        "trial": best.number,
        "status": best.status,
        "because": ranking.reason,
        "objectives": {name: best.result.get(name) for name in folder.objectives},
        "overrides": list(best.overrides),
        "run_dir": str(folder.run_dir(best)),
    }


def _print_best(folder: SweepFolder, ranking: Ranking, best: Trial, mode: str) -> None:
    metric = next(iter(folder.objectives))
    estimate = ranking.groups[0].estimate(metric)
    print(f"best of {len(folder.trials)} trials by {metric} ({mode})")
    print(f"  trial    {best.number}, {best.status}: {best.result[metric]:.6g}")
    print(f"  because  {ranking.reason}")
    if estimate.num > 1:
        interval = f", 95 % interval {estimate.low:.6g} to {estimate.high:.6g}" if estimate.num >= FEWEST_VALUES else ""
        print(f"  seeds    {estimate.num}: mean {estimate.mean:.6g}, inter-quartile mean {estimate.iqm:.6g}{interval}")
    print(f"  values   {' '.join(_overrides_of(best)) or '(only seeds differ)'}")
    print(f"  run dir  {folder.run_dir(best)}")


def _overrides_of(trial: Trial) -> list[str]:
    """Return the trial's overrides without the seed, which is not searched."""
    return [text for text in trial.overrides if not text.startswith(f"{SEED}=")]


def _write(folder: SweepFolder, ranking: Ranking, best: Trial, file: Path, arguments: Arguments) -> None:
    """Write the experiment file."""
    config_folder = arguments.config_dir
    check_experiment_file(file, arguments.has("--force"))
    about = f"Best values of the sweep {folder.path}: trial {best.number}, {ranking.reason}"
    overrides = [*folder.searched["overrides"], *_overrides_of(best)]
    reason = folder.origin or folder.foreign.get(best.number)
    if reason is not None:
        _check_written(folder, overrides, reason, config_folder)
    text = experiment_text(overrides, " ".join(about.split()), config_folder)
    write_experiment(file, text)
    out = sys.stderr if arguments.has("--json") else sys.stdout
    print(f"  wrote    {file}\n           {command_for('train', file)}", file=out)


def _check_written(folder: SweepFolder, overrides: Sequence[str], reason: str, config_dir: Path | None) -> None:
    """Raise `UntrustedError` if a search from another source does more than compute."""
    masked, resolvers = mask_resolvers(override_values(overrides, config_dir))
    options = [text for text in overrides if ".." in text.partition("=")[2].replace("\\", "/").split("/")]
    requirements = [
        *resolvers,
        *find_trust_requirements(masked),
        *(TrustRequirement("reads", *text.split("=", 1)) for text in options),
    ]
    if requirements:
        raise UntrustedError("this sweep", folder.path, reason, requirements)
