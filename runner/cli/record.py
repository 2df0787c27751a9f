"""`record RUN -o DIR`: record complete episodes of a trained policy."""

from __future__ import annotations

from runner.checkpoints.trust import RECORDING
from runner.cli.arguments import Arguments
from runner.cli.stored_run import evaluation_of, open_run, with_episodes
from runner.config.errors import ConfigError, Problem, RunFailure
from runner.config.overrides import quoted


def main(arguments: Arguments) -> int:
    """Record the complete episodes of an evaluation of the newest checkpoint's policy.

    Without `--episodes` there are `evaluation.evaluation_duration` of them. If that counts env steps, the episodes that
    end within them are recorded.
    """
    output = arguments.value("--output")
    arguments = with_episodes(arguments)
    if output is not None:
        arguments = arguments.with_overrides(f"offline.output={quoted(output)}")
    stored = open_run(arguments, RECORDING)
    output = stored.config.offline.output
    if output is None:
        raise ConfigError([Problem("record needs a folder to write to", "offline.output", "null", fix="-o DIR")])
    with evaluation_of(stored, is_recording=True) as evaluation:
        result = evaluation.evaluate()
        recorded = evaluation.finish_recording()
    evaluated = result["evaluation/env_runners/num_episodes"]
    if recorded.report.episodes != evaluated:
        what = f"{recorded.report.episodes} episodes were written, but {evaluated} were run"
        raise RunFailure(Problem(what, output))
    if not evaluated:
        evaluation_config = stored.config.evaluation
        what, got = f"{evaluation_config.no_end_text}, so none is recorded", str(evaluation_config.evaluation_duration)
        fix = "more env steps, fewer sub-environments, or evaluation.evaluation_duration_unit=episodes"
        raise RunFailure(Problem(what, "evaluation.evaluation_duration", got, fix=fix))
    print(f"recorded {stored.checkpoint}")
    for line in stored.describe_changes():
        print(line)
    print(f"  {recorded}")
    print(f"  mean return {result['evaluation/env_runners/episode_return_mean']:g}")
    print(f"  in {output}")
    return 0
