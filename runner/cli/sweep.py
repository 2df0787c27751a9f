"""`sweep` and `-m`: one run for each combination of values, through Ray Tune."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from runner.cli.arguments import Arguments, UsageError
from runner.cli.checked_experiments import Checked, check_experiments
from runner.cli.ci import Verdict
from runner.config.compose import SWEEP_DIGEST, compose_experiment
from runner.config.errors import ConfigError, Problem, UserError
from runner.config.exit_codes import ExitCode
from runner.config.fields import adapted_names
from runner.config.overrides import OverrideLine, parse_overrides
from runner.config.paths import is_url, search_dirs
from runner.config.schemas import ExperimentConfig
from runner.config.sweep import POPULATIONS
from runner.interrupts import is_interrupted
from runner.locks import FolderHeld, held, owner_of
from runner.sweep.space import Choices, SearchSpace, read_search_space

if TYPE_CHECKING:
    from runner.sweep.trials import SweepFolder

# Overrides that do not change the search may differ when the sweep continues.
_NOT_SEARCHED = ("sweep.on_change=", "sweep.max_concurrent_trials=", "sweep.max_failures=", "tracking", "debug=")


def run_sweep_command(arguments: Arguments, verdict: Verdict) -> int:
    """Check everything, run the rest of the sweep, and return the exit code.

    Raises:
        ConfigError: all problems; nothing was started.
    """
    space, checked = check_sweep(arguments)
    configs, digest = [config for _, config in checked], _digest(space)
    with _held_folder(_folder_of(space, arguments, digest), digest) as path:
        return _run(space, configs, path, arguments, verdict)


def check_sweep(arguments: Arguments) -> tuple[SearchSpace, list[Checked]]:
    """Return the search space, and configurations that cover it. Raises `ConfigError` with all problems."""
    space = _checked_space(arguments)
    checked = check_experiments(arguments)
    configs = [config for _, config in checked]
    if configs[0].sweep.search == "grid":
        space.grid()
    problems = [*_disagreements(configs), *_too_few(space, configs[0]), *_population_problems(space, configs)]
    if problems:
        raise ConfigError(problems)
    return space, checked


def names_other_sweeper(overrides: Sequence[str]) -> bool:
    """Return whether Hydra should sweep with a plugin that is not ours.

    Raises:
        UsageError: a launcher without a sweeper that uses it.
    """
    named = {text.lstrip("+").partition("=")[0] for text in overrides}
    if "hydra/launcher" in named and "hydra/sweeper" not in named:
        what = "hydra/launcher needs one of Hydra's sweepers: runner's own sweeper starts its trials through Ray"
        fix = "add hydra/sweeper=basic, or use sweep.max_concurrent_trials=N instead of hydra/launcher"
        raise UsageError(Problem(what, "override hydra/launcher", fix=fix))
    return "hydra/sweeper" in named


def _folder_of(space: SearchSpace, arguments: Arguments, digest: str) -> Path:
    """Return `hydra.sweep.dir` of the configuration that all trials share."""
    lines, _ = parse_overrides(arguments.overrides, search_dirs(arguments.config_dir))
    of_hydra = [line.text for line in lines if line.parsed.is_hydra_override()]
    token = SWEEP_DIGEST.set(digest)
    try:
        sweep_dir = compose_experiment([*space.fixed, *of_hydra], arguments.config_dir).sweep_dir
    finally:
        SWEEP_DIGEST.reset(token)
    if sweep_dir is None:
        raise UserError(Problem("hydra.sweep.dir cannot be resolved", "hydra.sweep.dir", expected="a folder"))
    return Path(sweep_dir)


def _run(
    space: SearchSpace, configs: Sequence[ExperimentConfig], path: Path, arguments: Arguments, verdict: Verdict
) -> int:
    from runner.sweep.display import make_sweep_display
    from runner.sweep.trials import SweepFolder, check_trials, is_complete
    from runner.sweep.tuning import run_sweep

    config = configs[0]
    may_change = config.sweep.on_change == "extend"
    folder = SweepFolder.start_in(
        path,
        config.experiment_name or "",
        config.objectives,
        _searched(space),
        may_change=may_change,
        arguments=_arguments_of_a_run(space, arguments),
        is_trusted=arguments.is_trusting,
        target=_target(configs),
    )
    check_trials(space, folder)
    _check_extension(space, config, folder)
    verdict.judge_sweep(folder)
    num_trials = space.num_trials(config.sweep.num_samples)
    display = make_sweep_display(config, _facts(space, config, path), num_trials)
    is_over = is_complete(folder, space, config.sweep.num_samples)
    if is_over or is_interrupted():  # the budget may be used up
        display.start(folder)
        display.finish(folder, is_interrupted=not is_over)
        return ExitCode.FINISHED if is_over else ExitCode.INTERRUPTED
    return run_sweep(space, configs, folder, arguments.config_dir, display)


@contextmanager
def _held_folder(folder: Path, digest: str) -> Iterator[Path]:
    """Hold the folder for this process, and yield it.

    If its name is the digest of the search space, and another process holds the folder, hold the next free one, such as
    `NAME_2`.

    Raises:
        FolderHeld: another process holds the folder, which the user named.
        UserError: the folder cannot be written.
    """
    is_named = folder.name != digest
    with ExitStack() as stack:
        for path in (folder.with_name(f"{folder.name}_{number}") if number > 1 else folder for number in count(1)):
            try:
                path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(held(path, "sweep's folder"))
            except FolderHeld:
                if is_named or owner_of(path) is None:
                    raise
            except OSError as error:
                raise UserError(f"the sweep's folder cannot be used: {error}") from error
            else:
                break
        if path != folder:
            print(
                f"another process runs this sweep in {folder}; this one writes to {path}", file=sys.stderr, flush=True
            )
        yield path


def _checked_space(arguments: Arguments) -> SearchSpace:
    """Read the search space; raises one report of its problems and of the problems of all configurations."""
    dirs = search_dirs(arguments.config_dir)
    lines, unreadable = parse_overrides(arguments.overrides, dirs)
    problems = [*_find_run_dir(lines)]
    if not unreadable:
        seeds = [text.partition("=")[2] for text in arguments.overrides if text.startswith("sweep.seed=")]
        seed = int(seeds[-1]) if seeds and seeds[-1].isdigit() else 0
        try:
            space = read_search_space(arguments.overrides, dirs, np.random.default_rng([seed, 1]))
        except ConfigError as error:
            problems += error.problems
        else:
            problems += _problems_of(space)
    if unreadable or problems:
        try:
            check_experiments(arguments)
        except ConfigError as error:
            problems += error.problems
        raise ConfigError(list(dict.fromkeys(problems)))
    return space


def _find_run_dir(lines: Sequence[OverrideLine]) -> Iterator[Problem]:
    """Find the run dir of a single run; `check_experiments` reports a URL."""
    for line in lines:
        if line.key == "hydra.run.dir" and not is_url(line.text):
            what = "hydra.run.dir has no effect in a sweep"
            yield Problem(what, line.where, expected="sweep.name=NAME, or hydra.sweep.dir=FOLDER")


def _problems_of(space: SearchSpace) -> list[Problem]:
    swept = [domain.key for domain in space.domains if domain.key.lstrip("+").split(".")[0] in ("sweep", "tracking")]
    shared = "cannot be searched: it is the same for all trials of a sweep"
    problems = [Problem(f"{key} {shared}", f"override {key}") for key in swept]
    if not space.domains and not space.seeds:
        what = "a sweep needs an override with several values"
        expected = "algorithm.lr=1e-4,3e-4, seed=range(10), 'algorithm.lr=tag(log,interval(1e-5,1e-2))'"
        problems.append(Problem(what, expected=expected, fix="add such an override, or use `runner train`"))
    return problems


def _disagreements(configs: Sequence[ExperimentConfig]) -> Iterator[Problem]:
    """Find settings that rank trials but differ between them."""
    sweep = configs[0].sweep
    bases: dict[str, list[object]] = {
        "sweep.metric and sweep.mode": [config.objectives for config in configs],
        "sweep": [config.sweep for config in configs],
    }
    if sweep.scheduler != "none":
        bases[f"stop.{sweep.time_attr}"] = [config.stop.get(sweep.time_attr) for config in configs]
    for name, values in bases.items():
        if any(value != values[0] for value in values):
            what = f"{name} must be the same for all trials, because they are compared by it"
            yield Problem(what, got="; ".join(dict.fromkeys(map(str, values))), fix=f"an override of {name}")


def _too_few(space: SearchSpace, config: ExperimentConfig) -> Iterator[Problem]:
    """Check that there are enough combinations for all draws."""
    num_samples, num_all = config.sweep.num_samples, space.num_combinations
    if num_samples is not None and num_all is not None and num_all < num_samples:
        what = "sweep.num_samples is more than the number of combinations"
        yield Problem(what, got=str(num_samples), expected=f"up to {num_all}", fix="intervals, or sweep.search=grid")


def _population_problems(space: SearchSpace, configs: Sequence[ExperimentConfig]) -> Iterator[Problem]:
    """Check that the schedulers pbt and pb2 have a setting that they can change."""
    scheduler = configs[0].sweep.scheduler
    if scheduler not in POPULATIONS:
        return
    if not space.mutable:
        what = f"{scheduler} changes settings of the algorithm during training, but none of them is searched"
        yield Problem(what, "override", fix="'algorithm.lr=tag(log,interval(1e-5,1e-2))', for example")
    adapted = {
        f"{block}.{name}"
        for config in configs
        for block, algorithm in config.algorithms.items()
        for name in adapted_names(type(algorithm))
    }
    for domain in space.mutable:
        if domain.key in adapted:
            what = f"{domain.key} is an initial value, which training adapts; {scheduler} copies the adapted value"
            yield Problem(what, f"override {domain.key}", fix="another key, or sweep=random, asha or tpe")
        if scheduler == "pb2" and isinstance(domain, Choices):
            what, got = f"pb2 searches intervals, but {domain.key} has a list of values", ", ".join(domain.values)
            yield Problem(
                what, f"override {domain.key}", got, "interval(1e-5,1e-2), int(interval(1,10))", fix="sweep=pbt"
            )


def _check_extension(space: SearchSpace, config: ExperimentConfig, folder: SweepFolder) -> None:
    """Raise `UserError` if members of a population lack a value that it changes."""
    new = {domain.key for domain in space.mutable} - {key for trial in folder.trials for key in trial.values}
    if folder.trials and new and config.sweep.scheduler in POPULATIONS:
        what = f"the trials in {folder.path} do not have a value of {', '.join(sorted(new))}, which this sweep changes"
        raise UserError(Problem(what, fix="another sweep.name"))


def _arguments_of_a_run(space: SearchSpace, arguments: Arguments) -> list[str]:
    """Return the configuration that all trials share, for a run outside of the sweep: no overrides of the sweep
    itself."""
    overrides = [text for text in space.fixed if not text.lstrip("+").startswith(("sweep=", "sweep."))]
    folder = arguments.config_dir
    return overrides if folder is None else [*overrides, f"--config-dir={folder.resolve()}"]


def _searched(space: SearchSpace) -> dict[str, object]:
    described = space.to_dict()
    overrides = [text for text in described["overrides"] if not text.lstrip("+").startswith(_NOT_SEARCHED)]
    return {**described, "overrides": overrides}


def _digest(space: SearchSpace) -> str:
    return hashlib.sha256(json.dumps(_searched(space), sort_keys=True).encode()).hexdigest()[:8]


def _target(configs: Sequence[ExperimentConfig]) -> float | None:
    """Return the value of the first objective at which all trials stop, or None without such a criterion."""
    metric = next(iter(configs[0].objectives))
    targets = {config.stop.get(metric) for config in configs}
    return targets.pop() if len(targets) == 1 else None


def _facts(space: SearchSpace, config: ExperimentConfig, path: Path) -> dict[str, str]:
    metric, mode = next(iter(config.objectives.items()))
    sweep = config.sweep
    num_seeds = max(1, len(space.seeds))
    num_combinations = space.num_trials(sweep.num_samples) // num_seeds
    count = f"{num_combinations} combination{'' if num_combinations == 1 else 's'}"
    seeds = f" x {num_seeds} seeds" if space.seeds else ""
    scheduler = "" if sweep.scheduler == "none" else f", {sweep.scheduler}"
    return {
        "experiment": config.experiment_name or "",
        "search": f"{sweep.search}{scheduler}: {count}{seeds}",
        "objective": f"{metric}, {mode}",
        "folder": str(path),
    }
