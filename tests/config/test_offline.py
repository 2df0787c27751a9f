"""Contradictions between the `offline` block and the algorithm: one message each."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.config.errors import ConfigError
from runner.experiment.ray_resources import tasks_on_data
from runner.offline.training.workers import actor_options
from tests.support.configs import config_from

BC = ("+experiment=bc_cartpole", "offline.input_=data")


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        (["+experiment=bc_cartpole"], "BC learns from recorded data, but offline.input_ is not set"),
        (["+experiment=ppo_cartpole", "offline.input_=x"], "PPO learns from sampled steps"),
        ([*BC, "offline.materialize_data=true"], "would hold the data twice"),
        (
            [*BC, "offline.materialize_mapped_data=false", "offline.dataset_num_iters_per_learner=null"],
            "streamed data",
        ),
        (
            [*BC, "offline.prelearner_buffer_kwargs={capcity: 5}"],
            "EpisodeReplayBuffer does not take the argument capcity",
        ),
        ([*BC, "offline.prelearner_buffer_class=nowhere.Thing"], "nowhere"),
        ([*BC, "offline.prelearner_kwargs={vocabulary: [a]}"], "needs a custom pre-learner class"),
        (
            [
                *BC,
                "offline.prelearner_class=runner.offline.OfflinePreLearner",
                "offline.prelearner_kwargs={config: 1}",
            ],
            "must not contain config",
        ),
        (
            [*BC, "offline.map_batches_kwargs={num_cpu: 1}"],
            "offline.map_batches_kwargs does not have an option num_cpu",
        ),
        ([*BC, "offline.map_batches_kwargs={batch_size: 1}"], "see offline.input_read_batch_size"),
        (
            [*BC, "offline.map_batches_kwargs={concurrency: [2, 1]}"],
            "concurrency is not a valid number of pre-learners",
        ),
        (
            [*BC, "offline.map_batches_kwargs={ray_remote_args: {max_restart: 1}}"],
            "ray_remote_args does not have an option max_restart",
        ),
        (
            [*BC, "offline.map_batches_kwargs={num_cpus: 1, ray_remote_args: {num_cpus: 2}}"],
            "num_cpus is set twice: in offline.map_batches_kwargs and in its ray_remote_args",
        ),
        ([*BC, "offline.map_batches_kwargs={num_cpus: two}"], "map_batches_kwargs.num_cpus has the wrong type"),
        ([*BC, "offline.map_batches_kwargs={resources: {reader: many}}"], "resources.reader has the wrong type"),
        ([*BC, "offline.map_batches_kwargs={resources: {reader: 1.5}}"], "resources.reader is not a valid amount"),
        (
            [*BC, "offline.map_batches_kwargs={ray_remote_args: {resources: {CPU: 1}}}"],
            "ray_remote_args.resources contains CPU",
        ),
        (
            [*BC, "offline.map_batches_kwargs={ray_remote_args: {scheduling_strategy: PACK}}"],
            "ray_remote_args.scheduling_strategy is not one of its choices",
        ),
        (
            [*BC, "offline.iter_batches_kwargs={prefetch: 1}"],
            "offline.iter_batches_kwargs does not have an option prefetch",
        ),
        ([*BC, "engine=inline", "learners.num_learners=2"], "engine=inline has a single learner"),
        ([*BC, "offline.prelearner_class=nowhere.Thing"], "nowhere"),
        ([*BC, "stop={env_runners/episode_return_mean: 1}"], "env_runners/episode_return_mean"),
    ],
)
def test_a_contradiction(overrides: list[str], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from(*overrides)
    (problem,) = caught.value.problems
    assert what in str(problem)


@pytest.mark.parametrize("strategy", ["DEFAULT", "SPREAD"])
def test_places_of_prelearners(strategy: str) -> None:
    remote_args = f"ray_remote_args: {{scheduling_strategy: {strategy}}}"
    placed = f"offline.map_batches_kwargs={{concurrency: 2, resources: {{reader: 0.5}}, {remote_args}}}"
    config = config_from(*BC, placed)
    prelearner = {"CPU": 1, "GPU": 0, "reader": 0.5}
    assert tasks_on_data(config) == [prelearner, prelearner, {"CPU": 1.0, "GPU": 0.0}]
    assert actor_options(config.offline)["scheduling_strategy"] == strategy


def test_recorded_data_for_an_algorithm_that_learns_from_them() -> None:
    assert config_from(*BC).offline.input_ == str(Path("data").absolute())
