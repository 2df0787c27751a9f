"""`resume RUN_DIR`: continue at the newest checkpoint, or (`--module-only`) begin a new run with its module.

`--module-only` is for another algorithm, or for an environment after recorded data, where only the module can be kept.
"""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from runner.checkpoints import naming_checkpoint, read_manifest
from runner.checkpoints.trust import TRAINING, StoredValues
from runner.cli.arguments import Arguments, UsageError
from runner.cli.checked_experiments import check_memory, print_notes
from runner.cli.ci import Verdict, judged
from runner.cli.conditions import check_assertions
from runner.cli.new_runs import train_in
from runner.cli.stored_run import (
    StoredRun,
    check_writable,
    explaining_problems,
    named_checkpoint,
    open_run,
    split_run_dir,
    target_run_dir,
)
from runner.config.errors import Problem
from runner.config.schemas import ExperimentConfig
from runner.config.stored import compose_new_run
from runner.config.validation import build_experiment_config
from runner.experiment.run_folder import check_unused, make_free_folder, opened_run_folder, point_latest_at
from runner.experiment.stop_criteria import MetCriterion, met_criteria
from runner.tracking.known_run import runner_command
from runner.tracking.progress_log import read_result

_ADVICE = "`resume --module-only` begins a new run with its module"
# Prefixes of keys that overrides of a resumed run cannot change -> the reason.
_FIXED = {
    "seed": "the random streams continue from the checkpoint",
    "module.": "the checkpoint holds the parameters of this network",
    "algorithm.schema": f"the checkpoint holds the state of this algorithm; {_ADVICE}",
    "algorithm.loss": f"the checkpoint holds the state of this algorithm; {_ADVICE}",
    "algorithm.optimizer.name": f"the checkpoint holds the state of this optimiser; {_ADVICE}",
    "algorithm.optimizer._target_": f"the checkpoint holds the state of this optimiser; {_ADVICE}",
    "multi_agent.multi_rl_module": f"the checkpoint holds the parameters and the optimiser of these modules; {_ADVICE}",
}


def main(arguments: Arguments) -> int:
    """Print the changes by overrides, then continue training. A finished run is not changed."""
    return judged(arguments, lambda verdict: _resume(arguments, verdict))


def _resume(arguments: Arguments, verdict: Verdict) -> int:
    if arguments.has("--module-only"):
        return _resume_module_only(arguments, verdict)
    if arguments.config_dir is not None:
        what = "--config-dir needs --module-only: the checkpoint contains the configuration of the run"
        raise UsageError(Problem(what))
    with ExitStack() as stack:
        run_dir = target_run_dir(arguments)
        is_run = os.path.isdir(run_dir / "checkpoints") and os.access(run_dir, os.W_OK)
        # Before the newest checkpoint is chosen: a process that trains there may write another one.
        folder = stack.enter_context(opened_run_folder(run_dir)) if is_run else None
        stored = open_run(arguments, TRAINING, _FIXED, trains_on=True)
        check_assertions(arguments.assertions, stored.config)
        met = met_criteria(stored.config, stored.manifest["result"])
        first_run_dir = stored.checkpoint.parent.parent
        # A run that was killed before it wrote the result is resumed.
        if met and read_result(first_run_dir / "result.json").get("status") == "finished":
            print("\n".join(_describe_finished(met, arguments)))
            verdict.judge_run(stored.config.experiment_name, first_run_dir)
            return 0
        with explaining_problems(stored):
            check_memory([stored.config])
        check_writable(stored.run_dir, "checkpoints", "progress.jsonl", "runner.log")
        folder = folder or stack.enter_context(opened_run_folder(stored.run_dir))
        _take_progress_along(stored)
        print(f"resume {stored.checkpoint}")
        heading = "changed by overrides (new checkpoints contain the changes, so later resumes need not repeat them)"
        changes = [heading, *stored.describe_changes()] if stored.changes else ["configuration unchanged"]
        print("\n".join(changes), flush=True)
        from runner.experiment.run_experiment import run_experiment

        verdict.judge_run(stored.config.experiment_name, stored.run_dir)
        with explaining_problems(stored):
            return run_experiment(
                stored.config, stored.composed, folder, stored.checkpoint, is_trusted=stored.is_trusted
            )


def _describe_finished(met: Sequence[MetCriterion], arguments: Arguments) -> list[str]:
    keys = [criterion.key for criterion in met]
    kept = [text for text in arguments.overrides if text.lstrip("+").partition("=")[0] not in keys]
    trust = ["--trust"] if arguments.is_trusting else []
    typed = shlex.join([*arguments.words, *kept, *trust])
    command = " ".join([runner_command(), "resume", typed, *(f"{key}=..." for key in keys)])
    return [
        f"already finished: {' and '.join(map(str, met))}; nothing was done",
        f"  to continue, raise {' and '.join(keys)}: {command}",
    ]


def _take_progress_along(stored: StoredRun) -> None:
    """Copy the progress of a run that continues in another folder."""
    source = stored.checkpoint.parent.parent / "progress.jsonl"
    target = stored.run_dir / "progress.jsonl"
    if source == target:
        return
    check_unused(stored.run_dir)
    if source.exists():
        shutil.copyfile(source, target)


# -- resume --module-only ----------------------------------------------------------------------------------------------


def _resume_module_only(arguments: Arguments, verdict: Verdict) -> int:
    """Train with the stored configuration, the overrides, and the checkpoint as `module.load_state_path`."""
    if arguments.is_multirun:
        fix = "runner sweep EXPERIMENT module.load_state_path=RUN"
        raise UsageError(Problem("--module-only starts a single run", fix=fix))
    checkpoint = named_checkpoint(arguments)
    run_dir, overrides = split_run_dir(arguments)
    manifest = read_manifest(checkpoint)
    stored = StoredValues.of(checkpoint, manifest, arguments.is_trusting)
    with naming_checkpoint(checkpoint):
        composed, chosen = compose_new_run(manifest, stored.values, checkpoint, overrides, arguments.config_dir)
    stored.check(composed, overrides, trusted_blocks={*chosen, "module.load_state_path"})
    config = build_experiment_config(composed)
    print_notes([composed])
    check_assertions(arguments.assertions, config)
    check_writable(run_dir or _default_run_dir(config))
    if run_dir is not None:
        check_unused(run_dir)
    check_memory([config])
    if run_dir is None:
        run_dir = make_free_folder(_default_run_dir(config))
        point_latest_at(run_dir)
    return train_in(run_dir, (composed, config), verdict)


def _default_run_dir(config: ExperimentConfig) -> Path:
    """Name the run dir as `hydra.run.dir` in `conf/config.yaml` does."""
    return Path.cwd() / "outputs" / str(config.experiment_name) / time.strftime("%Y-%m-%d/%H-%M-%S")
