"""Off-policy runs with a MeanStdFilter: raw rows are stored, and standardised once they are replayed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner import Trainer
from runner.config.operators import OPERATORS
from runner.config.plans.needs import learns_from_replay_only
from runner.config.plans.steps import read_plan
from runner.episodes.columns import Rollout
from runner.pipelines.mean_std_filter import Moments
from runner.pipelines.raw_observations import raw_filters
from runner.plans.operators.replay import replayed
from tests.support.configs import config_from
from tests.support.resuming import assert_resumes_exactly, assert_same_on_ray

ID = "default_policy"
FILTER = "connectors=mean_std_filter"
INSERT = "{insert_after: %s, connector: {_target_: runner.pipelines.%s}}"
AFTER = "connectors.env_to_module=[%s, %s]" % (  # noqa: UP031
    INSERT % ("AddObservationsFromEpisodesToBatch", "MeanStdFilter"),
    INSERT % ("MeanStdFilter", "WriteObservationsToEpisodes"),
)
BEFORE = "connectors.env_to_module=[%s, %s]" % (  # noqa: UP031
    INSERT % ("AddObservationsFromEpisodesToBatch", "FlattenObservations"),
    INSERT % ("FlattenObservations", "MeanStdFilter"),
)
QUICK = (
    *("seed=100", "tracking=none", "evaluation=none", "module.fcnet_hiddens=[8]"),
    *("algorithm.train_batch_size_per_learner=16", "algorithm.training_intensity=4"),
    *("algorithm.num_steps_sampled_before_learning_starts=50", "algorithm.min_sample_timesteps_per_iteration=200"),
)


def trainer_of(*overrides: str, experiment: str = "sac_pendulum") -> Trainer:
    return Trainer.from_experiment(experiment, [*QUICK, *overrides])


def filter_state(trainer: Trainer) -> dict[str, Any]:
    state: dict[str, Any] = trainer.env_runners.shared_state[ID]["MeanStdFilter"]
    return state


def test_rows_are_stored_raw_and_standardised_when_they_are_replayed() -> None:
    with trainer_of(FILTER) as trainer:
        for _ in range(2):
            trainer.train()
        buffer = trainer.context.replay_buffers["replay"]
        ring = buffer._rings[ID]
        raw = np.asarray(ring.columns["obs"])[: len(ring)]
        np.testing.assert_allclose(np.square(raw[:, :2]).sum(-1), 1.0, rtol=1e-5)  # cosine and sine
        assert np.abs(raw[:, 2]).max() > 3
        state = filter_state(trainer)
        seen = Moments.from_state(state, "merged").merged(Moments.from_state(state, "own"))
        assert seen.count >= 400
        stream = buffer._stream.bit_generator.state
        expected = buffer.sample(64).rollout.blocks[ID]
        buffer._stream.bit_generator.state = stream
        item = replayed(trainer.context, "replay", 64)
        found = item.rollout.blocks[ID]
    standardised = ((expected.columns["obs"] - seen.mean) / seen.std()).clip(-10, 10)
    np.testing.assert_allclose(found.columns["obs"], standardised, rtol=1e-5, atol=1e-6)
    assert found.columns["obs"].dtype == np.float32
    for name in ("actions", "rewards"):
        np.testing.assert_array_equal(found.columns[name], expected.columns[name])


def test_the_newest_statistics_count() -> None:
    with trainer_of(FILTER) as trainer:
        trainer.train()
        context = trainer.context
        rollout = context.replay_buffers["replay"].sample(8).rollout
        before = context.standardised(rollout).blocks[ID].columns["obs"]
        trainer.train()
        after = context.standardised(rollout).blocks[ID].columns["obs"]
        state = filter_state(trainer)
    assert not np.allclose(before, after)
    seen = Moments.from_state(state, "merged").merged(Moments.from_state(state, "own"))
    raw = rollout.blocks[ID].columns["obs"]
    np.testing.assert_allclose(after, ((raw - seen.mean) / seen.std()).clip(-10, 10), rtol=1e-5, atol=1e-6)


def test_other_runs_replay_what_they_hold() -> None:
    with trainer_of() as trainer:
        trainer.train()
        rollout = trainer.context.replay_buffers["replay"].sample(8).rollout
        assert trainer.context.standardised(rollout) is rollout


@pytest.mark.parametrize("connectors", [AFTER, BEFORE], ids=["written after", "changed before"])
def test_a_filter_whose_input_is_not_held_goes_on_writing(connectors: str) -> None:
    with trainer_of(connectors) as trainer:
        trainer.train()
        assert not raw_filters(trainer._built_modules[ID].env_to_module)
        ring = trainer.context.replay_buffers["replay"]._rings[ID]
        sums = np.square(np.asarray(ring.columns["obs"])[: len(ring), :2]).sum(-1)
        assert not np.allclose(sums, 1.0)


TWO_INLINE = ("env_runners.num_env_runners=2", "engine=inline")


@pytest.mark.parametrize("engine", [(), pytest.param(TWO_INLINE, marks=pytest.mark.slow)], ids=["one", "two"])
def test_a_run_resumes_exactly(engine: tuple[str, ...], tmp_path: Path) -> None:
    assert_resumes_exactly(partial(trainer_of, FILTER, *engine), tmp_path)


@pytest.mark.slow
@pytest.mark.ray
def test_two_ray_runners_are_two_inline(ray_cluster: None) -> None:
    assert_same_on_ray(partial(trainer_of, FILTER, "env_runners.num_env_runners=2"), 1)


def test_agents_have_statistics_of_their_own() -> None:
    overrides = (
        *("env=multi_agent_cartpole", "multi_agent.agent_to_module={agent_0: left, agent_1: right}", FILTER),
        "algorithm.n_step=1",
    )
    with trainer_of(*overrides, experiment="dqn_cartpole") as trainer:
        trainer.train()
        context = trainer.context
        rollout = context.replay_buffers["replay"].sample(8).rollout
        swapped = Rollout({"left": rollout.blocks["right"], "right": rollout.blocks["left"]}, rollout.num_env_steps)
        found, other = context.standardised(rollout), context.standardised(swapped)
    assert not np.allclose(found.blocks["left"].columns["obs"], other.blocks["right"].columns["obs"])


REPLAYS = {
    "replay": ("[[ParallelRollouts, StoreToReplayBuffer], [Replay, TrainOneStep]]", True),
    "gradients": ("[[ParallelRollouts, StoreToReplayBuffer], [Replay, ComputeGradients, ApplyGradients]]", True),
    "mixed in": ("[[ParallelRollouts, StoreToReplayBuffer, TrainOneStep], [Replay, TrainOneStep]]", False),
    "on policy": ("[[ParallelRollouts, {MixInReplay: {}}, TrainOneStep]]", False),
    "two buffers": (
        "[[ParallelRollouts, StoreToReplayBuffer], [Replay, {MixInReplay: {buffer: recorded, store: false}}, "
        "ConcatBatches, TrainOneStep]]",
        True,
    ),
    "own": ("[[{_target_: tests.support.own_plans.two_batches}], [Replay, TrainOneStep]]", False),
}


@pytest.mark.parametrize("name", REPLAYS)
def test_plans_that_learn_from_replay_only(name: str) -> None:
    import yaml

    branches, expected = REPLAYS[name]
    plan = read_plan([{"Concurrently": {"plans": yaml.safe_load(branches)}}])
    assert "Concurrently" in OPERATORS
    assert learns_from_replay_only(plan, ID) == expected


def test_a_module_may_learn_from_replay_only_beside_one_that_does_not() -> None:
    config = config_from("+experiment=ppo_dqn_multi_agent_cartpole")
    plan = read_plan(config.algorithm.plan)
    assert not learns_from_replay_only(plan, "p0")
    assert learns_from_replay_only(plan, "p1")
