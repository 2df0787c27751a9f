"""Train batches that are made while remote learners update: updates are the same, on samples one update older."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from runner.config.errors import RunFailure
from runner.episodes.columns import Rollout
from runner.experiment.learner_builder import build_learner_group
from runner.experiment.trainer import Trainer
from runner.learners.remote_learner_group import RemoteLearnerGroup
from runner.module_building import build_modules
from runner.pipelines import LearnerConnector
from tests.conftest import marked_but, without_times
from tests.plans.test_auxiliary_modules import MODEL

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

IN_ORDER = "{ParallelRollouts: {mode: async, num_async: 2, deterministic: true}}"
JOINED = f"{IN_ORDER}, {{ConcatBatches: {{min_env_steps: 100}}}}"  # of two samples at least
REPLAYED = f"{JOINED}, {{MixInReplay: {{replay_proportion: 0.5}}}}"
SMALL = (
    "algorithm.train_batch_size_per_learner=60",
    "algorithm.min_sample_timesteps_per_iteration=300",
    "env_runners.num_envs_per_env_runner=2",
    "env_runners.num_env_runners=2",
    "module.fcnet_hiddens=[4]",
    "evaluation=none",
    "tracking=none",
)
RUNS = {
    "impala": ("impala_cartpole", f"algorithm.plan=[{JOINED}, TrainOneStep]", "connectors=mean_std_filter"),
    "appo": ("appo_cartpole", f"algorithm.plan=[{REPLAYED}, TrainOneStep, UpdateTargetNetwork]"),
    "memory": (
        "appo_stateless_cartpole_lstm",
        f"algorithm.plan=[{REPLAYED}, TrainOneStep, UpdateTargetNetwork]",
        "module.lstm_cell_size=4",
        "algorithm.minibatch_size=null",
    ),
    "auxiliary": ("impala_cartpole", f"algorithm.plan=[{JOINED}, TrainOneStep]", MODEL),
    "agents": ("impala_multi_agent_cartpole", f"algorithm.plan=[{JOINED}, TrainOneStep]"),
}
AHEAD = ("learners.prefetch=true", "learners.num_learners=1")
RESTARTS = "fault_tolerance/num_learner_restarts"
LAG = "env_runners/weights_lag_mean"
Updates = list[tuple[Rollout, int]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Updates:
    """What learners have been sent, and the env steps that their updates were told."""
    rollouts: dict[int, Rollout] = {}
    updates: Updates = []
    send, begin = RemoteLearnerGroup.send, RemoteLearnerGroup.begin_update

    def keeping_rollout(group: RemoteLearnerGroup, rollout: Rollout) -> list[Any]:
        parts = send(group, rollout)
        rollouts[id(parts)] = rollout
        return parts

    def keeping_update(group: RemoteLearnerGroup, parts: list[Any], num_env_steps: int) -> Callable[[], Any]:
        updates.append((rollouts[id(parts)], num_env_steps))
        return begin(group, parts, num_env_steps)

    monkeypatch.setattr(RemoteLearnerGroup, "send", keeping_rollout)
    monkeypatch.setattr(RemoteLearnerGroup, "begin_update", keeping_update)
    return updates


def trainer_of(run: str, *overrides: str) -> Trainer:
    experiment, *own = RUNS[run]
    return Trainer.from_experiment(experiment, [*SMALL, *own, *overrides])


def results_of(trainer: Trainer, num_iterations: int) -> list[dict[str, Any]]:
    results = [without_times(trainer.train()) for _ in range(num_iterations)]
    return [{name: value for name, value in result.items() if name != RESTARTS} for result in results]


@pytest.mark.slow
def test_updates_are_the_ones_of_a_learner_that_gets_the_same_samples_one_after_the_other(sent: Updates) -> None:
    with trainer_of("impala", *AHEAD) as trainer:
        results_of(trainer, 3)
        weights, state, config = trainer.learners.get_weights(), trainer.get_state(), trainer.config
    with trainer_of("impala") as trainer:
        alone = build_learner_group(trainer.config, build_modules(config))
        alone.set_weights(trainer.learners.get_weights())
    for rollout, num_env_steps in sent:
        alone.update(rollout, num_env_steps)
    np.testing.assert_equal(alone.get_weights(), weights)
    told = [num_env_steps for _, num_env_steps in sent]
    assert told == [sum(rollout.num_env_steps for rollout, _ in sent[: number + 1]) for number in range(len(sent))]
    assert state["plan"]["operators"]["TrainOneStep"]["num_env_steps"] > told[-1]


@pytest.mark.slow
def test_samples_are_one_update_older() -> None:
    lags = []
    for overrides in (["learners.num_learners=1"], [*AHEAD]):
        with trainer_of("impala", *overrides) as trainer:
            lags.append(results_of(trainer, 4)[-1][LAG])
    assert lags[1] == pytest.approx(lags[0] + 1, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_a_run_goes_on_from_its_checkpoint_and_after_lost_learners_with_the_same_numbers(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = ("learners.prefetch=true", "learners.num_learners=2")
    with trainer_of(run, *two) as trainer:
        straight, weights = results_of(trainer, 3), trainer.learners.get_weights()
    with trainer_of(run, *two) as trainer:
        assert results_of(trainer, 1) == straight[:1]
        state = trainer.get_state()
    with trainer_of(run, *two) as trainer:
        trainer.set_state(state)
        _kill_in_update(trainer, 2, monkeypatch)
        assert results_of(trainer, 2) == straight[1:]
        assert trainer.last_result[RESTARTS] == 1
        np.testing.assert_equal(trainer.learners.get_weights(), weights)


def _kill_in_update(trainer: Trainer, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL of a learner when its update of this number has begun."""

    learners: Any = trainer.learners
    [_, pid] = learners.gang.call_processes(lambda _: os.getpid())
    begin, calls = learners.begin_update, iter(range(1000))

    def begin_and_kill(*arguments: Any) -> Any:
        end = begin(*arguments)
        if next(calls) == number:
            os.kill(pid, signal.SIGKILL)
        return end

    monkeypatch.setattr(learners, "begin_update", begin_and_kill)


