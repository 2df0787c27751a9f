"""The `offline` block against the algorithm: one message for each contradiction."""

from __future__ import annotations

import pytest

from runner.config import build_experiment_config, compose_experiment
from runner.config.errors import ConfigError

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


def test_recorded_data_for_an_algorithm_that_learns_from_them() -> None:
    assert build_experiment_config(compose_experiment(list(BC))).offline.input_ == "data"
