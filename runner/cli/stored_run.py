"""The common beginning of `resume`, `evaluate` and others: a checkpoint, its configuration, and overrides."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.checkpoints import CheckpointError, read_manifest
from runner.checkpoints.folder import check_intact, is_checkpoint_path, newest_checkpoint
from runner.checkpoints.trust import StoredValues, check_links
from runner.cli.arguments import Arguments
from runner.cli.checked_experiments import print_notes
from runner.config.composed import Composed
from runner.config.errors import ConfigError, Problem, UserError, relocating, show_value
from runner.config.fields import adapted_names
from runner.config.overrides import names_run_dir, override_value
from runner.config.references import hiding_values, with_references
from runner.config.schemas import EnvConfig, ExperimentConfig
from runner.config.stored import compose_stored, describe_changes
from runner.config.validation import build_experiment_config

if TYPE_CHECKING:
    from runner.experiment.evaluation_run import EvaluationRun  # imports torch

# Prefixes of keys that overrides of a stored run cannot change -> the reason, for commands that do not train.
_FIXED = {"module.": "the checkpoint holds the parameters of this network"}
# Flattening images changes the parameters' shapes, which are compared when they are loaded. An older version of runner
# may have flattened observations that the current default value recognises as images.
_CHECKED_LATER = ("module.image_layout", show_value("flat"))
_OF_ALGORITHMS = ("algorithm.", "multi_agent.algorithm_config_overrides_per_module.", "multi_agent.modules.")


@dataclass(frozen=True)
class StoredRun:
    """A checkpoint to start from.

    Attributes:
        changes: dotted key -> (old, new) value, as text.
        is_trusted: whether files next to the checkpoint are followed, whatever their source (`--trust`).
    """

    checkpoint: Path
    manifest: Mapping[str, Any]
    composed: Composed
    config: ExperimentConfig
    changes: Mapping[str, tuple[str, str]]
    run_dir: Path
    is_trusted: bool = False

    def describe_changes(self) -> list[str]:
        """A line for each value that the overrides change."""
        width = max((len(name) for name in self.changes), default=0)
        return [f"  {name:<{width}}  {old} -> {new}" for name, (old, new) in self.changes.items()]


def open_run(
    arguments: Arguments, unused: Collection[str], fixed: Mapping[str, str] = _FIXED, trains_on: bool = False
) -> StoredRun:
    """Open the run, or the checkpoint, that is the first word of the command line.

    Args:
        arguments: command line; its overrides change the stored configuration.
        unused: prefixes of the keys that the command does not use, see `runner.checkpoints.trust`.
        fixed: prefixes of keys that overrides may not change -> the reason.
        trains_on: whether to reject overrides of values that training adapts; the checkpoint has their current values.

    Raises:
        UserError: there is no checkpoint.
        CheckpointError: the checkpoint is incomplete or altered.
        UntrustedError: the checkpoint comes from another source and needs permissions.
        ConfigError: all problems of the overrides.
    """
    checkpoint = named_checkpoint(arguments)
    manifest = read_manifest(checkpoint)
    run_dir, overrides = split_run_dir(arguments)
    values = StoredValues.of(checkpoint, manifest, arguments.is_trusting)
    composed = values.compose(overrides, unused)
    before = compose_stored(values.values, [], manifest["overrides"], manifest["experiment"])
    if values.reason is not None:
        check_links(run_dir or checkpoint.parent.parent, checkpoint)
    changes = describe_changes(_shown(before), _shown(composed))
    rejected = _rejected(composed, changes, fixed) + (_undone(before, composed, changes) if trains_on else [])
    config = _checked(composed, rejected)
    print_notes([composed])
    run_dir = run_dir or checkpoint.parent.parent
    return StoredRun(checkpoint, manifest, composed, config, changes, run_dir, arguments.is_trusting)


def with_episodes(arguments: Arguments) -> Arguments:
    """Return the arguments with `--episodes` as overrides of the evaluation."""
    if not arguments.has("--episodes"):
        return arguments
    count = arguments.integer("--episodes", 1)
    return arguments.with_overrides(
        "evaluation.evaluation_duration_unit=episodes", f"evaluation.evaluation_duration={count}"
    )


def _shown(composed: Composed) -> dict[str, Any]:
    """Return the values with references instead of the values of resolvers."""
    return dict(with_references(composed.values, composed.references))


def named_checkpoint(arguments: Arguments) -> Path:
    """Find the checkpoint that RUN_DIR refers to, and check it.

    Raises:
        UserError: there is no checkpoint.
        CheckpointError: the checkpoint is incomplete or altered.
    """
    path = Path(arguments.words[0]).absolute()
    while True:
        checkpoint = newest_checkpoint(path)
        try:
            check_intact(checkpoint)
        except CheckpointError:
            if checkpoint == newest_checkpoint(path):
                raise
        else:  # a run that trains may have written a newer one and dropped this one
            return checkpoint


def target_run_dir(arguments: Arguments) -> Path:
    """Return the folder that a command writes to: `hydra.run.dir`, else the run dir of RUN_DIR."""
    named, path = split_run_dir(arguments)[0], Path(arguments.words[0]).absolute()
    return named or (path.parent.parent if is_checkpoint_path(path) else path)


def split_run_dir(arguments: Arguments) -> tuple[Path | None, list[str]]:
    """Split off the value of `hydra.run.dir=` (None: not given) from the other overrides."""
    run_dirs = [override_value(text) for text in arguments.overrides if names_run_dir(text)]
    others = [text for text in arguments.overrides if not names_run_dir(text)]
    return Path(run_dirs[-1]).absolute() if run_dirs else None, others


def _checked(composed: Composed, rejected: list[Problem]) -> ExperimentConfig:
    """Build the configuration; raise one report of rejected changes and of all problems."""
    try:
        config = build_experiment_config(composed)
    except ConfigError as error:
        raise ConfigError([*rejected, *error.problems]) from error
    if rejected:
        raise ConfigError(rejected)
    return config


def _rejected(composed: Composed, changes: Mapping[str, tuple[str, str]], fixed: Mapping[str, str]) -> list[Problem]:
    return [
        Problem(f"{name} cannot change: {reason}", where=composed.where(name), got=new, expected=old)
        for name, (old, new) in changes.items()
        for prefix, reason in fixed.items()
        if name.startswith(prefix) and (name, new) != _CHECKED_LATER
    ]


def _undone(before: Composed, composed: Composed, changes: Mapping[str, tuple[str, str]]) -> list[Problem]:
    """Find changes that the checkpoint's state would undo."""
    algorithms = build_experiment_config(before).algorithms.values()
    adapted = {name for algorithm in algorithms for name in adapted_names(type(algorithm))}
    return [
        Problem(
            f"{name} is an initial value that training adapts; the checkpoint contains the adapted value",
            where=composed.where(name),
            got=new,
            expected=old,
            fix="to start a new run with this module, use `runner resume RUN --module-only`",
        )
        for name, (old, new) in changes.items()
        if name.startswith(_OF_ALGORITHMS) and name.rpartition(".")[2] in adapted
    ]


