"""`resume RUN_DIR --module-only`: a new run that begins with the module of a checkpoint.

This is for another algorithm, or for an environment after recorded data, where only the module can be kept.
"""

from __future__ import annotations

import time
from pathlib import Path

from runner.checkpoints import naming_checkpoint, read_manifest
from runner.checkpoints.trust import StoredValues
from runner.cli.arguments import Arguments, UsageError
from runner.cli.ci import Verdict
from runner.cli.conditions import check_assertions
from runner.cli.stored_run import check_holds_no_run, check_writable, named_checkpoint, split_run_dir
from runner.cli.validate import check_memory, print_notes
from runner.config.schemas import ExperimentConfig
from runner.config.stored import compose_new_run
from runner.config.validation import build_experiment_config
from runner.experiment.run_folder import make_free_folder, opened_run_folder


def main(arguments: Arguments, verdict: Verdict) -> int:
    """Train with the stored configuration, the overrides, and the checkpoint as `module.load_state_path`."""
    if arguments.is_multirun:
        raise UsageError("--module-only makes one run; for a sweep: +experiment=NAME module.load_state_path=RUN_DIR -m")
    start_time_s = time.time()
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
        check_holds_no_run(run_dir)
    check_memory([config])
    run_dir = run_dir or make_free_folder(_default_run_dir(config))
    with opened_run_folder(run_dir) as folder:
        from runner.experiment.run_experiment import run_experiment

        verdict.judge_run(config.experiment_name, folder.path)
        return run_experiment(config, composed, folder, start_time_s=start_time_s)


def _default_run_dir(config: ExperimentConfig) -> Path:
    """Name the run dir as `hydra.run.dir` in `conf/config.yaml` does."""
    return Path.cwd() / "outputs" / str(config.experiment_name) / time.strftime("%Y-%m-%d/%H-%M-%S")
