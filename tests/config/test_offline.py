"""The `offline` block against the algorithm: one message for each contradiction."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.config import build_experiment_config, compose_experiment
from runner.config.errors import ConfigError
from runner.experiment.ray_resources import tasks_on_data
from runner.offline.training.workers import actor_options

BC = ("+experiment=bc_cartpole", "offline.input_=data")


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        (["+experiment=bc_cartpole"], "BC learns from recorded data, and offline.input_ names none"),
        (["+experiment=ppo_cartpole", "offline.input_=x"], "PPO learns from what it samples"),
        ([*BC, "offline.materialize_data=true"], "the data would be held twice"),
        (
            [*BC, "offline.materialize_mapped_data=false", "offline.dataset_num_iters_per_learner=null"],
            "a stream has no passes",
        ),
        ([*BC, "offline.prelearner_buffer_kwargs={capcity: 5}"], "EpisodeReplayBuffer takes no argument capcity"),
        ([*BC, "offline.prelearner_buffer_class=nowhere.Thing"], "nowhere"),
        ([*BC, "offline.prelearner_kwargs={vocabulary: [a]}"], "are for a pre-learner of your own"),
        (
            [
                *BC,
                "offline.prelearner_class=runner.offline.OfflinePreLearner",
                "offline.prelearner_kwargs={config: 1}",
            ],
            "every pre-learner gets config from runner",
        ),
        ([*BC, "offline.map_batches_kwargs={num_cpu: 1}"], "offline.map_batches_kwargs has no num_cpu"),
        ([*BC, "offline.map_batches_kwargs={batch_size: 1}"], "see offline.input_read_batch_size"),
        ([*BC, "offline.map_batches_kwargs={concurrency: [2, 1]}"], "concurrency is no number of pre-learners"),
        ([*BC, "offline.map_batches_kwargs={ray_remote_args: {max_restart: 1}}"], "ray_remote_args has no max_restart"),
        (
            [*BC, "offline.map_batches_kwargs={num_cpus: 1, ray_remote_args: {num_cpus: 2}}"],
            "num_cpus is in offline.map_batches_kwargs and in its ray_remote_args",
        ),
        ([*BC, "offline.map_batches_kwargs={num_cpus: two}"], "map_batches_kwargs.num_cpus has the wrong type"),
        ([*BC, "offline.map_batches_kwargs={resources: {reader: many}}"], "resources.reader has the wrong type"),
        ([*BC, "offline.map_batches_kwargs={resources: {reader: 1.5}}"], "resources.reader is no amount"),
        (
            [*BC, "offline.map_batches_kwargs={ray_remote_args: {resources: {CPU: 1}}}"],
            "ray_remote_args.resources names CPU",
        ),
        (
            [*BC, "offline.map_batches_kwargs={ray_remote_args: {scheduling_strategy: PACK}}"],
            "ray_remote_args.scheduling_strategy is not one of its choices",
        ),
        ([*BC, "offline.iter_batches_kwargs={prefetch: 1}"], "offline.iter_batches_kwargs has no prefetch"),
        ([*BC, "engine=inline", "learners.num_learners=2"], "engine inline has one learner"),
        ([*BC, "offline.prelearner_class=nowhere.Thing"], "nowhere"),
        ([*BC, "stop={env_runners/episode_return_mean: 1}"], "env_runners/episode_return_mean"),
    ],
)
def test_a_contradiction(overrides: list[str], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_experiment_config(compose_experiment(overrides))
    (problem,) = caught.value.problems
    assert what in str(problem)


@pytest.mark.parametrize("strategy", ["DEFAULT", "SPREAD"])
def test_places_of_prelearners(strategy: str) -> None:
    remote_args = f"ray_remote_args: {{scheduling_strategy: {strategy}}}"
    placed = f"offline.map_batches_kwargs={{concurrency: 2, resources: {{reader: 0.5}}, {remote_args}}}"
    config = build_experiment_config(compose_experiment([*BC, placed]))
    prelearner = {"CPU": 1, "GPU": 0, "reader": 0.5}
    assert tasks_on_data(config) == [prelearner, prelearner, {"CPU": 1.0, "GPU": 0.0}]
    assert actor_options(config.offline)["scheduling_strategy"] == strategy


def test_recorded_data_for_an_algorithm_that_learns_from_them() -> None:
    assert build_experiment_config(compose_experiment(list(BC))).offline.input_ == str(Path("data").absolute())
