"""When evaluations are due, and which of them are repeated after an interrupt."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from runner.config.blocks import EvaluationConfig
from runner.config.offline_evaluation import NUM_EPISODES
from runner.experiment.evaluation_schedule import EvaluationSchedule, TrainedIteration
from runner.experiment.evaluator import EvaluatedPolicy
from runner.interrupts import Interrupted
from runner.tracking.headline import EVALUATION_RETURN
from tests.plans.hand_made import config_of, parts_of


class _Evaluator:
    """Records its calls, and raises `error` in those whose name begins with `interrupts`."""

    def __init__(self, interrupts: str = "", error: type[Exception] = Interrupted) -> None:
        self.calls: list[str] = []
        self.interrupts, self.error, self.held_out = interrupts, error, object()

    def submit(self, parts: Any, repeated: EvaluatedPolicy | None) -> Any:
        """Begin an evaluation."""
        self.calls.append("submit" if repeated is None else f"repeat from {repeated.num_env_steps_sampled}")
        return lambda: "episodes"

    def evaluate(self, parts: Any, wait: Any) -> dict[str, Any]:
        """Return a metric."""
        return self._result("evaluate" if wait is None else f"wait for {wait()}", EVALUATION_RETURN)

    def evaluate_offline(self, parts: Any) -> dict[str, Any]:
        """Return a metric."""
        return self._result("offline", NUM_EPISODES)

    def _result(self, call: str, metric: str) -> dict[str, Any]:
        self.calls.append(call)
        if self.interrupts and call.startswith(self.interrupts):
            raise self.error
        return {metric: 1.0}


def _made(evaluator: _Evaluator, **settings: Any) -> EvaluationSchedule:
    evaluation: EvaluationConfig = replace(config_of().evaluation, **settings)
    return EvaluationSchedule(evaluation, evaluator)  # type: ignore[arg-type]


def _parts(iteration: int) -> Any:
    parts = parts_of(learners=SimpleNamespace(get_weights=dict), env_runners=SimpleNamespace(shared_state={}))
    parts.metrics.training_iteration = iteration
    parts.metrics.num_env_steps_sampled_lifetime = 7 * iteration
    return parts


def _calls_of_iterations(number: int, is_last: bool = False, **settings: Any) -> list[list[str]]:
    evaluator = _Evaluator()
    schedule = _made(evaluator, **settings)
    calls = []
    for iteration in range(1, number + 1):
        assert schedule.start(_parts(iteration - 1)) is None
        schedule.finish_iteration(TrainedIteration({}), _parts(iteration), is_last)
        calls.append(evaluator.calls)
        evaluator.calls = []
    return calls


def test_evaluations_are_due_at_their_intervals() -> None:
    calls = _calls_of_iterations(4, evaluation_interval=2, offline_evaluation_interval=3)
    assert calls == [[], ["evaluate"], ["offline"], ["evaluate"]]


def test_all_are_due_at_the_end_unless_the_result_has_them() -> None:
    assert _calls_of_iterations(1, True, evaluation_interval=9) == [["evaluate", "offline"]]
    assert _calls_of_iterations(1, True) == [["offline"]], "nothing else is evaluated without an interval"
    evaluator = _Evaluator()
    _made(evaluator, evaluation_interval=9).finish_iteration(
        TrainedIteration({EVALUATION_RETURN: 1.0, NUM_EPISODES: 1}), _parts(1), is_last=True
    )
    assert evaluator.calls == []


def test_an_evaluation_in_parallel_starts_before_its_iteration() -> None:
    calls = _calls_of_iterations(3, evaluation_interval=2, evaluation_parallel_to_training=True)
    assert calls == [[], ["submit", "wait for episodes"], []]


@pytest.mark.parametrize("is_reported", [False, True])
@pytest.mark.parametrize("interrupts", ["evaluate", "offline"])
def test_only_what_was_interrupted_is_repeated(interrupts: str, is_reported: bool) -> None:
    settings = {"evaluation_interval": 1, "offline_evaluation_interval": 1}
    schedule = _made(_Evaluator(interrupts), **settings)
    trained = TrainedIteration({"loss": 2.0}, is_reported)
    assert schedule.start(_parts(0)) is None
    with pytest.raises(Interrupted):
        schedule.finish_iteration(trained, _parts(1))
    result = {"loss": 2.0} | ({EVALUATION_RETURN: 1.0} if interrupts == "offline" else {})
    assert schedule.get_state() == {"iteration": {"result": result, "is_told": is_reported}}
    evaluator = _Evaluator()
    resumed = _made(evaluator, **settings)
    resumed.set_state(schedule.get_state())
    repeated = resumed.start(_parts(1))
    assert repeated == trained
    resumed.finish_iteration(repeated, _parts(1))
    assert evaluator.calls == (["evaluate"] if interrupts == "evaluate" else []) + ["offline"]
    assert repeated.result == {"loss": 2.0, EVALUATION_RETURN: 1.0, NUM_EPISODES: 1.0}
    assert resumed.get_state() == {}
    assert resumed.start(_parts(1)) is None


@pytest.mark.parametrize("is_trained", [False, True])
def test_an_evaluation_in_parallel_is_repeated_with_its_policy(is_trained: bool) -> None:
    settings = {"evaluation_interval": 1, "evaluation_parallel_to_training": True}
    schedule = _made(_Evaluator("wait"), **settings)
    assert schedule.start(_parts(4)) is None
    if is_trained:  # otherwise the iteration stops midway
        with pytest.raises(Interrupted):
            schedule.finish_iteration(TrainedIteration({}), _parts(5))
    evaluator = _Evaluator()
    resumed = _made(evaluator, **settings)
    resumed.set_state(schedule.get_state())
    trained = resumed.start(_parts(5 if is_trained else 4))
    assert (trained is not None) == is_trained
    resumed.finish_iteration(trained or TrainedIteration({}), _parts(5))
    assert evaluator.calls == ["repeat from 28", "wait for episodes"]
    assert resumed.get_state() == {}


def test_the_policy_of_a_failed_evaluation_in_parallel_is_not_evaluated_later() -> None:
    """The checkpoint after the failure continues with the next iteration."""
    settings = {"evaluation_interval": 1, "evaluation_parallel_to_training": True}
    schedule = _made(_Evaluator("wait", RuntimeError), **settings)
    assert schedule.start(_parts(4)) is None
    with pytest.raises(RuntimeError):
        schedule.finish_iteration(TrainedIteration({}), _parts(5))
    assert schedule.get_state() == {}
    evaluator = _Evaluator()
    resumed = _made(evaluator, **settings)
    resumed.set_state(schedule.get_state())
    assert resumed.start(_parts(5)) is None
    assert evaluator.calls == ["submit"]


def test_a_checkpoint_without_interrupted_evaluations_clears_them() -> None:
    schedule = _made(_Evaluator("evaluate"), evaluation_interval=1)
    with pytest.raises(Interrupted):
        schedule.finish_iteration(TrainedIteration({}), _parts(1))
    schedule.reset({})
    assert schedule.interrupted is None
