"""Schedules the evaluations of a training run, and repeats interrupted ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from runner.config.blocks import EvaluationConfig
from runner.config.offline_evaluation import NUM_EPISODES
from runner.experiment.evaluator import EvaluatedPolicy, Evaluator
from runner.interrupts import Interrupted
from runner.parts import Part
from runner.plans import Result
from runner.plans.run_parts import RunParts
from runner.rows.finished_episodes import FinishedEpisodes
from runner.tracking.headline import EVALUATION_RETURN

_IS_REPORTED = "is_told"  # in checkpoints


@dataclass(frozen=True)
class TrainedIteration:
    """A trained iteration whose evaluations may not have ended.

    Attributes:
        result: metrics so far.
        is_reported: whether callbacks have received the result.
    """

    result: Result
    is_reported: bool = False


class EvaluationSchedule(Part):
    """Evaluates the policy when it is due, also in parallel to training, and repeats interrupted evaluations.

    Args:
        settings: intervals of evaluations.
        evaluator: runs the evaluations.

    Attributes:
        evaluator: runs the evaluations.
        interrupted: the newest iteration if its evaluation was interrupted, else None.
    """

    name = "evaluation"

    def __init__(self, settings: EvaluationConfig, evaluator: Evaluator) -> None:
        self._settings, self.evaluator = settings, evaluator
        self.interrupted: TrainedIteration | None = None
        self._parallel_policy: EvaluatedPolicy | None = None  # while an evaluation runs in parallel
        self._wait: Callable[[], FinishedEpisodes] | None = None  # returns the episodes of this evaluation

    def start(self, parts: RunParts) -> TrainedIteration | None:
        """Start the evaluation that runs in parallel to the next iteration, if one is due.

        Returns:
            The newest iteration if its evaluation was interrupted: it is repeated with the same policy, and nothing is
            trained. Else None.
        """
        interrupted, self.interrupted, self._wait = self.interrupted, None, None
        repeated, iteration = self._parallel_policy, parts.metrics.training_iteration + (interrupted is None)
        is_parallel = self._settings.evaluation_parallel_to_training and (interrupted is None or repeated is not None)
        if is_parallel and _is_due(self._settings.evaluation_interval, iteration):
            self._parallel_policy = repeated or EvaluatedPolicy.of(parts)
            self._wait = self.evaluator.submit(parts, repeated=repeated)
        return interrupted

    def finish_iteration(self, trained: TrainedIteration, parts: RunParts, is_last: bool = False) -> None:
        """Run the evaluations that are due, and add their metrics to the result.

        Args:
            trained: the newest iteration.
            parts: parts of the run.
            is_last: whether this is the last iteration of the run; evaluations are then due at any interval.

        Raises:
            Interrupted: the run was asked to end; the next `start` returns the same iteration.
        """
        evaluator, result, iteration = self.evaluator, trained.result, parts.metrics.training_iteration
        interval, offline_interval = self._settings.evaluation_interval, self._settings.offline_evaluation_interval
        is_due = interval is not None if is_last else _is_due(interval, iteration)
        is_due_offline = evaluator.held_out is not None if is_last else _is_due(offline_interval, iteration)
        try:
            if is_due and EVALUATION_RETURN not in result:
                result |= evaluator.evaluate(parts, wait=self._wait)
            self._parallel_policy = self._wait = None
            if is_due_offline and NUM_EPISODES not in result:
                result |= evaluator.evaluate_offline(parts)
        except Interrupted:
            self.interrupted = trained
            raise
        except Exception:
            self._parallel_policy = self._wait = None  # a failed evaluation is not repeated
            raise

    def get_state(self) -> dict[str, Any]:
        """Return the policy and the result to repeat an interrupted evaluation; empty if there is none."""
        trained, policy = self.interrupted, self._parallel_policy
        return {
            **({} if trained is None else {"iteration": {"result": trained.result, _IS_REPORTED: trained.is_reported}}),
            **({} if policy is None else {"policy": vars(policy)}),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""
        trained, policy = state.get("iteration"), state.get("policy")
        self.interrupted = trained and TrainedIteration(trained["result"], trained[_IS_REPORTED])
        self._parallel_policy = policy and EvaluatedPolicy(**policy)

    def reset(self, old_state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint in which all evaluations have ended."""
        self.set_state({})

    def close(self) -> None:
        """Close the environments of evaluations."""
        self.evaluator.close()


def _is_due(interval: int | None, iteration: int) -> bool:
    return interval is not None and iteration % interval == 0
