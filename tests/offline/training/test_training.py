"""Learning from recorded data through Ray Data."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runner.config.errors import ConfigError
from runner.config.offline import OfflineConfig
from runner.config.schemas import ModuleConfig
from runner.experiment.trainer import Trainer
from runner.modules import ActorCriticModule
from runner.offline.reading.source import open_source
from runner.offline.training.prelearner import OfflinePreLearner
from runner.pipelines import SingleAgentObservationPreprocessor
from tests.conftest import ROOT, without_times
from tests.support.resuming import train

RECORDED = ROOT / "tests" / "data" / "rllib_cartpole_episodes"  # ten episodes, 3,614 steps
SMALL = (
    f"offline.input_={RECORDED}",
    "module.fcnet_hiddens=[16]",
    "algorithm.train_batch_size_per_learner=512",
    "evaluation.evaluation_interval=null",
    "checkpoint.metric=training_iteration",
    "~stop.evaluation.env_runners.episode_return_mean",
)


class OwnPreLearner(OfflinePreLearner):
    """Maps rows itself."""

    def _map_to_episodes(self, *args: Any, **kwargs: Any) -> Any:
        return super()._map_to_episodes(*args, **kwargs)


class Doubling(SingleAgentObservationPreprocessor):
    """Twice the observation."""

    def preprocess(self, observation: Any, episode: Any) -> Any:
        return 2 * observation


class OwnMemory(ActorCriticModule):
    """A module with memory that the configuration does not show."""

    def __init__(self, observation_space: Any, action_space: Any, config: ModuleConfig) -> None:
        super().__init__(observation_space, action_space, replace(config, use_gru=True, lstm_cell_size=8))


REWARDS = (
    "connectors.learner=[{insert_after: AddColumnsFromEpisodesToTrainBatch, "
    "connector: {_target_: tests.support.reporting_connectors.RewardSum}}]",
)

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")]


@pytest.mark.slow
def test_a_pass_has_every_step_once_and_an_interrupted_run_goes_on(ray_cluster: None, tmp_path: Path) -> None:
    overrides = [*SMALL, "offline.dataset_num_iters_per_learner=null"]
    with Trainer.from_experiment("bc_cartpole", overrides) as straight:
        expected = train(straight, 3)
    assert [line["num_env_steps_sampled"] for line in expected] == [3614, 3614, 3614]
    with Trainer.from_experiment("bc_cartpole", [*SMALL, "offline.dataset_num_iters_per_learner=3"]) as first:
        train(first, 3)  # in the middle of the second pass
        state = first.get_state()
        following = train(first, 2)
    with Trainer.from_experiment("bc_cartpole", [*SMALL, "offline.dataset_num_iters_per_learner=3"]) as second:
        second.set_state(state)
        assert train(second, 2) == following


@pytest.mark.slow
def test_streamed_data_with_advantages_of_the_newest_module(ray_cluster: None) -> None:
    overrides = [*SMALL, "offline.dataset_num_iters_per_learner=8", "algorithm.lr=1e-2"]
    with Trainer.from_experiment("marwil_cartpole", overrides) as trainer:
        lines = train(trainer, 2)
    assert lines[1]["num_env_steps_sampled_lifetime"] == 2 * 8 * 512  # more than two passes
    name = "learners/default_policy/vf_loss"
    assert lines[1][name] < lines[0][name]


@pytest.mark.slow
def test_what_connectors_report_on_recorded_data(ray_cluster: None) -> None:
    overrides = [*SMALL, *REWARDS, "offline.dataset_num_iters_per_learner=null"]
    with Trainer.from_experiment("bc_cartpole", [*overrides, "+stop.connectors.learner.reward_sum=1e9"]) as trainer:
        for line in train(trainer, 2):
            assert line["connectors/learner/reward_sum"] == line["num_env_steps_sampled"], "CartPole pays 1 a step"
            assert line["connectors/learner/rows_p90"] > 0, "values that are kept travel with the rows, too"


def test_env_connectors_report_nothing_on_recorded_data() -> None:
    connector = "{append: {_target_: tests.support.reporting_connectors.CartPositions}}"
    named = ["+stop.connectors.env_to_module.left_fraction=1", f"connectors.env_to_module=[{connector}]"]
    with pytest.raises(ConfigError, match="this run does not produce the metric connectors/env_to_module/left"):
        Trainer.from_experiment("bc_cartpole", [*SMALL, *named])


@pytest.mark.slow
def test_a_buffer_gives_whole_batches_of_fragments(ray_cluster: None) -> None:
    buffer = [
        "offline.prelearner_buffer_kwargs={capacity: 2000, batch_length_T: 16}",
        "offline.input_read_batch_size=2",
    ]
    workers = ["offline.map_batches_kwargs={concurrency: [1, 2], num_cpus: 0.5}"]
    overrides = [*SMALL, *buffer, *workers, "offline.dataset_num_iters_per_learner=null"]
    with Trainer.from_experiment("bc_cartpole", overrides) as trainer:
        (line,) = train(trainer, 1)
    # Ten episodes in two files, two a call, each call samples a batch; a call may or may not reach over files.
    assert line["num_env_steps_sampled"] in (5 * 512, 6 * 512)


def first_observations(trainer: Trainer) -> torch.Tensor:
    """(B, ...) of the first train batch."""
    device = trainer.learners.device
    with closing(trainer.context.recorded_data.readers(1)[0].batches(device)) as reader:
        observations: torch.Tensor = next(reader).columns["default_policy"]["obs"]
    return observations


@pytest.mark.slow
def test_connectors_that_write_observations_are_applied_to_recorded_ones(ray_cluster: None) -> None:
    """Recorded are the environment's; the module sees in training what it will see when it acts."""
    doubling = "connectors.env_to_module=[{prepend: {_target_: tests.offline.training.test_training.Doubling}}]"
    with Trainer.from_experiment("bc_cartpole", [*SMALL, doubling]) as trainer:
        doubled = first_observations(trainer)
    with Trainer.from_experiment("bc_cartpole", SMALL) as trainer:
        plain = first_observations(trainer)
    assert doubled.equal(2 * plain)


