"""`record RUN_DIR offline.output=FOLDER`: whole episodes of a trained policy on disk."""

from __future__ import annotations

from collections.abc import Sequence

from runner.checkpoints.trust import RECORDING
from runner.cli.stored_run import open_run, policy_of
from runner.config.errors import ConfigError, Problem, RunFailure

_FIXED = {"module.": "the checkpoint holds the parameters of this network"}


def main(argv: Sequence[str]) -> int:
    """Record exactly `evaluation.evaluation_duration` episodes of the newest checkpoint's policy."""
    stored = open_run(argv, _FIXED, RECORDING)
    output = stored.config.offline.output
    if output is None:
        allowed = "offline.output=FOLDER"
        raise ConfigError([Problem("record needs a folder to write to", "offline.output", "null", allowed)])
    with policy_of(stored, is_recording=True) as trainer:
        result = trainer.evaluate()
        recorded = trainer.finish_recording()
    assert recorded is not None
    asked = stored.config.evaluation.evaluation_duration
    if recorded.report.episodes != asked:
        raise RunFailure(Problem(f"{recorded.report.episodes} episodes are on disk, {asked} were asked for", output))
    print(f"recorded {stored.checkpoint}")
    for line in stored.describe_changes():
        print(line)
    print(f"  {recorded}")
    print(f"  mean return {result['evaluation/env_runners/episode_return_mean']:g}")
    print(f"  in {output}")
    return 0
