"""`resume RUN_DIR`: go on exactly where the newest checkpoint was written, with overrides where they are given."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from runner.cli.stored_run import StoredRun, log_to_file, open_run
from runner.config.errors import UserError

_FIXED = {
    "seed": "the random streams go on from the checkpoint",
    "module.": "the checkpoint holds the parameters of this network",
    "algorithm.schema": "the checkpoint holds the state of this algorithm",
    "algorithm.loss": "the checkpoint holds the state of this algorithm",
}


def main(argv: Sequence[str]) -> int:
    """Print what the overrides change, then train on."""
    stored = open_run(argv, _FIXED)
    _prepare_run_dir(stored)
    print(f"resume {stored.checkpoint}")
    print("\n".join(["changed by overrides", *stored.describe_changes()] if stored.changes else ["no changes"]))
    from runner.run import run_experiment

    return run_experiment(stored.config, stored.composed, stored.run_dir, stored.checkpoint)


def _prepare_run_dir(stored: StoredRun) -> None:
    """A run that goes on elsewhere takes its progress so far along."""
    log_to_file(stored.run_dir)
    source = stored.checkpoint.parent.parent / "progress.jsonl"
    target = stored.run_dir / "progress.jsonl"
    if source == target:
        return
    if target.exists():
        raise UserError(f"{stored.run_dir} holds a run already\n   allowed  another hydra.run.dir")
    if source.exists():
        shutil.copyfile(source, target)