@contextmanager
def evaluation_of(
    stored: StoredRun, is_recording: bool = False, reads_held_out: bool = False
) -> Iterator[EvaluationRun]:
    """Make the run that evaluates the checkpoint's policy.

    Args:
        stored: the run.
        is_recording: record the episodes of evaluations in `offline.output`.
        reads_held_out: open the held-out data of `evaluate_offline`.
    """
    from runner.checkpoints import load_checkpoint, naming_checkpoint
    from runner.experiment.evaluation_run import EvaluationRun
    from runner.interrupts import interrupts

    config, state = stored.config, load_checkpoint(stored.checkpoint)[0]
    config = replace(config, env=_stepped_here(config.env), learners=config.learners.in_driver())
    config = replace(config, callbacks=[])  # they follow the run itself
    if not reads_held_out:
        config = replace(config, evaluation=replace(config.evaluation, offline_evaluation_input_=None))
    if not is_recording:
        config = replace(config, offline=replace(config.offline, output=None))
    with explaining_problems(stored), EvaluationRun(config) as evaluation:
        with naming_checkpoint(stored.checkpoint):
            evaluation.set_policy(state)
        with interrupts():  # an evaluation, however long, ends as training does
            yield evaluation


def _stepped_here(env: EnvConfig) -> EnvConfig:
    """Return the environment that is used instead of simulators.

    Raises:
        ConfigError: the configuration has only the spaces of the simulators.
    """
    if not env.is_external:
        return env
    if env.env is None and env._target_ is None:
        what = "external simulators cannot be started for an evaluation"
        expected = "env.env or env._target_: an environment with the same spaces"
        raise ConfigError([Problem(what, "env", expected=expected)])
    return replace(env, port=None, observation_space=None, action_space=None, agents=None)


@contextmanager
def explaining_problems(stored: StoredRun) -> Iterator[None]:
    """Add the changes by overrides, which are often the cause, to problems of this block, and hide resolved values."""
    naming_changes: AbstractContextManager[None] = nullcontext()
    if stored.changes:
        changes = ", ".join(f"{name} ({old} -> {new})" for name, (old, new) in stored.changes.items())
        line = f"changed by overrides: {changes}"
        naming_changes = relocating(lambda where: f"{where}\n{line}" if where else line)
    with hiding_values(stored.composed.values, stored.composed.references), naming_changes:
        yield


def check_writable(run_dir: Path, *names: str) -> None:
    """Check before any work the paths that a command will write: the run dir, and the existing `names` in it.

    Raises:
        UserError: a path may not be written.
    """
    base = next(path for path in (run_dir, *run_dir.parents) if os.path.exists(path))
    if not base.is_dir():
        raise UserError(Problem("the run dir cannot be created: this is not a folder", str(base)))
    for path in (base, *(run_dir / name for name in names)):
        if os.path.exists(path) and not os.access(path, os.W_OK):
            fix = "allow writing there, or write to another folder with hydra.run.dir=DIR"
            raise UserError(Problem("the run dir cannot be written: permission denied", str(path), fix=fix))
