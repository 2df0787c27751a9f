"""`record RUN_DIR offline.output=FOLDER`: whole episodes of a trained policy on disk."""

from __future__ import annotations

from collections.abc import Sequence

from runner.checkpoints.trust import RECORDING
from runner.cli.stored_run import open_run, policy_of
from runner.config.blocks import EvaluationConfig
from runner.config.errors import ConfigError, Problem, RunFailure

_FIXED = {"module.": "the checkpoint holds the parameters of this network"}


def main(argv: Sequence[str]) -> int:
    """Record the whole episodes of an evaluation of the newest checkpoint's policy.

    They are `evaluation.evaluation_duration`, or where that counts env steps, the ones that end within so many.
    """
    stored = open_run(argv, _FIXED, RECORDING)
    output = stored.config.offline.output
    if output is None:
        expected = "offline.output=FOLDER"
        raise ConfigError([Problem("record needs a folder to write to", "offline.output", "null", expected)])
    with policy_of(stored, is_recording=True) as trainer:
        result = trainer.evaluate()
        recorded = trainer.finish_recording()
    assert recorded is not None
    evaluated = result["evaluation/env_runners/num_episodes"]
    if recorded.report.episodes != evaluated:
        raise RunFailure(Problem(f"{recorded.report.episodes} episodes are on disk, {evaluated} were run", output))
    if not evaluated:
        raise RunFailure(_nothing_ended(stored.config.evaluation))
    print(f"recorded {stored.checkpoint}")
    for line in stored.describe_changes():
        print(line)
    print(f"  {recorded}")
    print(f"  mean return {result['evaluation/env_runners/episode_return_mean']:g}")
    print(f"  in {output}")
    return 0


def _nothing_ended(evaluation: EvaluationConfig) -> Problem:
    what = f"{evaluation.no_end_text}, so none is recorded"
    expected = "more env steps, fewer sub-environments, or evaluation.evaluation_duration_unit=episodes"
    return Problem(what, "evaluation.evaluation_duration", str(evaluation.evaluation_duration), expected)