class WaitingForNext(LearnerConnector):
    """Returns when the driver has sent the rows of the next update, by the number of files in `folder`."""

    num_calls = 0

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def __call__(self, *, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        self.num_calls += 1
        give_up = time.monotonic() + 60
        while len(list(self._folder.iterdir())) <= self.num_calls:
            assert time.monotonic() < give_up, "the next rows come after the update"
            time.sleep(0.01)
        return batch


def test_the_next_batch_is_made_and_sent_while_learners_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Learners wait for it in their updates, so that a driver that waits for an update first ends the run."""
    send = RemoteLearnerGroup.send

    def send_and_tell(group: RemoteLearnerGroup, rollout: Rollout) -> list[Any]:
        parts = send(group, rollout)
        (tmp_path / str(len(list(tmp_path.iterdir())))).touch()
        return parts

    monkeypatch.setattr(RemoteLearnerGroup, "send", send_and_tell)
    connector = f"{{_target_: {__name__}.WaitingForNext, folder: {tmp_path}}}"
    waiting = f"connectors.learner=[{{insert_before: AgentToModuleMapping, connector: {connector}}}]"
    with trainer_of("impala", *AHEAD, waiting) as trainer:
        assert results_of(trainer, 2)[-1]["num_env_steps_trained_lifetime"] >= 500


def test_nothing_else_changes_learners_that_have_begun_an_update() -> None:
    with trainer_of("appo", *AHEAD) as trainer:
        results_of(trainer, 1)
        learners, operator = trainer.learners, cast(Any, trainer.context.operators["TrainOneStep"])
        rollout = operator._prefetching._ahead.item.rollout
        end = learners.begin_update(learners.send(rollout), 0)
        for change in (lambda: learners.update(rollout, 0), lambda: learners.update_targets(0.5)):
            with pytest.raises(RuntimeError, match="cannot be changed during an update"):
                change()
        end()
        learners.update_targets(0.5)
        end = learners.begin_update(learners.send(rollout), 0)
        learners.set_state(learners.get_state())
        with pytest.raises(RuntimeError, match="was replaced during this update"):
            end()


def num_ahead(result: dict[str, Any]) -> int:
    """Env steps that were sampled and are not learned from yet."""
    return int(result["num_env_steps_sampled_lifetime"] - result["num_env_steps_trained_lifetime"])


@pytest.mark.parametrize("num_learners", marked_but(pytest.mark.slow, [0, 1, 2], 0))
def test_a_run_goes_on_without_prefetch_after_a_checkpoint_with_it(num_learners: int) -> None:
    """The item ahead is learned from first: nothing that was sampled is lost, or counted twice."""
    with trainer_of("impala", *AHEAD) as trainer:
        assert num_ahead(results_of(trainer, 2)[-1]) >= 100
        state = trainer.get_state()
    with trainer_of("impala", f"learners.num_learners={num_learners}") as trainer:
        trainer.set_state(state)
        assert [num_ahead(result) for result in results_of(trainer, 2)] == [0, 0]


@pytest.mark.slow
def test_a_run_goes_on_with_prefetch_after_a_checkpoint_without_it() -> None:
    with trainer_of("impala", "learners.num_learners=1") as trainer:
        assert num_ahead(results_of(trainer, 2)[-1]) == 0
        state = trainer.get_state()
    with trainer_of("impala", *AHEAD) as trainer:
        trainer.set_state(state)
        assert 100 <= num_ahead(results_of(trainer, 2)[-1]) <= 140


def test_a_loss_that_is_not_finite_names_the_rows_of_its_update(monkeypatch: pytest.MonkeyPatch) -> None:
    send, numbers = RemoteLearnerGroup.send, iter(range(1000))

    def send_spoilt(group: RemoteLearnerGroup, rollout: Rollout) -> list[Any]:
        if next(numbers) == 2:
            rollout.blocks["default_policy"].columns["rewards"][-1] = np.nan
        return send(group, rollout)

    monkeypatch.setattr(RemoteLearnerGroup, "send", send_spoilt)
    spoilt = pytest.raises(RunFailure, match=r"the batch contains rewards = nan \(env runner")
    with trainer_of("impala", *AHEAD) as trainer, spoilt:
        results_of(trainer, 2)