FILTER = "connectors=mean_std_filter"


def standardised(observations: Any, recorded: Any) -> torch.Tensor:
    """Return observations as a filter gives them that has seen all recorded ones once."""
    deviation = recorded.std(0, ddof=1)
    return torch.from_numpy(np.clip((observations - recorded.mean(0)) / deviation, -10, 10).astype(np.float32))


def recorded_observations() -> Any:
    """(R + E, 4) all observations of the recorded episodes."""
    source = open_source(OfflineConfig(input_=str(RECORDED)))
    return np.concatenate([block.columns["obs"] for block in source.blocks()]).astype(np.float64)


@pytest.mark.slow
def test_a_filter_knows_all_recorded_observations_before_training(ray_cluster: None) -> None:
    with Trainer.from_experiment("bc_cartpole", SMALL) as trainer:
        plain = first_observations(trainer)
    with Trainer.from_experiment("bc_cartpole", [*SMALL, FILTER]) as trainer:
        filtered = first_observations(trainer)
        (state,) = trainer.parts.shared_state["default_policy"].values()
    expected = recorded_observations()
    assert state["merged_count"] == len(expected) == 3624  # the last observation of each of ten episodes, too
    np.testing.assert_allclose(state["merged_mean"], expected.mean(0), rtol=1e-9)
    torch.testing.assert_close(filtered, standardised(plain.numpy().astype(np.float64), expected), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_run_with_a_filter_goes_on_and_acts_with_the_same_statistics(ray_cluster: None) -> None:
    overrides = [*SMALL, FILTER, "offline.dataset_num_iters_per_learner=2", "evaluation.evaluation_interval=1"]
    overrides.remove("evaluation.evaluation_interval=null")
    with Trainer.from_experiment("bc_cartpole", overrides) as first:
        train(first, 2)
        state = first.get_state()
        following = train(first, 2)
        evaluated = first.evaluate()
    with Trainer.from_experiment("bc_cartpole", overrides) as second:
        second.set_state(state)
        assert train(second, 2) == following
        assert without_times(second.evaluate()) == without_times(evaluated)
        assert second.evaluator.env_runners is not None
        (seen,) = second.evaluator.env_runners.shared_state["default_policy"].values()
        assert seen["merged_count"] == 3624


@pytest.mark.slow
def test_statistics_of_a_checkpoint_win_over_the_ones_of_the_data(ray_cluster: None) -> None:
    with Trainer.from_experiment("bc_cartpole", [*SMALL, FILTER]) as trainer:
        plain = first_observations(trainer)
        (state,) = trainer.parts.shared_state["default_policy"].values()
        shifted = {**state, "merged_mean": state["merged_mean"] + 0.01}
        trainer.parts.broadcast_policy({"default_policy": {"MeanStdFilter": shifted}})
        moved = first_observations(trainer)
    deviation = np.sqrt(state["merged_m2"] / (state["merged_count"] - 1))
    torch.testing.assert_close(moved, (plain - torch.from_numpy(0.01 / deviation)).float(), rtol=1e-4, atol=1e-5)


def test_a_filter_on_data_that_only_ray_reads_is_refused() -> None:
    overrides = [*SMALL, FILTER, "offline.prelearner_class=tests.offline.training.test_training.OwnPreLearner"]
    with pytest.raises(ConfigError, match="MeanStdFilter must learn from all recorded observations before training"):
        Trainer.from_experiment("bc_cartpole", overrides)


def test_actions_in_the_units_of_the_environment_are_refused(tmp_path: Path) -> None:
    """D4RL's files hold what the environment was given, runner's what the module chose."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "pendulum.hdf5", "w") as file:
        file["observations"] = np.zeros((6, 3), np.float32)
        file["actions"] = np.full((6, 1), 1.5, np.float32)
        file["rewards"] = np.zeros(6, np.float32)
        file["terminals"] = np.zeros(6, np.bool_)
        file["timeouts"] = np.array([False, False, True] * 2)
    with pytest.raises(ConfigError, match="these actions are in the environment's units"):
        Trainer.from_experiment("iql_pendulum", [f"offline.input_={tmp_path / 'pendulum.hdf5'}"])


@pytest.mark.slow
@pytest.mark.parametrize("experiment", ["bc_cartpole", "marwil_cartpole"])
def test_a_module_with_memory_learns_from_steps_without_states(experiment: str, ray_cluster: None) -> None:
    memory = ("module.use_lstm=true", "module.lstm_cell_size=8", "module.max_seq_len=10")
    overrides = [*SMALL, *memory, "offline.dataset_num_iters_per_learner=10"]
    with Trainer.from_experiment(experiment, overrides) as trainer:
        losses = [trainer.train()["learners/default_policy/policy_loss"] for _ in range(3)]
    assert np.isfinite(losses).all()
    if experiment == "bc_cartpole":  # MARWIL's weights change with the advantages
        assert losses[2] < losses[0]


@pytest.mark.slow
def test_a_batch_of_sequences_has_the_configured_number_of_env_steps(ray_cluster: None) -> None:
    memory = ("module._target_=tests.offline.training.test_training.OwnMemory", "module.max_seq_len=10")
    with Trainer.from_experiment("bc_cartpole", [*SMALL, *memory]) as trainer:
        assert first_observations(trainer).shape == (51, 10, 4)  # 512 env steps, rounded down to entire sequences
