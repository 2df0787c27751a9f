"""`sweep best SWEEP_DIR`: the best trial of a sweep, and an experiment file with its values."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from runner.checkpoints.trust import TRUST, UntrustedError
from runner.cli.arguments import UsageError, take_options
from runner.config.errors import UserError, nearest_match
from runner.config.experiment_file import experiment_text, override_values
from runner.config.paths import conf_dir
from runner.config.required_trust import TrustRequirement, find_trust_requirements, mask_resolvers
from runner.sweep.space import SEED
from runner.sweep.statistics import FEWEST_VALUES, rank_folder
from runner.sweep.trials import SweepFolder, Trial

_USAGE = "python -m runner sweep best SWEEP_DIR [--emit FILE] [--config-dir DIR]"
_COMMANDS = ("best",)


def main(argv: Sequence[str]) -> int:
    """Print the best trial; write the experiment file where one is asked for."""
    options, words = take_options(argv, ("--emit", "--config-dir"), (TRUST,))
    _check_words(words)
    folder = SweepFolder.open(Path(words[1]), TRUST in options)
    metric, mode = next(iter(folder.objectives.items()))
    ranking = rank_folder(folder)
    best = ranking.best
    if best is None:
        raise UserError(f"no trial of {folder.path} has a value of {metric} yet")
    estimate = ranking.groups[0].estimate(metric)
    print(f"best of {len(folder.trials)} trials by {metric} ({mode})")
    print(f"  trial    {best.number}, {best.status}: {best.result[metric]:.6g}")
    print(f"  because  {ranking.reason}")
    if estimate.num > 1:
        interval = f", 95 % interval {estimate.low:.6g} to {estimate.high:.6g}" if estimate.num >= FEWEST_VALUES else ""
        print(f"  seeds    {estimate.num}: mean {estimate.mean:.6g}, inter-quartile mean {estimate.iqm:.6g}{interval}")
    print(f"  values   {' '.join(_overrides_of(best)) or '(only seeds differ)'}")
    print(f"  run dir  {folder.run_dir(best)}")
    if "--emit" in options:
        _emit(folder, best, Path(options["--emit"]), options.get("--config-dir"))
    return 0


def _overrides_of(trial: Trial) -> list[str]:
    """Return the trial's overrides without the seed, which is no result of the search."""
    return [text for text in trial.overrides if not text.startswith(f"{SEED}=")]


def _emit(folder: SweepFolder, best: Trial, file: Path, config_dir: str | None) -> None:
    """Write the experiment file; an existing one is left alone."""
    metric = next(iter(folder.objectives))
    if file.suffix != ".yaml" or file.parent.name != "experiment":
        what = "an experiment is a YAML file in a folder named experiment"
        raise UserError(f"--emit {file}: {what}\n   expected      conf/experiment/NAME.yaml, DIR/experiment/NAME.yaml")
    about = f"{folder.experiment} as trial {best.number} of {folder.path}: {metric} {best.result[metric]:.6g}"
    config_folder = None if config_dir is None else Path(config_dir)
    overrides = [*folder.searched["overrides"], *_overrides_of(best)]
    reason = folder.origin or folder.foreign.get(best.number)
    if reason is not None:
        _check_emitted(folder, overrides, reason, config_folder)
    text = experiment_text(overrides, " ".join(about.split()), config_folder)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise UserError(f"{file} exists already\n   expected      another name, or remove it first") from error
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error}") from error
    folder_of_file = file.absolute().parent.parent
    folder_text = "" if folder_of_file == conf_dir() else f" --config-dir {shlex.quote(str(file.parent.parent))}"
    print(f"  wrote    {file}")
    print(f"           python -m runner +experiment={file.stem}{folder_text}")


def _check_emitted(folder: SweepFolder, overrides: Sequence[str], reason: str, config_dir: Path | None) -> None:
    """Refuse to write somebody else's search into an experiment file if it does more than compute."""
    masked, resolvers = mask_resolvers(override_values(overrides, config_dir))
    options = [text for text in overrides if ".." in text.partition("=")[2].replace("\\", "/").split("/")]
    requirements = [
        *resolvers,
        *find_trust_requirements(masked),
        *(TrustRequirement("reads", *text.split("=", 1)) for text in options),
    ]
    if requirements:
        raise UntrustedError("this sweep", folder.path, reason, requirements)


def _check_words(words: Sequence[str]) -> None:
    if not words or words[0] not in _COMMANDS:
        given = words[0] if words else "nothing"
        nearest = nearest_match(given, _COMMANDS)
        hint = f"\n   did you mean  {nearest}" if nearest else ""
        raise UsageError(f"sweep: unknown command {given}\n   expected      {_USAGE}{hint}")
    if len(words) != 2:
        raise UsageError(f"sweep best takes one folder\n   expected      {_USAGE}")
